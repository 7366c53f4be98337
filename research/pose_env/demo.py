"""The whole road in one command: collect, train, export, act, compare.

    python -m research.pose_env.demo --out demo_out

writes `table.md` and `demo.png`, and exits with an error unless on the moving task the
stack of four frames makes at most half the error of the single frame.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from research import runs
from research.pose_env import collect, evaluation, figure, pose_env
from t2r_seq import lite, policies
from t2r_seq.policies.policy import pack_observation

TASKS = {"still": pose_env.PoseEnv, "moving": pose_env.MovingPoseEnv}
NUM_FRAMES = (1, 4)
# Of the moving task, by the name of its gin file.
_CHUNKS, CHUNKED = "chunks", "stack of 4, chunks"
CHUNKED_LITE = f"{CHUNKED}, LiteRT"
MAX_RATIO = 0.5
_CONFIGS = "research/pose_env/configs"
_TABLE, _RESULTS, _PICTURE = "table.md", "results.json", "demo.png"
# Every stage has episodes of its own.
_TRAIN_SEED, _EVAL_SEED, _FRESH_SEED = 0, 1, 2
# The picture shows the middle of this episode: a fast duck, well inside the frame.
_SHOWN_SEED = 59


@dataclasses.dataclass(frozen=True)
class Sizes:
  """How much the demo does.

  Attributes:
    train_episodes: to train on, by task.
    eval_episodes: to evaluate on while training, by task.
    fresh_episodes: to act in, by task.
    train_steps: of each of the five models.
  """

  train_episodes: dict[str, int]
  eval_episodes: dict[str, int]
  fresh_episodes: dict[str, int]
  train_steps: int


FULL = Sizes(
  train_episodes={"still": 3000, "moving": 500},
  eval_episodes={"still": 320, "moving": 40},
  fresh_episodes={"still": 200, "moving": 50},
  train_steps=1000,
)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the demo; returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "--out", "--output_dir", default="demo_out", help="folder for everything written"
  )
  args = parser.parse_args(argv)
  start = time.monotonic()
  ratio = run(pathlib.Path(args.out), FULL)
  print(f"The demo took {time.monotonic() - start:.0f} s.")
  if not ratio <= MAX_RATIO:
    print(
      f"demo: the stack of 4 makes {ratio:.2f} of the error of the stack of 1; "
      f"expected at most {MAX_RATIO}.",
      file=sys.stderr,
    )
    return 1
  return 0


def run(out: pathlib.Path, sizes: Sizes) -> float:
  """Runs all stages and writes `table.md`, `results.json` and `demo.png`.

  Args:
    out: the folder; what an earlier demo left there is replaced.
    sizes: how much to do.
  Returns:
    The error of the stack of 4 over that of the stack of 1, on the moving task.
  """
  for name in ("data", "runs"):
    shutil.rmtree(out / name, ignore_errors=True)
  for name in (_TABLE, _RESULTS, _PICTURE):
    (out / name).unlink(missing_ok=True)
  out.mkdir(parents=True, exist_ok=True)
  for task in TASKS:
    collect_task(out, task, sizes)
  curves = {}
  for task in TASKS:
    for num_frames in NUM_FRAMES:
      train_policy(out, task, f"stack{num_frames}", sizes.train_steps)
      curves[task, num_frames] = evaluation.read_curve(
        str(run_dir(out, task, f"stack{num_frames}") / "eval"), "distance"
      )
  train_policy(out, "moving", _CHUNKS, sizes.train_steps)
  with runs.stage("export that for LiteRT"):
    export_dir = run_dir(out, "moving", _CHUNKS) / "export" / "best"
    policies.export_lite(str(export_dir), str(lite_dir(out)))
  results: list[evaluation.Evaluation] = []
  for task in TASKS:
    with runs.stage(f"act in fresh episodes of the {task} task"):
      results += evaluate_task(out, task, sizes.fresh_episodes[task])
  with runs.stage("draw"):
    seen, horizon = look(out)
    by_name = {(result.task, result.policy): result for result in results}
    drawn = figure.Results(curves, by_name, seen, horizon)
    figure.draw(drawn, str(out / _PICTURE))
  return _write_table(out, results)


def run_dir(out: pathlib.Path, task: str, kind: str) -> pathlib.Path:
  """Returns the folder of a training run: of 'stack1', 'stack4' or 'chunks'."""
  return out / "runs" / f"{task}_{kind}"


def lite_dir(out: pathlib.Path) -> pathlib.Path:
  """Returns the folder of the policy of chunks without TensorFlow."""
  return run_dir(out, "moving", "lite")


def collect_task(out: pathlib.Path, task: str, sizes: Sizes) -> None:
  """Writes a task's episodes to train and to evaluate on, as its gin file says."""
  parts = {
    "train": (sizes.train_episodes[task], _TRAIN_SEED),
    "eval": (sizes.eval_episodes[task], _EVAL_SEED),
  }
  for part, (num_episodes, seed) in parts.items():
    config, path = f"{_CONFIGS}/collect_{task}.gin", _data_path(out, task, part)
    output = "collect_episodes.output_path"
    runs.collect(config, path, num_episodes, seed=seed, to=output)


def train_policy(out: pathlib.Path, task: str, kind: str, train_steps: int) -> None:
  """Trains and exports one model, as its gin file says."""
  runs.train(
    f"{_CONFIGS}/pose_env_{task}_{kind}.gin",
    str(run_dir(out, task, kind)),
    _TRAIN_SEED,
    f"TRAIN_DATA = {str(_data_path(out, task, 'train'))!r}",
    f"EVAL_DATA = {str(_data_path(out, task, 'eval'))!r}",
    # A point of the learning curve each time.
    f"RunConfig.save_checkpoints_steps = {max(1, train_steps // 10)}",
    "train_eval_model.eval_throttle_secs = 0",
    # The weights that did best on held-out episodes: one frame soon overfits.
    "create_default_exporters.exporter_fns = [@BestExporter]",
    num_steps=train_steps,
  )


def evaluate_task(
  out: pathlib.Path, task: str, num_episodes: int
) -> list[evaluation.Evaluation]:
  """Runs the exported policies and the scripted ones in the same fresh episodes."""
  env = TASKS[task]()
  with contextlib.closing(env):
    acting: dict[str, Any] = {
      f"stack of {k}": policies.RegressionPolicy(load_predictor(out, task, f"stack{k}"))
      for k in NUM_FRAMES
    }
    if task == "moving":
      predictor = load_predictor(out, task, _CHUNKS)
      acting[CHUNKED] = policies.RegressionPolicy(predictor)
      acting[CHUNKED_LITE] = lite.LitePolicy(str(lite_dir(out)))
      acting["present position"] = collect.PoseEnvExpertPolicy(
        env, knows_velocity=False
      )
    acting["expert"] = collect.PoseEnvExpertPolicy(env)
    return [
      evaluation.evaluate(env, policy, task, name, num_episodes, _FRESH_SEED)
      for name, policy in acting.items()
    ]


def load_predictor(
  out: pathlib.Path, task: str, kind: str
) -> policies.ExportedSavedModelPredictor:
  """Loads what a training run exported; it keeps the policy's frames itself."""
  return runs.load(str(run_dir(out, task, kind)), "best")


def look(out: pathlib.Path) -> tuple[figure.SeenWindow, int]:
  """Acts for half an episode with both policies; returns the frames and the actions."""
  predictors = {
    f"stack of {k}": load_predictor(out, "moving", f"stack{k}") for k in NUM_FRAMES
  }
  acting = {name: policies.RegressionPolicy(p) for name, p in predictors.items()}
  env = pose_env.MovingPoseEnv()
  with contextlib.closing(env):
    for policy in acting.values():
      policy.restore()
    observation, info = env.reset(seed=_SHOWN_SEED)
    stacked = predictors["stack of 4"]
    for _ in range(env.num_steps // 2):
      seen = info
      packed = pack_observation(observation, stacked.get_step_specification())
      shown = stacked.inspect({path: x[np.newaxis] for path, x in packed.items()})
      answers = {
        name: policy.sample_action(observation)[0] for name, policy in acting.items()
      }
      observation, _, _, _, info = env.step(seen["target_pose"])
    positions = {"truth": seen["target_pose"], **answers}
    (frames,) = shown.seen.values()
    position, velocity = seen["object_pose"][:2], seen["object_velocity"]
    path = [position + step * velocity for step in range(env.horizon + 1)]
    window = figure.SeenWindow(
      frames=frames[0],
      points={name: env.to_pixels(point) for name, point in positions.items()},
      path=[env.to_pixels(point) for point in path],
    )
    return window, env.horizon


def _write_table(out: pathlib.Path, results: Sequence[evaluation.Evaluation]) -> float:
  table = evaluation.markdown_table(results)
  by_name = {(result.task, result.policy): result.error for result in results}
  ratio = by_name["moving", "stack of 4"] / by_name["moving", "stack of 1"]
  (out / _TABLE).write_text(table, encoding="utf-8")
  numbers = {
    "errors": {f"{task}, {policy}": error for (task, policy), error in by_name.items()},
    "moving_stack4_over_stack1": ratio,
  }
  text = json.dumps(numbers, indent=2) + "\n"
  (out / _RESULTS).write_text(text, encoding="utf-8")
  print(f"\n{table}")
  print(f"Moving task: error of the stack of 4 / stack of 1 = {ratio:.2f}")
  print(f"Wrote {out / _TABLE} and {out / _PICTURE}.")
  return ratio


def _data_path(out: pathlib.Path, task: str, part: str) -> pathlib.Path:
  return out / "data" / f"{task}_{part}.tfrecord"


if __name__ == "__main__":
  sys.exit(main())
