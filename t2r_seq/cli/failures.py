"""Which failures a user can act on, and how they read on one line.

A mistake in a config, a file or a call of the library gets its message; anything else
may be a bug, and its traceback is what helps.
"""

from __future__ import annotations

import re
import sys
from types import TracebackType

from t2r_seq import errors

# What gin appends to a message for every configurable that the error went through.
_GIN_CALLS = re.compile(r"\n\s*In call to configurable [^\n]*")
_LIBRARY_ERRORS = (ArithmeticError, RuntimeError, ValueError)


class UsageError(Exception):
  """A command that cannot be carried out as it was given."""


def is_expected(error: BaseException) -> bool:
  """Whether the message says enough.

  Expected are: misfitting data, missing files and packages, a wrong command or config,
  and whatever this library or gin raised on purpose, i.e. in a frame of their own. An
  error out of a user's model, or out of TensorFlow, is not.
  """
  if isinstance(error, (errors.SpecError, ImportError, OSError, UsageError)):
    return True
  if _is_tensorflow_file_error(error):
    return True
  module = _raised_in(error.__traceback__)
  if module.startswith("t2r_seq."):
    return isinstance(error, _LIBRARY_ERRORS)
  return module.startswith("gin.")


def message(error: BaseException) -> str:
  """Returns the error's message without what gin adds about its call stack.

  It is one line, unless the error lists several mismatches, one a line.
  """
  text = _GIN_CALLS.sub("", str(error)).strip()
  if not isinstance(error, errors.SpecError):
    text = " ".join(text.split())
  return text or type(error).__name__


def _is_tensorflow_file_error(error: BaseException) -> bool:
  """Whether TensorFlow did not find a file, or may not read it."""
  tf = sys.modules.get("tensorflow")
  if tf is None:
    return False
  return isinstance(error, (tf.errors.NotFoundError, tf.errors.PermissionDeniedError))


def _raised_in(traceback: TracebackType | None) -> str:
  """Returns the name of the module that an error was raised in."""
  name = ""
  while traceback is not None:
    name = str(traceback.tb_frame.f_globals.get("__name__", ""))
    traceback = traceback.tb_next
  return name
