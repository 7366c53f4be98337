"""What may stand at a path of a structure: specs, tensors, arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

IMAGE_FORMATS = ("jpeg", "png", "bmp", "gif")
RAW_FORMAT = "raw"


def is_tensor(value: Any) -> bool:
  """Whether `value` is a TensorFlow tensor or variable, or a Keras tensor."""
  return tf.is_tensor(value) or isinstance(value, tf.Variable) or is_keras_tensor(value)


def is_keras_tensor(value: Any) -> bool:
  """Whether `value` is a symbolic Keras tensor, of Keras 2 or 3."""
  # Asked by name: tf.keras.backend.is_keras_tensor loads Keras, which costs seconds.
  return any(base.__name__ == "KerasTensor" for base in type(value).__mro__)


def is_encoded_image_spec(tensor_spec: Any) -> bool:
  """Whether the record holds an encoded image (or images) for this spec."""
  data_format = getattr(tensor_spec, "data_format", None)
  return data_format is not None and data_format.lower() in IMAGE_FORMATS


def is_leaf(value: Any) -> bool:
  """Whether `value` is a spec, tensor, array or numpy scalar."""
  return isinstance(value, (tf.TypeSpec, np.ndarray, np.generic)) or is_tensor(value)
