"""Serialized records as Python sees them: their features, and where values lie.

Only tags and lengths of the protos' wire format are read, so an index of large frames
costs no more than reading the file. A SequenceExample is {1: context, 2: feature
lists}, feature lists are a map {1: {1: name, 2: steps}}, and steps are {1: feature}*.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, overload

import numpy as np
import tensorflow as tf
from google.protobuf import message

from t2r_seq import errors
from t2r_seq.records import framing

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10

Span = tuple[int, int]


class Bytes(Protocol):
  """What is read of `bytes`; a file may give them as they are asked for."""

  @overload
  def __getitem__(self, index: int) -> int: ...

  @overload
  def __getitem__(self, index: slice) -> bytes: ...


def fields(data: Bytes, span: Span, wanted: int) -> Iterator[Span]:
  """Yields where the values of one field with a length lie in a message.

  Args:
    data: with the message in it.
    span: where the message starts and ends.
    wanted: number of the field.
  Yields:
    Start and end of each value.
  Raises:
    ValueError: this is no message.
    IndexError: the data ends before it does.
  """
  position, end = span
  wanted_tag = wanted << 3 | _DELIMITED
  while position < end:
    tag = data[position]
    position += 1
    if tag >= 0x80:
      tag, position = _read_varint(data, position - 1)
    if tag & 7 == _DELIMITED:
      size = data[position]
      position += 1
      if size >= 0x80:
        size, position = _read_varint(data, position - 1)
      start, position = position, position + size
      if tag == wanted_tag and position <= end:
        yield start, position
    else:
      position = _skip(data, position, tag & 7)
  if position != end:
    raise ValueError("a field that runs over the end of its message")


def _skip(data: Bytes, position: int, wire_type: int) -> int:
  if wire_type == _VARINT:
    return _read_varint(data, position)[1]
  if wire_type not in _FIXED_SIZES:
    raise ValueError(f"wire type {wire_type}")
  return position + _FIXED_SIZES[wire_type]


def _read_varint(data: Bytes, position: int) -> tuple[int, int]:
  value = 0
  for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
    byte = data[position]
    position += 1
    value |= (byte & 0x7F) << shift
    if byte < 0x80:
      return value, position
  raise ValueError("a varint of more than 10 bytes")


EXAMPLE, SEQUENCE_EXAMPLE = "tf.train.Example", "tf.train.SequenceExample"


class RecordContents:
  """The features of one record, of either kind.

  Attributes:
    context: features that are no sequences, by name.
    steps: features of each step, by name; empty for a tf.train.Example.
  """

  def __init__(self, data: bytes) -> None:
    """Parses a serialized record.

    Raises:
      RecordError: it is no tf.train.Example or SequenceExample.
    """
    try:
      # An Example is, byte for byte, a SequenceExample with a context only.
      proto = tf.train.SequenceExample.FromString(data)
      has_fields = proto.HasField("context") or proto.HasField("feature_lists")
      if data and not has_fields:  # A proto of another kind parses, too, to nothing.
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
    """The name of the proto."""
    return SEQUENCE_EXAMPLE if self.steps else EXAMPLE

  @property
  def num_steps(self) -> dict[str, int]:
    """The number of steps of each sequence by name."""
    return {name: len(steps) for name, steps in self.steps.items()}


def no_proto(data: bytes) -> tuple[str, str]:
  """Returns what a record should be that is no proto, and what it is, as text."""
  expected = f"a serialized {EXAMPLE} or {SEQUENCE_EXAMPLE}"
  if not data:
    return expected, "an empty record (0 bytes)"
  return expected, f"{len(data)} bytes that are neither, {data[:16]!r}..."


def read_contents(record: framing.Record) -> RecordContents:
  """Parses a record of a file.

  Args:
    record: of `framing.iterate_records`.
  Returns:
    Its features.
  Raises:
    RecordError: names file and record.
  """
  try:
    return RecordContents(record.data)
  except errors.RecordError as error:
    raise errors.RecordError(f"{record.place}: {error}") from error


def present_names(serialized: bytes) -> set[str]:
  """Names the features that a record has, so that absent optionals can be left out.

  Args:
    serialized: a tf.train.Example or SequenceExample.
  Returns:
    The names of its features with a value, context and sequences together.
  Raises:
    RecordError: it is neither.
  """
  contents = RecordContents(serialized)
  return {name for name, feature in contents.context.items() if kind_of(feature)} | set(
    contents.steps
  )


def kind_of(feature: tf.train.Feature) -> str:
  """Returns 'int64', 'float' or 'bytes', or '' for a feature without values."""
  return (feature.WhichOneof("kind") or "").removesuffix("_list")


def values_of(feature: tf.train.Feature) -> Any:
  """Returns the values of a feature, whatever their kind."""
  kind = feature.WhichOneof("kind")
  return getattr(feature, kind).value if kind else ()


_FEATURE_LISTS = 2
_ENTRY = 1
_KEY, _VALUE = 1, 2
_FEATURE_TAG = 0x0A  # Field 1, with a length.


def count_steps(data: bytes) -> dict[str, int]:
  """Counts the steps of the sequences of a record.

  Args:
    data: a serialized tf.train.SequenceExample, or an Example, which has none.
  Returns:
    The number of steps of every feature list, by name.
  Raises:
    RecordError: it is neither; without a place, which the caller knows.
  """
  counts = {}
  try:
    for lists in fields(data, (0, len(data)), _FEATURE_LISTS):
      for entry in fields(data, lists, _ENTRY):
        name, steps = _read_entry(data, entry)
        counts[name] = steps
  except (IndexError, UnicodeDecodeError, ValueError) as error:
    raise errors.RecordError(
      "record: expected a serialized tf.train.Example or SequenceExample, got "
      f"{len(data)} bytes that are neither, {data[:16]!r}..."
    ) from error
  return counts


def has_steps(data: bytes) -> bool:
  """Whether a record has feature lists; False of what is no record, too."""
  try:
    return any(
      end > start for start, end in fields(data, (0, len(data)), _FEATURE_LISTS)
    )
  except (IndexError, ValueError):
    return False


def _read_entry(data: bytes, entry: Span) -> tuple[str, int]:
  """Reads one entry of the map: the name, and how many features follow."""
  name, steps = "", 0
  for start, end in fields(data, entry, _KEY):
    name = data[start:end].decode()
  for span in fields(data, entry, _VALUE):
    steps += _count_features(data, span)
  return name, steps


def _count_features(data: bytes, span: Span) -> int:
  start, end = span
  if start == end:
    return 0
  first = next(fields(data, span, _ENTRY), None)
  if first is not None and data[start] == _FEATURE_TAG:
    size, header = first[1] - start, first[0] - start
    if (end - start) % size == 0:
      rows = np.frombuffer(data, np.uint8, end - start, start).reshape(-1, size)
      # Where every step has the first one's tag and size, all have its size.
      if (rows[:, :header] == rows[0, :header]).all():
        return len(rows)
  return sum(1 for _ in fields(data, span, _ENTRY))
