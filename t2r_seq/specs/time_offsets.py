"""Time offsets: which steps, relative to its anchor, a spec reads."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from t2r_seq import errors

TimeOffsets = int | tuple[int, ...] | None


def normalize(offsets: int | Iterable[int] | None, name: str | None) -> TimeOffsets:
  """Turns what a user may write into None, an int or a tuple of ints.

  Args:
    offsets: None, an int, or an iterable of ints such as `range(-3, 1)`.
    name: the spec's name, for the error.
  Returns:
    The offsets in the form that specs keep.
  Raises:
    SpecError: anything else, or no offsets at all.
  """
  if offsets is None:
    return None
  try:
    if not isinstance(offsets, Iterable):
      return _as_int(offsets)
    result = tuple(_as_int(offset) for offset in offsets)
  except TypeError as e:
    raise errors.SpecError(
      f"ExtendedTensorSpec: {name}: expected time_offsets to be None, an int or a "
      f"tuple of ints, got {offsets!r}."
    ) from e
  if not result:
    raise errors.SpecError(
      f"ExtendedTensorSpec: {name}: expected at least one time offset, got ()."
    )
  return result


def _as_int(offset: Any) -> int:
  if isinstance(offset, bool):
    raise TypeError("a bool is not an offset")
  return operator.index(offset)
