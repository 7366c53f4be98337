"""What a serialized record holds, by protobuf and numpy: what a parser must agree with.

Names are read as bytes and map entries as a list, so that nothing is lost or refused
that the wire format allows: the last of several entries counts.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

import lenient_wire
import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

_FILE = descriptor_pb2.FileDescriptorProto
_FIELD = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "t2r_seq_fuzz"
_FEATURE = ".tensorflow.Feature"
_FIELDS = {
  "Entry": (("key", None, False), ("value", _FEATURE, False)),
  "Features": (("feature", "Entry", True),),
  "Example": (("features", "Features", False),),
  "FeatureList": (("feature", _FEATURE, True),),
  "ListEntry": (("key", None, False), ("value", "FeatureList", False)),
  "FeatureLists": (("feature_list", "ListEntry", True),),
  "SequenceExample": (
    ("context", "Features", False),
    ("feature_lists", "FeatureLists", False),
  ),
}
_PNG = b"\x89PNG\r\n\x1a\n"
KINDS = {"int64_list": tf.int64, "float_list": tf.float32, "bytes_list": tf.string}


class Refused(Exception):
  """The record does not fit the specs."""


def _make_protos() -> dict[str, Any]:
  """Declares tf.train's protos once more, with maps as lists of entries."""
  file = _FILE(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
  file.dependency.append("tensorflow/core/example/feature.proto")
  for name, fields in _FIELDS.items():
    proto = file.message_type.add(name=name)
    for number, (field, kind, is_repeated) in enumerate(fields, 1):
      label = _FIELD.LABEL_REPEATED if is_repeated else _FIELD.LABEL_OPTIONAL
      added = proto.field.add(name=field, number=number, label=label)
      added.type = _FIELD.TYPE_MESSAGE if kind else _FIELD.TYPE_BYTES
      if kind:
        added.type_name = kind if kind.startswith(".") else f".{_PACKAGE}.{kind}"
  pool = descriptor_pool.Default()
  assert tf.train.Feature  # Its file is in the pool.
  pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(
    file.SerializeToString()
  )
  return {
    name: message_factory.GetMessageClass(
      pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
    )
    for name in _FIELDS
  }


PROTOS = _make_protos()


def read_record(
  data: bytes, flat_specs: Any, batched: bool = False
) -> dict[str, np.ndarray]:
  """Reads a record.

  Args:
    data: serialized.
    flat_specs: what it is to hold, by path.
    batched: as TensorFlow's parser of batches does, which differs in one thing.
  Returns:
    Arrays by path, sequences [T, ...], and '<path>_length' of each.
  Raises:
    Refused: it does not fit.
  """
  has_steps = any(spec.is_sequence for spec in flat_specs.values())
  proto = _parse_proto(data, has_steps)
  entries = proto.context.feature if has_steps else proto.features.feature
  # TensorFlow passes by an entry without values where another has the same name; but
  # in a batch, where the length varies, the last one counts, as it does for protobuf.
  context = {e.key: e.value for e in entries if e.value.WhichOneof("kind")}
  if batched:
    names = {s.name.encode() for s in flat_specs.values() if _is_varlen(s)}
    context |= {e.key: e.value for e in entries if e.key in names}
  lists = proto.feature_lists.feature_list if has_steps else []
  steps = {entry.key: list(entry.value.feature) for entry in lists}
  found: dict[str, np.ndarray] = {}
  given = {
    path: steps.get(spec.name.encode())
    for path, spec in flat_specs.items()
    if spec.is_sequence
  }
  longest = max((len(each) for each in given.values() if each), default=0)
  for path, spec in flat_specs.items():
    if not spec.is_sequence:
      found[path] = _read_feature(context.get(spec.name.encode()), spec)
      continue
    found[path] = _read_steps(given[path], spec, longest)
    found[f"{path}_length"] = np.asarray(len(found[path]))
  return found


def _parse_proto(data: bytes, has_steps: bool) -> Any:
  proto = PROTOS["SequenceExample" if has_steps else "Example"]
  fields = lenient_wire.SEQUENCE_EXAMPLE if has_steps else lenient_wire.EXAMPLE
  try:
    return proto.FromString(data)
  except message.DecodeError:
    pass
  try:
    return proto.FromString(lenient_wire.strip(data, fields))
  except (message.DecodeError, lenient_wire.Malformed) as error:
    raise Refused("no proto") from error


def _read_steps(given: Any, spec: Any, longest: int) -> np.ndarray:
  may_be_absent = spec.is_optional or _is_varlen(spec)
  if given is None and not may_be_absent:
    raise Refused(f"no {spec.name}")
  rows = [_read_feature(step, spec, is_step=True) for step in given or []]
  if not rows and may_be_absent:
    rows = [_absent(spec)] * longest
  if not rows:
    return np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype)
  return np.stack(rows)


def _is_varlen(spec: Any) -> bool:
  return spec.varlen_default_value is not None


def _absent(spec: Any) -> np.ndarray:
  fill: Any = b"" if spec.dtype == tf.string else 0
  if _is_varlen(spec):
    fill = spec.varlen_default_value
  return np.full(spec.shape.as_list(), fill, spec.dtype.as_numpy_dtype)


def _read_feature(feature: Any, spec: Any, is_step: bool = False) -> np.ndarray:
  kind = feature.WhichOneof("kind") if feature is not None else None
  is_varlen = _is_varlen(spec)
  if kind is None and (is_varlen or (spec.is_optional and not is_step)):
    return _absent(spec)
  if kind is None or KINDS[kind] != _record_dtype(spec):
    raise Refused(f"{spec.name}: {kind}")
  values = list(getattr(feature, kind).value)
  shape = spec.shape.as_list()
  if is_varlen:
    filled = _absent(spec)
    values = values[: shape[0]]
    if _is_raw(spec):
      values = [_from_bytes(value, spec, spec.dtype.size)[0] for value in values]
    filled[: len(values)] = _convert(values, spec)
    return filled
  is_image = _is_image(spec)
  inner = shape[:-3] if is_image else [] if _is_raw(spec) else shape
  if len(values) != math.prod(inner):
    raise Refused(f"{spec.name}: {len(values)} values")
  if is_image:
    return np.stack([_decode(value, spec) for value in values]).reshape(shape)
  return _convert(values, spec).reshape(shape)


def _is_image(spec: Any) -> bool:
  return spec.data_format in ("jpeg", "png")


def _is_raw(spec: Any) -> bool:
  return spec.data_format == "raw" or spec.dtype == tf.float64


def _record_dtype(spec: Any) -> tf.DType:
  if _is_image(spec) or _is_raw(spec) or spec.dtype == tf.string:
    return tf.string
  return tf.int64 if spec.dtype.is_integer or spec.dtype.is_bool else tf.float32


def _convert(values: list[Any], spec: Any) -> np.ndarray:
  dtype = spec.dtype.as_numpy_dtype
  if spec.dtype == tf.string:
    return np.array([*values, None], object)[:-1]
  if _is_raw(spec) and not _is_varlen(spec):
    (data,) = values
    if spec.is_optional and not data:
      return _absent(spec)
    return _from_bytes(data, spec, math.prod(spec.shape) * spec.dtype.size)
  if spec.dtype == tf.uint64:
    return np.asarray(values, np.int64).view(np.uint64)
  if spec.dtype.is_integer:
    low, high = spec.dtype.min, spec.dtype.max
    if not all(low <= value <= high for value in values):
      raise Refused(f"{spec.name}: out of range")
    return np.asarray(values, dtype)
  if spec.dtype.is_bool and not all(value in (0, 1) for value in values):
    raise Refused(f"{spec.name}: out of range")
  source = np.int64 if spec.dtype.is_bool else np.float64
  if not _is_raw(spec) and not spec.dtype.is_bool:
    source = np.float32
  with np.errstate(over="ignore", invalid="ignore"):
    return np.asarray(values, source).astype(dtype)


def _from_bytes(data: bytes, spec: Any, size: int) -> np.ndarray:
  if len(data) != size:
    raise Refused(f"{spec.name}: {len(data)} bytes")
  return np.frombuffer(data, spec.dtype.as_numpy_dtype)


def _decode(data: bytes, spec: Any) -> np.ndarray:
  """Decodes an image; PNGs of the kinds that are written here without TensorFlow."""
  shape, dtype = spec.shape.as_list()[-3:], spec.dtype
  if not data:
    return np.zeros(shape, dtype.as_numpy_dtype)
  is_deep = data[:8] == _PNG and data[24:25] == b"\x10"
  if is_deep != (dtype == tf.uint16):
    raise Refused(f"{spec.name}: bits")
  image = _decode_png(data) if data[:8] == _PNG else None
  if image is None or image.shape[-1] > shape[-1]:
    try:
      image = tf.io.decode_image(data, shape[-1], dtype, False).numpy()
    except tf.errors.OpError as error:
      raise Refused(f"{spec.name}: no image") from error
  if image.shape[-1] == 1 and shape[-1] == 3:
    image = np.repeat(image, 3, -1)
  if list(image.shape) != shape:
    raise Refused(f"{spec.name}: size {image.shape}")
  return image


def _decode_png(data: bytes) -> np.ndarray | None:
  """Decodes a PNG; None for one of a kind that is not known here."""
  chunks, position = [], 8
  while position < len(data):
    if position + 12 > len(data):
      return None
    size, kind = struct.unpack_from(">I4s", data, position)
    content = data[position + 8 : position + 8 + size]
    checksum = data[position + 8 + size : position + 12 + size]
    if checksum != struct.pack(">I", zlib.crc32(kind + content)):
      return None
    chunks.append((kind, content))
    position += 12 + size
    if kind == b"IEND":
      break
  kinds = [kind for kind, _ in chunks]
  if kinds[:1] != [b"IHDR"] or {*kinds[1:-1]} != {b"IDAT"} or kinds[-1] != b"IEND":
    return None
  width, height, bits, color, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
  if bits not in (8, 16) or color not in (0, 2) or rest != [0, 0, 0]:
    return None
  dtype = np.dtype(">u2" if bits == 16 else "u1")
  channels = {0: 1, 2: 3}[color]
  try:
    lines = zlib.decompress(b"".join(content for _, content in chunks[1:-1]))
  except zlib.error:
    return None
  size = width * channels * dtype.itemsize
  if len(lines) != height * (size + 1) or max(lines[:: size + 1], default=0) > 4:
    return None
  rows = _unfilter(lines, height, size, channels * dtype.itemsize)
  pixels = np.frombuffer(rows, dtype).reshape(height, width, channels)
  return pixels.astype(dtype.newbyteorder("="))


def _unfilter(lines: bytes, height: int, size: int, pixel: int) -> bytes:
  before, rows = bytearray(size), bytearray()
  for y in range(height):
    kind, line = lines[y * (size + 1)], bytearray(lines[y * (size + 1) + 1 :][:size])
    for x in range(size):
      left = line[x - pixel] if x >= pixel else 0
      corner = before[x - pixel] if x >= pixel else 0
      up = before[x]
      near = min((left, up, corner), key=lambda v: abs(left + up - corner - v))
      line[x] = (line[x] + (0, left, up, (left + up) // 2, near)[kind]) & 0xFF
    rows += line
    before = line
  return bytes(rows)
