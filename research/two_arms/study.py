"""Two arms in one policy, against a policy of each arm: success by robot, three seeds.

    python -m research.two_arms.study --out demo_out/two_arms --seeds 3

Scripted demonstrations of two arms with 7 and 6 joints are recorded. `t2r_seq train`
trains one policy on both, and one on each; nothing of a policy is written here. The run
of both has twice the steps of a run of one: it sees as much of each arm. `t2r_seq
evaluate` runs all in the same episodes.
"""

from __future__ import annotations

import json
import pathlib
import shlex
import sys
from collections.abc import Sequence

import numpy as np

from research import runs
from research.two_arms import arms
from t2r_seq import zoo
from t2r_seq.cli import console
from t2r_seq.cli import main as run_command

POLICY = "mlp"
NUM_DEMOS, NUM_STEPS, NUM_EPISODES = 100, 3000, 100
TOGETHER, APART = "together", "apart"
# Other episodes than those that are recorded.
_EVAL_SEED = 10_000
_BINDINGS = ("MLPModel.chunk_size = 4", "MLPModel.num_executed = 1")

Success = dict[str, dict[str, list[float]]]


def train(
  model_dir: pathlib.Path,
  datasets: Sequence[pathlib.Path],
  steps: int,
  seed: int,
  bindings: Sequence[str] = (),
) -> None:
  """Trains a policy by command, unless its export is there.

  Args:
    model_dir: of the run.
    datasets: one of each arm.
    steps: of the training.
    seed: of weights and batches.
    bindings: further ones.
  Raises:
    SystemExit: it failed.
  """
  if (model_dir / "export" / "latest").exists():
    return
  words = ["train", "--policy", POLICY, "--size", "tiny", "--dataset"]
  words += [*map(str, datasets), "--model_dir", str(model_dir), "--steps", str(steps)]
  words += ["--gin_bindings", *_BINDINGS]
  words += [f"SEED = {seed}", f"CHECKPOINT_STEPS = {steps}", *bindings]
  print(f"$ t2r_seq {shlex.join(words)}", flush=True)
  if status := run_command(words):
    raise SystemExit(status)


def success(
  model_dir: pathlib.Path, arm: str, robot: str | None, num_episodes: int
) -> float:
  """Returns the success of the newest export; `t2r_seq evaluate` prints the same."""
  export = str(model_dir / "export" / "latest")
  predictor = console.load_export(export, False, robot)
  found = zoo.evaluate.evaluate_export(
    predictor, arms.ENVS[arm], num_episodes=num_episodes, seed=_EVAL_SEED
  )
  print(f"{model_dir.name}: {arm}: success {found.success_rate:.0%}", flush=True)
  return float(found.success_rate or 0.0)


def run(
  out: pathlib.Path,
  num_seeds: int,
  num_demos: int,
  steps: int,
  num_episodes: int,
  bindings: Sequence[str] = (),
) -> Success:
  """Records, trains and evaluates.

  Args:
    out: the folder.
    num_seeds: of demonstrations and trainings.
    num_demos: episodes of each arm.
    steps: of a training of one arm.
    num_episodes: of an evaluation.
    bindings: of each training.
  Returns:
    Success of each seed, by way of training and arm.
  """
  found: Success = {way: {arm: [] for arm in arms.ARMS} for way in (APART, TOGETHER)}
  for seed in range(num_seeds):
    folder = out / str(seed)
    datasets = {arm: folder / arm for arm in arms.ARMS}
    with runs.stage(f"seed {seed}"):
      for arm, path in datasets.items():
        if not path.exists():
          rate = arms.record(arm, str(path), num_demos, seed)
          print(f"expert: {arm}: success {rate:.0%}", flush=True)
      model_dir = folder / TOGETHER
      train(model_dir, [*datasets.values()], 2 * steps, seed, bindings)
      for arm, path in datasets.items():
        rate = success(model_dir, arm, arm, num_episodes)
        found[TOGETHER][arm].append(rate)
        alone = folder / f"{APART}_{arm}"
        train(alone, [path], steps, seed, bindings)
        found[APART][arm].append(success(alone, arm, None, num_episodes))
  return found


def make_table(found: Success) -> str:
  """Returns success in percent by robot: mean of the seeds, half the 95 % interval."""
  rows = [
    [way, *(runs.mean_and_interval(100 * np.asarray(v), 0) for v in by_arm.values())]
    for way, by_arm in found.items()
  ]
  return runs.table(["trained", *(f"{arm}, %" for arm in arms.ARMS)], rows)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the study; returns the exit status."""
  parser = runs.parser(__doc__, "demo_out/two_arms")
  parser.set_defaults(seeds=3)
  parser.add_argument("--demos", type=int, default=NUM_DEMOS, help="of each arm")
  parser.add_argument("--steps", type=int, default=NUM_STEPS, help="to train one arm")
  parser.add_argument("--episodes", type=int, default=NUM_EPISODES, help="to evaluate")
  args = parser.parse_args(argv)
  args.out.mkdir(parents=True, exist_ok=True)
  sizes = (args.seeds, args.demos, args.steps, args.episodes)
  found = run(args.out, *sizes, args.gin_bindings)
  (args.out / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
  least = min(np.mean(values) for values in found[TOGETHER].values())
  complaint = f"expected success of both arms in one policy, got {least:.0%}."
  return runs.conclude(args, make_table(found), least > 0, complaint)


if __name__ == "__main__":
  sys.exit(main())
