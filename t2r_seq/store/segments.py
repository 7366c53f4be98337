"""`Segment`: maps the committed episodes of one writer, and appends to them."""

from __future__ import annotations

import dataclasses
import io
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.files import sync_folder
from t2r_seq.imports import tf
from t2r_seq.store import files, layout, mapped, videos
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.manifest import Commit
from t2r_seq.store.values import Rows
from t2r_seq.store.videos import FrameWriter, load_av


def check_segment(folder: str, columns: Columns, commit: Commit) -> np.ndarray:
  """Returns the ends of a segment's episodes; StoreError if a file is too short."""
  if not commit.episodes:
    return np.zeros(0, np.int64)
  mismatches = [
    problem
    for name in (*layout.file_names(columns), *layout.INDEX_FILES)
    if (problem := size_problem(folder, name, commit.sizes.get(name)))
  ]
  mismatches = mismatches or [
    errors.Mismatch(name, f"{want} bytes for its rows", f"{got} committed bytes")
    for column in columns.values()
    for name in column.files
    if (want := file_size(column, name, commit)) != (got := commit.sizes[name])
  ]
  if mismatches:
    raise errors.mismatch_error(
      f"EpisodeStore: {folder}", mismatches, errors.StoreError
    )
  return read_index(folder, commit)


def file_size(column: Column, name: str, commit: Commit) -> int:
  """Returns the size that one file of a column has, by the number of its rows."""
  num_rows = commit.steps if column.is_per_step else commit.episodes
  if name == column.present_file:
    return commit.episodes
  if name == column.offsets_file:
    return 8 * (num_rows * column.items_per_row + 1)
  if column.is_bytes:
    return commit.sizes[name]  # The offsets determine it.
  return num_rows * column.items_per_row * column.dtype.itemsize


def size_problem(folder: str, name: str, want: int | None) -> errors.Mismatch | None:
  """Returns the mismatch of a file that lacks committed bytes; None if it has all."""
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
  """Reads the ends of a segment's episodes, int64 [episodes]; StoreError if damaged."""
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


@dataclasses.dataclass(frozen=True, eq=False)
class BytesColumn:
  """Byte strings of one path: `column[row]` is bytes, or an array of bytes objects.

  Attributes:
    data: all bytes, one string after the other, uint8 [n], mapped.
    offsets: start of each string, and the end of the last, int64 [items + 1], mapped.
    shape: rows, then the shape of a row.
  """

  data: np.ndarray
  offsets: np.ndarray
  shape: tuple[int, ...]

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


class _MappedFile:
  """Bytes `start` to `end` of a mapped file, as a file."""

  def __init__(self, name: str, data: np.ndarray, start: int, end: int) -> None:
    self.name = name
    self._data, self._start, self._size = data, start, end - start
    self._place = 0

  def read(self, count: int = -1) -> bytes:
    left = self._size - self._place
    count = left if count < 0 else min(count, left)
    start = self._start + self._place
    self._place += max(count, 0)
    return self._data[start : start + max(count, 0)].tobytes()

  def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
    base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}
    self._place = base[whence] + offset
    return self._place

  def tell(self) -> int:
    return self._place


class Segment:
  """The committed episodes of one writer, in the order in which they were appended.

  Attributes:
    name: name of the segment.
    folder: folder of its files.
    commit: commit of the segment.
    num_steps: number of steps of all episodes.
    episode_ends: the row after each episode's last one, int64 [episodes].
  """

  def __init__(self, folder: str, columns: Columns, commit: Commit) -> None:
    self.episode_ends = check_segment(folder, columns, commit)
    self.name, self.folder = os.path.basename(folder), folder
    self.commit, self.num_steps = commit, commit.steps
    self._by_path = columns
    self._ragged: dict[str, tuple[Any, np.ndarray, np.ndarray]] = {}
    self._columns: dict[str, np.ndarray | BytesColumn] = {
      path: self._map(column) for path, column in columns.items()
    }
    self._present = {
      path: self._map_file(column.present_file, np.dtype(np.uint8), (len(self),))
      for path, column in columns.items()
      if column.is_optional
    }

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
    """Returns the rows of a path of byte strings."""
    column = self._columns[path]
    if not isinstance(column, BytesColumn):
      raise errors.StoreError(
        f"EpisodeStore: {path}: expected byte strings, got "
        f"{errors.describe(column)}. Use tensor."
      )
    return column

  def ragged_rows(self, path: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """Finds all values of a column on another clock than the steps.

    Returns:
      Numbers [R, ...], or bytes, mapped; the offsets of byte strings, int64, where each
      episode's header (the number and ends of its strings) counts as a string; and the
      row after each episode's last one, int64 [episodes].
    """
    if path not in self._ragged:
      self._ragged[path] = self._find_ragged_rows(path)
    return self._ragged[path]

  def _find_ragged_rows(self, path: str) -> tuple[Any, np.ndarray, np.ndarray]:
    column, rows = self._by_path[path], self.bytes_column(path)
    step, offsets = column.as_steps, rows.offsets
    none = np.zeros(0, np.int64)
    if not step.is_bytes:
      values = rows.data.view(step.dtype).reshape(-1, *step.row_shape)
      return values, none, offsets[1:] // (step.items_per_row * step.dtype.itemsize)
    places, counts = [none], np.zeros(len(self), np.int64)
    for number, start in enumerate(offsets[:-1].tolist()):
      places.append(np.array([start]))
      if offsets[number + 1] > start:  # The episode has values.
        counts[number] = count = int(rows.data[start : start + 8].view("<i8")[0])
        first = start + 8 * (count + 1)
        item_ends = np.frombuffer(rows.data[start + 8 : first].tobytes(), "<i8")
        places.append(first + np.concatenate([none, [0], item_ends[:-1]]))
    items = np.concatenate([*places, offsets[-1:]]).astype(np.int64)
    return rows.data, items, np.cumsum(counts // step.items_per_row)

  def is_present(self, path: str) -> np.ndarray:
    """Returns which episodes have a path, bool [episodes]."""
    if path not in self._present:
      return np.ones(len(self), bool)
    return np.asarray(self._present[path], bool)

  def episode(
    self,
    index: int,
    paths: Iterable[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> dict[str, np.ndarray]:
    """Returns steps of an episode by path: views, and copies of byte strings.

    Frames of videos are decoded, into the arrays of `out` if given. On other clocks the
    values of the whole episode are returned. See `Episodes.read`.
    """
    begin = int(self.episode_ends[index - 1]) if index else 0
    first, last, _ = slice(start, stop).indices(int(self.episode_ends[index]) - begin)
    steps = (begin + first, begin + max(first, last))
    episode = {}
    for path in self._columns if paths is None else paths:
      column = self._columns[path]
      if path in self._present and not self._present[path][index]:
        continue
      is_per_step = self._by_path[path].is_per_step
      if self._by_path[path].is_video:
        shown, array = np.arange(first, max(first, last)), (out or {}).get(path)
        episode[path] = self.frames(path, index, shown, array)
        continue
      if self._by_path[path].is_ragged:
        episode[path] = self._ragged_values(path, index)
        continue
      rows = steps if is_per_step else (index, index + 1)
      if isinstance(column, BytesColumn):
        values = column.rows(*rows)
      else:
        values = column[rows[0] : rows[1]]
      episode[path] = values if is_per_step else values.reshape(values.shape[1:])
    return episode

  def _ragged_values(self, path: str, index: int) -> np.ndarray:
    """Returns the values of an episode on another clock: a view, or byte strings."""
    values, offsets, ends = self.ragged_rows(path)
    start, stop = int(ends[index - 1]) if index else 0, int(ends[index])
    step = self._by_path[path].as_steps
    if not step.is_bytes:
      return values[start:stop]
    count, before = step.items_per_row, index + 1
    items = slice(start * count + before, stop * count + before + 1)
    items_column = BytesColumn(values, offsets[items], (stop - start, *step.row_shape))
    return items_column.rows(0, stop - start)

  def frames(
    self,
    path: str,
    index: int,
    steps: np.ndarray,
    out: np.ndarray | None = None,
    num_threads: int | None = None,
  ) -> np.ndarray:
    """Decodes frames of an episode; StoreError if one is missing or damaged.

    Args:
      path: path of the videos.
      index: index of the episode in the segment.
      steps: rising, int64 [N].
      out: array for the frames, [N, height, width, channels]; None for a new one.
      num_threads: number of threads of the decoder; None for its default.
    """
    column, rows = self._by_path[path], self.bytes_column(path)
    assert column.video is not None
    if out is None:
      shape = (len(steps), *column.shape)
      out = mapped.empty_array(shape, column.spec.dtype.as_numpy_dtype)
    if not len(steps):
      return out
    start, end = map(int, rows.offsets[index : index + 2])
    name = os.path.join(self.folder, column.data_file)
    data = _MappedFile(name, rows.data, start, end)
    times = steps / column.video.fps
    # Longer gaps have a key frame; half a frame is for rounding.
    seek_after = (column.video.gop + 0.5) / column.video.fps
    where = f"EpisodeStore: {name}: episode {index}: {path}: expected"
    try:
      depth = column.video.depth
      return videos.read_frames(data, times, out, seek_after, num_threads, depth)
    except videos.MissingFrameError as error:
      step = int(steps[error.index])
      raise errors.StoreError(
        f"{where} the frame of step {step} at {times[error.index]:.6f} s, got "
        f"{error.got}. The file is damaged, or another program wrote it: t2r_seq "
        "doctor explains."
      ) from error
    except errors.RecordError as error:
      raise errors.StoreError(
        f"{where} a video that can be decoded, got an error ({error}). t2r_seq doctor "
        "lists which episodes are whole."
      ) from error

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
    return mapped.map_file(os.path.join(self.folder, name), dtype, shape)


def check_codecs(columns: Columns) -> None:
  """Raises ImportError or SpecError if videos cannot be encoded."""
  for column in columns.values():
    if column.video is not None:
      load_av()
      if not is_lossless(column):
        column.video.check()


def is_lossless(column: Column) -> bool:
  """Whether the videos of a column keep every bit."""
  return column.video_format == "mkv"


_MAX_SCANS = 100


def segment_names(folder: str) -> list[str]:
  """Lists the segments that are not replaced by a merge, sorted by name."""
  return sorted(read_commits(folder))


def read_commits(folder: str) -> dict[str, Commit]:
  """Reads the commit of every segment that is not replaced by a merge, by sorted name.

  A snapshot must have every episode once, but a merge replaces one commit, and later
  removes the folders of the merged segments. So this reads until two reads are equal.
  After half of `_MAX_SCANS` reads, it also stops if segments have only grown between
  two reads. The last read is returned in any case.
  """
  commits: dict[str, Commit] = {}
  for number in range(_MAX_SCANS):
    seen = commits
    commits = {
      name: Commit.read(layout.segment_folder(folder, name))
      for name in list_segments(folder)
    }
    replaced = {name for commit in commits.values() for name in commit.replaces}
    commits = {name: c for name, c in commits.items() if name not in replaced}
    is_late = number >= _MAX_SCANS // 2
    if commits == seen or (is_late and _is_settled(seen, commits)):
      break
  return commits


def read_segments(
  folder: str, columns: Columns, mapped: Sequence[Segment] = ()
) -> tuple[Segment, ...]:
  """Maps all segments with episodes, sorted by name; reuses unchanged `mapped` ones."""
  _check_exists(folder)
  for _ in range(_MAX_SCANS):
    commits = read_commits(folder)
    try:
      segments = _map_segments(folder, columns, commits, mapped)
      if all(map(_is_current, set(segments) - set(mapped))):
        return segments
    # numpy raises ValueError if a file has shrunk since its commit was read.
    except (errors.StoreError, FileNotFoundError, ValueError):
      if read_commits(folder) == commits:
        raise  # No merge removed the files: they are damaged.
  # Writers never paused: use the newest commits without the check.
  return _map_segments(folder, columns, commits, mapped)


def identity(folder: str) -> tuple[int, int] | None:
  """Returns inode and time of the manifest, which differ by store; None without one."""
  try:
    status = os.stat(os.path.join(folder, layout.MANIFEST))
  except (FileNotFoundError, NotADirectoryError):
    return None
  return status.st_ino, status.st_mtime_ns


def check_identity(folder: str, opened: tuple[int, int] | None) -> None:
  """Raises StoreError if the store at the path is not the opened one."""
  if identity(folder) != opened:
    raise errors.StoreError(
      f"EpisodeStore: {folder}: expected the store that was opened, got another one, "
      "or none. Mapped data can still be read."
    )


def _check_exists(folder: str) -> None:
  """Raises StoreError if a store was deleted, as it would seem to have no episodes."""
  if not os.path.exists(os.path.join(folder, layout.MANIFEST)):
    raise errors.StoreError(
      f"EpisodeStore: {folder}: expected the store that was opened, got nothing there "
      "any more. Mapped data can still be read."
    )


def _map_segments(
  folder: str, columns: Columns, commits: dict[str, Commit], mapped: Sequence[Segment]
) -> tuple[Segment, ...]:
  kept = {segment.name: segment for segment in mapped}
  segments = []
  for name, commit in commits.items():
    if name in kept and kept[name].commit == commit:
      segments.append(kept[name])
    elif commit.episodes:
      segment = layout.segment_folder(folder, name)
      segments.append(Segment(segment, columns, commit))
  return tuple(segments)


def _is_current(segment: Segment) -> bool:
  """Whether a folder still has the mapped segment; a merge frees names for new ones."""
  try:
    now = Commit.read(segment.folder)
    return now == segment.commit or all(
      zlib.crc32(_head(os.path.join(segment.folder, name), segment.commit.sizes[name]))
      == crc
      for name, crc in segment.commit.index_crc32.items()
    )
  except (errors.StoreError, FileNotFoundError):
    return False


def _head(path: str, num_bytes: int) -> bytes:
  with open(path, "rb") as file:
    return file.read(num_bytes)


def list_segments(folder: str) -> list[str]:
  """Lists the folders of segments, sorted; replaced ones, too."""
  try:
    entries = list(os.scandir(os.path.join(folder, layout.SEGMENTS)))
  except FileNotFoundError:
    return []
  names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
  return sorted(names)


def _is_settled(seen: dict[str, Commit], commits: dict[str, Commit]) -> bool:
  """Whether segments have only grown between two reads, without a merge."""
  return seen.keys() == commits.keys() and all(
    seen[name].replaces == commit.replaces and seen[name].episodes <= commit.episodes
    for name, commit in commits.items()
  )


_ZEROS = np.zeros(1 << 20, np.uint8)
_ZERO_OFFSET = b"\0" * 8


class SegmentWriter:
  """Appends rows and episodes to the files of a segment, under its lock."""

  def __init__(self, folder: str, columns: Columns) -> None:
    """Locks a segment, and truncates its files to the committed size.

    Raises StoreError if another writer has the lock, or the segment is damaged.
    """
    self.folder = folder
    self._columns = columns
    self._files: dict[str, files.AppendFile] = {}
    # Its thread starts with the first large write.
    self._executor = futures.ThreadPoolExecutor(1, "t2r_seq_checksum")
    os.makedirs(folder, exist_ok=True)
    self._lock = files.lock_segment(folder)
    try:
      self.commit = Commit.read(folder)
      check_segment(folder, columns, self.commit)
      names = [*layout.file_names(columns), *layout.INDEX_FILES]
      for name in names:
        path, size = os.path.join(folder, name), self.commit.sizes.get(name, 0)
        self._files[name] = files.AppendFile(path, size, self._executor)
      self._resume()
      for name_folder in (folder, os.path.dirname(folder)):
        sync_folder(name_folder)
      if self.commit == Commit():
        # Before any data: so data without a commit means that the commit was lost.
        self.commit.write(folder)
    except BaseException:
      self.close()
      raise

  @property
  def num_episodes(self) -> int:
    """Number of whole episodes, uncommitted ones included."""
    return self._episodes

  def append(self, path: str, rows: Rows) -> None:
    """Appends rows, or frames to be encoded, to the episode that is being written."""
    column = self._columns[path]
    self._present.add(path)
    if column.is_video and rows.lengths is None:
      self._encode(column, rows.data)
      return
    data = self._files[column.data_file]
    if rows.lengths is not None:
      ends = np.cumsum(rows.lengths) + data.size
      self._files[column.offsets_file].append(files.as_bytes(ends.astype(np.int64)))
    data.append(rows.data)

  def append_row(self, row: Mapping[str, bytes]) -> None:
    """Appends one row of some paths: the bytes of its numbers, or a byte string."""
    for path, data in row.items():
      column = self._columns[path]
      file = self._files[column.data_file]
      file.append(data)
      if column.is_bytes:
        self._files[column.offsets_file].append(file.size.to_bytes(8, "little"))
    self._present.update(row)

  def checksum(self, name: str) -> int:
    """Returns the CRC-32 of the bytes of the episode in progress in a file."""
    return self._files[name].checksum()

  def end_episode(self, num_steps: int) -> None:
    """Ends the episode in progress, which counts once it is committed."""
    for path, (video, encoder) in self._encoders.items():
      encoder.close()
      data = np.frombuffer(video.getbuffer(), np.uint8)
      self.append(path, Rows(1, data, np.array([len(data)])))
    for column in self._columns.values():
      is_present = column.path in self._present
      if column.is_optional:
        self._files[column.present_file].append(bytes([is_present]))
      if not is_present:
        self._append_absent(column, num_steps if column.is_per_step else 1)
    ends = np.asarray([self._steps + num_steps], "<i8")
    self._put_index(layout.ENDS, ends)
    checksums = [self.checksum(name) for name in layout.file_names(self._columns)]
    self._put_index(layout.CHECKSUMS, np.asarray(checksums, "<u4"))
    self._episodes += 1
    self._steps += num_steps
    self._begin()

  def roll_back(self) -> None:
    """Drops the rows of the episode that is being written."""
    for name, size in self._start_sizes.items():
      self._files[name].truncate(size)
    self._index_crc32 = self._start_index_crc32
    self._begin()

  def write_commit(self, replaces: Iterable[str] | None = None) -> None:
    """Syncs the data, then commits the whole episodes; drops them if that fails.

    Args:
      replaces: segments whose episodes this segment now has; None: as before.
    """
    replaces = self.commit.replaces if replaces is None else tuple(replaces)
    if self._episodes == self.commit.episodes and replaces == self.commit.replaces:
      return
    commit = Commit(
      self._episodes,
      self._steps,
      dict(self._start_sizes),
      dict(self._start_index_crc32),
      replaces,
    )
    try:
      for file in self._files.values():
        file.sync()
      commit.write(self.folder)
    except BaseException:
      # No retry: the kernel may drop the pages that it failed to sync.
      self.cut()
      raise
    self.commit = commit

  def cut(self) -> None:
    """Drops all that is not committed."""
    # A commit may have failed in its very last step: the one on the disk counts.
    self.commit = Commit.read(self.folder)
    for name, file in self._files.items():
      file.truncate(self.commit.sizes.get(name, 0))
    self._resume()

  def close(self) -> None:
    """Closes the files and releases the lock; commits nothing."""
    for file in self._files.values():
      file.close()
    self._executor.shutdown()
    self._lock.release()

  def _begin(self) -> None:
    """Records where the next episode starts."""
    self._present: set[str] = set()
    # Videos in progress: each is written to its file after its last frame.
    self._encoders: dict[str, tuple[io.BytesIO, FrameWriter]] = {}
    for file in self._files.values():
      file.start_checksum()
    self._start_sizes = {name: file.size for name, file in self._files.items()}
    self._start_index_crc32: dict[str, int] = dict(self._index_crc32)

  def _resume(self) -> None:
    """Continues from the commit; the files have been cut to it."""
    self._episodes, self._steps = self.commit.episodes, self.commit.steps
    self._index_crc32 = dict(self.commit.index_crc32)
    for column in self._columns.values():
      if column.is_bytes and not self._files[column.offsets_file].size:
        self._files[column.offsets_file].append(_ZERO_OFFSET)
    self._begin()

  def _encode(self, column: Column, frames: np.ndarray) -> None:
    if column.path not in self._encoders:
      assert column.video is not None
      encoding = None if is_lossless(column) else column.video
      video = io.BytesIO()
      encoder = FrameWriter(video, column.video.fps, encoding)
      self._encoders[column.path] = video, encoder
    for pixels in frames:
      self._encoders[column.path][1].write(pixels)

  def _put_index(self, name: str, values: np.ndarray) -> None:
    data = files.as_bytes(values)
    self._files[name].append(data)
    self._index_crc32[name] = zlib.crc32(data.data, self._index_crc32.get(name, 0))

  def _append_absent(self, column: Column, num_rows: int) -> None:
    """Appends zeros, or empty strings, for an absent optional."""
    num_items = num_rows * column.items_per_row
    if column.is_bytes:
      none = np.zeros(0, np.uint8)
      self.append(column.path, Rows(num_rows, none, np.zeros(num_items, np.int64)))
      return
    num_bytes = num_items * column.dtype.itemsize
    for start in range(0, num_bytes, len(_ZEROS)):
      self._files[column.data_file].append(_ZEROS[: num_bytes - start])
