"""Demonstrations to policies by command: record, train, evaluate, verify, export, draw.

    python -m research.lander.demo --out demo_out/lander

Gymnasium's LunarLander comes with a scripted expert. Its episodes are recorded in
LeRobot's format, and two ready policies are trained on that folder. Nothing of a policy
is written here: each step is a command of `t2r_seq`, which the demo prints. It writes
`table.md` and `lander.png`, and exits with an error if a policy lands worse than the
demonstrations by more than a fifth.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import shlex
import shutil
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from research import runs
from t2r_seq import actors, imports, lite, policies, specs
from t2r_seq.cli import main as run_command

ENV = "LunarLanderContinuous-v3"
POLICIES = ("act", "flow")
NUM_DEMOS, NUM_EPISODES = 200, 20
FPS = 50
# Episodes of the recording, the evaluation and the picture differ.
_RECORD_SEED, _EVAL_SEED, _SHOWN_SEED = 0, 1_000, 2_000
_LEAST_SHARE = 0.8
_NUM_VERIFIED = 3
_NUM_FRAMES = 12

Row = dict[str, Any]


def _as_state(observation: np.ndarray) -> dict[str, np.ndarray]:
  return {"observation.state": observation}


class Expert(policies.Policy):
  """Gymnasium's scripted controller of the lander, which reads the observation only."""

  def SelectAction(self, state: Any, context: Any, timestep: int) -> np.ndarray:
    """Returns the two engines' throttles, float32 in [-1, 1]."""
    del context, timestep
    try:
      from gymnasium.envs.box2d import lunar_lander
    except ImportError as error:
      raise imports.missing_extra("Box2D", "lander") from error

    # All that the controller reads of an environment.
    env = types.SimpleNamespace(unwrapped=types.SimpleNamespace(continuous=True))
    action = lunar_lander.heuristic(env, state)
    return np.clip(action, -1, 1).astype(np.float32)


def make_env(render_mode: str | None = None) -> gymnasium.Env:
  """Creates the environment.

  Raises:
    ImportError: Box2D is missing; names the extra.
  """
  try:
    return gymnasium.make(ENV, render_mode=render_mode)
  except gymnasium.error.DependencyNotInstalled as error:
    raise imports.missing_extra("Box2D", "lander") from error


def record(
  path: pathlib.Path,
  num_episodes: int,
  observe: Callable[[Any], Mapping[str, np.ndarray]] = _as_state,
  create_env: Callable[[], gymnasium.Env] = make_env,
  expert: policies.Policy | None = None,
  task: str = "land between the flags",
  fps: int = FPS,
) -> None:
  """Writes episodes of an expert to a LeRobot folder.

  Args:
    path: of the folder.
    num_episodes: how many.
    observe: names the parts of an observation.
    create_env: creates the environment.
    expert: None: of the lander.
    task: the instruction.
    fps: steps per second.
  """
  with contextlib.closing(create_env()) as env:
    observation, action = env.observation_space.sample(), env.action_space.sample()
  sizes = {**observe(observation), "action": action}
  spec = {
    name: specs.ExtendedTensorSpec(value.shape, value.dtype, name, is_sequence=True)
    for name, value in sizes.items()
  }
  store = path.with_suffix(".store")
  sink = actors.StoreSink(
    str(store),
    spec,
    step_to_features_fn=lambda step: {
      **observe(step["observation"]),
      "action": step["action"],
    },
  )
  actors.collect_episodes(
    create_env,
    expert or Expert(),
    num_episodes=num_episodes,
    seed=_RECORD_SEED,
    sink=sink,
  )
  options = ("--task", task, "--fps", fps, "--video_codec", "png")
  command("convert", store, path, *options)


def command(*arguments: object) -> None:
  """Runs and prints a command of `t2r_seq`.

  Raises:
    SystemExit: it failed.
  """
  words = [str(each) for each in arguments]
  print(f"$ t2r_seq {shlex.join(words)}", flush=True)
  if status := run_command(words):
    raise SystemExit(status)


def run(
  out: pathlib.Path,
  num_demos: int,
  num_episodes: int,
  steps: int | None = None,
  names: Sequence[str] = POLICIES,
) -> bool:
  """Runs all stages.

  Args:
    out: the folder; what an earlier demo left there is replaced.
    num_demos: episodes to record.
    num_episodes: episodes to evaluate in.
    steps: of each training; None for those of the policy.
    names: of the ready policies.
  Returns:
    Whether every policy lands about as well as the demonstrations.
  """
  shutil.rmtree(out, ignore_errors=True)
  out.mkdir(parents=True)
  demos = out / "demos.lerobot"
  with runs.stage("record demonstrations"):
    record(demos, num_demos)
  trained, seconds = {}, {}
  for policy in names:
    model_dir = out / policy
    start = time.monotonic()
    command(
      *("train", "--policy", policy, "--dataset", demos, "--model_dir", model_dir),
      *("--size", "tiny", "--env", ENV, *(["--steps", steps] if steps else [])),
    )
    seconds[policy] = time.monotonic() - start
    export = trained[policy] = model_dir / "export" / "best"
    command(
      *("evaluate", export, "--env", ENV, "--episodes", num_episodes),
      *("--seed", _EVAL_SEED),
    )
    command("verify", export, demos, "--episodes", _NUM_VERIFIED)
    command("export", "--lite", export, out / f"{policy}_lite")
  acting: dict[str, Any] = {"expert": Expert()}
  for policy, export in trained.items():
    predictor = policies.ExportedSavedModelPredictor(str(export), timeout=0.0)
    acting[policy] = policies.RegressionPolicy(predictor)
    acting[f"{policy}, LiteRT"] = lite.LitePolicy(str(out / f"{policy}_lite"))
  with runs.stage("land"):
    rows = [
      _row(
        name,
        runs.evaluate(policy, make_env(), num_episodes, _EVAL_SEED),
        seconds.get(name),
      )
      for name, policy in acting.items()
    ]
  (out / "table.md").write_text(_table(rows), encoding="utf-8")
  (out / "results.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
  print(_table(rows))
  with runs.stage("draw"):
    draw(out / "lander.png", {n: acting[n] for n in ("expert", *names)}, rows)
  returns = {row["policy"]: row["return"] for row in rows}
  return min(returns.values()) >= _LEAST_SHARE * returns["expert"]


def draw(path: pathlib.Path, acting: Mapping[str, Any], rows: Sequence[Row]) -> None:
  """Draws an episode of each policy as one exposure, and the returns of all.

  Args:
    path: of the PNG.
    acting: policies by name.
    rows: of the table.
  """
  pyplot = runs.pyplot()
  figure, axes = pyplot.subplots(
    1, len(acting) + 1, figsize=(5 * (len(acting) + 1), 3.6), layout="constrained"
  )
  for axis, (name, policy) in zip(axes, acting.items(), strict=False):
    with (
      contextlib.closing(make_env()) as env,
      contextlib.closing(make_env("rgb_array")) as large,
    ):
      frames, _ = runs.film(policy, env, large, _SHOWN_SEED)
    shown = np.linspace(0, len(frames) - 1, _NUM_FRAMES).astype(int)
    # The sky is black, so the brightest pixel shows each frame's lander.
    axis.imshow(np.max([frames[i] for i in shown], axis=0))
    axis.set_title(f"{name}: {(len(frames) - 1) / FPS:.1f} s", fontsize=11)
    axis.axis("off")
  names = [row["policy"] for row in rows]
  returns = np.asarray([row["return"] for row in rows])
  intervals = np.asarray([row["interval"] for row in rows])
  axes[-1].barh(
    names,
    returns,
    xerr=[returns - intervals[:, 0], intervals[:, 1] - returns],
    color=["tab:gray", *["tab:blue"] * (len(rows) - 1)],
    capsize=3,
  )
  axes[-1].invert_yaxis()
  axes[-1].set_xlabel("return, mean and 95 % interval")
  axes[-1].spines[["top", "right"]].set_visible(False)
  figure.savefig(path, dpi=100)
  pyplot.close(figure)


def _row(name: str, found: actors.evaluation.Evaluation, seconds: float | None) -> Row:
  return {
    "policy": name,
    "return": found.reward,
    "interval": [float(bound) for bound in found.reward_interval],
    "steps": found.episode_length,
    "training_seconds": seconds,
  }


def _table(rows: Sequence[Row]) -> str:
  def cells(row: Row) -> list[str]:
    low, high = row["interval"]
    seconds = row["training_seconds"]
    return [
      row["policy"],
      f"{row['return']:.0f} ({low:.0f} to {high:.0f})",
      f"{row['steps'] / FPS:.1f} s",
      "" if seconds is None else f"{seconds:.0f} s",
    ]

  columns = ["policy", "return", "episode", "trained in"]
  return runs.table(columns, map(cells, rows))


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the demo; returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "--out", type=pathlib.Path, default="demo_out/lander", help="of what is written"
  )
  parser.add_argument("--demos", type=int, default=NUM_DEMOS, help="episodes recorded")
  parser.add_argument(
    "--episodes", type=int, default=NUM_EPISODES, help="episodes of an evaluation"
  )
  parser.add_argument("--steps", type=int, help="of each training")
  args = parser.parse_args(argv)
  start = time.monotonic()
  lands = run(args.out, args.demos, args.episodes, args.steps)
  print(f"The demo took {time.monotonic() - start:.0f} s.")
  if not lands:
    print(
      f"demo: expected a return of at least {_LEAST_SHARE:.0%} of the expert's.",
      file=sys.stderr,
    )
  return int(not lands)


if __name__ == "__main__":
  sys.exit(main())
