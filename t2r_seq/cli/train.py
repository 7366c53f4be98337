"""`t2r_seq train`: trains, evaluates and exports a model from gin files."""

from __future__ import annotations

import argparse

from t2r_seq.cli import console

SUMMARY = "train, evaluate and export a model"
DESCRIPTION = """Trains, evaluates and exports the model that gin files describe.

A run that was stopped goes on at its last checkpoint when it is started again. SIGTERM
stops it at the next step, with a checkpoint and the status 0.

  t2r_seq train --gin_configs research/pose_env/configs/pose_env_moving_stack4.gin \\
    --gin_bindings 'train_eval_model.model_dir = "runs/pose"'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  console.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
  """Trains; see `t2r_seq.training.train_eval_model` for what can be configured."""
  console.parse(args)
  from t2r_seq import allocation, training

  allocation.keep_freed_memory()
  result = dict(training.train_eval_model())
  step = result.pop("global_step")
  if result.pop("was_stopped"):
    print(f"Stopped by a signal at step {int(step)}; the same command goes on there.")
    return 0
  console.warn_of_unread_bindings()
  names = sorted(result, key=lambda name: (name != "loss", name))
  shown = ", ".join(f"{name} {result[name]:.5g}" for name in names)
  print(f"Trained to step {int(step)}: {shown}." if shown else f"At step {int(step)}.")
  return 0
