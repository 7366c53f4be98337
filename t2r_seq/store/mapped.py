"""Files as arrays and tensors, with no copy: pages are read when they are touched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

_ALIGNMENT = 64


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

  The tensor keeps the mapping alive. A dataset whose function captures it copies it
  whole when its iterator is made: see `held_tensors`.

  Args:
    array: contiguous; nothing must write to the tensor's memory. An array that does
      not start on a boundary of 64 bytes, as every mapped file does, is copied:
      TensorFlow's kernels abort on it.
  Returns:
    The tensor, on the CPU; bool as uint8, because TensorFlow cannot share bool.
  """
  dtype = tf.uint8 if array.dtype == np.bool_ else tf.as_dtype(array.dtype)
  if not array.size:
    return tf.zeros(array.shape, dtype)
  if array.dtype == np.bool_:
    array = array.view(np.uint8)
  elif dtype == tf.bfloat16:
    array = array.view(np.uint16)
  if array.ctypes.data % _ALIGNMENT:
    tensor = tf.convert_to_tensor(array)
  else:
    capsule = np.asarray(_Shared(array)).__dlpack__()
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
