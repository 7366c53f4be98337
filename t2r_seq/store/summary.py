"""Sizes and counts of a store, and the size that its windows would have on disk."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Container, Iterable
from typing import Any

import numpy as np

from t2r_seq import specs, windows
from t2r_seq.store.episode_store import EpisodeStore
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.manifest import StoreManifest, check_spec
from t2r_seq.windows.cut import PADDINGS, Cut, WindowGrid, time_span

_USUAL_STACK = (-3, -2, -1, 0)


@dataclasses.dataclass(frozen=True)
class ColumnSummary:
  """One column over all segments.

  Attributes:
    path: path of the spec.
    dtype: dtype of the values; for encoded images and videos with their format.
    row_shape: shape of the values of one step or episode; for images that of pixels.
    is_per_step: whether there is a value for each step; if not, for each episode.
    num_rows: number of steps, or episodes, of all segments.
    num_bytes: committed bytes of all files of the column.
    value_bytes: bytes of the values, without offsets and rows of absent optionals.
    num_present: number of episodes that have the path; None if it is not optional.
  """

  path: str
  dtype: str
  row_shape: tuple[int, ...]
  is_per_step: bool
  num_rows: int
  num_bytes: int
  value_bytes: int
  num_present: int | None = None


@dataclasses.dataclass(frozen=True)
class WindowSummary:
  """The windows of a store, and the size that they would have on disk.

  Attributes:
    padding: 'drop', 'repeat' or 'zero'.
    num_windows: number of windows of all episodes.
    num_too_short: number of episodes without a window.
    stacked_bytes: bytes of the values if each window were stored; encoded images and
      strings are counted with their mean size.
    flat_bytes: bytes of the values of the same paths in the store.
  """

  padding: str
  num_windows: int
  num_too_short: int
  stacked_bytes: int
  flat_bytes: int

  @property
  def ratio(self) -> float:
    """Stacked size divided by flat size."""
    return self.stacked_bytes / max(self.flat_bytes, 1)


@dataclasses.dataclass(frozen=True)
class StoreSummary:
  """Columns, episodes and windows of a store.

  Attributes:
    path: path of the folder.
    columns: columns in the order of the specs.
    segments: (episodes, steps, committed bytes) by name.
    lengths: number of steps of each episode, int64 [episodes].
    disk_bytes: bytes of all files in the folder, uncommitted ones included.
    span: smallest and largest time offset of the windows.
    windows: windows for each padding.
    metadata: metadata of the user.
    splits: numbers of episodes by split.
  """

  path: str
  columns: tuple[ColumnSummary, ...]
  segments: dict[str, tuple[int, int, int]]
  lengths: np.ndarray
  disk_bytes: int
  span: tuple[int, int]
  windows: tuple[WindowSummary, ...]
  metadata: dict[str, Any]
  splits: dict[str, list[int]] = dataclasses.field(default_factory=dict)

  @property
  def value_bytes(self) -> int:
    """Bytes of the values, every step once."""
    return sum(column.value_bytes for column in self.columns)


def summarize_store(
  path: str | os.PathLike[str], spec: specs.SpecStructure | None = None
) -> StoreSummary:
  """Summarises a store, reading only its manifest and index.

  Args:
    path: path of the folder.
    spec: specs of windows, with time offsets; None for stacks of 4 frames of every path
      with a time axis.
  Raises:
    StoreError: no store, or a damaged or newer one.
    SpecError: the store does not fit the specs; every difference is named.
  """
  store = EpisodeStore(path)
  columns = StoreManifest.read(store.path).columns
  summaries = tuple(_summarize(store, column) for column in columns.values())
  if spec is None:
    frames = [(c.path, len(_USUAL_STACK) if c.is_per_step else 1) for c in summaries]
    span = (_USUAL_STACK[0], _USUAL_STACK[-1])
  else:
    requested = specs.flatten_spec_structure(spec)
    _check_columns(
      f"EpisodeStore: {store.path}", windows.flat_specs(requested), columns
    )
    frames, span = _frames(requested, columns), time_span(requested)
  return StoreSummary(
    path=store.path,
    columns=summaries,
    segments={
      s.name: (len(s), s.num_steps, sum(s.commit.sizes.values()))
      for s in store.segments
    },
    lengths=store.episode_lengths,
    disk_bytes=_disk_bytes(store.path),
    span=span,
    windows=tuple(
      _count_windows(
        frames, summaries, store.episode_lengths, WindowGrid(span, Cut(padding=p))
      )
      for p in PADDINGS
    ),
    metadata=store.metadata,
    splits=store.splits,
  )


def _summarize(store: EpisodeStore, column: Column) -> ColumnSummary:
  sizes = [segment.commit.sizes for segment in store.segments]
  num_rows = store.num_steps if column.is_timed else len(store)
  present = store.is_present(column.path)
  absent = int((~present).sum())
  if column.is_timed:
    absent = int(store.episode_lengths[~present].sum())
  value_bytes = sum(size[column.data_file] for size in sizes)
  dtype = column.dtype_name
  if data_format := column.image_format or column.video_format:
    dtype = f"{data_format} {dtype}"
  if not column.is_bytes:
    value_bytes -= absent * column.items_per_row * column.dtype.itemsize
  return ColumnSummary(
    path=column.path,
    dtype=dtype,
    row_shape=column.shape,
    is_per_step=column.is_timed,
    num_rows=num_rows,
    num_bytes=sum(size[name] for size in sizes for name in column.files),
    value_bytes=value_bytes,
    num_present=int(present.sum()) if column.is_optional else None,
  )


def _frames(
  requested: specs.TensorSpecStruct, columns: Container[str]
) -> list[tuple[str, int]]:
  """Returns the columns that windows read, and the number of rows of each."""
  frames = []
  for path, spec in windows.flat_specs(requested).items():
    count = (
      requested[path].shape[0] if getattr(requested[path], "is_stacked", False) else 1
    )
    frames.append((_source(path, spec, columns), count))
  return frames


def _source(path: str, spec: specs.ExtendedTensorSpec, columns: Container[str]) -> str:
  """Returns the column that training reads: at the path or, if none, at the name."""
  is_named = path not in columns and spec.name in columns
  return str(spec.name) if is_named else path


def _check_columns(where: str, flat: specs.TensorSpecStruct, columns: Columns) -> None:
  """Checks the specs of steps against the columns that they are read from."""
  rounds: list[specs.TensorSpecStruct] = []
  for path, spec in flat.items():
    source = _source(path, spec, columns)
    # Two paths may read one column, such as an observation and the next one.
    free = next((each for each in rounds if source not in each), None)
    if free is None:
      rounds.append(free := specs.TensorSpecStruct())
    free[source] = _as_stored(spec, columns.get(source))
  for each in rounds:
    check_spec(where, each, columns, False)


def _as_stored(
  spec: specs.ExtendedTensorSpec, column: Column | None
) -> specs.ExtendedTensorSpec:
  """Makes a spec without time offsets per-step if it reads a per-step column."""
  if column is None or not column.is_timed or spec.is_sequence:
    return spec
  return specs.ExtendedTensorSpec.from_spec(spec, is_sequence=True)


def _count_windows(
  frames: Iterable[tuple[str, int]],
  columns: tuple[ColumnSummary, ...],
  lengths: np.ndarray,
  grid: WindowGrid,
) -> WindowSummary:
  """Counts the windows, and the bytes that they would take."""
  counts = grid.num_windows(lengths)
  by_path = {column.path: column for column in columns}
  per_window, read = 0.0, {}
  for path, num_frames in frames:
    column = by_path.get(path)
    if column is None or not column.num_rows:
      continue
    read[column.path] = column.value_bytes
    per_window += num_frames * column.value_bytes / column.num_rows
  return WindowSummary(
    padding=grid.cut.front,
    num_windows=int(counts.sum()),
    num_too_short=int((counts < 1).sum()),
    stacked_bytes=round(per_window * int(counts.sum())),
    flat_bytes=sum(read.values()),
  )


def _disk_bytes(folder: str) -> int:
  return sum(
    os.path.getsize(os.path.join(place, name))
    for place, _, names in os.walk(folder)
    for name in names
  )
