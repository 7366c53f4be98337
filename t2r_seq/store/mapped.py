"""Files as arrays and tensors, with no copy: pages are read when they are touched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf


def map_file(path: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
  """Maps the start of a file, read-only.

  Args:
    path: of the file.
    dtype: of its values.
    shape: the first bytes of the file are an array of this shape.
  Returns:
    An `np.memmap`; an empty array, read-only too, where there are no bytes to map.
  """
  if not math.prod(shape):
    empty = np.zeros(shape, dtype)
    empty.flags.writeable = False
    return empty
  return np.memmap(path, dtype, "r", shape=shape)


def to_tensor(array: np.ndarray) -> tf.Tensor:
  """Turns a mapped array into a tensor of the same memory.

  The tensor keeps the mapping alive. Hold it in a `tf.Variable` on the CPU before a
  dataset captures it: a captured tensor is copied whole when the iterator is made.

  Args:
    array: contiguous; nothing must write to the tensor's memory.
  Returns:
    The tensor, on the CPU; bool as uint8, because TensorFlow cannot share bool.
  """
  if not array.size:
    dtype = np.uint8 if array.dtype == np.bool_ else array.dtype
    return tf.zeros(array.shape, tf.as_dtype(dtype))
  dtype, exported = tf.as_dtype(array.dtype), array
  if array.dtype == np.bool_:
    exported = array.view(np.uint8)
  elif dtype == tf.bfloat16:
    exported = array.view(np.uint16)
  capsule = np.asarray(_Shared(exported)).__dlpack__()
  tensor = tf.experimental.dlpack.from_dlpack(capsule)
  # A bitcast to a dtype of the same size shares the buffer.
  return tf.bitcast(tensor, tf.bfloat16) if dtype == tf.bfloat16 else tensor


class _Shared:
  """Exports a read-only array as writable: numpy gives DLPack nothing else."""

  def __init__(self, array: np.ndarray) -> None:
    self._array = array  # Kept alive by whoever holds the exported array.
    interface: dict[str, Any] = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    self.__array_interface__ = interface
