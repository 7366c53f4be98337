"""The gin options that `train` and `collect` share."""

from __future__ import annotations

import argparse

from t2r_seq.cli import failures, quiet


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds --gin_configs and --gin_bindings; both can be repeated."""
  parser.add_argument(
    "--gin_configs",
    metavar="FILE",
    nargs="+",
    action="extend",
    default=[],
    help="gin files, in order; a later binding wins",
  )
  parser.add_argument(
    "--gin_bindings",
    metavar="BINDING",
    nargs="+",
    action="extend",
    default=[],
    help="single bindings on top, e.g. 'train_eval_model.max_train_steps = 100'",
  )


def parse(args: argparse.Namespace) -> None:
  """Reads the gin files and bindings of a command.

  Args:
    args: with `gin_configs` and `gin_bindings`.
  Raises:
    UsageError: neither was given.
    Exception: whatever gin raises for a config that it cannot read.
  """
  if not args.gin_configs and not args.gin_bindings:
    raise failures.UsageError(
      "nothing is configured. Name a gin file with --gin_configs FILE, or give "
      "--gin_bindings."
    )
  quiet.load_tensorflow()
  # Here, not above: `--help` should not wait for them. Each registers its
  # configurables with gin.
  import gin
  from absl import logging

  from t2r_seq import actors, data, models, policies, preprocessors, training

  del actors, data, models, policies, preprocessors, training
  logging.set_verbosity(logging.INFO)
  gin.parse_config_files_and_bindings(args.gin_configs, args.gin_bindings)
