"""Plain-text tables, and arrays in their cells."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

_MAX_ELEMENTS = 8


def format_table(
  header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()
) -> str:
  """Aligns rows under their header.

  Args:
    header: the names of the columns.
    rows: one cell a column.
    numbers: the columns that are aligned on the right.
  Returns:
    The lines of the table, joined.
  """
  table = [list(header), *[list(row) for row in rows]]
  widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
  table.insert(1, ["─" * width for width in widths])
  return "\n".join(
    "  ".join(
      cell.rjust(width) if name in numbers else cell.ljust(width)
      for cell, width, name in zip(row, widths, header, strict=True)
    ).rstrip()
    for row in table
  )


def shorten(text: str, width: int) -> str:
  """Cuts the middle out of a text that is longer than `width`."""
  if len(text) <= width:
    return text
  head = (width - 1) // 2
  return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def format_value(value: Any) -> str:
  """Returns an array's numbers, or for a large one its shape and range."""
  value = np.asarray(value)
  if value.dtype.kind in "SUO":
    return str(to_json(value))
  if value.size > _MAX_ELEMENTS:
    numbers = value.astype(np.float64)
    return (
      f"{value.dtype} {value.shape} from {numbers.min():.4g} to {numbers.max():.4g}"
    )
  if value.dtype.kind in "biu":
    return str(value.tolist())
  return _format_floats(value.astype(np.float64).tolist())


def to_json(value: Any) -> Any:
  """Returns an array as what JSON can hold; bytes become text."""
  value = np.asarray(value)
  if value.dtype.kind in "SUO":
    return _decode(value.tolist())
  if value.dtype.kind in "biu":
    return value.tolist()
  # float16 and bfloat16 widen without loss.
  return value.astype(np.float64).tolist()


def _format_floats(numbers: Any) -> str:
  """Returns nested lists with four significant digits."""
  if isinstance(numbers, list):
    return f"[{', '.join(_format_floats(number) for number in numbers)}]"
  return f"{numbers:.4g}"


def _decode(value: Any) -> Any:
  """Returns nested lists of text."""
  if isinstance(value, list):
    return [_decode(item) for item in value]
  return (
    value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
  )
