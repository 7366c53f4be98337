"""`ExtendedTensorSpec`: describes one tensor, in a record and in time."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from t2r_seq import errors, imports
from t2r_seq.specs import names, serialization, t2r_pb2
from t2r_seq.specs.conventions import Convention
from t2r_seq.specs.seconds import Seconds


def dtype_of(array: np.ndarray | np.generic) -> tf.DType:
  """Returns the dtype of an array; text, byte strings and objects are strings."""
  return tf.string if array.dtype.kind in "SUO" else tf.as_dtype(array.dtype)


def prepend_batch(shape: tf.TensorShape, batch_size: int) -> tf.TensorShape:
  """Prepends a batch axis of size `batch_size`, or of unknown size if it is <= 0."""
  if isinstance(batch_size, bool) or not isinstance(batch_size, int):
    raise errors.SpecError(
      f"from_spec: expected an integer batch_size, got {batch_size!r}."
    )
  return tf.TensorShape([batch_size if batch_size > 0 else None]).concatenate(shape)


LAST: Literal["last"] = "last"
TimeOffsets = int | tuple[int, ...] | Seconds | Literal["last"] | None


def normalize(
  offsets: int | str | Iterable[int] | Seconds | None, name: str | None
) -> TimeOffsets:
  """Returns time offsets as None, an int, a tuple of ints, `Seconds` or 'last'.

  Raises:
    SpecError: `offsets` is something else or empty. The message has `name`.
  """
  if offsets is None or isinstance(offsets, Seconds):
    return offsets
  if isinstance(offsets, str) and offsets == LAST:
    return LAST
  try:
    if not isinstance(offsets, Iterable):
      return _as_int(offsets)
    result = tuple(_as_int(offset) for offset in offsets)
  except TypeError as e:
    raise errors.SpecError(
      f"ExtendedTensorSpec: {name}: expected time_offsets to be None, an int or a "
      f"tuple of ints, got {offsets!r}. '{LAST}' is the last step of an episode, and "
      "specs.Seconds(-0.1, 0.0) has times in seconds."
    ) from e
  if not result:
    raise errors.SpecError(
      f"ExtendedTensorSpec: {name}: expected at least one time offset, got ()."
    )
  return result


def is_stack(offsets: Any) -> bool:
  """Whether time offsets have a stack axis."""
  return isinstance(offsets.offsets if isinstance(offsets, Seconds) else offsets, tuple)


def _as_int(offset: Any) -> int:
  if isinstance(offset, bool):
    raise TypeError("a bool is not an offset")
  return operator.index(offset)


def is_tensor(value: Any) -> bool:
  """Whether `value` is a TensorFlow tensor or variable, or a symbolic Keras tensor."""
  return (
    imports.is_tensor(value) or isinstance(value, tf.Variable) or is_keras_tensor(value)
  )


def is_keras_tensor(value: Any) -> bool:
  """Whether `value` is a symbolic Keras tensor, of Keras 2 or 3."""
  # By name: tf.keras.backend.is_keras_tensor loads Keras, which takes seconds.
  return any(base.__name__ == "KerasTensor" for base in type(value).__mro__)


def is_encoded_image_spec(tensor_spec: Any) -> bool:
  """Whether this is a spec of encoded images."""
  return names.is_image_format(getattr(tensor_spec, "data_format", None))


def is_video_spec(tensor_spec: Any) -> bool:
  """Whether this is the spec of a video column of a store."""
  return names.is_video_format(getattr(tensor_spec, "data_format", None))


def frame_spec(spec: ExtendedTensorSpec) -> ExtendedTensorSpec:
  """Returns the spec of plain frames for a video; other specs are unchanged."""
  if not is_video_spec(spec):
    return spec
  return ExtendedTensorSpec(**{**spec.fields(), "data_format": None})


def is_leaf(value: Any) -> bool:
  """Whether `value` is a spec, tensor, array or numpy scalar."""
  return isinstance(value, (tf.TypeSpec, np.ndarray, np.generic)) or is_tensor(value)


_DEFAULTS = {
  "is_optional": False,
  "is_sequence": False,
  "is_extracted": False,
  "data_format": None,
  "dataset_key": "",
  "varlen_default_value": None,
  "time_offsets": None,
  "is_concatenated": False,
  "stored_dtype": None,
  "convention": None,
}
# Fields of `from_spec` for which None is a value.
_NULLABLE = ("time_offsets", "stored_dtype", "convention")
FIELDS = ("shape", "dtype", "name", *_DEFAULTS)


def can_cast(stored: tf.DType, dtype: tf.DType) -> bool:
  """Whether `stored` can be cast to `dtype`; only a floating dtype may round."""
  is_number = all(d.is_floating or d.is_integer or d.is_bool for d in (stored, dtype))
  if not is_number:
    return False
  if dtype.is_floating or stored.is_bool:
    return not dtype.is_bool
  return bool(
    stored.is_integer
    and dtype.is_integer
    and dtype.min <= stored.min
    and stored.max <= dtype.max
  )


def added_axes(given: tf.TensorShape, expected: tf.TensorShape) -> int:
  """Returns how many axes to add to one number: 1 for () to (1,), -1 for (1,) to ().

  0 for other shapes. Formats differ: LeRobot's files have scalars for (1,).
  """
  ranks = given.rank, expected.rank
  if ranks in ((0, 1), (1, 0)) and given.num_elements() == expected.num_elements() == 1:
    return 1 if ranks == (0, 1) else -1
  return 0


def cast_hint(stored: Any, dtype: tf.DType) -> str:
  """Returns the hint to declare a `stored_dtype`, or '' if a cast is impossible."""
  if not isinstance(stored, tf.DType) or stored == dtype or not can_cast(stored, dtype):
    return ""
  return f"To have it cast, say so in the spec: stored_dtype=tf.{stored.name}."


class ExtendedTensorSpec(tf.TensorSpec):
  """A `tf.TensorSpec` with the encoding of the stored data and the steps to read.

  Equality compares shape and dtype only, also with a plain `tf.TensorSpec`;
  `is_identical_to` compares all fields. Specs are immutable: use `from_spec`.

  >>> from t2r_seq.specs import ExtendedTensorSpec
  >>> stack = ExtendedTensorSpec(
  ...   (4, 64, 64, 3), "uint8", "image", time_offsets=(-3, -2, -1, 0)
  ... )
  >>> stack.frame_shape  # One step: the stack axis comes from the offsets.
  TensorShape([64, 64, 3])
  >>> ExtendedTensorSpec.from_spec(stack, name="camera").name
  'camera'

  """

  def __init__(
    self,
    shape: Any,
    dtype: Any,
    name: str | None = None,
    is_optional: bool | None = None,
    is_sequence: bool = False,
    is_extracted: bool = False,
    data_format: str | None = None,
    dataset_key: str | None = None,
    varlen_default_value: Any = None,
    time_offsets: int | str | Iterable[int] | Seconds | None = None,
    is_concatenated: bool = False,
    stored_dtype: Any = None,
    **meaning: Convention | Mapping[str, Any] | None,
  ) -> None:
    """Creates the spec.

    Args:
      shape: without the batch axis and the time axis of a sequence. With a stack of
        time offsets, its axis comes first: `shape[0] == len(time_offsets)`.
      dtype: dtype of the tensor.
      name: key of the feature in the record. Not the path in a structure.
      is_optional: the tensor may be absent.
      is_sequence: one value per step of the record, `[T, *shape]`; with time offsets,
        a sequence of stacks `[L, K, ...]`.
      is_extracted: the spec describes an existing tensor or array.
      data_format: 'jpeg', 'png', 'bmp' or 'gif' for an encoded image; for a tensor,
        'raw': its little-endian bytes, 'zlib': those compressed, 'tensor': the output
        of `tf.io.serialize_tensor`; 'mp4' or 'mkv' for a video column of a store; None
        for a plain feature.
      dataset_key: key of the dataset with the feature, if several are zipped.
      varlen_default_value: the feature has a variable length in the record, and is
        clipped, or padded with this value, to `shape[0]`.
      time_offsets: the steps of the tensor, relative to the anchor. A tuple stacks
        them, an int is one step without a stack axis. `Seconds` are times, for data of
        any rate. 'last' is the last step of the episode, such as the image of a goal;
        a policy gets it with each observation. None: the anchor's own step, or a value
        without a time axis.
      is_concatenated: one list of the record holds the values of all steps; see
        `records.rlds_specs`.
      stored_dtype: the dtype of the data, if it differs: numbers are cast while
        reading. A cast to a floating dtype may round; a cast to an integer dtype must
        be exact.
      **meaning: `convention`: units, rotations and grippers of the numbers; a
        `Convention`, or its fields.
    Raises:
      SpecError: `time_offsets` or `convention` is invalid, or the fields contradict
        each other.
      TypeError: `shape` or `dtype` is invalid, or an argument is unknown.
      ValueError: a dimension is negative.
    """
    super().__init__(shape=shape, dtype=dtype, name=name)
    self._is_optional = bool(is_optional)
    self._is_sequence = bool(is_sequence)
    self._is_extracted = bool(is_extracted)
    self._data_format = data_format
    self._dataset_key = dataset_key or ""
    self._varlen_default_value = varlen_default_value
    self._time_offsets = normalize(time_offsets, name)
    self._is_concatenated = bool(is_concatenated)
    stored = self.dtype if stored_dtype is None else tf.as_dtype(stored_dtype)
    self._stored_dtype = None if stored == self.dtype else stored
    self._convention = Convention.of(meaning.pop("convention", None))
    for name in meaning:
      raise TypeError(f"ExtendedTensorSpec: unexpected argument {name!r}.")
    if self._convention is not None and self.shape.rank is not None:
      self._convention.check_shape(f"{self.name}", self.frame_shape.as_list())
    self._check_cast()
    self._check_stack_axis()
    self._check_varlen_rank()

  def _check_stack_axis(self) -> None:
    if self._time_offsets == LAST and self._is_sequence:
      raise errors.SpecError(
        f"ExtendedTensorSpec: {self.name}: time_offsets: expected offsets for a "
        f"sequence, got '{LAST}', which is one step of an episode. Leave is_sequence "
        "out."
      )
    if isinstance(self._time_offsets, Seconds):
      self._check_select(self._time_offsets.select)
    if not self.is_stacked:
      return
    count = len(self._time_offsets)  # type: ignore[arg-type]
    if not self.shape.rank or self.shape[0] != count:
      raise errors.SpecError(
        f"ExtendedTensorSpec: {self.name}: expected shape[0] = {count} for the time "
        f"offsets {self._time_offsets}, got shape {self.shape}. Put the stack axis "
        "first."
      )

  def _check_select(self, select: str) -> None:
    """Checks that a `Seconds.select` fits the dtype and shape."""
    frame = self.frame_shape if self.shape.rank or not self.is_stacked else self.shape
    is_number = self.dtype.is_floating and self._data_format in (None, names.RAW_FORMAT)
    is_quaternion = frame.rank is None or (frame.rank > 0 and frame[-1] in (4, None))
    if select == "linear" and not is_number:
      want, hint = "a floating dtype for 'linear'", "Choose 'hold' or 'nearest'."
    elif select == "event" and (
      frame.rank or self._data_format or self.dtype == tf.string
    ):
      want, hint = "a number or a bool for each offset for 'event'", "Drop its axes."
    elif select == "slerp" and not (is_number and is_quaternion):
      want = "floating quaternions of shape (..., 4) for 'slerp'"
      hint = "Choose 'hold', 'nearest' or 'linear'."
    else:
      return
    raise errors.SpecError(
      f"ExtendedTensorSpec: {self.name}: time_offsets: expected {want}, got "
      f"{self.dtype.name} {tuple(frame)}. {hint}"
    )

  def _check_cast(self) -> None:
    stored = self._stored_dtype
    if stored is None:
      return
    is_plain = self._data_format in (None, names.RAW_FORMAT)
    if not is_plain or not can_cast(stored, self.dtype):
      got = stored.name if is_plain else f"{stored.name} of {self._data_format}"
      raise errors.SpecError(
        f"ExtendedTensorSpec: {self.name}: expected a stored_dtype that can be cast to "
        f"{self.dtype.name}, got {got}. Convert the data: t2r_seq convert --cast."
      )

  def _check_varlen_rank(self) -> None:
    if self._varlen_default_value is None:
      return
    want = 1 if self._data_format is None else 4
    if self.frame_shape.rank != want:
      kind = "a list of images" if self._data_format else "a list of values"
      raise errors.SpecError(
        f"ExtendedTensorSpec: {self.name}: expected rank {want} for {kind} of "
        f"variable length, got shape {self.frame_shape}. "
        "shape[0] is the length to pad or clip to."
      )

  @classmethod
  def from_spec(
    cls,
    spec: tf.TensorSpec,
    shape: Any = None,
    dtype: Any = None,
    name: str | None = None,
    batch_size: int | None = None,
    **fields: Any,
  ) -> ExtendedTensorSpec:
    """Returns a copy of a `tf.TensorSpec` or `ExtendedTensorSpec` with other fields.

    None keeps a field, except `time_offsets`, `stored_dtype` and `convention`, for
    which it is a value. A new dtype drops the `stored_dtype`; a new last dimension
    drops the `convention`.

    Args:
      spec: the spec to copy.
      shape: replaces the shape.
      dtype: replaces the dtype.
      name: replaces the name.
      batch_size: prepends a batch axis: > 0 of that size, < 0 of unknown size; None
        and 0 don't. Drops stacked offsets and the varlen default, which describe
        `shape[0]`.
      **fields: other arguments of the constructor.
    Raises:
      SpecError: `spec` is not a spec, `batch_size` is not an integer, or the fields
        contradict each other.
      TypeError, ValueError: see `__init__`.
    """
    if not isinstance(spec, tf.TensorSpec):
      raise errors.SpecError(
        f"from_spec: expected a TensorSpec, got {errors.describe(spec)}."
      )
    if dtype is not None and tf.as_dtype(dtype) != spec.dtype:
      fields.setdefault("stored_dtype", None)
    given = {*fields}
    for field, default in _DEFAULTS.items():
      if field not in fields or (fields[field] is None and field not in _NULLABLE):
        fields[field] = getattr(spec, field, default)
    if shape is not None and "convention" not in given:
      is_alike = tf.TensorShape(shape)[-1:].is_compatible_with(spec.shape[-1:])
      fields["convention"] = fields["convention"] if is_alike else None
    shape = tf.TensorShape(spec.shape if shape is None else shape)
    if batch_size:
      shape = prepend_batch(shape, batch_size)
      fields["varlen_default_value"] = None
      if is_stack(fields["time_offsets"]):
        fields["time_offsets"] = None
    return cls(shape, dtype or spec.dtype, name or spec.name, **fields)

  @classmethod
  def from_tensor(cls, tensor: Any, name: str | None = None) -> ExtendedTensorSpec:
    """Describes a `tf.Tensor`, variable or Keras tensor; else raises SpecError.

    Sets `is_extracted`. The default `name` is that of the graph op or Keras tensor.
    """
    if not is_tensor(tensor):
      raise errors.SpecError(
        f"from_tensor: expected a tensor, got {errors.describe(tensor)}."
      )
    if name is None and is_keras_tensor(tensor):
      name = tensor.name  # Keras 2 has an `op` that raises.
    elif name is None and not hasattr(tensor, "numpy"):
      op = getattr(tensor, "op", None)
      name = op.name if op is not None else getattr(tensor, "name", None)
    return cls(tensor.shape, tensor.dtype, name, is_extracted=True)

  @classmethod
  def to_spec(cls, instance: Any) -> ExtendedTensorSpec:
    """Describes a spec, tensor, array or numpy scalar; else raises SpecError."""
    if isinstance(instance, cls):
      return instance
    if isinstance(instance, tf.TensorSpec):
      return cls.from_spec(instance)
    if isinstance(instance, (np.ndarray, np.generic)):
      return cls(instance.shape, dtype_of(instance), is_extracted=True)
    if is_tensor(instance):
      return cls.from_tensor(instance)
    raise errors.SpecError(
      f"to_spec: expected a spec, tensor or array, got {errors.describe(instance)}."
    )

  @property
  def is_optional(self) -> bool:
    """Whether the tensor may be absent."""
    return self._is_optional

  @property
  def is_sequence(self) -> bool:
    """Whether the record holds one value per step."""
    return self._is_sequence

  @property
  def is_extracted(self) -> bool:
    """Whether the spec describes an existing tensor or array."""
    return self._is_extracted

  @property
  def data_format(self) -> str | None:
    """The encoding of the stored data; None for a plain feature."""
    return self._data_format

  @property
  def dataset_key(self) -> str:
    """The key of the zipped dataset with the feature; '' for the only one."""
    return self._dataset_key

  @property
  def varlen_default_value(self) -> Any:
    """The padding of a feature of variable length; None for a fixed length."""
    return self._varlen_default_value

  @property
  def time_offsets(self) -> TimeOffsets:
    """The steps, relative to the anchor: a tuple, an int, `Seconds`, 'last' or None."""
    return self._time_offsets

  @property
  def is_stacked(self) -> bool:
    """Whether the time offsets have a stack axis."""
    return is_stack(self._time_offsets)

  @property
  def is_concatenated(self) -> bool:
    """Whether the record has the values of all steps in one list."""
    return self._is_concatenated

  @property
  def stored_dtype(self) -> tf.DType | None:
    """The dtype of the data if it differs from `dtype`; else None."""
    return self._stored_dtype

  @property
  def convention(self) -> Convention | None:
    """The declared meaning of the numbers; None if it is not declared."""
    return self._convention

  def as_stored(self) -> ExtendedTensorSpec:
    """Returns the spec of the stored data."""
    if self._stored_dtype is None:
      return self
    return type(self).from_spec(self, dtype=self._stored_dtype)

  @property
  def frame_shape(self) -> tf.TensorShape:
    """The shape at one step: without the stack axis."""
    return self.shape[1:] if self.is_stacked else self.shape

  def fields(self) -> dict[str, Any]:
    """Returns every constructor argument by name."""
    return {field: getattr(self, field) for field in FIELDS}

  @classmethod
  def from_proto(
    cls, proto: t2r_pb2.ExtendedTensorSpec, path: str = ""
  ) -> ExtendedTensorSpec:
    """Reads the `t2r.proto` message of a spec, also Tensor2Robot's.

    SpecError, with `path`, if it is invalid.
    """
    with serialization.decoding("spec_from_proto", path):
      fields = serialization.fields_from_proto(proto, path)
    return serialization.build(cls, "spec_from_proto", path, fields)

  @classmethod
  def from_serialized_proto(cls, serialized: bytes) -> ExtendedTensorSpec:
    """Reads the serialized `t2r.proto` message; SpecError if it is invalid."""
    return cls.from_proto(
      serialization.parse_proto(t2r_pb2.ExtendedTensorSpec, serialized)
    )

  def to_proto(self) -> t2r_pb2.ExtendedTensorSpec:
    """Returns the `t2r.proto` message of the spec, with every field."""
    return serialization.fields_to_proto(self.fields())

  @classmethod
  def from_json(cls, text: str) -> ExtendedTensorSpec:
    """Reads the output of `to_json`; SpecError if it is invalid."""
    return cls.from_json_dict(serialization.load_json("spec_from_json", text))

  def to_json(self) -> str:
    """Returns the spec as one line of JSON."""
    return json.dumps(self.to_json_dict())

  @classmethod
  def from_json_dict(
    cls, values: Mapping[str, Any], path: str = ""
  ) -> ExtendedTensorSpec:
    """Reads the output of `to_json_dict`; SpecError, with `path`, if it is invalid."""
    fields = serialization.fields_from_json(values, FIELDS, path)
    return serialization.build(cls, "spec_from_json", path, fields)

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the spec as JSON values; fields at their default are left out."""
    return serialization.fields_to_json(self.fields(), _DEFAULTS)

  def is_identical_to(self, other: Any) -> bool:
    """Whether `other` agrees in every field, not only in shape and dtype."""
    return (
      isinstance(other, ExtendedTensorSpec)
      and self == other
      and self.fields() == other.fields()
      and type(self.varlen_default_value) is type(other.varlen_default_value)
    )

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, tf.TensorSpec):
      return NotImplemented
    return self.shape == other.shape and self.dtype == other.dtype

  # A class with __eq__ does not inherit the hash, which is of shape and dtype.
  __hash__ = tf.TensorSpec.__hash__

  def __repr__(self) -> str:
    shape = None if self.shape.rank is None else tuple(self.shape.as_list())
    fields = {"shape": shape, "dtype": self.dtype, "name": self.name}
    for field, default in _DEFAULTS.items():
      value = getattr(self, field)
      if value != default or type(value) is not type(default):
        fields[field] = value
    return f"ExtendedTensorSpec({', '.join(f'{k}={v!r}' for k, v in fields.items())})"

  def __reduce__(self) -> tuple[Any, ...]:
    return functools.partial(type(self), **self.fields()), ()
