"""`tf.train.Example` and `SequenceExample`, without TensorFlow.

The same messages, field by field, as in tensorflow/core/example/*.proto. TensorFlow has
classes of them, but takes seconds to load, which what only counts steps need not wait
for. Their descriptors are in a pool of their own, so that both live in one process.

The writer puts the headers of fields before the bytes of arrays and fills no messages.
"""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "t2r_seq"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
  "int64": _Field.TYPE_INT64,
  "float": _Field.TYPE_FLOAT,
  "bytes": _Field.TYPE_BYTES,
}
# Fields of each message: (name, type), numbered from 1. `*T` is a list of T, `{T}`
# a map from strings to T.
_MESSAGES = {
  "BytesList": [("value", "*bytes")],
  "FloatList": [("value", "*float")],
  "Int64List": [("value", "*int64")],
  "Feature": [
    ("bytes_list", "BytesList"),
    ("float_list", "FloatList"),
    ("int64_list", "Int64List"),
  ],
  "Features": [("feature", "{Feature}")],
  "FeatureList": [("feature", "*Feature")],
  "FeatureLists": [("feature_list", "{FeatureList}")],
  "Example": [("features", "Features")],
  "SequenceExample": [("context", "Features"), ("feature_lists", "FeatureLists")],
}
_ONE_OF = {"Feature": "kind"}


def _file() -> descriptor_pb2.FileDescriptorProto:
  file = descriptor_pb2.FileDescriptorProto(
    name=f"{_PACKAGE}/example.proto", package=_PACKAGE, syntax="proto3"
  )
  for name, fields in _MESSAGES.items():
    proto = file.message_type.add(name=name)
    if name in _ONE_OF:
      proto.oneof_decl.add(name=_ONE_OF[name])
    for number, (field, kind) in enumerate(fields, 1):
      added = _add_field(proto, field, number, kind)
      if name in _ONE_OF:
        added.oneof_index = 0
  return file


def _add_field(
  proto: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str
) -> descriptor_pb2.FieldDescriptorProto:
  if kind.startswith("{"):
    entry = proto.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, "string")
    _add_field(entry, "value", 2, kind.strip("{}"))
    kind = f"*{proto.name}.{entry.name}"
  field = proto.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
  if kind.startswith("*"):
    field.label = _Field.LABEL_REPEATED
  kind = kind.lstrip("*")
  if kind == "string":
    field.type = _Field.TYPE_STRING
  elif kind in _SCALARS:
    field.type = _SCALARS[kind]
  else:
    field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
  return field


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def _class(name: str) -> Any:
  descriptor = _pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
  if hasattr(message_factory, "GetMessageClass"):
    return message_factory.GetMessageClass(descriptor)
  # Of protobuf 3.20, which TensorFlow 2.15 takes, too.
  return message_factory.MessageFactory(_pool).GetPrototype(descriptor)


Feature, FeatureList, Features = map(_class, ("Feature", "FeatureList", "Features"))
FeatureLists, Example = _class("FeatureLists"), _class("Example")
SequenceExample = _class("SequenceExample")
FeatureEntry = _class("Features.FeatureEntry")  # Of the map in Features.
BytesList, FloatList, Int64List = map(_class, ("BytesList", "FloatList", "Int64List"))

LIST_NUMBERS = {"bytes": 1, "float": 2, "int64": 3}
"""The fields of a Feature, by the kind of list."""


@functools.lru_cache(4096)
def field_header(numbers: tuple[int, ...], size: int) -> bytes:
  """Encodes what stands before the content of a string, bytes or message field.

  Args:
    numbers: of the field, after those of the messages that hold nothing but it, from
      the outermost.
    size: bytes of the content.
  Returns:
    Tags and lengths.
  """
  encoded = b""
  for number in reversed(numbers):
    length = size + len(encoded)
    varint = []
    while length > 0x7F:
      varint.append(length & 0x7F | 0x80)
      length >>= 7
    encoded = bytes([number << 3 | 2, *varint, length]) + encoded
  return encoded
