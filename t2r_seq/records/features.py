"""From a spec structure to the features of a record, checked at construction.

A `tf.train.Feature` is one of three lists. Integers and bools are in the int64 list
(uint64 keeps its bits), floats of up to 32 bits in the float list. The bytes list has
everything else: strings, encoded images, and tensors as little-endian bytes. These are
tensors of float64 or complex dtypes, and of data_format 'raw'; with 'zlib' they are
compressed. With 'tensor' they are as `tf.io.serialize_tensor` writes them.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf import message

from t2r_seq import errors, specs
from t2r_seq.imports import tf
from t2r_seq.records import protos
from t2r_seq.records.images import DecodeImages
from t2r_seq.specs import names as spec_names


def require(tensor: tf.Tensor, condition: tf.Tensor, data: list[Any]) -> tf.Tensor:
  """Returns `tensor`; InvalidArgumentError with `data` if the condition fails."""
  # tf.debugging.Assert builds a tf.cond around this op, which costs time per image.
  check = tf.raw_ops.Assert(condition=condition, data=data, summarize=8)
  with tf.control_dependencies([check] if check is not None else []):
    return tf.identity(tensor)


# Names of flags of first and last steps, after any prefix that ends in '/'.
IS_FIRST, IS_LAST = "is_first", "is_last"

# Names of dtypes, by the list that holds them; see the module docstring.
INT64_DTYPES = (
  *("bool", "int8", "int16", "int32", "int64"),
  *("uint8", "uint16", "uint32", "uint64"),
)
FLOAT_DTYPES = ("float16", "bfloat16", "float32")
RAW_BYTES_DTYPES = ("float64", "complex64", "complex128")
SUPPORTED_DTYPES = (*INT64_DTYPES, *FLOAT_DTYPES, *RAW_BYTES_DTYPES, "string")

# The names of the three lists in a Feature, without their '_list', by record dtype.
KINDS = {"int64": "int64", "float32": "float", "string": "bytes"}


def is_raw(spec: specs.ExtendedTensorSpec) -> bool:
  """Whether the record holds the tensor's bytes, by data_format or by dtype."""
  return is_packed(spec) or spec.dtype.name in RAW_BYTES_DTYPES


def is_packed(spec: specs.ExtendedTensorSpec) -> bool:
  """Whether the data_format is 'raw', 'zlib' or 'tensor'."""
  return packed_format(spec) in spec_names.PACKED_FORMATS


def packed_format(spec: specs.ExtendedTensorSpec) -> str:
  """Returns the data_format in lower case, or ''."""
  return (spec.data_format or "").lower()


def pack_value(array: np.ndarray, spec: specs.ExtendedTensorSpec) -> bytes:
  """Packs a tensor into one byte string, by its data_format."""
  if packed_format(spec) == "tensor":
    values = array.tolist() if spec.dtype == tf.string else array
    with tf.init_scope():  # A parser may be being traced.
      tensor = tf.constant(values, spec.dtype)
      tensor = tf.reshape(tensor, spec.shape)
      return tf.io.serialize_tensor(tensor).numpy()
  data = array.tobytes()
  return zlib.compress(data) if packed_format(spec) == "zlib" else data


def unpack_value(data: bytes, spec: specs.ExtendedTensorSpec) -> np.ndarray:
  """Unpacks one byte string of a spec; ValueError describes a string that is wrong."""
  if packed_format(spec) == "tensor":
    header = read_tensor_header(data)
    if header is None:
      raise ValueError(f"{len(data)} bytes that are not a serialized tensor")
    if header != (spec.dtype, tuple(spec.shape.as_list())):
      raise ValueError(f"one of {header[1]} {header[0].name}")
    return tf.io.parse_tensor(data, spec.dtype).numpy()
  want = bytes_per_value(spec)
  if packed_format(spec) == "zlib":
    try:
      data = zlib.decompressobj().decompress(data, want + 1)
    except zlib.error as error:
      raise ValueError(f"{len(data)} bytes that are not compressed") from error
    if len(data) > want:
      raise ValueError(f"more than {want} bytes, compressed")
  if len(data) != want:
    raise ValueError(f"{len(data)} bytes")
  dtype = np.dtype(spec.dtype.as_numpy_dtype).newbyteorder("<")
  shape = () if spec.varlen_default_value is not None else spec.shape.as_list()
  return np.frombuffer(data, dtype).reshape(shape)


def read_tensor_header(data: bytes) -> tuple[tf.DType, tuple[int, ...]] | None:
  """Returns dtype and shape of a serialized tensor; None for other bytes."""
  if data[:1] != b"\x08":  # The tag of the dtype, which comes first.
    return None
  from tensorflow.core.framework import tensor_pb2

  try:
    proto = tensor_pb2.TensorProto.FromString(data)
    dtype = tf.as_dtype(proto.dtype)
  except (message.DecodeError, TypeError):
    return None
  shape = tuple(dim.size for dim in proto.tensor_shape.dim)
  if dtype.name not in SUPPORTED_DTYPES or min(shape, default=0) < 0:
    return None
  count = math.prod(shape)
  is_whole = len(proto.tensor_content) == count * dtype.size
  if dtype == tf.string:
    is_whole = len(proto.string_val) == count and not proto.tensor_content
  # Other writers store lists of values; the last value stands for all missing ones.
  is_list = not proto.tensor_content and count and len(data) <= 64 + 16 * count
  return (dtype, shape) if is_whole or is_list else None


def record_dtype(spec: specs.ExtendedTensorSpec) -> tf.DType:
  """Returns the dtype of the list that holds the spec: int64, float32 or string."""
  if specs.is_encoded_image_spec(spec) or is_raw(spec) or spec.dtype == tf.string:
    return tf.string
  return tf.int64 if spec.dtype.name in INT64_DTYPES else tf.float32


def bytes_per_value(spec: specs.ExtendedTensorSpec) -> int:
  """Returns the length of one entry of a raw spec's bytes list."""
  shape = () if spec.varlen_default_value is not None else spec.shape.as_list()
  return math.prod(shape) * spec.dtype.size


def default_value(spec: specs.ExtendedTensorSpec) -> Any:
  """Casts the varlen default to the dtype; ValueError has the expected kind as text."""
  value = spec.varlen_default_value
  if spec.dtype == tf.string:
    if not isinstance(value, (str, bytes)):
      raise ValueError("a string")
    return value.encode() if isinstance(value, str) else value
  if not isinstance(value, (numbers.Number, np.generic)):
    raise ValueError("a number")
  if spec.dtype.is_integer and not spec.dtype.min <= value <= spec.dtype.max:
    raise ValueError(f"a number from {spec.dtype.min} to {spec.dtype.max}")
  return np.asarray(value).astype(spec.dtype.as_numpy_dtype)[()]


def to_record_values(
  array: np.ndarray, spec: specs.ExtendedTensorSpec
) -> list[int] | list[float] | list[bytes]:
  """Converts the values of one step, not an image, to entries of the record's list."""
  if spec.dtype == tf.string and not is_raw(spec):
    return list(array.ravel())
  if is_raw(spec):
    if spec.varlen_default_value is None:
      return [pack_value(array, spec)]
    return [value.tobytes() for value in array.ravel()]
  if spec.dtype == tf.uint64:
    return array.ravel().view(np.int64).tolist()
  if spec.dtype.name in INT64_DTYPES:
    return array.ravel().astype(np.int64).tolist()
  return array.ravel().astype(np.float32).tolist()


def is_number_a_step(spec: specs.ExtendedTensorSpec) -> bool:
  """Whether each step has one number, as time stamps have."""
  is_number = spec.dtype.is_integer or spec.dtype.is_floating
  return is_number and spec.is_sequence and spec.shape.num_elements() == 1


def decode_values(
  values: tf.Tensor,
  spec: specs.ExtendedTensorSpec,
  path: str,
  allow_empty: bool = False,
) -> tf.Tensor:
  """Converts parsed entries to the spec's dtype, in graph ops.

  Args:
    values: values of the record dtype, [..., *shape], or for a raw spec byte strings,
      [...].
    spec: not an image.
    path: path of the spec, for the error at run time.
    allow_empty: for a raw spec, empty byte strings become zeros. Missing features and
      padded steps are such.
  Returns:
    [..., *shape] of the spec's dtype.
  """
  if spec.dtype == tf.string and not is_raw(spec):
    return values
  if is_raw(spec):
    return _decode_bytes(values, spec, path, allow_empty)
  if spec.dtype == tf.uint64:
    return tf.bitcast(values, tf.uint64)
  bounds = value_range(spec.dtype)
  if bounds is not None:
    values = _check_range(values, spec.dtype, bounds, path)
  return values if values.dtype == spec.dtype else tf.cast(values, spec.dtype)


def value_range(dtype: tf.DType) -> tuple[float, float] | None:
  """Returns the finite range of a dtype if it is smaller than its list's; else None."""
  if dtype == tf.bool:
    return 0, 1
  if dtype == tf.float16:
    return float(dtype.min), float(dtype.max)
  if dtype.is_integer and dtype not in (tf.int64, tf.uint64):
    return dtype.min, dtype.max
  return None


def _check_range(
  values: tf.Tensor, dtype: tf.DType, bounds: tuple[float, float], path: str
) -> tf.Tensor:
  """Fails at run time if a cast would change a value, such as 300 to uint8."""
  finite = values
  if values.dtype.is_floating:  # The dtype has infinities and NaN, too.
    finite = tf.where(tf.math.is_finite(values), values, tf.zeros_like(values))
  low, high = tf.reduce_min(finite), tf.reduce_max(finite)
  message = f"parse: {path}: expected values of {dtype.name}, got values from, to:"
  fits = tf.logical_and(low >= bounds[0], high <= bounds[1])
  return require(values, fits, [message, low, high])


def _decode_bytes(
  values: tf.Tensor, spec: specs.ExtendedTensorSpec, path: str, allow_empty: bool
) -> tf.Tensor:
  varlen = spec.varlen_default_value is not None
  shape = [] if varlen else spec.shape.as_list()
  num_bytes = bytes_per_value(spec)
  full_shape = tf.concat([tf.shape(values), tf.constant(shape, tf.int32)], 0)
  static_shape = values.shape.concatenate(shape)
  data_format = packed_format(spec)
  if allow_empty and data_format in ("zlib", "tensor"):
    zeros = np.zeros(shape, object if spec.dtype == tf.string else spec.dtype.name)
    if spec.dtype == tf.string:
      zeros[...] = b""
    values = tf.where(tf.equal(values, b""), pack_value(zeros, spec), values)
  if data_format == "tensor":
    parsed = _parse_tensors(values, spec, path, full_shape)
    return tf.ensure_shape(parsed, static_shape)
  if num_bytes == 0:
    return tf.ensure_shape(tf.zeros(full_shape, spec.dtype), static_shape)
  if data_format == "zlib":
    values = _decompress(values, num_bytes, path)
  values = _check_num_bytes(values, num_bytes, spec, path, allow_empty)
  # With a fixed length, empty strings become zeros, but decoding is a fifth slower.
  fixed_length = num_bytes if allow_empty else None
  data = tf.io.decode_raw(values, tf.uint8, fixed_length=fixed_length)
  if spec.dtype.size > 1:
    data = tf.reshape(data, tf.concat([full_shape, [spec.dtype.size]], 0))
  else:
    data = tf.reshape(data, full_shape)
  if spec.dtype == tf.bool:
    data = tf.cast(data, tf.bool)
  elif spec.dtype != tf.uint8:
    data = tf.bitcast(data, spec.dtype)
  return tf.ensure_shape(data, static_shape)


def _decompress(values: tf.Tensor, num_bytes: int, path: str) -> tf.Tensor:
  """Decompresses byte strings; fails at run time if one is too long before that.

  TensorFlow's op has no limit, and zlib can expand data a thousandfold. Compression
  hardly lengthens any data, so a string longer than the limit below must be wrong.
  """
  most = num_bytes + num_bytes // 4 + 64
  actual = tf.strings.length(values)
  message = f"parse: {path}: expected at most {most} bytes, compressed, got lengths:"
  values = require(values, tf.reduce_all(actual <= most), [message, actual])
  return tf.io.decode_compressed(values, "ZLIB")


# Field 2 of a TensorProto is its shape. If it occurs several times, a parser merges all
# of them, while decode_proto returns the last. It returns all for this message, whose
# field 2 is repeated bytes.
_ALL_OF_FIELD_2 = ("tensorflow.AttrValue.ListValue", ["s"])


def _parse_tensors(
  values: tf.Tensor,
  spec: specs.ExtendedTensorSpec,
  path: str,
  full_shape: tf.Tensor,
) -> tf.Tensor:
  """Parses serialized tensors one by one: TensorFlow has no op for several.

  Twenty bytes can claim to be a tensor of any size, which TensorFlow would allocate. So
  the shapes are compared first.
  """
  # decode_proto rejects an empty batch, as an episode without steps is.
  flat = tf.concat([tf.reshape(values, [-1]), [b""]], 0)
  _, (parts,) = tf.io.decode_proto(flat, *_ALL_OF_FIELD_2, [tf.string])
  shapes = tf.strings.reduce_join(parts, -1)[:-1]
  fits = tf.equal(shapes, spec.shape.as_proto().SerializeToString())
  message = f"parse: {path}: expected serialized tensors of {tuple(spec.shape)}, got:"
  lengths = tf.strings.length(values)
  values = require(values, tf.reduce_all(fits), [message, lengths, "bytes of others"])

  def parse_one(value: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.io.parse_tensor(value, spec.dtype), spec.shape)

  if not values.shape.rank:
    return parse_one(values)
  signature = tf.TensorSpec(spec.shape, spec.dtype)
  parsed = tf.map_fn(parse_one, tf.reshape(values, [-1]), fn_output_signature=signature)
  return tf.reshape(parsed, full_shape)


def _check_num_bytes(
  values: tf.Tensor,
  num_bytes: int,
  spec: specs.ExtendedTensorSpec,
  path: str,
  allow_empty: bool,
) -> tf.Tensor:
  """Fails at run time on byte strings of a wrong length; decode_raw would pad them."""
  actual = tf.strings.length(values)
  fits = tf.equal(actual, num_bytes)
  if allow_empty:
    fits = tf.logical_or(fits, tf.equal(actual, 0))
  message = (
    f"parse: {path}: expected {num_bytes} bytes for {tuple(spec.shape)} "
    f"{spec.dtype.name}, got lengths:"
  )
  return require(values, tf.reduce_all(fits), [message, actual])


PIXEL_DTYPES = ("uint8", "uint16")
# Which dtypes and numbers of channels each image format can hold.
_IMAGE_DTYPES = {"png": PIXEL_DTYPES}
_IMAGE_CHANNELS = {"png": (1, 3, 4), "bmp": (1, 3, 4), "jpeg": (1, 3), "gif": (3,)}


def _check_specs(by_path: Mapping[str, specs.ExtendedTensorSpec]) -> None:
  """Raises SpecError with every spec that cannot be parsed from a record."""
  mismatches = [
    errors.Mismatch(path, *misfit)
    for path, spec in by_path.items()
    if (misfit := _find_misfit(spec))
  ]
  if mismatches:
    raise errors.mismatch_error("records", mismatches)


def _find_misfit(spec: specs.ExtendedTensorSpec) -> tuple[str, ...]:
  """Returns why a spec cannot be parsed: expected, got, advice; () if it can."""
  if not spec.name:
    return (
      "a name, the key of the feature in the record",
      "a spec without one",
      "Set name=..., or leave the spec out of what is parsed.",
    )
  if spec.time_offsets is not None:
    return (
      "a spec without time offsets",
      f"time_offsets={spec.time_offsets}",
      "Records are flat: parse windows.flat_specs(specs), then gather the windows.",
    )
  if not spec.shape.is_fully_defined():
    return (
      "a fully defined shape",
      f"shape {spec.shape}",
      "Use varlen_default_value for a varying length, is_sequence=True for steps.",
    )
  if spec.is_sequence and not math.prod(spec.shape.as_list()):
    # TensorFlow's parser divides by the number of values: 0 would kill the process.
    got = f"none in shape {tuple(spec.shape)}"
    return "steps with values", got, "Leave the spec out of what is parsed."
  if spec.is_concatenated:
    want = "a sequence where the steps are concatenated"
    if not spec.is_sequence:
      hint = "Set is_sequence=True, or drop is_concatenated."
      return want, "one value per record", hint
    if spec.varlen_default_value is not None:
      hint = "Drop the varlen_default_value: where a step ends would not be known."
      return want, "steps of varying length", hint
  is_image = specs.is_encoded_image_spec(spec)
  return _find_image_misfit(spec) if is_image else _find_plain_misfit(spec)


def _find_image_misfit(spec: specs.ExtendedTensorSpec) -> tuple[str, ...]:
  image_format = (spec.data_format or "").lower()
  dtypes = _IMAGE_DTYPES.get(image_format, ("uint8",))
  if spec.dtype.name not in dtypes:
    return (
      f"dtype {' or '.join(dtypes)} for a {image_format} image",
      f"dtype {spec.dtype.name}",
      "Cast in a preprocessor, such as ImageToFloatPreprocessor, before others in a "
      "ComposedPreprocessor. For the encoded bytes, drop the data_format and "
      "declare shape () and dtype string.",
    )
  if spec.shape.rank < 3:
    return "a shape [..., height, width, channels]", f"shape {spec.shape}"
  channels = _IMAGE_CHANNELS[image_format]
  if spec.shape[-1] not in channels:
    want = f"{' or '.join(map(str, channels))} channels for a {image_format} image"
    return want, f"{spec.shape[-1]} channels"
  return ()


def _find_plain_misfit(spec: specs.ExtendedTensorSpec) -> tuple[str, ...]:
  dtype, data_format = spec.dtype.name, packed_format(spec)
  if dtype not in SUPPORTED_DTYPES:
    return (
      "a dtype that a record can hold",
      f"dtype {dtype}",
      f"Supported are {errors.listing(SUPPORTED_DTYPES)}.",
    )
  if spec.data_format is not None and not is_packed(spec):
    formats = (*spec_names.IMAGE_FORMATS, *spec_names.PACKED_FORMATS)
    return (
      f"a data_format of {errors.listing(formats)} or None",
      f"data_format {spec.data_format!r}",
      errors.nearest(spec.data_format, formats),
    )
  if is_packed(spec) and spec.dtype == tf.string and data_format != "tensor":
    return (
      f"a dtype of fixed size for data_format '{data_format}'",
      "dtype string",
      "Drop the data_format: strings are stored as they are.",
    )
  if spec.varlen_default_value is None:
    return ()
  if is_packed(spec):
    return (
      f"a fixed length for data_format '{data_format}'",
      "a varlen_default_value",
      "Drop the data_format: a list of values may vary in length.",
    )
  try:
    default_value(spec)
  except ValueError as error:
    want = f"{error} as varlen_default_value for dtype {dtype}"
    return want, repr(spec.varlen_default_value)
  return ()


def _check_agreement(
  by_path: Mapping[str, specs.ExtendedTensorSpec], groups: Iterable[list[str]]
) -> None:
  """Raises SpecError with every spec that disagrees with another of its name.

  Also with every sequence that is not concatenated, if another of its dataset is.
  """
  mismatches = [
    errors.Mismatch(
      path,
      f"the same as {first}, {_signature(by_path[first])}, because both are named "
      f"'{by_path[path].name}'",
      _signature(by_path[path]),
      "A name is a record's feature: it has one dtype and one shape of a step, and "
      "with time_offsets on one path it has them on all. Cast in a preprocessor.",
    )
    for first, *others in groups
    for path in others
    if _signature(by_path[path]) != _signature(by_path[first])
  ]
  joined: dict[str, str] = {}
  for path, spec in by_path.items():
    if spec.is_concatenated:
      joined.setdefault(spec.dataset_key, path)
  mismatches += [
    errors.Mismatch(
      path,
      f"concatenated steps, as {joined[spec.dataset_key]} has",
      "one list for each step",
      "A record is a tf.train.Example or a SequenceExample: mark all with "
      "records.rlds_specs, or none.",
    )
    for path, spec in by_path.items()
    if spec.is_sequence and not spec.is_concatenated and spec.dataset_key in joined
  ]
  if mismatches:
    raise errors.mismatch_error("records", mismatches)


def _signature(spec: specs.ExtendedTensorSpec) -> str:
  parts = [errors.describe(spec)]
  if spec.is_sequence:
    parts.append("concatenated steps" if spec.is_concatenated else "a sequence")
  if spec.data_format:
    parts.append(spec.data_format.lower())
  if spec.varlen_default_value is not None:
    parts.append(f"padded with {spec.varlen_default_value!r}")
  return ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class RecordFeature:
  """One feature of a record, and every path that it feeds.

  Attributes:
    name: key in the record.
    spec: the common spec of its paths.
    paths: paths that read this feature, sorted; paths of labels included.
    is_optional: all of the paths are optional.
    decode_images: how encoded images are decoded; False: they stay strings.
  """

  name: str
  spec: specs.ExtendedTensorSpec
  paths: tuple[str, ...]
  is_optional: bool
  decode_images: DecodeImages = True

  @property
  def path(self) -> str:
    """The first path."""
    return self.paths[0]

  @property
  def label(self) -> str:
    """The first path and the name, for messages."""
    return f"{self.path} (feature '{self.name}')"

  @property
  def is_image(self) -> bool:
    """Whether the record holds encoded images."""
    return specs.is_encoded_image_spec(self.spec)

  @property
  def is_varlen(self) -> bool:
    """Whether the number of values varies and is padded or clipped to shape[0]."""
    return self.spec.varlen_default_value is not None

  @property
  def is_concatenated(self) -> bool:
    """Whether the values of all steps are in one list of a tf.train.Example."""
    return self.spec.is_concatenated

  @property
  def edge(self) -> str:
    """'is_first' or 'is_last' if the spec is such a flag of each step; otherwise ''."""
    name, spec = self.name.rpartition("/")[2], self.spec
    is_flag = spec.is_sequence and name in (IS_FIRST, IS_LAST) and not is_raw(spec)
    is_number = spec.dtype.is_integer or spec.dtype.is_floating or spec.dtype.is_bool
    return name if is_flag and is_number and spec.shape.num_elements() == 1 else ""

  @property
  def is_time(self) -> bool:
    """Whether it is a time stamp for each step, by its name."""
    return is_number_a_step(self.spec) and spec_names.is_time(self.name)

  @property
  def values_per_step(self) -> int:
    """Number of values of one step."""
    return math.prod(self.record_shape)

  @property
  def record_dtype(self) -> tf.DType:
    """The dtype of the list in the record: int64, float32 or string."""
    return record_dtype(self.spec)

  @property
  def kind(self) -> str:
    """Its list in the record: 'int64', 'float' or 'bytes'."""
    return KINDS[self.record_dtype.name]

  @property
  def record_shape(self) -> tuple[int, ...]:
    """Shape of the values in the list, for a sequence of one step; (N,) if varlen."""
    if self.is_image:
      return tuple(self.spec.shape[:-3])
    if is_raw(self.spec) and not self.is_varlen:
      return ()
    return tuple(self.spec.shape)

  def to_io_feature(self) -> Any:
    """Returns the `tf.io` feature that parses it."""
    dtype, shape = self.record_dtype, self.record_shape
    if self.is_varlen or self.is_concatenated:
      return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
    if self.spec.is_sequence:
      return tf.io.FixedLenSequenceFeature(shape, dtype, allow_missing=self.is_optional)
    if not self.is_optional:
      return tf.io.FixedLenFeature(shape, dtype)
    fill = b"" if dtype == tf.string else 0
    default = np.full(
      shape, fill, dtype=object if fill == b"" else dtype.as_numpy_dtype
    )
    return tf.io.FixedLenFeature(shape, dtype, default_value=default)


def collect_features(
  spec_structures: Mapping[str, specs.SpecStructure], decode_images: DecodeImages = True
) -> dict[str, list[RecordFeature]]:
  """Finds the record features that spec structures read.

  Args:
    spec_structures: structures of specs without time offsets, by the prefix of their
      paths ('features', 'labels'; '' for none).
    decode_images: how encoded images are decoded; False: they are not.
  Returns:
    The features by dataset_key, sorted by name.
  Raises:
    SpecError: specs cannot be parsed, two specs of one name disagree, some sequences of
      a dataset are concatenated and others not, or there are no specs.
  """
  by_path = {
    f"{label}/{path}" if label else path: specs.ExtendedTensorSpec.to_spec(spec)
    for label, structure in spec_structures.items()
    for path, spec in parsed_specs(structure).items()
  }
  _check_specs(by_path)
  by_name: dict[tuple[str, str], list[str]] = {}
  for path, spec in sorted(by_path.items()):
    by_name.setdefault((spec.dataset_key, spec.name), []).append(path)
  _check_agreement(by_path, by_name.values())
  features: dict[str, list[RecordFeature]] = {}
  for (dataset_key, name), paths in sorted(by_name.items()):
    is_optional = all(by_path[path].is_optional for path in paths)
    feature = RecordFeature(
      name, by_path[paths[0]], tuple(paths), is_optional, decode_images
    )
    features.setdefault(dataset_key, []).append(feature)
  if not features:
    raise errors.SpecError(
      "records: expected specs to parse, got none. Declare at least one feature."
    )
  return features


def length_paths(spec_structure: specs.SpecStructure) -> dict[str, str]:
  """Maps each declared '<path>_length' to the path of its sequence."""
  flat = specs.flatten_spec_structure(spec_structure)

  def is_length(spec: Any) -> bool:
    is_number = isinstance(spec, tf.TensorSpec) and spec.dtype.is_integer
    is_sequence = getattr(spec, "is_sequence", False)
    return is_number and spec.shape.rank == 0 and not is_sequence

  return {
    f"{path}_length": path
    for path, spec in flat.items()
    if getattr(spec, "is_sequence", False) and is_length(flat.get(f"{path}_length"))
  }


def parsed_specs(spec_structure: specs.SpecStructure) -> specs.TensorSpecStruct:
  """Flattens a structure and leaves out the '<path>_length' specs.

  A length is counted while parsing, never read from the record.
  """
  lengths = length_paths(spec_structure)
  return specs.TensorSpecStruct(
    (path, spec)
    for path, spec in specs.flatten_spec_structure(spec_structure).items()
    if path not in lengths
  )


def tensorspec_to_feature_dict(
  tensor_spec_struct: specs.SpecStructure, decode_images: bool = True
) -> tuple[dict[str, Any], dict[str, specs.ExtendedTensorSpec]]:
  """Converts a spec structure of one dataset to `tf.io` features by name.

  The features have the dtypes that a record can hold; `create_parse_tf_example_fn`
  casts them back. `decode_images` has no effect: an encoded image is a string feature.

  Returns:
    `tf.io` features by name, and specs by name.
  Raises:
    SpecError: a spec cannot be parsed, or the specs are of several datasets.
  """
  by_dataset = collect_features({"": tensor_spec_struct}, decode_images)
  if len(by_dataset) > 1:
    raise errors.SpecError(
      "tensorspec_to_feature_dict: expected specs of one dataset, got those of "
      f"{errors.listing(by_dataset)}. Use filter_spec_structure_by_dataset first."
    )
  (features,) = by_dataset.values()
  return (
    {feature.name: feature.to_io_feature() for feature in features},
    {feature.name: feature.spec for feature in features},
  )


def encoded_specs(spec_structure: specs.SpecStructure) -> specs.TensorSpecStruct:
  """Returns flat specs in which encoded images [..., h, w, c] are strings [...].

  They describe what a parser with `decode_images=False` returns.
  """
  encoded = specs.TensorSpecStruct()
  for path, spec in specs.flatten_spec_structure(spec_structure).items():
    if specs.is_encoded_image_spec(spec):
      fields = {**spec.fields(), "data_format": None, "dtype": tf.string}
      fields["shape"] = spec.shape[:-3]
      if spec.varlen_default_value is not None:
        fields["varlen_default_value"] = ""
      spec = specs.ExtendedTensorSpec(**fields)
    encoded[path] = spec
  return encoded


def find_flags(
  serialized: bytes, features: Iterable[RecordFeature]
) -> specs.TensorSpecStruct:
  """Finds flags in a record that mark where episodes begin or end, but no spec reads.

  Returns:
    Optional specs of flags by name; empty if `features` has no sequence.
  Raises:
    RecordError: the bytes are not a record.
  """
  read = {f.name for f in features}
  kinds = {f.is_concatenated for f in features if f.spec.is_sequence}
  flags = specs.TensorSpecStruct()
  if len(kinds) != 1:
    return flags
  (is_concatenated,) = kinds
  record = protos.RecordContents(serialized)
  given: Mapping[str, Any] = record.context if is_concatenated else record.steps
  dtypes = {"int64": tf.int64, "float": tf.float32}
  for name, values in given.items():
    first = values if is_concatenated else (values or [protos.Feature()])[0]
    is_flag = name.rpartition("/")[2] in (IS_FIRST, IS_LAST) and name not in read
    if is_flag and (dtype := dtypes.get(protos.kind_of(first))):
      flags[name] = specs.ExtendedTensorSpec(
        *((), dtype, name),
        is_optional=True,
        is_sequence=True,
        is_concatenated=is_concatenated,
      )
  return flags


def set_flags(
  feature: RecordFeature, contents: protos.RecordContents
) -> np.ndarray | None:
  """Returns in which steps a flag is set, bool [T]; None if it is absent or no flag.

  `contents` is a result of `parse.as_lists`.
  """
  steps = contents.steps.get(feature.name) if feature.edge else None
  if steps is None:
    return None
  return np.asarray([any(protos.values_of(step)) for step in steps], bool)


def cut_hint(name: str) -> str:
  """Returns advice on how to make episodes of records, by the name of a flag."""
  option = "first" if name.rpartition("/")[2] == IS_FIRST else "last"
  return f"Make a store of episodes: t2r_seq convert FILES STORE --{option}_key {name}"
