"""`t2r_seq evaluate`: success and return of policies in an environment."""

from __future__ import annotations

import argparse
import functools
import json
import os
from typing import Any

from t2r_seq.cli import console
from t2r_seq.lite.overlap import OVERLAPS

SUMMARY = "run a policy in a Gymnasium environment: success and return with intervals"
DESCRIPTION = """Runs exported policies in the same episodes of an environment, and
prints success and return with 95 % intervals.

  t2r_seq evaluate run/export/best --env LunarLander-v3 --episodes 50
  t2r_seq evaluate run/export/best --env LunarLander-v3 --latency 0.12 \\
    --jitter 0.03 --control_rate 20 --overlap asynchronous
  t2r_seq evaluate run/export/best --env gym_pusht/PushT-v0 --video videos \\
    --env_options '{"obs_type": "pixels_agent_pos"}'

Observations are matched to the policy's paths by name and by shape. --observe KEY=PATH
matches one explicitly; the key `render` is the rendered frame."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  parser.add_argument(
    "export_dirs", metavar="EXPORT", nargs="+", help="an export, or a folder of exports"
  )
  add = parser.add_argument
  add("--env", metavar="ID", required=True, help="id of a Gymnasium environment")
  add("--episodes", type=int, default=50, metavar="N", help="number of episodes (50)")
  add("--seed", type=console.seed, default=0, help="seed of the episodes (0)")
  add("--max_steps", type=int, metavar="N", help="maximum steps of an episode")
  add("--video", metavar="DIR", help="write an MP4 of each episode to DIR")
  console.add_robot(parser)
  add_latency(parser)
  add(
    "--overlap",
    choices=OVERLAPS,
    help="how inference overlaps with execution, with --latency (as exported)",
  )
  add(
    "--num_executed",
    type=int,
    metavar="N",
    help="actions executed per chunk, with --latency (as exported)",
  )
  add_environment(parser)


def add_latency(parser: argparse.ArgumentParser) -> None:
  """Adds the options of a simulated latency of the network."""
  add = parser.add_argument
  add(
    "--latency",
    type=float,
    metavar="SECONDS",
    help="simulated time from an observation to the network's chunk (none)",
  )
  add(
    "--jitter",
    type=float,
    metavar="SECONDS",
    help="maximum deviation from --latency, up and down (0)",
  )
  add(
    "--control_rate",
    type=float,
    metavar="HZ",
    help="steps per second (those of the training data)",
  )


def add_environment(parser: argparse.ArgumentParser) -> None:
  """Adds options for making an environment and matching its observations."""
  parser.add_argument(
    "--observe",
    metavar="KEY=PATH",
    nargs="+",
    action="extend",
    default=[],
    help="use the environment's observation KEY for the policy's PATH",
  )
  parser.add_argument("--task", metavar="TEXT", help="text for policies that take one")
  parser.add_argument("--env_options", metavar="JSON", help="for gymnasium.make")


def environment_options(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the options of `add_environment`.

  Raises:
    UsageError: an option has another form.
  """
  observe = {}
  for text in args.observe:
    key, sign, path = text.partition("=")
    if not sign:
      raise console.UsageError(f"--observe: expected KEY=PATH, got '{text}'.")
    observe[key] = path
  options = None
  if args.env_options is not None:
    try:
      options = json.loads(args.env_options)
    except ValueError as error:
      raise console.UsageError(f"--env_options: expected JSON: {error}.") from error
    if not isinstance(options, dict):
      raise console.UsageError(f"--env_options: expected an object, got {options}.")
  return {"observe": observe, "task": args.task, "options": options}


def run(args: argparse.Namespace) -> int:
  """Evaluates; prints a table."""
  options = environment_options(args)
  check_latency(args)
  console.load_tensorflow()
  from t2r_seq.actors.evaluation import evaluation_table
  from t2r_seq.zoo.evaluate import evaluate_export

  predictors = {
    name: console.load_export(name, False, args.robot) for name in args.export_dirs
  }
  inputs = [s for p in predictors.values() for s in p.get_step_specification().values()]
  if args.task and not any(spec.dtype == "string" for spec in inputs):
    raise console.UsageError("--task: no effect for a policy that takes no text.")
  results = {
    name: evaluate_export(
      predictor,
      args.env,
      create_policy=_policy_maker(args, predictor.control_period),
      num_episodes=args.episodes,
      seed=args.seed,
      max_steps=args.max_steps,
      video_dir=args.video and _video_dir(args.video, name, args.export_dirs),
      **options,
    )
    for name, predictor in predictors.items()
  }
  print(evaluation_table(results))
  return 0


def _policy_maker(args: argparse.Namespace, period: float | None) -> Any:
  from t2r_seq import policies
  from t2r_seq.lite.overlap import OverlappedPolicy

  if args.latency is None:
    return policies.RegressionPolicy
  return functools.partial(
    OverlappedPolicy,
    overlap=args.overlap,
    num_executed=args.num_executed,
    planner=latency_of(args, period),
  )


def check_latency(args: argparse.Namespace) -> None:
  """Raises UsageError if options that need --latency are given without it."""
  names = ("overlap", "num_executed", "jitter", "control_rate")
  options = [f"--{name}" for name in names if getattr(args, name, None) is not None]
  if args.latency is None and options:
    raise console.UsageError(f"{', '.join(options)}: give --latency SECONDS, too.")


def latency_of(args: argparse.Namespace, period: float | None) -> Any:
  """Returns the `SimulatedLatency` of --latency, if given; `period` is the export's.

  Raises:
    UsageError: neither the options nor the export have a control rate.
    SpecError: an option is out of range.
  """
  from t2r_seq.lite.overlap import SimulatedLatency

  if args.latency is None:
    return None
  if args.control_rate is None and period is None:
    raise console.UsageError(
      "--latency needs --control_rate HZ: the export has no control period."
    )
  rate = 1 / (period or 1.0) if args.control_rate is None else args.control_rate
  return SimulatedLatency(args.latency, args.jitter or 0.0, rate)


def _video_dir(folder: str, name: str, names: list[str]) -> str:
  own = "" if len(names) == 1 else name.strip("/").replace("/", "_")
  return os.path.join(folder, own)
