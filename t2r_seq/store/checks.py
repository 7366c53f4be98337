"""Do a segment's files have what its commit says? Costs no look at the data."""

from __future__ import annotations

import os
import zlib

import numpy as np

from t2r_seq import errors
from t2r_seq.store import layout
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.manifest import Commit


def check_segment(folder: str, columns: Columns, commit: Commit) -> np.ndarray:
  """Checks the lengths of a segment's files, and its index.

  Args:
    folder: of the segment.
    columns: of the store.
    commit: of the segment.
  Returns:
    Where the episodes end, int64 [episodes].
  Raises:
    StoreError: with every file that is missing, too short, or of a length that does
      not fit the commit; or the index is damaged.
  """
  if not commit.episodes:
    return np.zeros(0, np.int64)
  found = [
    problem
    for name in (*layout.file_names(columns), *layout.INDEX_FILES)
    if (problem := size_problem(folder, name, commit.sizes.get(name)))
  ]
  found = found or [
    errors.Mismatch(name, f"{want} bytes for its rows", f"{got} committed bytes")
    for column in columns.values()
    for name in column.files
    if (want := file_size(column, name, commit)) != (got := commit.sizes[name])
  ]
  if found:
    raise errors.mismatch_error(f"EpisodeStore: {folder}", found, errors.StoreError)
  return read_index(folder, commit)


def file_size(column: Column, name: str, commit: Commit) -> int:
  """Returns how many bytes one file of a column has, from the number of its rows."""
  num_rows = commit.steps if column.is_per_step else commit.episodes
  if name == column.present_file:
    return commit.episodes
  if name == column.offsets_file:
    return 8 * (num_rows * column.items_per_row + 1)
  if column.is_bytes:
    return commit.sizes[name]  # The offsets know.
  return num_rows * column.items_per_row * column.dtype.itemsize


def size_problem(folder: str, name: str, want: int | None) -> errors.Mismatch | None:
  """Says what is wrong with the length of a file, if anything is."""
  if want is None:
    return errors.Mismatch(name, "its length in the commit", "none")
  hint = (
    "Restore the file from a copy, or save the rest of the store: t2r_seq doctor "
    "STORE --salvage OUT."
  )
  try:
    got = os.stat(os.path.join(folder, name)).st_size
  except FileNotFoundError:
    return errors.Mismatch(name, f"{want:,} committed bytes", "no such file", hint)
  if got < want:
    return errors.Mismatch(name, f"{want:,} committed bytes", f"{got:,} bytes", hint)
  return None


def read_index(folder: str, commit: Commit) -> np.ndarray:
  """Reads where the episodes end.

  Args:
    folder: of the segment.
    commit: of the segment.
  Returns:
    int64 [episodes].
  Raises:
    StoreError: the index is damaged.
  """
  place = os.path.join(folder, layout.ENDS)
  ends = np.fromfile(place, "<i8", commit.episodes)
  starts = np.concatenate([np.zeros(1, np.int64), ends])
  is_whole = zlib.crc32(ends.tobytes()) == commit.index_crc32.get(layout.ENDS)
  if not is_whole or (np.diff(starts) < 1).any() or starts[-1] != commit.steps:
    raise errors.StoreError(
      f"EpisodeStore: {place}: expected {commit.episodes} rising ends up to "
      f"{commit.steps} with the checksum {commit.index_crc32.get(layout.ENDS)}, got "
      "others. The index is damaged: restore it from a copy."
    )
  return ends
