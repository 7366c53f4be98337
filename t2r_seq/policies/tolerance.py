"""How far the outputs of two runtimes of one network may differ."""

from __future__ import annotations

import numpy as np

# A share of each element's range. Kernels add in other orders and approximate
# functions, and that error follows the scale of an output, not its present value.
TOLERANCE = 5e-3
# Fewer steps show no range.
_FEWEST_STEPS = 4
# The least range, as a share of `1 + |value|`, for elements that hardly change.
_LEAST_RANGE = 0.02


def describe_tolerance(tolerance: float) -> str:
  """Returns the tolerance as messages have it."""
  return f"{tolerance:g} of each element's range"


def relative_errors(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
  """Returns how far outputs are apart, in units of the range of their element.

  The range of an element (of the last axis) is from its least to its largest expected
  value. `1 + |value|` stands for it where there are few steps.

  Args:
    expected: outputs at several steps, [N, ...].
    got: the same, of another runtime.
  Returns:
    float64 [N, ...]; 0 where both are the same infinity, or no numbers; infinity where
    one of them is not finite.
  """
  expected, got = (np.asarray(x).astype(np.float64) for x in (expected, got))
  rows = expected.reshape([-1, expected.shape[-1] if expected.ndim > 1 else 1])
  scale = 1 + np.abs(np.where(np.isfinite(expected), expected, 0))
  if len(expected) >= _FEWEST_STEPS:
    finite = np.ma.masked_invalid(rows)
    ranges = (finite.max(0) - finite.min(0)).filled(0)
    ranges = ranges if expected.ndim > 1 else ranges[0]
    scale = np.maximum(_LEAST_RANGE * scale, ranges)
  with np.errstate(invalid="ignore"):
    error = np.abs(got - expected) / scale
  error = np.where(np.isfinite(error), error, np.inf)
  same = (got == expected) | (np.isnan(got) & np.isnan(expected))
  return np.where(same, 0.0, error)
