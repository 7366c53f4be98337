"""`Segment`: the committed episodes of one writer, mapped."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.store import checks, mapped
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.manifest import Commit


class BytesColumn:
  """Byte strings of one path: `column[row]` is bytes, or an array of bytes objects.

  Attributes:
    data: all bytes, one string after the other, uint8 [n], mapped.
    offsets: where each string starts, and the end, int64 [items + 1], mapped.
    shape: rows, then the shape of a row.
  """

  def __init__(
    self, data: np.ndarray, offsets: np.ndarray, shape: tuple[int, ...]
  ) -> None:
    """Creates the column; see the attributes."""
    self.data = data
    self.offsets = offsets
    self.shape = shape

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, row: int) -> Any:
    if not -len(self) <= row < len(self):
      raise IndexError(f"BytesColumn: expected a row below {len(self)}, got {row}.")
    start = row % len(self)
    return self.rows(start, start + 1)[0]

  def rows(self, start: int, stop: int) -> np.ndarray:
    """Copies rows to an array of bytes objects, [stop - start, *shape[1:]]."""
    count = int(np.prod(self.shape[1:], dtype=np.int64))
    ends = self.offsets[start * count : stop * count + 1].tolist()
    items = np.empty(max(len(ends) - 1, 0), dtype=object)
    for i in range(len(items)):
      items[i] = self.data[ends[i] : ends[i + 1]].tobytes()
    return items.reshape((stop - start, *self.shape[1:]))


class Segment:
  """The committed episodes of one writer, in the order in which they were appended."""

  def __init__(self, folder: str, columns: Columns, commit: Commit) -> None:
    """Maps the files.

    Args:
      folder: of the segment.
      columns: of the store.
      commit: of the segment.
    Raises:
      StoreError: a file is missing or too short, or the index is damaged.
    """
    self._ends = checks.check_segment(folder, columns, commit)
    self._folder = folder
    self.commit = commit
    self._by_path = columns
    self._columns: dict[str, np.ndarray | BytesColumn] = {
      path: self._map(column) for path, column in columns.items()
    }
    self._present = {
      path: self._map_file(column.present_file, np.dtype(np.uint8), (len(self),))
      for path, column in columns.items()
      if column.spec.is_optional
    }

  @property
  def name(self) -> str:
    """Name of the segment."""
    return os.path.basename(self._folder)

  @property
  def folder(self) -> str:
    """Folder of the segment's files."""
    return self._folder

  @property
  def episode_ends(self) -> np.ndarray:
    """The row after each episode's last one, int64 [episodes]."""
    return self._ends

  @property
  def num_steps(self) -> int:
    """Steps of all episodes."""
    return self.commit.steps

  def __len__(self) -> int:
    return self.commit.episodes

  def column(self, path: str) -> np.ndarray | BytesColumn:
    """Returns the rows of a path; see `EpisodeStore.column`."""
    return self._columns[path]

  def tensor(self, path: str) -> tf.Tensor:
    """Returns the rows of a path as a tensor; see `EpisodeStore.tensor`."""
    column = self._columns[path]
    if isinstance(column, BytesColumn):
      raise errors.StoreError(
        f"EpisodeStore: {path}: expected numbers, got byte strings. Use bytes_tensors."
      )
    return mapped.to_tensor(column)

  def bytes_tensors(self, path: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the bytes and offsets of a path; see `EpisodeStore.bytes_tensors`."""
    column = self.bytes_column(path)
    return mapped.to_tensor(column.data), mapped.to_tensor(column.offsets)

  def bytes_column(self, path: str) -> BytesColumn:
    """Returns the rows of a path of byte strings.

    Raises:
      StoreError: the rows are numbers.
    """
    column = self._columns[path]
    if not isinstance(column, BytesColumn):
      raise errors.StoreError(
        f"EpisodeStore: {path}: expected byte strings, got "
        f"{errors.describe(column)}. Use tensor."
      )
    return column

  def is_present(self, path: str) -> np.ndarray:
    """Returns which episodes have a path, bool [episodes]."""
    if path not in self._present:
      return np.ones(len(self), bool)
    return np.asarray(self._present[path], bool)

  def episode(self, index: int) -> dict[str, np.ndarray]:
    """Returns an episode's values by path: views, and copies of byte strings."""
    start = int(self._ends[index - 1]) if index else 0
    episode = {}
    for path, column in self._columns.items():
      if path in self._present and not self._present[path][index]:
        continue
      is_per_step = self._by_path[path].is_per_step
      rows = (start, int(self._ends[index])) if is_per_step else (index, index + 1)
      if isinstance(column, BytesColumn):
        values = column.rows(*rows)
      else:
        values = column[rows[0] : rows[1]]
      episode[path] = values if is_per_step else values.reshape(values.shape[1:])
    return episode

  def _map(self, column: Column) -> np.ndarray | BytesColumn:
    num_rows = self.num_steps if column.is_per_step else len(self)
    shape = (num_rows, *column.row_shape)
    if not column.is_bytes:
      return self._map_file(column.data_file, column.dtype, shape)
    num_offsets = num_rows * column.items_per_row + 1
    return BytesColumn(
      self._map_file(column.data_file, column.dtype, None),
      self._map_file(column.offsets_file, np.dtype("<i8"), (num_offsets,)),
      shape,
    )

  def _map_file(
    self, name: str, dtype: np.dtype, shape: tuple[int, ...] | None
  ) -> np.ndarray:
    """Maps the committed bytes of a file."""
    shape = (self.commit.sizes[name],) if shape is None else shape
    return mapped.map_file(os.path.join(self._folder, name), dtype, shape)
