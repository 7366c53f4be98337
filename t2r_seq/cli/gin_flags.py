"""The gin options of the commands that are configured by gin."""

from __future__ import annotations

import argparse
import io
import tokenize
from collections.abc import Sequence

from t2r_seq.cli import failures, project_code, quiet


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

  They may import modules of the current folder.

  Args:
    args: with `gin_configs` and `gin_bindings`.
  Raises:
    UsageError: neither was given, or one is no gin; quotes it.
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
  from t2r_seq.replay import reverb

  del actors, data, models, policies, preprocessors, reverb, training
  logging.set_verbosity(logging.INFO)
  project_code.allow()
  for filename in args.gin_configs:
    try:
      gin.parse_config_file(filename)
    except tokenize.TokenError as error:
      raise failures.UsageError(
        f"{filename}: {_reason(error)}: a bracket or a string is not closed."
      ) from error
  try:
    gin.parse_config(args.gin_bindings)
  except (SyntaxError, tokenize.TokenError) as error:
    raise failures.UsageError(
      f"--gin_bindings: {_culprit(error, args.gin_bindings)!r} is no gin: "
      f"{_reason(error)}."
    ) from error
  gin.finalize()


def _culprit(error: Exception, bindings: Sequence[str]) -> str:
  """Returns the binding that gin cannot read; where unknown, all of them."""
  line = (getattr(error, "text", None) or "").strip()
  for binding in bindings:
    if line and line in binding:
      return binding
    try:
      list(tokenize.generate_tokens(io.StringIO(binding).readline))
    except (SyntaxError, tokenize.TokenError):
      return binding
  return "; ".join(bindings)


def _reason(error: Exception) -> str:
  """Returns what gin says is wrong, without its count of the lines of all bindings."""
  said = str(getattr(error, "msg", None) or error.args[0])
  return " ".join(said.split()).rstrip(".")
