"""The wire format of protos: where the values of a field lie, without parsing them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, overload

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


def delimited(number: int, content: bytes) -> bytes:
  """Returns a field with a length, of a number below 16, as it is written."""
  return bytes([number << 3 | _DELIMITED]) + _write_varint(len(content)) + content


def _write_varint(value: int) -> bytes:
  written = bytearray()
  while value >= 0x80:
    written.append(value & 0x7F | 0x80)
    value >>= 7
  return bytes([*written, value])
