"""Serialized records without what is no field of theirs, as TensorFlow reads them.

TensorFlow's parser passes by unknown fields that protobuf refuses: with the number 0,
or with a length that goes beyond the end. No value of the record is in them. A message
whose length goes beyond the end ends there; of a length it reads 32 bits. Of a list of
numbers it reads the first field, if that is packed, and nothing that follows.
"""

from __future__ import annotations

from typing import Any

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_PACKED = bytes([1 << 3 | _DELIMITED])

# Of each message, the fields with a length, and what is in them; None: bytes.
_FEATURE: dict[int, Any] = {1: "strings", 2: "numbers", 3: "numbers"}
_FEATURES: dict[int, Any] = {1: {1: None, 2: _FEATURE}}
_STEPS: dict[int, Any] = {1: _FEATURE}
EXAMPLE: dict[int, Any] = {1: _FEATURES}
SEQUENCE_EXAMPLE: dict[int, Any] = {1: _FEATURES, 2: {1: {1: None, 2: _STEPS}}}


class Malformed(Exception):
  """No reading makes sense of the bytes."""


def strip(data: bytes, fields: dict[int, Any]) -> bytes:
  """Leaves out the unknown fields of a message.

  Args:
    data: serialized.
    fields: what is known, EXAMPLE or SEQUENCE_EXAMPLE.
  Returns:
    The message with the known fields, in order.
  Raises:
    Malformed: the bytes cannot be passed by.
  """
  kept, position = bytearray(), 0
  while position < len(data):
    start = position
    tag, position = _read_varint(data, position)
    number, kind = tag >> 3, tag & 7
    if kind == _VARINT:
      _, position = _read_varint(data, position)
    elif kind in _SIZES:
      position += _SIZES[kind]
      if position > len(data):
        raise Malformed
    elif kind == _DELIMITED:
      size, position = _read_varint(data, position)
      size &= 0xFFFFFFFF
      content, position = data[position : position + size], position + size
      if number in fields:
        if position > len(data) and fields[number] is None:
          raise Malformed
        kept += _known(number, content, fields[number])
    else:
      raise Malformed
    # `start` is of the tag: what is neither known nor malformed is passed by.
    assert position > start
  return bytes(kept)


def _known(number: int, content: bytes, inner: Any) -> bytes:
  # The values of lists are left as they are: protobuf reads these strictly.
  if isinstance(inner, dict):
    content = strip(content, inner)
  elif inner == "numbers" and content[:1] == _PACKED:
    size, position = _read_varint(content, 1)
    content = content[: position + size]
  return bytes([number << 3 | _DELIMITED]) + _varint(len(content)) + content


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
  value = shift = 0
  while position < len(data) and shift < 70:
    byte = data[position]
    position += 1
    value |= (byte & 0x7F) << shift
    shift += 7
    if byte < 0x80:
      return value, position
  raise Malformed


def _varint(value: int) -> bytes:
  out = bytearray()
  while value > 0x7F:
    out.append(value & 0x7F | 0x80)
    value >>= 7
  return bytes([*out, value])
