"""What was lifted: is it found again, and where was it?

    python -m research.grasp2vec.study --out grasp2vec_out --seeds 3

collects grasps, trains, and asks the exports about grasps that they have not seen;
writes `table.md` and `heatmaps.png`.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from research import runs
from research.grasp2vec import grasp2vec_models
from t2r_seq import layers, policies, store

_COLLECT = "research/grasp2vec/configs/grasp2vec_collect.gin"
_TRAIN = "research/grasp2vec/configs/grasp2vec_train.gin"
# Of pixels: within so many of the middle of an object is on it.
_ON_IT = 4.0
_COLUMNS = {
  "retrieval": "its own grasp",
  "top 5": "its own among 5",
  "same kind": "one of its kind",
  "localisation": "where it was",
}
_ROWS = {
  "grasp2vec": "Grasp2Vec",
  "untrained": "the same, untrained",
  "colours": "64 colours, counted",
  "chance": "chance",
}
Grasps = dict[str, np.ndarray]
Embedded = dict[str, np.ndarray]
Rates = dict[str, float]


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the study; returns the exit status: 0 if it finds more than colours do."""
  parser = runs.parser(__doc__, "grasp2vec_out")
  parser.add_argument("--grasps", type=int, default=1500, help="to learn from")
  parser.add_argument("--held_out", type=int, default=300, help="to be asked about")
  args = parser.parse_args(argv)
  data = {part: args.out / "data" / part for part in ("train", "eval")}
  runs.collect(_COLLECT, data["train"], args.grasps)
  runs.collect(_COLLECT, data["eval"], args.held_out, seed=1)
  grasps = load_grasps(data["eval"])
  stores = [f"{part.upper()}_STORE = {str(path)!r}" for part, path in data.items()]
  found: dict[str, list[Rates]] = {name: [] for name in _ROWS}
  for seed in range(args.seeds):
    model_dir = runs.run_dir(args.out, "grasp2vec", seed)
    bindings = [*stores, *args.gin_bindings]
    runs.train(_TRAIN, model_dir, seed, *bindings)
    with runs.configured_run(_TRAIN, model_dir, seed, *bindings):
      untrained = policies.CheckpointPredictor(grasp2vec_models.Grasp2VecModel())
      untrained.init_randomly()
    trained = runs.load(model_dir)
    trained.restore()
    predictors = {"grasp2vec": trained, "untrained": untrained}
    for name, predictor in predictors.items():
      embedded = embed(predictor, grasps)
      found[name].append(evaluate(grasps, embedded))
      print(f"{name}, seed {seed}: {found[name][-1]}", flush=True)
      if name == "grasp2vec" and seed == 0:
        (args.out / "heatmaps.png").write_bytes(picture(grasps, embedded["heatmap"]))
  found["colours"].append(evaluate(grasps, embed_colours(grasps)))
  found["chance"].append(chance(grasps))
  rows = []
  for name, rates in found.items():
    cells = [runs.mean_and_interval([r[key] for r in rates]) for key in _COLUMNS]
    rows.append([_ROWS[name], *cells])
  table = runs.table(["embedding", *_COLUMNS.values()], rows)
  print(f"{len(grasps['pixel'])} grasps that lifted something")
  rate = {name: np.mean([r["retrieval"] for r in found[name]]) for name in found}
  complaint = "no more grasps are found again than by colours."
  return runs.conclude(args, table, rate["grasp2vec"] > rate["colours"], complaint)


def load_grasps(path: pathlib.Path) -> Grasps:
  """Reads the grasps of a store that lifted something.

  Returns:
    `pregrasp_image`, `postgrasp_image` and `goal_image`, [N, H, W, 3] uint8, and the
    truth: `pixel` [N, 2] and `kind` [N, 4].
  """
  logs = store.EpisodeStore(path)
  episodes = [logs.episode(number) for number in range(len(logs))]
  lifted = [episode for episode in episodes if episode["reward"][0] > 0]
  columns = {"pixel": ("truth/pixel", 0), "kind": ("truth/kind", 0)}
  for name, (_, column, offset) in grasp2vec_models.IMAGES.items():
    columns[name] = (column, 1 + offset)
  return {
    name: np.stack([episode[column][step] for episode in lifted])
    for name, (column, step) in columns.items()
  }


def embed(predictor: policies.AbstractPredictor, grasps: Grasps) -> Embedded:
  """Returns what an export says of grasps, and what it says was removed."""
  predicted = predictor.predict(
    {name: grasps[name] for name in grasp2vec_models.IMAGES}
  )
  return {**predicted, "removed": predicted["pre_vector"] - predicted["post_vector"]}


def embed_colours(grasps: Grasps) -> Embedded:
  """Does the same sums with counts of pixels, by 64 colours, as embeddings."""
  bins = [
    np.sum((grasps[name] // 64).astype(int) * (16, 4, 1), -1)
    for name in grasp2vec_models.IMAGES
  ]
  before, after, goal = [
    np.stack([np.bincount(each.ravel(), minlength=64) for each in value])
    for value in bins
  ]
  heat = np.stack([c[b] for c, b in zip(goal, bins[0], strict=True)])
  heat = heat[..., np.newaxis].astype(np.float32)
  return {
    "removed": (before - after).astype(np.float32),
    "goal_vector": goal.astype(np.float32),
    "location": grasp2vec_models.peaks(heat, around=5).numpy(),
    "heatmap": heat,
  }


def evaluate(grasps: Grasps, found: Embedded) -> Rates:
  """Returns how often goals find their grasp, and their place."""
  height, width = grasps["pregrasp_image"].shape[1:3]
  away = np.linalg.norm(found["location"] * (width, height) - grasps["pixel"], axis=1)
  kinds = np.unique(grasps["kind"], axis=0, return_inverse=True)[1].ravel()
  among = functools.partial(
    layers.losses.retrieval_accuracy, found["goal_vector"], found["removed"]
  )
  return {
    "retrieval": float(among()),
    "top 5": float(among(num_nearest=5)),
    "same kind": float(among(labels=kinds)),
    "localisation": float((away <= _ON_IT).mean()),
  }


def chance(grasps: Grasps) -> Rates:
  """Returns what guesses come to; of places, any in the picture."""
  kinds, (height, width) = grasps["kind"], grasps["pregrasp_image"].shape[1:3]
  is_same = (kinds[:, np.newaxis] == kinds).all(axis=2)
  return {
    "retrieval": 1 / len(kinds),
    "top 5": 5 / len(kinds),
    "same kind": float(is_same.mean()),
    "localisation": float(np.pi * _ON_IT**2 / (height * width)),
  }


def picture(grasps: Grasps, heat: np.ndarray, count: int = 8, scale: int = 3) -> bytes:
  """Draws grasps in columns: before, after, what was lifted, where it was; a PNG."""
  before, after, goal = [grasps[name][:count] for name in grasp2vec_models.IMAGES]
  share = heat[:count] / (heat[:count].max(axis=(1, 2, 3), keepdims=True) + 1e-12)
  warm = tf.image.resize(share, before.shape[1:3], "bilinear").numpy()
  gray = before.mean(axis=3, keepdims=True) * 0.6
  overlaid = (gray + warm * (np.array([255.0, 110.0, 0.0]) - gray)).astype(np.uint8)
  columns = np.concatenate([before, after, goal, overlaid], axis=1)
  columns = columns.repeat(scale, axis=1).repeat(scale, axis=2)
  gap = ((0, 0), (0, 0), (0, 4), (0, 0))
  columns = np.pad(columns, gap, constant_values=255)
  return tf.io.encode_png(np.concatenate([*columns], axis=1)).numpy()


if __name__ == "__main__":
  sys.exit(main())
