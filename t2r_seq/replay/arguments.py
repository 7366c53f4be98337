"""Checks of arguments that both engines have: options, and where files are."""

from __future__ import annotations

import os
import typing
from typing import Any

from t2r_seq import errors
from t2r_seq.replay import options

# What a folder of checkpoints has to be.
_FOLDER = "expected a folder that it may write to, or a place for a new one"


def check_options(
  operation: str, sampler: Any, remover: Any, rate_limiter: Any
) -> None:
  """Checks how a replay samples, removes and paces.

  Raises:
    SpecError: one is none of the options for it.
  """
  found = []
  for name, option, choice, usual in (
    ("sampler", sampler, options.SelectorOption, options.Uniform),
    ("remover", remover, options.SelectorOption, options.Fifo),
    ("rate_limiter", rate_limiter, options.RateLimiterOption, options.MinSize),
  ):
    kinds = typing.get_args(choice)
    if isinstance(option, kinds):
      continue
    names = [kind.__name__ for kind in kinds]
    hint = f"Such as replay.{usual.__name__}()."
    if isinstance(option, type) and option in kinds:
      hint = f"Make one: replay.{option.__name__}(...), or @{option.__name__}() in gin."
    wanted = f"one of {errors.listing(names)}"
    found.append(errors.Mismatch(name, wanted, errors.describe(option), hint))
  if found:
    raise errors.mismatch_error(operation, found)


def check_path(operation: str, name: str, path: Any, hint: str) -> str:
  """Returns a path as text; raises SpecError unless it can be one.

  Args:
    operation: for the error.
    name: of the argument.
    path: as given, text or an `os.PathLike` of text; nothing is looked for there.
    hint: what it should name; a sentence.
  """
  try:
    text = os.fspath(path)
  except TypeError:
    text = None
  # What looks like a URL would become a folder of that name.
  if not isinstance(text, str) or not text or "\0" in text or "://" in text:
    found = errors.Mismatch(name, "a path on this machine", repr(path), hint)
    raise errors.mismatch_error(operation, [found])
  return text


def check_checkpoint_dir(operation: str, path: Any) -> str | None:
  """Returns a folder for checkpoints as text, or None; makes nothing.

  Args:
    operation: for the error.
    path: as given; there may be nothing yet. None for no checkpoints.
  Raises:
    SpecError: it is no path, or there can be no folder.
    ReplayError: one may not write there.
  """
  if path is None:
    return None
  hint = "Name a folder; None keeps no checkpoints."
  folder = check_path(operation, "checkpoint_dir", path, hint)
  place = os.path.abspath(folder)
  while not os.path.lexists(place):
    place = os.path.dirname(place)
  if not os.path.isdir(place):
    why = f"{place} is no folder"
    raise bad_checkpoint_dir(operation, path, why, errors.SpecError)
  if not os.access(place, os.W_OK | os.X_OK):
    raise bad_checkpoint_dir(operation, path, f"{place} may not be written to")
  return folder


def bad_checkpoint_dir(
  operation: str,
  path: Any,
  why: str,
  error_cls: type[errors.SpecError] = errors.ReplayError,
) -> errors.SpecError:
  """Builds the error for a folder of checkpoints that cannot be used.

  Args:
    operation: the function or class that was given it.
    path: as given.
    why: what is wrong with it, without a full stop.
    error_cls: the class of the error.
  """
  return error_cls(
    f"{operation}: checkpoint_dir: {_FOLDER}, got {path!r}. {why}: name another place."
  )
