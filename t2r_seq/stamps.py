"""Time stamps as integers of nanoseconds, and when two of them are equal."""

from __future__ import annotations

from typing import Any

import numpy as np

NANOSECONDS = 10**9
# Bits of the fraction: a stamp is rounded by one part in 2 ** (bits + 1).
_BITS = {"float32": 23, "float64": 52}
# Nanoseconds by which an offset and two stamps are rounded.
SLACK = 2


def to_nanoseconds(stamps: Any) -> np.ndarray:
  """Converts time stamps: floats are seconds, integers are nanoseconds."""
  array = np.asarray(stamps)
  if array.dtype.kind != "f":
    return array.astype(np.int64)
  return np.rint(array.astype(np.float64) * NANOSECONDS).astype(np.int64)


def precision(dtype: str, nanoseconds: Any) -> Any:
  """Returns the nanoseconds by which two equal stamps of a dtype may differ.

  Args:
    dtype: name of the dtype.
    nanoseconds: the stamps, at least 0; integers of numpy or TensorFlow.
  """
  bits = _BITS.get(dtype, 62)
  return nanoseconds // 2**bits + SLACK
