"""Priorities as they are given: checked, and turned into float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from t2r_seq import errors

_GREATEST = float(np.finfo(np.float32).max)
_GREATEST_BITS = np.float64(_GREATEST).view(np.uint64)
# What numpy would turn into numbers, or fail to, in its own ways.
_NO_NUMBERS = "cmMOSU"


def check_priorities(
  operation: str, priorities: np.ndarray, name: str = "priorities"
) -> None:
  """Raises SpecError unless priorities, float64, are at least 0 and fit in float32."""
  # Floats' bits are in the floats' order; those of NaN and of negative ones are above.
  if priorities.size and priorities.view(np.uint64).max() <= _GREATEST_BITS:
    return
  fits = (priorities >= 0) & (priorities <= _GREATEST)
  if not fits.all():
    wrong = priorities[~fits].ravel()[0]
    raise errors.SpecError(
      f"{operation}: {name}: expected finite ones of at least 0, as float32, got "
      f"{wrong:g}."
    )


def to_priority(operation: str, value: Any, name: str = "priority") -> float:
  """Returns a priority; raises SpecError where it is no number that can be one."""
  if value.__class__ is float and 0 <= value <= _GREATEST:
    return value  # The usual case.
  return float(to_priorities(operation, value, (), name))


def to_priorities(
  operation: str, values: Any, shape: tuple[int, ...], name: str = "priorities"
) -> np.ndarray:
  """Turns what was given into priorities.

  Args:
    operation: for the error.
    values: as given.
    shape: that they must have.
    name: for the error.
  Returns:
    float64.
  Raises:
    SpecError: they are no numbers, too many or few, negative or not finite.
  """
  try:
    given = np.asarray(values)
    fits = given.shape == shape and given.dtype.kind not in _NO_NUMBERS
    numbers = given.astype(np.float64, copy=False) if fits else None
  except (TypeError, ValueError):  # Lists of several lengths.
    numbers = None
  if numbers is None:
    want = f"numbers of shape {shape}" if shape else "a number"
    raise errors.SpecError(
      f"{operation}: {name}: expected {want}, got {errors.describe(values)}."
    )
  check_priorities(operation, numbers, name)
  return numbers
