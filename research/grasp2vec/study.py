"""What was lifted: is it found again, and where was it?

    python -m research.grasp2vec.study --out grasp2vec_out --seeds 3

collects grasps, trains, and asks the exports about grasps that they have not seen;
writes `table.md` and `heatmaps.png`.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from research import runs
from research.grasp2vec import grasp2vec_models
from t2r_seq import actors, policies, store, training

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
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", default="grasp2vec_out", help="for what is written")
  parser.add_argument("--seeds", type=int, default=1, help="trainings")
  parser.add_argument("--grasps", type=int, default=1500, help="to learn from")
  parser.add_argument("--held_out", type=int, default=300, help="to be asked about")
  parser.add_argument("--bind", nargs="*", default=[], help="gin bindings of trainings")
  args = parser.parse_args(argv)
  start, out = time.monotonic(), pathlib.Path(args.out)
  for part, count, seed in (("train", args.grasps, 0), ("eval", args.held_out, 1)):
    collect(out, part, count, seed)
  grasps = load_grasps(_data(out, "eval"))
  found: dict[str, list[Rates]] = {name: [] for name in _ROWS}
  for seed in range(args.seeds):
    with runs.stage(f"train, seed {seed}"):
      train(out, seed, args.bind)
    predictors = {
      "grasp2vec": load(out, seed),
      "untrained": untrained(out, seed, args.bind),
    }
    for name, predictor in predictors.items():
      embedded = embed(predictor, grasps)
      found[name].append(evaluate(grasps, embedded))
      print(f"{name}, seed {seed}: {found[name][-1]}", flush=True)
      if name == "grasp2vec" and seed == 0:
        (out / "heatmaps.png").write_bytes(picture(grasps, embedded["heat"]))
  found["colours"].append(evaluate(grasps, embed_colours(grasps)))
  found["chance"].append(chance(grasps))
  table = table_of(found)
  (out / "table.md").write_text(table, encoding="utf-8")
  print(f"\n{len(grasps['pixel'])} grasps that lifted something\n\n{table}")
  print(f"The study took {time.monotonic() - start:.0f} s.")
  rates = [[r["retrieval"] for r in found[name]] for name in ("grasp2vec", "colours")]
  if not np.mean(rates[0]) > np.mean(rates[1]):
    print("study: no more grasps are found again than by colours.", file=sys.stderr)
    return 1
  return 0


def collect(out: pathlib.Path, part: str, num_grasps: int, seed: int) -> None:
  """Writes grasps to learn from, or to be asked about, unless they are there."""
  path = _data(out, part)
  if not pathlib.Path(path).exists():
    with (
      runs.stage(f"collect, {part}"),
      runs.configured(
        _COLLECT,
        f"GRASP_STORE_DIR = {path!r}",
        f"collect_episodes.num_episodes = {num_grasps}",
        f"collect_episodes.seed = {seed}",
      ),
    ):
      actors.collect_episodes()


def load_grasps(path: str) -> Grasps:
  """Reads the grasps of a store that lifted something.

  Returns:
    `before`, `after`, `goal`, [N, H, W, 3] uint8, and the truth: `pixel` [N, 2] and
    `kind` [N, 4].
  """
  found: dict[str, list[np.ndarray]] = {}
  episodes = store.EpisodeStore(path)
  for number in range(len(episodes)):
    episode = episodes.episode(number)
    if episode["reward"][0] > 0:
      grasp = {
        "before": episode["state/scene"][0],
        "after": episode["state/scene"][1],
        "goal": episode["state/held"][1],
        "pixel": episode["truth/pixel"][0],
        "kind": episode["truth/kind"][0],
      }
      for name, value in grasp.items():
        found.setdefault(name, []).append(value)
  return {name: np.stack(values) for name, values in found.items()}


def train(out: pathlib.Path, seed: int, bindings: Sequence[str] = ()) -> None:
  """Trains and exports, as the gin file says."""
  with _configured(out, seed, bindings):
    training.train_eval_model()


def load(out: pathlib.Path, seed: int) -> policies.AbstractPredictor:
  """Loads what a training exported."""
  export_dir = f"{_run(out, seed)}/export/latest"
  predictor = policies.ExportedSavedModelPredictor(export_dir, timeout=0.0)
  predictor.restore()
  return predictor


def untrained(
  out: pathlib.Path, seed: int, bindings: Sequence[str] = ()
) -> policies.AbstractPredictor:
  """Makes the same model, with weights at random."""
  with _configured(out, seed, bindings):
    predictor = policies.CheckpointPredictor(grasp2vec_models.Grasp2VecModel())
    predictor.init_randomly()
  return predictor


def embed(predictor: policies.AbstractPredictor, grasps: Grasps) -> Embedded:
  """Returns what an export makes of grasps: vectors, and the places of the goals."""
  said = predictor.predict(
    {
      "pregrasp_image": grasps["before"],
      "postgrasp_image": grasps["after"],
      "goal_image": grasps["goal"],
    }
  )
  height, width = grasps["before"].shape[1:3]
  return {
    "removed": said["pre_vector"] - said["post_vector"],
    "goal": said["goal_vector"],
    "place": said["location"] * (width, height),
    "heat": said["heatmap"][..., 0],
  }


def embed_colours(grasps: Grasps, blur: int = 5) -> Embedded:
  """Does the same sums with counts of pixels, by 64 colours, as embeddings."""
  bins = {
    name: np.sum((grasps[name] // 64).astype(int) * (16, 4, 1), axis=-1)
    for name in ("before", "after", "goal")
  }
  counts = {
    name: np.stack([np.bincount(each.ravel(), minlength=64) for each in value])
    for name, value in bins.items()
  }
  heat = np.stack([c[b] for c, b in zip(counts["goal"], bins["before"], strict=True)])
  # Within an object all is alike: its middle is where most of it is around.
  around = tf.nn.avg_pool2d(heat[..., np.newaxis].astype(np.float32), blur, 1, "SAME")
  heat = around.numpy()[..., 0]
  rows, columns = np.unravel_index(
    heat.reshape(len(heat), -1).argmax(axis=1), heat.shape[1:]
  )
  return {
    "removed": (counts["before"] - counts["after"]).astype(np.float32),
    "goal": counts["goal"].astype(np.float32),
    "place": np.stack([columns, rows], axis=1) + 0.5,
    "heat": heat,
  }


def evaluate(grasps: Grasps, found: Embedded) -> Rates:
  """Returns how often goals find their grasp, and their place."""
  goal, removed = [
    found[name] / (np.linalg.norm(found[name], axis=1, keepdims=True) + 1e-12)
    for name in ("goal", "removed")
  ]
  order = np.argsort(-goal @ removed.T, axis=1, kind="stable")
  is_own = order == np.arange(len(order))[:, np.newaxis]
  kinds = grasps["kind"]
  away = np.linalg.norm(found["place"] - grasps["pixel"], axis=1)
  return {
    "retrieval": float(is_own[:, 0].mean()),
    "top 5": float(is_own[:, :5].any(axis=1).mean()),
    "same kind": float((kinds[order[:, 0]] == kinds).all(axis=1).mean()),
    "localisation": float((away <= _ON_IT).mean()),
  }


def chance(grasps: Grasps) -> Rates:
  """Returns what guesses come to; of places, any in the picture."""
  kinds, (height, width) = grasps["kind"], grasps["before"].shape[1:3]
  is_same = (kinds[:, np.newaxis] == kinds).all(axis=2)
  return {
    "retrieval": 1 / len(kinds),
    "top 5": 5 / len(kinds),
    "same kind": float(is_same.mean()),
    "localisation": float(np.pi * _ON_IT**2 / (height * width)),
  }


def table_of(found: dict[str, list[Rates]]) -> str:
  """Returns the rates as a table, a row for each way to embed."""
  lines = [
    f"| embedding | {' | '.join(_COLUMNS.values())} |",
    f"| --- | {' | '.join('---:' for _ in _COLUMNS)} |",
  ]
  for name, seeds in found.items():
    cells = [
      runs.mean_and_interval([rates[key] for rates in seeds]) for key in _COLUMNS
    ]
    lines.append(f"| {_ROWS[name]} | {' | '.join(cells)} |")
  return "\n".join(lines) + "\n"


def picture(grasps: Grasps, heat: np.ndarray, count: int = 8, scale: int = 3) -> bytes:
  """Draws grasps in columns: before, after, what was lifted, where it was; a PNG."""
  columns = []
  for i in range(min(count, len(heat))):
    before = grasps["before"][i]
    warm = tf.image.resize(heat[i, ..., np.newaxis], before.shape[:2], "bilinear")
    share = warm.numpy() / (heat[i].max() + 1e-12)
    gray = before.mean(axis=2, keepdims=True) * 0.6
    overlaid = gray + share * (np.array([255.0, 110.0, 0.0]) - gray)
    rows = [before, grasps["after"][i], grasps["goal"][i], overlaid.astype(np.uint8)]
    column = np.concatenate(rows).repeat(scale, axis=0).repeat(scale, axis=1)
    columns.append(np.pad(column, ((0, 0), (0, 4), (0, 0)), constant_values=255))
  return tf.io.encode_png(np.concatenate(columns, axis=1)).numpy()


@contextlib.contextmanager
def _configured(
  out: pathlib.Path, seed: int, bindings: Sequence[str]
) -> Iterator[None]:
  places = [
    f"TRAIN_STORE = {_data(out, 'train')!r}",
    f"EVAL_STORE = {_data(out, 'eval')!r}",
    f"train_eval_model.model_dir = {_run(out, seed)!r}",
    "train_eval_model.create_exporters_fn = @create_default_exporters",
    "create_default_exporters.exporter_fns = [@LatestExporter]",
  ]
  with runs.configured(_TRAIN, *places, *bindings):
    tf.keras.utils.set_random_seed(seed)
    yield


def _run(out: pathlib.Path, seed: int) -> str:
  return str(out / "runs" / f"grasp2vec_{seed}")


def _data(out: pathlib.Path, part: str) -> str:
  return str(out / "data" / part)


if __name__ == "__main__":
  sys.exit(main())
