"""Zarr groups in diffusion_policy's layout as targets."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, files, specs
from t2r_seq.conversions import arrays, zarr_group
from t2r_seq.conversions.episodes import EpisodeTarget, Values

_CHUNK_BYTES = 1 << 20
# Powers of two, so that the chunks of all arrays end together now and then: there a
# killed conversion goes on.
_MAX_CHUNK_STEPS = 1024
_CHUNK_EPISODES = 64


def check_spec(path: str, spec: specs.TensorSpecStruct) -> None:
  """Checks that a zarr group can hold the episodes.

  Args:
    path: of the group, for the error.
    spec: of the episodes.
  Raises:
    ImportError: zarr is not installed.
    SpecError: with every path that plain arrays cannot hold, or whose name is taken.
  """
  zarr_group.load_zarr()
  arrays.check_numbers(f"convert: {path}", spec)
  zarr_group.array_keys(spec)
  found = [
    errors.Mismatch(
      name,
      "a path that every episode has",
      "an optional one",
      f"Leave it out: --drop {name}.",
    )
    for name, leaf in spec.items()
    if leaf.is_optional
  ]
  if found:
    raise errors.mismatch_error(f"convert: {path}", found)


class ZarrTarget(EpisodeTarget):
  """Writes whole chunks only, into a folder that is renamed when all are there.

  A chunk is never written twice with other data, so one that a kill tore is never one
  that counts.
  """

  def __init__(
    self,
    path: str,
    work_folder: str,
    spec: specs.TensorSpecStruct,
    metadata: Mapping[str, Any],
    episode_ends: list[int],
  ) -> None:
    """Makes the arrays, or goes on with those of a killed conversion.

    Args:
      path: of the folder that appears in the end.
      work_folder: where it is made, on the same file system.
      spec: of the episodes.
      metadata: JSON values, which become an attribute.
      episode_ends: of all episodes that will be written.
    Raises:
      ImportError: zarr is not installed.
    """
    self._path = path
    self._spec = spec
    self._ends = episode_ends
    self._folder = os.path.join(work_folder, "zarr")
    self._state = os.path.join(work_folder, "committed.json")
    self._keys = zarr_group.array_keys(spec)
    zarr_group.load_zarr()
    is_finished = os.path.exists(path)
    if not is_finished and not os.path.exists(self._state):
      shutil.rmtree(work_folder, ignore_errors=True)
      os.makedirs(work_folder)
      self._create(metadata)
      self._write_state(0)
    _remove_leavings(self._folder)
    self._episodes = len(episode_ends) if is_finished else self._first_episode()
    self._columns = {} if is_finished else self._open_columns()

  @property
  def num_committed(self) -> int:
    """The episodes that the state file counts."""
    return self._episodes

  def append(self, values: Values) -> None:
    """Appends to every array; an episode's own value is one row."""
    for path, array in values.items():
      is_sequence = self._spec[path].is_sequence
      self._columns[path].append(array if is_sequence else array[None])
    self._episodes += 1

  def commit(self) -> None:
    """Writes the state file: rows beyond it are written anew."""
    self._write_state(self._episodes)

  def finish(self) -> None:
    """Writes `meta/episode_ends`, and with it completes the group."""
    if not self._columns:
      return
    for column in self._columns.values():
      column.flush()
    # In the end: until then nobody takes the group for a whole one.
    shutil.rmtree(
      os.path.join(self._folder, "meta", zarr_group.ENDS), ignore_errors=True
    )
    meta = zarr_group.create_group(self._folder)["meta"]
    shape = (len(self._ends),)
    ends = zarr_group.create_array(meta, zarr_group.ENDS, shape, np.dtype("<i8"), shape)
    ends[...] = np.asarray(self._ends, np.int64)
    os.replace(self._folder, self._path)
    self._columns = {}

  def close(self) -> None:
    """Drops what is buffered; rows up to the last commit stay."""
    self._columns = {}

  def _create(self, metadata: Mapping[str, Any]) -> None:
    group = zarr_group.create_group(self._folder)
    group.attrs[zarr_group.SPEC_ATTRIBUTE] = json.loads(self._spec.to_json())
    group.attrs[zarr_group.METADATA_ATTRIBUTE] = dict(metadata)
    folders = {True: group.create_group("data"), False: group.create_group("meta")}
    for path, leaf in self._spec.items():
      shape = tuple(leaf.shape.as_list())
      dtype = np.dtype(leaf.dtype.as_numpy_dtype).newbyteorder("<")
      rows = self._ends[-1] if leaf.is_sequence else len(self._ends)
      chunk = (_chunk_rows(leaf), *(max(size, 1) for size in shape))
      folder = folders[leaf.is_sequence]
      zarr_group.create_array(folder, self._keys[path], (rows, *shape), dtype, chunk)

  def _first_episode(self) -> int:
    """Returns the episode to go on from: all chunks before it are whole."""
    with open(self._state, encoding="utf-8") as file:
      committed = int(json.load(file)["episodes"])
    steps = self._ends[committed - 1] if committed else 0
    whole = steps // _MAX_CHUNK_STEPS * _MAX_CHUNK_STEPS
    episode = int(np.searchsorted(self._ends, whole, "right"))
    return episode // _CHUNK_EPISODES * _CHUNK_EPISODES

  def _open_columns(self) -> dict[str, _Column]:
    group = zarr_group.create_group(self._folder)
    start = self._ends[self._episodes - 1] if self._episodes else 0
    columns = {}
    for path, leaf in self._spec.items():
      folder = "data" if leaf.is_sequence else "meta"
      array = group[f"{folder}/{self._keys[path]}"]
      row = start if leaf.is_sequence else self._episodes
      columns[path] = _Column(array, _chunk_rows(leaf), row)
    return columns

  def _write_state(self, episodes: int) -> None:
    files.replace_file(self._state, json.dumps({"episodes": episodes}).encode())


class _Column:
  """Gathers the rows of one array to whole chunks."""

  def __init__(self, array: Any, chunk_rows: int, row: int) -> None:
    self._array = array
    self._chunk_rows = chunk_rows
    self._row = row
    # Rows before the next chunk lie in one that is whole already.
    self._skip = -row % chunk_rows
    self._pending: list[np.ndarray] = []
    self._num_pending = 0

  def append(self, rows: np.ndarray) -> None:
    """Takes rows; writes them when they fill chunks."""
    skipped = min(self._skip, len(rows))
    self._skip -= skipped
    self._row += skipped
    self._pending.append(rows[skipped:])
    self._num_pending += len(rows) - skipped
    if self._num_pending >= self._chunk_rows:
      self._write(self._num_pending // self._chunk_rows * self._chunk_rows)

  def flush(self) -> None:
    """Writes the rest."""
    self._write(self._num_pending)

  def _write(self, count: int) -> None:
    if not count:
      return
    rows = np.concatenate(self._pending)
    self._array[self._row : self._row + count] = rows[:count]
    self._row += count
    self._pending = [rows[count:].copy()]
    self._num_pending -= count


def _remove_leavings(folder: str) -> None:
  """Removes files that a killed process had not yet given their names."""
  for place, _, names in os.walk(folder):
    for name in names:
      if name.endswith(".partial"):
        os.remove(os.path.join(place, name))


def _chunk_rows(leaf: specs.ExtendedTensorSpec) -> int:
  if not leaf.is_sequence:
    return _CHUNK_EPISODES
  row_bytes = max(math.prod(leaf.shape.as_list()) * leaf.dtype.size, 1)
  rows = max(_CHUNK_BYTES // row_bytes, 1)
  return min(1 << (rows.bit_length() - 1), _MAX_CHUNK_STEPS)
