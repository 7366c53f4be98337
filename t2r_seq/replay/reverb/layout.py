"""`ItemLayout`: what one item of a table holds, and how a window becomes one."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import specs, windows
from t2r_seq.store.layout import Columns

Row = Mapping[str, Any]
# Of what column an item has which rows: a range; one row, without a time axis; or the
# value of the episode, None.
Rows = tuple[str, range | int | None]


class ItemLayout(abc.ABC):
  """What one item of a table holds: every window is one item.

  A writer appends rows, columns by name, and makes items of ranges of them; what two
  items share is stored once. Ranges have no gaps and no repetitions: Reverb's writer
  takes it for granted that neighbours in an item are neighbours in their chunk.

  Attributes:
    reader: cuts windows from episodes.
    columns: what a step has.
    signature: specs of an item's columns, fully defined but for time axes. Their names
      say which steps they show, so that two programs that mean different windows of
      the same shape are told apart.
    full_shapes: shapes of the columns of an item that no edge of an episode shortens.
    num_rows_kept: how many of the newest rows the next item may refer to.
    num_steps_kept: how many of the newest steps the next row may be made of.
  """

  reader: windows.WindowReader
  columns: Columns
  signature: dict[str, tf.TensorSpec]
  full_shapes: dict[str, tf.TensorShape]
  num_rows_kept: int
  num_steps_kept: int

  @abc.abstractmethod
  def num_rows(self, num_steps: int, has_ended: bool) -> int:
    """Returns how many rows the steps of an episode give."""

  @abc.abstractmethod
  def row(self, step: Callable[[int], Row], number: int, num_steps: int) -> Row:
    """Makes a row.

    Args:
      step: gives a step of the episode by its number.
      number: of the row in its episode.
      num_steps: that the episode has by now.
    Returns:
      Values by column; a column may have a value in the first row only.
    """

  @abc.abstractmethod
  def num_items(self, num_rows: int) -> int:
    """Returns how many items the rows of a running episode give."""

  def num_items_at_end(self, num_steps: int) -> int:
    """Returns how many items an episode that has ended gives."""
    return int(self.reader.grid.num_windows(num_steps))

  def first_anchor(self, number: int) -> int:
    """Returns the step of the first anchor of an item; its priority is the item's."""
    return self.reader.grid.start(number)

  @abc.abstractmethod
  def item(self, number: int, num_steps: int) -> dict[str, Rows]:
    """Returns which rows an item refers to.

    Args:
      number: of the item in its episode.
      num_steps: that the episode has by now.
    Returns:
      Rows by the item's columns.
    """

  @abc.abstractmethod
  def to_windows(self, items: Mapping[str, tf.Tensor]) -> specs.TensorSpecStruct:
    """Makes a batch of windows of a batch of items.

    Args:
      items: columns, [B, ...]; what is shorter than others is padded at its end.
    Returns:
      Windows by path, leaves [B, L, K, ...].
    """


def last_anchor(grid: windows.WindowGrid) -> int:
  """Returns the last anchor of a sequence, relative to its first."""
  return (grid.cut.num_stacks - 1) * grid.cut.stride


def num_full_windows(grid: windows.WindowGrid, num_steps: int) -> int:
  """Returns how many windows show no step that is still to come."""
  room = num_steps - 1 - last_anchor(grid) - grid.span[1] - grid.first_anchor
  return max(room // grid.period + 1, 0)
