"""Maps files as arrays and tensors without a copy, also in datasets."""

from __future__ import annotations

import contextvars
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq.imports import tf

# TensorFlow's kernels (Eigen) need tensors that start on a boundary of 64 bytes.
_ALIGNMENT = 64


def map_file(path: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
  """Maps the start of a file as a read-only array of this shape."""
  if not math.prod(shape):
    empty = np.zeros(shape, dtype)
    empty.flags.writeable = False
    return empty
  return np.memmap(path, dtype, "r", shape=shape)


def empty_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """Returns an uninitialized array that TensorFlow can use without a copy."""
  num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
  buffer = np.empty(num_bytes + _ALIGNMENT, np.uint8)
  start = -buffer.ctypes.data % _ALIGNMENT
  return buffer[start : start + num_bytes].view(dtype).reshape(shape)


def to_tensor(array: np.ndarray) -> tf.Tensor:
  """Turns a contiguous, mapped array into a tensor of the same memory, on the CPU.

  The tensor keeps the mapping alive; nothing may write to its memory. A dataset whose
  function captures the tensor copies it when its iterator is made: see `HeldTensor`.
  Mapped files are aligned to 64 bytes; other arrays are copied, because TensorFlow's
  kernels abort on them. Bool becomes uint8, because DLPack cannot share bool.
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
  """Exports a read-only array as writable: numpy refuses DLPack for read-only ones."""

  def __init__(self, array: np.ndarray) -> None:
    self._array = array  # Kept alive by the exported array.
    interface: dict[str, Any] = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    self.__array_interface__ = interface


# While `dataset_over` traces: the argument that replaces a held tensor, by its id.
_bound: contextvars.ContextVar[Mapping[int, tf.Tensor]] = contextvars.ContextVar(
  "bound", default=types.MappingProxyType({})
)


class HeldTensor:
  """A tensor that datasets refer to, such as a mapped column.

  TensorFlow copies each tensor that a dataset's functions capture, when an iterator is
  made. A `tf.Variable` is not copied, but makes the dataset stateful: iterators that
  can be checkpointed then warn with every element. An element of a dataset, which
  functions get as their argument, has neither problem: `dataset_over` makes one.
  """

  def __init__(self, tensor: tf.Tensor) -> None:
    self._tensor = tensor

  @classmethod
  def of(cls, values: np.ndarray) -> HeldTensor:
    """Makes one of integers, as int64, or of strings."""
    dtype = tf.int64 if values.dtype.kind in "iu" else tf.string
    with tf.device("CPU:0"):
      return cls(tf.constant(values, dtype))

  def read_value(self) -> tf.Tensor:
    """Returns the tensor or, in `dataset_over`, the argument that replaces it."""
    bound = _bound.get()
    if not bound:
      return self._tensor
    if id(self) not in bound:
      raise ValueError(
        f"read_value: {self._tensor.dtype.name}{list(self._tensor.shape)}: expected "
        "one of the tensors that dataset_over was given, got another. Add it to `held`."
      )
    return bound[id(self)]

  @property
  def tensor(self) -> tf.Tensor:
    """The tensor itself."""
    return self._tensor


def dataset_over(
  held: Sequence[HeldTensor], make: Callable[[], tf.data.Dataset]
) -> tf.data.Dataset:
  """Returns the dataset that `make` makes; its functions read `held` without a copy."""
  if not held:
    return make()

  def bind(*lists: tf.Tensor) -> tf.data.Dataset:
    names = (id(each) for each in held)
    tensors = map(_only_element, lists, held)
    token = _bound.set({**_bound.get(), **dict(zip(names, tensors, strict=True))})
    try:
      return make()
    finally:
      _bound.reset(token)

  with tf.device("CPU:0"):
    source = tf.data.Dataset.from_tensors(tuple(map(_list_of, held)))
  return source.flat_map(tf.autograph.experimental.do_not_convert(bind))


def _list_of(held: HeldTensor) -> tf.Tensor:
  """Returns a list with the tensor in it: a scalar for a tensor of any size.

  When TensorFlow optimizes a dataset, it allocates zeros as large as each tensor among
  the elements, and keeps them; a list is a scalar.
  """
  empty = tf.raw_ops.EmptyTensorList(
    element_shape=held.tensor.shape, max_num_elements=1, element_dtype=held.tensor.dtype
  )
  return tf.raw_ops.TensorListPushBack(input_handle=empty, tensor=held.tensor)


def _only_element(tensors: tf.Tensor, held: HeldTensor) -> tf.Tensor:
  """Returns the tensor in the list of `_list_of`, without a copy."""
  return tf.raw_ops.TensorListGetItem(
    input_handle=tensors,
    index=0,
    element_shape=held.tensor.shape,
    element_dtype=held.tensor.dtype,
  )
