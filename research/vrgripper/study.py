"""Which heads clone two ways past a post, and what one demonstration of a task teaches.

    python -m research.vrgripper.study --out vrgripper_out --seeds 2

collects, trains, acts with the exports in the same fresh episodes, and writes
`table.md` and `episodes.png`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from research import runs
from research.vrgripper import vrgripper_env
from research.vrgripper import vrgripper_env_models as env_models
from t2r_seq import actors, meta_learning, policies, store
from t2r_seq.meta_learning.meta_policies import pack_condition

_CONFIGS = "research/vrgripper/configs"
HEADS = {
  "MSEDecoder": "squared error",
  "MDNDecoder": "mixture density",
  "DiscreteDecoder": "discretised",
  "MAFDecoder": "autoregressive flow",
  "FlowMatchingDecoder": "flow matching",
}
# What is trained for a model of tasks, in its order: trials are of the policy before.
MODELS = {
  "maml": ("maml",),
  "tec": ("tec",),
  "daml": ("daml",),
  "wtl": ("watch", "retrial"),
}
_ROWS = {
  "maml, before": "MAML, shown nothing",
  "maml": "MAML, shown a demonstration",
  "tec": "TEC, shown a demonstration",
  "daml": "MAML by a learned loss, shown a hand",
  "wtl, before": "watch: shown a demonstration that has two meanings",
  "wtl": "watch, try, learn: and having tried once",
}
_DATA_OF = {
  **{"maml": "tasks", "tec": "tasks", "daml": "tasks"},
  **{"watch": "lamp", "retrial": "trials"},
}
# Of a task's episodes in some data: what they are to it.
_KINDS = {
  "tasks": ("hand", "demo", "demo"),
  "lamp": ("demo", "target", "target"),
  "trials": ("demo", "trial", "target"),
}
# Samples of how many episodes, as the gin files have it.
_CONDITIONS = {"maml": (8, 1), "tec": (2, 1), "daml": (2, 1)}
_CONDITIONS |= {"watch": (2, 1), "retrial": (4, 2)}
# Of data: their seed, and the most episodes or tasks that they have.
_PARTS = {"train": (0, sys.maxsize), "eval": (1, 32)}
_FRESH_SEED, _SHOWN_SEED, _TRIAL_SEED = 2, 3, 4


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the study; returns the exit status: 0 if ways and tasks are learned."""
  parser = runs.parser(__doc__, "vrgripper_out")
  parser.add_argument("--heads", nargs="*", default=list(HEADS), choices=HEADS)
  parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
  parser.add_argument("--episodes", type=int, default=600, help="past the post")
  parser.add_argument("--tasks", type=int, default=2000, help="of the other data")
  parser.add_argument("--steps", type=int, help="of each training; else as gin says")
  parser.add_argument("--fresh", type=int, default=100, help="episodes to act in")
  args = parser.parse_args(argv)
  out, post = args.out, {part: args.out / "data" / f"post_{part}" for part in _PARTS}
  found: dict[str, list[float]] = {name: [] for name in [*HEADS, *_ROWS]}
  if args.heads:
    for part, (seed, most) in _PARTS.items():
      config = f"{_CONFIGS}/collect_vrgripper.gin"
      runs.collect(config, post[part], min(args.episodes, most), seed=seed)
  for seed in range(args.seeds):
    for name in [*args.heads, *args.models]:
      for part in MODELS.get(name, (name,)):
        data = post if part in HEADS else collect_tasks(out, part, args.tasks, seed)
        train(out, part, seed, data, args.steps, *args.gin_bindings)
      with runs.stage(f"act, {name}, seed {seed}"):
        for row, rate in evaluate(out, name, seed, args.fresh).items():
          found[row].append(rate)
          print(f"{row}: {rate:.3f}", flush=True)
  if args.heads:
    (out / "episodes.png").write_bytes(picture(out, args.heads[:2]))
  tables = [
    runs.table(
      (what, "success"),
      [[row, runs.mean_and_interval(found[n])] for n, row in rows.items() if found[n]],
    )
    for what, rows in (("head", HEADS), ("policy of tasks", _ROWS))
    if any(found[name] for name in rows)
  ]
  # Of three blocks, one in three is found by chance.
  held = [*args.models, *({"MDNDecoder"} & set(args.heads))]
  is_good = all(np.mean(found[name]) > 0.5 for name in held)
  return runs.conclude(
    args,
    "\n".join(tables),
    is_good,
    "a demonstration is not understood, or the mixture runs into the post.",
  )


def collect_tasks(
  out: pathlib.Path, name: str, num_tasks: int, seed: int
) -> dict[str, pathlib.Path]:
  """Writes stores of tasks, three episodes of each, unless they are there.

  Args:
    out: folder of all.
    name: of what is trained on them.
    num_tasks: to train on.
    seed: of the training whose policy acts, where there are trials.
  Returns:
    The store to train on and that to evaluate on.
  """
  data, found = _DATA_OF[name], {}
  for part, (first_seed, most) in _PARTS.items():
    label = f"{data}_{seed}_{part}" if data == "trials" else f"{data}_{part}"
    path = found[part] = out / "data" / label
    if path.exists():
      continue
    trying = None
    if data == "trials":
      # In other tasks than those that it knows.
      trying, first_seed = load(out, "watch", seed), first_seed + _TRIAL_SEED
    with runs.stage(f"collect {label}"), runs.whole(path) as place:
      write_tasks(place, data, min(num_tasks, most), first_seed, trying)
  return found


def write_tasks(
  path: pathlib.Path, data: str, num_tasks: int, seed: int, trying: Any = None
) -> None:
  """Writes a store of tasks.

  Args:
    path: of the store.
    data: which episodes each task has.
    num_tasks: how many.
    seed: of all.
    trying: the policy of the second episode; None: the expert, as in the others.
  """
  env, kinds, numbers = _env_of(data), _KINDS[data], itertools.count()
  expert = vrgripper_env.VRGripperExpertPolicy(env)
  columns = env_models.vrgripper_episode_specification(None, True)
  with contextlib.closing(env), store.EpisodeStore.create(path, columns) as writer:

    def append(steps: actors.rollouts.Episode) -> None:
      task, place = divmod(next(numbers), len(kinds))
      features = env_models.episode_to_transitions(steps, task, kinds[place])
      writer.append_episode(features)

    actors.run_meta_env(
      env,
      meta_learning.WatchTryLearnPolicy(trying or expert, expert),
      expert,
      num_tasks=num_tasks,
      num_adaptations_per_task=len(kinds) - 1,
      seed=seed,
      episode_writer=append,
    )


def train(
  out: pathlib.Path,
  name: str,
  seed: int,
  data: dict[str, pathlib.Path],
  num_steps: int | None,
  *bindings: str,
) -> None:
  """Trains and exports one model, as its gin file says."""
  config = "train_vrgripper.gin" if name in HEADS else f"vrgripper_{name}.gin"
  stores = [f"{part.upper()}_STORE = {str(path)!r}" for part, path in data.items()]
  if name in HEADS:
    stores.append(f"VRGripperRegressionModel.action_decoder_cls = @{name}")
  model_dir = runs.run_dir(out, name, seed)
  runs.train(
    f"{_CONFIGS}/{config}", model_dir, seed, *stores, *bindings, num_steps=num_steps
  )


def load(out: pathlib.Path, name: str, seed: int) -> Any:
  """Loads what a training exported, as the policy that it is."""
  if name == "wtl":
    both = (load(out, part, seed) for part in MODELS["wtl"])
    return meta_learning.WatchTryLearnPolicy(*both)
  predictor = runs.load(runs.run_dir(out, name, seed))
  if name in HEADS:
    return policies.RegressionPolicy(predictor)
  num_samples, num_episodes = _CONDITIONS[name]
  pack = functools.partial(
    pack_condition, num_samples=num_samples, num_episodes=num_episodes
  )
  return meta_learning.MAMLRegressionPolicy(predictor, pack_condition_fn=pack)


def evaluate(
  out: pathlib.Path, name: str, seed: int, num_episodes: int
) -> dict[str, float]:
  """Returns the rate of success of each row; all meet the same episodes."""
  policy, before = load(out, name, seed), f"{name}, before"
  if name in HEADS:
    env = vrgripper_env.VRGripperEnv(has_post=True)
    rates = runs.evaluate(policy, env, num_episodes, _FRESH_SEED)
    return {name: float(rates.success_rate or 0.0)}
  has_trial = name == "wtl"
  env = _env_of("lamp" if has_trial else "tasks", starts_by_hand=name == "daml")
  run = functools.partial(
    actors.run_meta_env,
    env,
    policy,
    num_tasks=num_episodes,
    num_adaptations_per_task=2 if has_trial else 1,
    seed=_FRESH_SEED,
  )
  with contextlib.closing(env):
    shown = run(vrgripper_env.VRGripperExpertPolicy(env))
    if has_trial:
      return {before: shown["step_0_reward"], name: shown["step_1_reward"]}
    found = {name: shown["step_0_reward"]}
    if name == "maml":
      found[before] = run(None)["step_0_reward"]
  return found


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


def _env_of(data: str, starts_by_hand: bool = True) -> vrgripper_env.VRGripperEnv:
  """Creates the environment of some tasks, without frames."""
  has_lamp = data != "tasks"
  return vrgripper_env.VRGripperEnv(
    starts_by_hand=starts_by_hand and not has_lamp, has_lamp=has_lamp, image_size=None
  )


if __name__ == "__main__":
  sys.exit(main())
