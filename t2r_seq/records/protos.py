"""Parses serialized records without TensorFlow.

The messages are those of tensorflow/core/example/*.proto. TensorFlow has classes for
them, but takes seconds to load, which is too long for code that only counts steps. The
descriptors are in a separate pool, so that both kinds of classes can be in one process.

For speed, the writer fills no messages: it joins field headers and bytes of arrays.
"""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import (
  descriptor_pb2,
  message,
  message_factory,
)

from t2r_seq import errors

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


_classes = message_factory.GetMessages([_file()])
Feature, SequenceExample, Int64List, _Features = (
  _classes[f"{_PACKAGE}.{name}"]
  for name in ("Feature", "SequenceExample", "Int64List", "Features")
)
FeatureEntry = _Features.FeatureEntry

LIST_NUMBERS = {"bytes": 1, "float": 2, "int64": 3}
"""Field numbers of a Feature's lists, by kind."""


@functools.lru_cache(4096)
def field_header(numbers: tuple[int, ...], size: int) -> bytes:
  """Encodes the tags and lengths before the content of a string or message field.

  Args:
    numbers: field numbers, outermost first: those of the enclosing messages, which have
      no other content, then that of the field.
    size: bytes of the content.
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


EXAMPLE, SEQUENCE_EXAMPLE = "tf.train.Example", "tf.train.SequenceExample"


class RecordContents:
  """The features of one record, an Example or a SequenceExample.

  Attributes:
    context: features that are not sequences, by name.
    steps: lists of each sequence's features, one a step, by name; empty for a
      tf.train.Example.
  """

  def __init__(self, data: bytes) -> None:
    """Parses a record; raises RecordError if the bytes are no such proto."""
    try:
      # An Example is, byte for byte, a SequenceExample with a context only.
      proto = SequenceExample.FromString(data)
      if not any((*proto.context.feature, *proto.feature_lists.feature_list)):
        # Protos of other kinds parse, too: into unknown fields, at any depth.
        proto.DiscardUnknownFields()
        if proto.ByteSize() < len(data):
          raise message.DecodeError("unknown fields only")
    except message.DecodeError as error:
      expected, got = no_proto(data)
      raise errors.RecordError(f"record: expected {expected}, got {got}") from error
    self.context = dict(proto.context.feature)
    self.steps = {
      name: list(steps.feature)
      for name, steps in proto.feature_lists.feature_list.items()
    }

  @property
  def kind(self) -> str:
    """Full name of the proto."""
    return SEQUENCE_EXAMPLE if self.steps else EXAMPLE

  @property
  def num_steps(self) -> dict[str, int]:
    """The number of steps of each sequence by name."""
    return {name: len(steps) for name, steps in self.steps.items()}


def no_proto(data: bytes) -> tuple[str, str]:
  """Returns (expected, got), as text, for bytes that are not a proto."""
  expected = f"a serialized {EXAMPLE} or {SEQUENCE_EXAMPLE}"
  if not data:
    return expected, "an empty record (0 bytes)"
  return expected, f"{len(data)} bytes that are neither, {data[:16]!r}..."


def present_names(serialized: bytes) -> set[str]:
  """Returns the names of a record's features that have a value, and of its sequences.

  Parsed values do not show which are missing: a missing optional feature is parsed as
  zeros. Raises RecordError if the bytes are no record.
  """
  contents = RecordContents(serialized)
  return {name for name, feature in contents.context.items() if kind_of(feature)} | set(
    contents.steps
  )


def kind_of(feature: Any) -> str:
  """Returns 'int64', 'float' or 'bytes', or '' for a feature without values."""
  return (feature.WhichOneof("kind") or "").removesuffix("_list")


def values_of(feature: Any) -> Any:
  """Returns the values of a feature of any kind."""
  kind = feature.WhichOneof("kind")
  return getattr(feature, kind).value if kind else ()


def to_feature(values: list, kind: str) -> Any:
  """Returns a feature with values of a kind, 'int64', 'float' or 'bytes'."""
  return Feature(**{f"{kind}_list": {"value": values}})
