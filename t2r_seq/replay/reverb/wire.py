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


def to_wire(value: Any) -> Any:
  """Converts one value, an array or a scalar, to what travels."""
  dtype = getattr(value, "dtype", None)
  if dtype is None or dtype.kind != "V":
    return value
  return np.asarray(value).view(np.uint16)


def from_wire(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Converts what has travelled to what it is; copies nothing."""
  return values if values.dtype == dtype else tf.bitcast(values, dtype)
