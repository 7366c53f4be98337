"""What Reverb cannot take as it is: bfloat16, which travels as its bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

_BITS = {tf.bfloat16: tf.uint16}


def wire_signature(signature: Mapping[str, tf.TensorSpec]) -> dict[str, tf.TensorSpec]:
  """Returns the specs of what travels."""
  return {
    name: tf.TensorSpec(spec.shape, _BITS.get(spec.dtype, spec.dtype), spec.name)
    for name, spec in signature.items()
  }


def to_wire(value: Any, dtype: np.dtype) -> np.ndarray:
  """Converts one value to what travels.

  Args:
    value: an array or a number, of this dtype or a Python float.
    dtype: of the value; object for strings.
  """
  # A copy: what is appended may be written over before the row is complete.
  array = np.array(value, dtype)
  return array.view(np.uint16) if dtype.kind == "V" else array


def from_wire(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Converts what has travelled to what it is; copies nothing."""
  return values if values.dtype == dtype else tf.bitcast(values, dtype)
