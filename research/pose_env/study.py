"""Three ways to learn the still task, and a fourth for one with a hidden offset.

    python -m research.pose_env.study --out study_out --seeds 3

collects, trains the regression, the critic and MAML, acts with their exports in the
same fresh episodes, and writes `table.md`.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from research import runs
from research.pose_env import collect, pose_env, pose_env_models
from t2r_seq import actors, meta_learning, policies, specs, store

OFFSET = 0.4
_CONFIGS = "research/pose_env/configs"
# Of the run's name: which gin file, and which data.
_MODELS = {
  "regression": ("pose_env_still_stack1.gin", "still"),
  "critic": ("pose_env_still_critic.gin", "random"),
  "maml": ("pose_env_maml.gin", "tasks"),
}
_ROWS = {
  ("still", "regression"): "regression on the right answers",
  ("still", "critic"): "critic of random answers, with the cross-entropy method",
  ("offset", "regression"): "regression that knows of no offset",
  ("offset", "maml, before"): "MAML before its first episode",
  ("offset", "maml, after"): "MAML after one episode",
}
_FRESH_SEED = 2


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the study; returns the exit status: 0 if one episode removes the offset."""
  parser = runs.parser(__doc__, "study_out")
  parser.add_argument("--episodes", type=int, default=3000, help="of each data set")
  parser.add_argument("--steps", type=int, help="of each training; else as gin says")
  parser.add_argument("--fresh", type=int, default=100, help="episodes to act in")
  args = parser.parse_args(argv)
  out = args.out
  collect_all(out, args.episodes)
  errors: dict[tuple[str, str], list[float]] = {row: [] for row in _ROWS}
  for seed in range(args.seeds):
    for name in _MODELS:
      train(out, name, seed, args.steps, *args.gin_bindings)
    with runs.stage(f"act in {args.fresh} fresh episodes, seed {seed}"):
      for row, error in evaluate(out, seed, args.fresh).items():
        errors[row].append(error)
  rows = [
    [task, _ROWS[task, name], runs.mean_and_interval(values)]
    for (task, name), values in errors.items()
  ]
  table = runs.table(("task", "policy", "error (m)"), rows, num_labels=2)
  before, after = [np.mean(errors["offset", f"maml, {x}"]) for x in ("before", "after")]
  complaint = "one episode does not remove half of the error."
  return runs.conclude(args, table, after < before / 2, complaint)


def collect_all(out: pathlib.Path, num_episodes: int) -> None:
  """Writes each kind of data, to train and to evaluate on, unless it is there."""
  parts = {"train": (num_episodes, 0), "eval": (max(32, num_episodes // 10), 1)}
  for part, (count, seed) in parts.items():
    for name in ("still", "random"):
      config, path = f"{_CONFIGS}/collect_{name}.gin", _data(out, name, part)
      output = "collect_episodes.output_path"
      runs.collect(config, path, count, seed=seed, to=output)
    path = _data(out, "tasks", part)
    if not path.exists():
      with runs.stage(f"collect {path.stem}"), runs.whole(path) as place:
        collect_tasks(place, count // 2, seed)


def collect_tasks(path: pathlib.Path, num_tasks: int, seed: int) -> None:
  """Writes a store of two episodes of the right answers a task, with its number."""
  columns = pose_env_models.episode_specification()
  columns["task"] = specs.ExtendedTensorSpec((), tf.int64, name="task")
  env = pose_env.PoseEnv(hidden_offset=OFFSET)
  numbers = itertools.count()
  with contextlib.closing(env), store.EpisodeStore.create(path, columns) as writer:

    def append(steps: actors.rollouts.Episode) -> None:
      features = collect.pose_episode_to_features(steps)
      features["task"] = np.int64(next(numbers) // 2)
      writer.append_episode(features)

    actors.run_meta_env(
      env,
      collect.PoseEnvExpertPolicy(env),
      num_tasks=num_tasks,
      num_adaptations_per_task=1,
      num_episodes_per_adaptation=2,
      seed=seed,
      episode_writer=append,
    )


def train(
  out: pathlib.Path, name: str, seed: int, num_steps: int | None, *bindings: str
) -> None:
  """Trains and exports one model, as its gin file says."""
  config, data = _MODELS[name]
  runs.train(
    f"{_CONFIGS}/{config}",
    runs.run_dir(out, name, seed),
    seed,
    f"TRAIN_DATA = {str(_data(out, data, 'train'))!r}",
    f"EVAL_DATA = {str(_data(out, data, 'eval'))!r}",
    "create_default_exporters.exporter_fns = [@BestExporter]",
    *bindings,
    num_steps=num_steps,
  )


def evaluate(
  out: pathlib.Path, seed: int, num_episodes: int
) -> dict[tuple[str, str], float]:
  """Returns the mean error of each row, in metres; all meet the same episodes."""
  still = {
    "regression": policies.RegressionPolicy(_load(out, "regression", seed)),
    "critic": policies.RegressionPolicy(_load(out, "critic", seed), "action"),
  }
  found = {}
  for name, policy in still.items():
    with contextlib.closing(pose_env.PoseEnv()) as env:
      metrics = actors.run_env(
        env=env,
        policy=policy,
        num_episodes=num_episodes,
        seed=_FRESH_SEED,
        episode_metrics_fn=collect.pose_error,
      )
    found["still", name] = metrics["pose_error"]
  env = pose_env.PoseEnv(hidden_offset=OFFSET)
  maml = meta_learning.MAMLRegressionPolicy(_load(out, "maml", seed))
  asked: dict[str, Any] = {"num_tasks": num_episodes, "seed": _FRESH_SEED}
  with contextlib.closing(env):
    plain = actors.run_meta_env(
      env, still["regression"], num_adaptations_per_task=1, **asked
    )
    learned = actors.run_meta_env(env, maml, **asked)
  found["offset", "regression"] = -plain["step_0_reward"]
  found["offset", "maml, before"] = -learned["step_0_reward"]
  found["offset", "maml, after"] = -learned["step_1_reward"]
  return found


def _load(
  out: pathlib.Path, name: str, seed: int
) -> policies.ExportedSavedModelPredictor:
  return runs.load(runs.run_dir(out, name, seed), "best")


def _data(out: pathlib.Path, name: str, part: str) -> pathlib.Path:
  ending = "" if name == "tasks" else ".tfrecord"
  return out / "data" / f"{name}_{part}{ending}"


if __name__ == "__main__":
  sys.exit(main())
