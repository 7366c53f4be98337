"""What a replay raises: once it is closed, or inside of TensorFlow's long errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from t2r_seq import errors

_ERRORS = {
  "ReplayTimeoutError": errors.ReplayTimeoutError,
  "ReplayError": errors.ReplayError,
  "SpecError": errors.SpecError,
}


def check_open(operation: str, is_closed: bool) -> None:
  """Raises ReplayError for what is asked of a replay that is closed."""
  if is_closed:
    raise errors.ReplayError(f"{operation}: expected an open replay, got a closed one.")


@contextlib.contextmanager
def explained() -> Iterator[None]:
  """Turns what a replay raised inside of TensorFlow into what it was."""
  try:
    yield
  except tf.errors.OpError as error:
    for name, error_cls in _ERRORS.items():
      found = re.search(rf"\b{name}: (.+?)\s*(Traceback|$)", error.message, re.S)
      if found:
        raise error_cls(found[1]) from error
    raise
