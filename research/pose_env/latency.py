"""What a slow network costs on the moving task, in simulated time.

    python -m research.pose_env.latency --out latency_out --seeds 3

trains the model of chunks, and acts in the same fresh episodes with networks of up to
four control periods. An episode succeeds if its last action is within 0.1 m.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

import numpy as np

from research import runs
from research.pose_env import evaluation, pose_env
from t2r_seq import lite

PERIODS = (0, 2, 4)
MODES = ("synchronous", "asynchronous")
_CONFIGS, _FRESH_SEED = "research/pose_env/configs", 2
_MAX_ERROR, _LEAST_SHARE = 0.1, 0.95


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the study; the status is 0 if overlapping keeps 95 % of the successes."""
  parser = runs.parser(__doc__, "latency_out")
  parser.add_argument("--episodes", type=int, default=500, help="to train on")
  parser.add_argument("--steps", type=int, help="of each training; else as gin says")
  parser.add_argument("--fresh", type=int, default=100, help="episodes to act in")
  args = parser.parse_args(argv)
  data = {part: args.out / "data" / f"{part}.tfrecord" for part in ("train", "eval")}
  for seed, (part, path) in enumerate(data.items()):
    count = args.episodes if part == "train" else max(8, args.episodes // 12)
    output = "collect_episodes.output_path"
    config = f"{_CONFIGS}/collect_moving.gin"
    runs.collect(config, path, count, seed=seed, to=output)
  paths = [f"{part.upper()}_DATA = {str(path)!r}" for part, path in data.items()]
  found: dict[str, list[list[tuple[float, float]]]] = {mode: [] for mode in MODES}
  for seed in range(args.seeds):
    model_dir = runs.run_dir(args.out, "chunks", seed)
    config = f"{_CONFIGS}/pose_env_moving_chunks.gin"
    bindings = [*paths, *args.gin_bindings]
    runs.train(config, model_dir, seed, *bindings, num_steps=args.steps)
    with runs.stage(f"act in {args.fresh} fresh episodes, seed {seed}"):
      for mode in MODES:
        found[mode].append([act(model_dir, mode, n, args.fresh) for n in PERIODS])
  successes = {mode: np.mean(values, axis=0)[:, 0] for mode, values in found.items()}
  rows = []
  for mode, values in found.items():
    by_period = np.moveaxis(np.asarray(values), 0, -1)
    cells = [
      f"{runs.mean_and_interval(100 * success, 0)} % ({error.mean():.3f} m)"
      for success, error in by_period
    ]
    rows.append([f"`{mode}`", *cells])
  table = runs.table(("control periods", *map(str, PERIODS)), rows)
  best = max(each[-1] for each in successes.values())
  is_good = best >= _LEAST_SHARE * successes["synchronous"][0]
  complaint = "no mode keeps 95 % of the successes without latency."
  return runs.conclude(args, table, bool(is_good), complaint)


def act(
  model_dir: str, mode: str, periods: int, num_episodes: int
) -> tuple[float, float]:
  """Returns the share of successes, and the mean error in metres."""
  predictor = runs.load(model_dir)
  predictor.restore()
  planner = lite.overlap.SimulatedLatency(float(periods))
  policy = lite.OverlappedPolicy(predictor, mode, planner=planner)
  env = pose_env.MovingPoseEnv()
  with contextlib.closing(env):
    found = evaluation.evaluate(env, policy, "moving", mode, num_episodes, _FRESH_SEED)
  last = found.errors[found.steps == env.num_steps - 1]
  return float((last < _MAX_ERROR).mean()), found.error


if __name__ == "__main__":
  sys.exit(main())
