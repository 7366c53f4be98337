"""`t2r_seq train`: trains a ready policy by name, or the model that gin configures."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import Any

from t2r_seq.cli import console, evaluate, sources

SUMMARY = "train, evaluate and export a policy: a ready one, or your model"
DESCRIPTION = """Trains, evaluates and exports a policy.

A ready policy trains from a data set of any format, without code:

  t2r_seq train --policy mlp --dataset my.lerobot --model_dir run
  t2r_seq train --policy mlp --size tiny --dataset my.lerobot --model_dir run \\
    --gin_bindings 'MLPModel.chunk_size = 8'
  t2r_seq train --policy mlp --print_config > mine.gin

Or in a Gymnasium environment, in which it collects and learns:

  t2r_seq train --policy dqn --env CartPole-v1 --model_dir run

Your own model, which gin files configure:

  t2r_seq train --gin_configs research/pose_env/configs/pose_env_moving_stack4.gin \\
    --gin_bindings 'train_eval_model.model_dir = "runs/pose"'

A stopped run resumes from its last checkpoint when it is started again. SIGTERM stops
it after the current step, with a checkpoint and the status 0."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  parser.add_argument("--policy", metavar="NAME", help="a ready policy, such as mlp")
  parser.add_argument(
    "--dataset",
    metavar="PATH",
    nargs="+",
    help="a data set of any format; or several, each of a robot, for one policy",
  )
  parser.add_argument("--model_dir", metavar="RUN", help="folder of the run")
  parser.add_argument(
    "--size",
    choices=("tiny", "base"),
    help="as in the paper (base, the default), or for a laptop's CPU (tiny)",
  )
  parser.add_argument(
    "--steps",
    type=int,
    metavar="N",
    help="train steps; if it learns in --env, steps there",
  )
  parser.add_argument(
    "--action", metavar="PATH", help="path of the actions (the one named action)"
  )
  parser.add_argument(
    "--observations",
    metavar="PATH",
    nargs="+",
    help="states and cameras that the policy sees, or patterns of them",
  )
  parser.add_argument(
    "--print_config", action="store_true", help="only print the whole gin config"
  )
  parser.add_argument(
    "--env",
    metavar="NAME",
    nargs="+",
    help="id of a Gymnasium environment to learn in; or, with --dataset, to evaluate "
    "in: the best export has the highest success rate there, or return. For several "
    "robots ROBOT=NAME ...",
  )
  evaluate.add_environment(parser)
  console.add_arguments(parser)
  sources.add_opening(parser)


_GIN = ("model_dir", "print_config", "gin_configs", "gin_bindings")
_SHARED = (*_GIN, "policy", "size", "steps")
_OF_ENV = {"env_options", "observe", "task"}


def run(args: argparse.Namespace) -> int:
  """Trains a ready policy, or gin's model; prints the result."""
  if args.policy is None:
    return _run_gin(args)
  console.read_gin(args)
  from t2r_seq import process, training
  from t2r_seq.zoo.registry import find_policy
  from t2r_seq.zoo.train import configure_policy

  chosen = find_policy(args.policy)
  is_online, policy = chosen.kind == "online", f"--policy {args.policy}"
  allowed, reason = {*vars(args)}, ""
  if is_online:
    allowed = {*_SHARED, "env", "env_options"}
    reason = f"with {policy}, which learns in an environment"
  elif args.dataset is None:
    allowed = {*_SHARED, "action", "observations"}
    reason = "without --dataset PATH"
  elif args.env is None:
    allowed, reason = allowed - _OF_ENV, "without --env NAME"
  elif "language" not in chosen.model_cls.needs:
    allowed, reason = allowed - {"task"}, f"with {policy}, which takes no text"
  console.reject_options(args, allowed, reason)
  for name in ("env" if is_online else "dataset", "model_dir"):
    if getattr(args, name) is None and not args.print_config:
      raise console.UsageError(f"{policy} needs --{name}.")
  if is_online:
    return _run_online(args)
  text = configure_policy(
    args.policy,
    args.dataset,
    args.model_dir or "run",
    args.size or "base",
    gin_configs=args.gin_configs,
    gin_bindings=_bindings(args) + args.gin_bindings,
    open_options=sources.opening_options(args),
    env_id=_environments(args.env),
    env_options=evaluate.environment_options(args),
    is_dry=args.print_config,
  )
  if args.print_config:
    print(text)
    return 0
  process.keep_freed_memory()
  result = training.train_eval_model()
  _report(result)
  if not result["was_stopped"]:
    _suggest(args)
  return 0


def _run_online(args: argparse.Namespace) -> int:
  from t2r_seq import process, zoo
  from t2r_seq.zoo.train import configure_online

  env = _environments(args.env)
  if isinstance(env, dict):
    raise console.UsageError(f"--policy {args.policy} learns in one environment.")
  steps = [] if args.steps is None else [f"NUM_STEPS = {args.steps}"]
  text = configure_online(
    args.policy,
    env,
    args.model_dir or "run",
    args.size or "base",
    env_options=evaluate.environment_options(args)["options"],
    gin_configs=args.gin_configs,
    gin_bindings=steps + args.gin_bindings,
  )
  if args.print_config:
    print(text)
    return 0
  process.keep_freed_memory()
  result = zoo.train_online()
  _report(result, args.model_dir)
  if not result["was_stopped"]:
    best = os.path.join(args.model_dir, "export", "best")
    print(
      f"next: {_evaluation(args, best, env)} && {_lite(best)} && t2r_seq serve robot",
      file=sys.stderr,
    )
  return 0


def _environments(given: list[str] | None) -> str | dict[str, str] | None:
  """Returns the environment of --env, or environments by robot."""
  if given is None or (len(given) == 1 and "=" not in given[0]):
    return given[0] if given else None
  pairs = [text.partition("=") for text in given]
  if wrong := [name for name, sign, _ in pairs if not sign]:
    raise console.UsageError(f"--env: expected ROBOT=NAME, got '{wrong[0]}'.")
  return {name: env for name, _, env in pairs}


def _bindings(args: argparse.Namespace) -> list[str]:
  values = {
    "NUM_TRAIN_STEPS": args.steps,
    "find_signature.action": args.action,
    "find_signature.observations": args.observations,
  }
  return [f"{name} = {value!r}" for name, value in values.items() if value is not None]


def _run_gin(args: argparse.Namespace) -> int:
  console.reject_options(args, _GIN, "without --policy NAME; use --gin_bindings")
  if args.model_dir is not None:
    args.gin_bindings.append(f"train_eval_model.model_dir = {args.model_dir!r}")
  console.parse(args)
  from t2r_seq import process, training

  if args.print_config:
    import gin

    print(gin.config_str())
    return 0
  process.keep_freed_memory()
  _report(training.train_eval_model())
  return 0


def _report(result: Any, model_dir: str | None = None) -> None:
  result = dict(result)
  step = result.pop("global_step")
  if result.pop("was_stopped"):
    print(f"Stopped by a signal at step {int(step)}; the same command resumes there.")
    return
  names = sorted(result, key=lambda name: (name != "loss", name))
  metrics = ", ".join(f"{name} {result[name]:.5g}" for name in names)
  text = f"Trained to step {int(step)}" if metrics else f"At step {int(step)}"
  if metrics:
    # Train steps always have a loss; evaluations by callbacks only have none.
    is_eval = _bound("input_generator_eval") is not None or "loss" not in result
    text += f": {metrics} ({'of the last evaluation' if is_eval else 'in training'})"
  exports = os.path.join(model_dir or str(_bound("model_dir") or ""), "export")
  folders = sorted(os.listdir(exports)) if os.path.isdir(exports) else []
  where = ", ".join(os.path.join(exports, name) for name in folders)
  print(f"{text}{f'; exports in {where}' if where else ''}.")


def _suggest(args: argparse.Namespace) -> None:
  folders = (
    os.path.join(args.model_dir, "export", name) for name in ("best", "latest")
  )
  export = next((folder for folder in folders if os.path.isdir(folder)), None)
  if export is not None:
    env = _environments(args.env)
    env = env if isinstance(env, str) else "ENV"
    robot = " --robot NAME" if len(args.dataset) > 1 else ""
    opening = console.option_words(args, sources.OPENING)
    verify = shlex.join(["t2r_seq", "verify", export, args.dataset[0], *opening])
    print(
      f"next: {_evaluation(args, export, env)}{robot}\n"
      f"then: {verify}{robot} && {_lite(export)}{robot} && t2r_seq serve robot",
      file=sys.stderr,
    )


def _evaluation(args: argparse.Namespace, export: str, env: str | None) -> str:
  """Returns the command that evaluates an export with the options of the training."""
  words = ["t2r_seq", "evaluate", export, "--env", str(env), "--episodes", "50"]
  return shlex.join([*words, *console.option_words(args, _OF_ENV)])


def _lite(export: str) -> str:
  return shlex.join(["t2r_seq", "export", "--lite", export, "robot"])


def _bound(name: str) -> Any:
  """Returns gin's value for an argument of the training, or None."""
  import gin

  try:
    return gin.query_parameter(f"train_eval_model.{name}")
  except ValueError:
    return None
