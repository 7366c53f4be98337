"""What a replay raised inside of TensorFlow, which makes one long error of it."""

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
