"""Parsed values compared with what they should be, in dtype, shape and every value."""

from __future__ import annotations

from typing import Any

import numpy as np


def differences(got: Any, want: Any) -> list[str]:
  """Names the paths whose values are not the same, in dtype, shape and every value."""
  return sorted(
    {*got} ^ {*want} | {p for p in {*got} & {*want} if not _same(got[p], want[p])}
  )


def _same(got: Any, want: Any) -> bool:
  if isinstance(got, bytes) or isinstance(want, bytes):
    return _bytes_of(got) == _bytes_of(want)
  if np.shape(got) != np.shape(want):
    return False
  if got.dtype == object:
    return got.tolist() == want.tolist()
  is_count = got.dtype.kind == "i" and want.dtype.kind == "i"
  if got.dtype != want.dtype and not is_count:
    return False
  if got.dtype.kind in "iub":
    return np.array_equal(got, want)
  # bfloat16 is no kind of float to numpy; float64 holds all of them.
  return np.array_equal(got.astype(float), want.astype(float), equal_nan=True)


def _bytes_of(value: Any) -> Any:
  return value.item() if isinstance(value, np.ndarray) else value
