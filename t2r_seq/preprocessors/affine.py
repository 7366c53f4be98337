"""One path's normalisation: an affine map, with its inverse."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq.statistics import PathStatistics

MEAN_STD, MIN_MAX, QUANTILE = "mean_std", "min_max", "quantile"
MODES = (MEAN_STD, MIN_MAX, QUANTILE)
_LOW, _HIGH = 0.01, 0.99
# How much of the scale the rounding of the center may cost.
_MAX_ROUNDING = 1e-6
# The spacing of floats near 1.
_RESOLUTION = {
  tf.float16: 2.0**-10,
  tf.bfloat16: 2.0**-7,
  tf.float32: 2.0**-23,
  tf.float64: 2.0**-52,
}


class Affine:
  """Maps x to (x - center) / scale, by figures that are constants of the graph.

  A scale that is lost in the rounding of the values themselves is of a constant
  element; it counts as 1, so that such an element becomes 0 and not noise.

  Attributes:
    constant: which elements are constant, bool, the shape of the figures.
  """

  def __init__(
    self, statistics: PathStatistics, mode: str, dtype: tf.DType, stored_dtype: tf.DType
  ) -> None:
    """Takes the figures of a path.

    Args:
      statistics: with at least one finite value for each element.
      mode: one of `MODES`.
      dtype: of the normalised values.
      stored_dtype: of the values as they are stored.
    """
    center, scale = _center_and_scale(statistics, mode)
    low, high = statistics.measure("min"), statistics.measure("max")
    magnitude = np.maximum(np.abs(low), np.abs(high))
    self.constant = scale <= _RESOLUTION.get(stored_dtype, 0.0) * magnitude
    scale = np.where(self.constant, 1.0, scale)
    self._dtype = dtype
    is_wide = dtype == tf.float64 or (stored_dtype.is_integer and stored_dtype.size > 2)
    # A center far off the spread has no place in a float32, and a second float for the
    # rest does not help: Grappler adds up the constants of a graph.
    rounded = np.abs(center - center.astype(np.float32)) > _MAX_ROUNDING * scale
    self._inner = tf.float64 if is_wide or np.any(rounded) else tf.float32
    self._center = center.astype(self._inner.as_numpy_dtype)
    self._scale = scale.astype(self._inner.as_numpy_dtype)

  def normalize(self, values: Any) -> tf.Tensor:
    """Maps stored values, [..., *shape], to normalised ones."""
    values = (tf.cast(values, self._inner) - self._center) / self._scale
    return tf.cast(values, self._dtype)

  def unnormalize(self, values: Any) -> tf.Tensor:
    """Maps normalised values, [..., *shape], back; the dtype stays."""
    values = tf.convert_to_tensor(values)
    scaled = tf.cast(values, self._inner) * self._scale
    return tf.cast(scaled + self._center, values.dtype)


def _center_and_scale(
  statistics: PathStatistics, mode: str
) -> tuple[np.ndarray, np.ndarray]:
  if mode == MEAN_STD:
    return statistics.measure("mean"), statistics.measure("std")
  if mode == MIN_MAX:
    low, high = statistics.measure("min"), statistics.measure("max")
  else:
    low, high = statistics.quantiles[_LOW], statistics.quantiles[_HIGH]
  return low + (high - low) / 2, (high - low) / 2
