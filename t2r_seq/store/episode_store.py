"""`EpisodeStore`: every step once on disk, open to any reader."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.store import manifest, merging, opening, scanning
from t2r_seq.store.columns import StoreColumns
from t2r_seq.store.segment import BytesColumn, Segment
from t2r_seq.store.spec_checks import check_spec
from t2r_seq.store.window_reader import StoreWindows
from t2r_seq.store.writer import EpisodeWriter


class EpisodeStore:
  """A folder of flat columns, each step once, read as memory-mapped arrays.

  Opening costs a few bytes per episode, however large the columns are. A store that
  is being written shows what was committed when it was opened or refreshed.
  """

  def __init__(
    self, path: str | os.PathLike[str], spec: specs.SpecStructure | None = None
  ) -> None:
    """Opens a store for reading.

    Args:
      path: of the folder.
      spec: flat specs that the store must have; it may have more.
    Raises:
      StoreError: no store, or a damaged or newer one; says which file.
      SpecError: with every difference between `spec` and the store's.
    """
    self._path = os.path.abspath(os.fspath(path))
    self._manifest = manifest.StoreManifest.read(self._path)
    if spec is not None:
      check_spec(f"EpisodeStore: {self._path}", spec, self._manifest.columns, False)
    self._segments: tuple[Segment, ...] = ()
    self.refresh()

  @classmethod
  def open(
    cls, path: str | os.PathLike[str], spec: specs.SpecStructure | None = None
  ) -> EpisodeStore:
    """Opens a store for reading, as the constructor does."""
    return cls(path, spec)

  @classmethod
  def create(
    cls,
    path: str | os.PathLike[str],
    spec: specs.SpecStructure,
    metadata: Mapping[str, Any] | None = None,
    segment: str = opening.DEFAULT_SEGMENT,
    commit_every: int = 1,
    allow_nan: bool = False,
  ) -> EpisodeWriter:
    """Makes a new store and opens it for writing.

    Args:
      path: of the folder; it must not be there, or be empty.
      spec: specs without time offsets (see `windows.flat_specs`); with
        `is_sequence=True` a path has a value per step, without it one per episode.
      metadata: JSON values of the user's own.
      segment: which part of the store this writer appends to.
      commit_every: episodes between two commits; a commit waits for the disk.
      allow_nan: accepts NaN, which is otherwise an error.
    Returns:
      The writer, a context manager.
    Raises:
      SpecError: a spec that cannot be stored; all are named.
      StoreError: there is something at the path already.
      OSError: the folder cannot be written.
    """
    return opening.create(
      os.path.abspath(os.fspath(path)), spec, metadata, segment, commit_every, allow_nan
    )

  @classmethod
  def append(
    cls,
    path: str | os.PathLike[str],
    segment: str | None = None,
    spec: specs.SpecStructure | None = None,
    commit_every: int = 1,
    allow_nan: bool = False,
  ) -> EpisodeWriter:
    """Opens a store to append episodes to it.

    Several processes can write at once, each to a segment of its own.

    Args:
      path: of the folder.
      segment: which part to append to; it is made if there is none. By default the
        store's only one.
      spec: flat specs that the store must have, these and no others.
      commit_every: episodes between two commits, which wait for the disk.
      allow_nan: accepts NaN, which is otherwise an error.
    Returns:
      The writer, a context manager.
    Raises:
      SpecError: with every difference between `spec` and the store's.
      StoreError: no store, a damaged one, or one whose segment is being written; or
        there are several and none is named.
      OSError: the folder cannot be written.
    """
    return opening.append(
      os.path.abspath(os.fspath(path)), segment, spec, commit_every, allow_nan
    )

  @staticmethod
  def merge(path: str | os.PathLike[str]) -> int:
    """Makes one segment of all; the order of the episodes stays.

    Crash-safe: at any moment the store has every committed episode exactly once.
    Readers that are open go on reading what they have mapped.

    Args:
      path: of the folder.
    Returns:
      The number of episodes.
    Raises:
      StoreError: a segment is being written, or is damaged; nothing has changed.
      OSError: the disk is full or failed; nothing has changed.
    """
    return merging.merge(os.path.abspath(os.fspath(path)))

  @property
  def path(self) -> str:
    """The folder."""
    return self._path

  @property
  def spec(self) -> specs.TensorSpecStruct:
    """The flat specs of the episodes, by path."""
    return self._manifest.spec.copy()

  @property
  def metadata(self) -> dict[str, Any]:
    """What the user gave when the store was created."""
    return manifest.check_metadata(self._manifest.metadata)

  @property
  def segments(self) -> tuple[Segment, ...]:
    """The segments that have episodes, by name; one after the other is the store."""
    return self._segments

  @property
  def num_steps(self) -> int:
    """Steps of all episodes."""
    return sum(s.num_steps for s in self._segments)

  @property
  def episode_ends(self) -> np.ndarray:
    """The step after each episode's last one, counted through, int64 [episodes]."""
    return np.cumsum(self.episode_lengths)

  @property
  def episode_lengths(self) -> np.ndarray:
    """Steps of each episode, int64 [episodes]."""
    lengths = [np.diff(s.episode_ends, prepend=0) for s in self._segments]
    return np.concatenate([np.zeros(0, np.int64), *lengths])

  def __len__(self) -> int:
    return sum(len(segment) for segment in self._segments)

  def refresh(self) -> int:
    """Takes in what was committed since the store was opened or refreshed.

    Episodes keep their numbers within a segment; in a store of several that grow,
    those of later segments move up.

    Returns:
      How many episodes more there are.
    """
    before = len(self)
    self._segments = scanning.read_segments(
      self._path, self._manifest.columns, self._segments
    )
    return len(self) - before

  def episode(self, index: int) -> specs.TensorSpecStruct:
    """Returns one episode.

    Args:
      index: of the episode; negative ones count from the end.
    Returns:
      Values by path, [T, ...] and context features: read-only views of the files;
      byte strings are copied to arrays of bytes objects. Absent optionals are left out.
    Raises:
      IndexError: there is no such episode.
    """
    if not -len(self) <= index < len(self):
      raise IndexError(
        f"EpisodeStore: {self._path}: expected an episode below {len(self)}, got "
        f"{index}."
      )
    rest = index % len(self)
    for segment in self._segments:
      if rest < len(segment):
        break
      rest -= len(segment)
    return specs.TensorSpecStruct(segment.episode(rest))

  def windows(
    self, spec_structure: specs.SpecStructure, **options: Any
  ) -> StoreWindows:
    """Returns all windows that specs cut from the episodes, by number.

    Args:
      spec_structure: the specs of a window.
      **options: further arguments of `StoreWindows`: sequence_length, stride, shift,
        padding, masks.
    Raises:
      SpecError: the store does not fit the specs; every path is named.
      StoreError: the store has no episodes.
    """
    return StoreWindows(StoreColumns(self), spec_structure, **options)

  def window(
    self, index: int, spec_structure: specs.SpecStructure, **options: Any
  ) -> specs.TensorSpecStruct:
    """Returns one window as arrays; of many, ask `windows(...)` instead."""
    return self.windows(spec_structure, **options)[index]

  def column(self, path: str) -> np.ndarray | BytesColumn:
    """Returns all rows of a path: every episode's, one after the other.

    Args:
      path: of the spec.
    Returns:
      A read-only `np.memmap` [steps or episodes, ...], or a `BytesColumn`. Rows of
      absent optionals are zeros or empty; `is_present` tells.
    Raises:
      UnknownPathError: the store has no such path.
      StoreError: the rows lie in several segments.
    """
    return self._single(path).column(path)

  def tensor(self, path: str) -> tf.Tensor:
    """Returns all rows of a path as a tensor of the file's memory: nothing is copied.

    `StoreColumns` gathers rows in datasets; a tensor that these capture is copied.

    Args:
      path: of a spec of numbers.
    Returns:
      Tensor [steps or episodes, ...] on the CPU; bool as uint8, which can be shared.
    Raises:
      UnknownPathError: the store has no such path.
      StoreError: the rows lie in several segments, or are byte strings.
    """
    return self._single(path).tensor(path)

  def bytes_tensors(self, path: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the byte strings of a path as two tensors of the files' memory.

    Args:
      path: of a spec of strings or encoded images.
    Returns:
      The bytes, uint8 [n], and the offsets, int64 [items + 1]: item i is
      `data[offsets[i]:offsets[i + 1]]`.
    Raises:
      UnknownPathError: the store has no such path.
      StoreError: the rows lie in several segments, or are numbers.
    """
    return self._single(path).bytes_tensors(path)

  def is_present(self, path: str) -> np.ndarray:
    """Returns which episodes have a path, bool [episodes]; for optionals."""
    self._manifest.spec[path]
    present = [s.is_present(path) for s in self._segments]
    return np.concatenate([np.zeros(0, bool), *present])

  def _single(self, path: str) -> Segment:
    if path not in self._manifest.columns:
      raise errors.UnknownPathError(
        f"EpisodeStore: {path}: no such column."
        f"{errors.nearest(path, self._manifest.columns)} There is "
        f"{errors.listing(self._manifest.columns)}."
      )
    if len(self._segments) == 1:
      return self._segments[0]
    if not self._segments:
      raise errors.StoreError(
        f"EpisodeStore: {self._path}: expected episodes, got none. Append some; what "
        "was not committed does not count."
      )
    names = errors.listing(segment.name for segment in self._segments)
    raise errors.StoreError(
      f"EpisodeStore: {self._path}: expected one segment to map a column from, got "
      f"{names}. Run EpisodeStore.merge(path) once nobody writes, or map those of each "
      "of store.segments."
    )
