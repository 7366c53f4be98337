"""Features that fit their specs as they are, told apart in a few microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import specs


class ExactFeatures:
  """Recognises arrays by path of exactly the shapes and dtypes that specs ask for.

  The full check of a structure costs 0.1 ms, a sixth of a small policy's step. What it
  would accept in nearly every step is known beforehand; anything else, another nesting
  or a tensor, is left to the full check, which also has the errors.
  """

  def __init__(self, spec: specs.TensorSpecStruct) -> None:
    """Prepares the check.

    Args:
      spec: by path, without the axis of environments.
    """
    # Strings and open shapes have no one array type to compare with.
    self._is_exact = all(
      leaf.shape.is_fully_defined() and np.dtype(leaf.dtype.as_numpy_dtype) != object
      for leaf in spec.values()
    )
    self._leaves = [
      (path, np.dtype(leaf.dtype.as_numpy_dtype), tuple(leaf.shape.as_list()))
      for path, leaf in spec.items()
      if self._is_exact
    ]

  def take(self, features: Any, num_envs: int) -> dict[str, np.ndarray] | None:
    """Returns the features by path, or None where they have to be looked at closely.

    Args:
      features: what a user gives.
      num_envs: size of the first axis.
    """
    if not self._is_exact or not isinstance(features, Mapping):
      return None
    taken = {}
    for path, dtype, shape in self._leaves:
      value = features.get(path)
      if (
        type(value) is not np.ndarray
        or value.dtype != dtype
        or value.shape != (num_envs, *shape)
      ):
        return None
      taken[path] = value
    return taken
