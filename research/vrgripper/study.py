"""Which heads clone two ways past a post, and what one demonstration of a task teaches.

    python -m research.vrgripper.study --out vrgripper_out --seeds 2

collects, trains, acts with the exports in the same fresh episodes, and writes
`heads.md`, `tasks.md` and `episodes.png`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from research import runs
from research.vrgripper import vrgripper_env
from research.vrgripper import vrgripper_env_models as env_models
from t2r_seq import actors, meta_learning, policies, store, training

_CONFIGS = "research/vrgripper/configs"
HEADS = {
  "MSEDecoder": "squared error",
  "MDNDecoder": "mixture density",
  "DiscreteDecoder": "discretised",
  "MAFDecoder": "autoregressive flow",
  "FlowMatchingDecoder": "flow matching",
}
# Of the run's name: which gin file.
MODELS = {"maml": "vrgripper_maml.gin", "daml": "vrgripper_daml.gin"}
_ROWS = {
  "maml, before": "MAML, shown nothing",
  "maml": "MAML, shown a demonstration",
  "daml": "MAML by a learned loss, shown a hand",
}
_KINDS = ("hand", "demo", "demo")
_FRESH_SEED, _SHOWN_SEED = 2, 3


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the study; returns the exit status: 0 if a demonstration is understood."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "--out", default="vrgripper_out", help="folder of what is written"
  )
  parser.add_argument("--seeds", type=int, default=1, help="trainings of each model")
  parser.add_argument("--heads", nargs="*", default=list(HEADS), choices=HEADS)
  parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
  parser.add_argument("--episodes", type=int, default=600, help="or tasks, of the data")
  parser.add_argument("--steps", type=int, help="of each training; else as gin says")
  parser.add_argument("--fresh", type=int, default=100, help="episodes to act in")
  parser.add_argument("--gin_bindings", nargs="*", default=[], help="of each training")
  args = parser.parse_args(argv)
  start, out = time.monotonic(), pathlib.Path(args.out)
  out.mkdir(parents=True, exist_ok=True)
  found: dict[str, list[float]] = {name: [] for name in [*HEADS, *_ROWS]}
  for seed in range(args.seeds):
    for name in [*args.heads, *args.models]:
      collect(out, _data_of(name), args.episodes)
      with runs.stage(f"train {name}, seed {seed}"):
        train(out, name, seed, args.steps, args.gin_bindings)
      with runs.stage(f"act, {name}, seed {seed}"):
        for row, rate in evaluate(out, name, seed, args.fresh).items():
          found[row].append(rate)
          print(f"{row}: {rate:.3f}", flush=True)
  if args.heads:
    (out / "episodes.png").write_bytes(picture(out, args.heads[:2]))
  for name, table in (
    ("heads", table_of(found, HEADS)),
    ("tasks", table_of(found, _ROWS)),
  ):
    (out / f"{name}.md").write_text(table, encoding="utf-8")
    print(f"\n{table}")
  print(f"The study took {time.monotonic() - start:.0f} s.")
  before, after = (np.mean(found[row] or [0.0]) for row in ("maml, before", "maml"))
  if found["maml"] and not after > before + 0.2:
    print("study: a demonstration is not understood.", file=sys.stderr)
    return 1
  return 0


def collect(out: pathlib.Path, data: str, num_episodes: int) -> None:
  """Writes episodes to train and to evaluate on, unless they are there."""
  parts = {"train": (num_episodes, 0), "eval": (min(num_episodes, 32), 1)}
  for part, (count, seed) in parts.items():
    path = _data(out, data, part)
    if pathlib.Path(path).exists():
      continue
    with runs.stage(f"collect {data}, {part}"):
      if data == "tasks":
        collect_tasks(path, count, seed)
        continue
      bindings = [
        f"VRGRIPPER_STORE_DIR = {path!r}",
        f"collect_episodes.num_episodes = {count}",
        f"collect_episodes.seed = {seed}",
      ]
      with runs.configured(f"{_CONFIGS}/collect_vrgripper.gin", *bindings):
        actors.collect_episodes()


def collect_tasks(path: str, num_tasks: int, seed: int) -> None:
  """Writes a store of tasks: of each a hand, and two demonstrations."""
  env = _env_of_tasks(starts_by_hand=True)
  expert = vrgripper_env.VRGripperExpertPolicy(env)
  columns = env_models.vrgripper_episode_specification(None, True)
  numbers = itertools.count()
  with contextlib.closing(env), store.EpisodeStore.create(path, columns) as writer:

    def append(steps: actors.Episode) -> None:
      task, place = divmod(next(numbers), len(_KINDS))
      features = env_models.episode_to_transitions(steps, task, _KINDS[place])
      writer.append_episode(features)

    actors.run_meta_env(
      env,
      expert,
      num_tasks=num_tasks,
      num_adaptations_per_task=1,
      num_episodes_per_adaptation=len(_KINDS),
      seed=seed,
      episode_writer=append,
    )


def train(
  out: pathlib.Path,
  name: str,
  seed: int,
  num_steps: int | None,
  more: Sequence[str] = (),
) -> None:
  """Trains and exports one model, as its gin file says."""
  config, data = MODELS.get(name, "train_vrgripper.gin"), _data_of(name)
  bindings = [
    f"TRAIN_STORE = {_data(out, data, 'train')!r}",
    f"EVAL_STORE = {_data(out, data, 'eval')!r}",
    f"train_eval_model.model_dir = {_run(out, name, seed)!r}",
    "train_eval_model.create_exporters_fn = @create_default_exporters",
    "create_default_exporters.exporter_fns = [@LatestExporter]",
  ]
  if name in HEADS:
    bindings.append(f"VRGripperRegressionModel.action_decoder_cls = @{name}")
  if num_steps is not None:
    bindings.append(f"NUM_TRAIN_STEPS = {num_steps}")
  with runs.configured(f"{_CONFIGS}/{config}", *bindings, *more):
    tf.keras.utils.set_random_seed(seed)
    training.train_eval_model()


def load(out: pathlib.Path, name: str, seed: int) -> Any:
  """Loads what a training exported, as the policy that it is."""
  export_dir = f"{_run(out, name, seed)}/export/latest"
  predictor = policies.ExportedSavedModelPredictor(export_dir, timeout=0.0)
  if name in HEADS:
    return policies.RegressionPolicy(predictor)
  # As `vrgripper_maml.gin` trains it.
  pack = functools.partial(meta_learning.pack_condition, num_samples=8, num_episodes=1)
  return meta_learning.MAMLRegressionPolicy(predictor, pack_condition_fn=pack)


def evaluate(
  out: pathlib.Path, name: str, seed: int, num_episodes: int
) -> dict[str, float]:
  """Returns the rate of success of each row; all meet the same episodes."""
  policy, found = load(out, name, seed), {}
  if name in HEADS:
    env = vrgripper_env.VRGripperEnv(has_post=True)
    with contextlib.closing(env):
      rates = actors.evaluate_policies(
        {name: policy}, env, num_episodes, (_FRESH_SEED,)
      )
    return {name: float(rates[name].success_rate or 0.0)}
  env = _env_of_tasks(starts_by_hand=name == "daml")
  expert = vrgripper_env.VRGripperExpertPolicy(env)
  demo_policies = {name: expert}
  if name == "maml":
    demo_policies["maml, before"] = None
  with contextlib.closing(env):
    for row, demo_policy in demo_policies.items():
      metrics = actors.run_meta_env(
        env,
        policy,
        demo_policy,
        num_tasks=num_episodes,
        num_adaptations_per_task=1,
        seed=_FRESH_SEED,
      )
      found[row] = metrics["step_0_reward"]
  return found


def table_of(found: dict[str, list[float]], labels: dict[str, str]) -> str:
  """Returns the rates of success of what was tried, a row each."""
  lines = ["| policy | success |", "| --- | ---: |"]
  for name, label in labels.items():
    if found[name]:
      lines.append(f"| {label} | {runs.mean_and_interval(found[name])} |")
  return "\n".join(lines) + "\n"


def picture(out: pathlib.Path, heads: Sequence[str]) -> bytes:
  """Draws one episode past the post, a row for each head; returns a PNG.

  Args:
    out: where trainings of the first seed are.
    heads: which of them.
  """
  env = vrgripper_env.VRGripperEnv(has_post=True)
  large = vrgripper_env.VRGripperEnv(True, image_size=120, render_mode="rgb_array")
  rows = [
    runs.film_strip(load(out, name, 0), env, large, _SHOWN_SEED) for name in heads
  ]
  return tf.io.encode_png(np.concatenate(rows)).numpy()


def _env_of_tasks(starts_by_hand: bool) -> vrgripper_env.VRGripperEnv:
  """Creates an environment of three blocks; nobody looks at its frames."""
  return vrgripper_env.VRGripperEnv(starts_by_hand=starts_by_hand, image_size=8)


def _data_of(name: str) -> str:
  return "post" if name in HEADS else "tasks"


def _run(out: pathlib.Path, name: str, seed: int) -> str:
  return str(out / "runs" / f"{name}_{seed}")


def _data(out: pathlib.Path, name: str, part: str) -> str:
  return str(out / "data" / f"{name}_{part}")


if __name__ == "__main__":
  sys.exit(main())
