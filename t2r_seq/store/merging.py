"""Many segments become one, in one step."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid

import numpy as np

from t2r_seq import errors
from t2r_seq.files import sync_folder
from t2r_seq.store import files, layout, scanning
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.lock import lock_segment
from t2r_seq.store.manifest import Commit, StoreManifest
from t2r_seq.store.segment import BytesColumn, Segment
from t2r_seq.store.segment_writer import SegmentWriter
from t2r_seq.store.values import Rows

_REMOVED = ".removed."


def merge(folder: str) -> int:
  """Merges all segments into the first; see `EpisodeStore.merge`.

  The episodes are appended to the first segment. The commit that makes them count
  there also says which segments it replaces, so they stop counting in the same moment.

  Args:
    folder: of the store.
  Returns:
    The number of episodes.
  """
  columns = StoreManifest.read(folder).columns
  names = scanning.segment_names(folder)
  if not names:
    return 0
  target, *others = names
  try:
    finish(folder, target)
    with contextlib.ExitStack() as held:
      writer = SegmentWriter(layout.segment_folder(folder, target), columns)
      held.callback(writer.close)
      for name in others:
        held.callback(lock_segment(layout.segment_folder(folder, name)).release)
      _check_still_there(folder, names)
      try:
        for name in others:
          _take_over(writer, layout.segment_folder(folder, name), columns)
        writer.write_commit(replaces=others)
      except BaseException:
        writer.cut()
        raise
      _remove(folder, others)
      writer.write_commit(replaces=())
      return writer.num_episodes
  except OSError as error:
    hint = (
      "Every committed episode is still there, once; a merge needs a folder that it "
      "may write to, with room on the disk."
    )
    raise files.explain(error, folder, hint) from error


def finish(folder: str, segment: str) -> None:
  """Removes what an interrupted merge left of the segments that it had replaced.

  Args:
    folder: of the store.
    segment: that is about to be written; it took over others, or was taken over.
  Raises:
    StoreError: the merge is still going on.
  """
  for name, commit in scanning.read_commits(folder).items():
    if not commit.replaces or segment not in (name, *commit.replaces):
      continue
    lock = lock_segment(layout.segment_folder(folder, name))
    try:
      commit = Commit.read(layout.segment_folder(folder, name))
      _remove(folder, list(commit.replaces))
      values = {**vars(commit), "replaces": ()}
      Commit(**values).write(layout.segment_folder(folder, name))
    finally:
      lock.release()


def is_replaced(folder: str, segment: str) -> bool:
  """Whether a merge took over the segment and has not finished."""
  commits = scanning.read_commits(folder).values()
  return any(segment in commit.replaces for commit in commits)


def _check_still_there(folder: str, names: list[str]) -> None:
  """Two merges at once: the one that comes second to the locks looks again."""
  if any(is_replaced(folder, name) for name in names):
    raise errors.StoreError(
      f"EpisodeStore: {folder}: expected no other merge, got one that was quicker. "
      "Merge again."
    )


def _remove(folder: str, names: list[str]) -> None:
  """Removes segments: out of sight first, in one step each, then from the disk."""
  for name in names:
    if os.path.isdir(layout.segment_folder(folder, name)):
      hidden = f"{_REMOVED}{name}.{uuid.uuid4().hex}"
      os.rename(
        layout.segment_folder(folder, name), layout.segment_folder(folder, hidden)
      )
  segments = os.path.join(folder, layout.SEGMENTS)
  sync_folder(segments)
  for name in os.listdir(segments):
    if name.startswith(_REMOVED):
      shutil.rmtree(layout.segment_folder(folder, name), ignore_errors=True)


def _take_over(writer: SegmentWriter, folder: str, columns: Columns) -> None:
  """Appends the episodes of a segment; their checksums are compared on the way."""
  commit = Commit.read(folder)
  if not commit.episodes:
    return
  segment = Segment(folder, columns, commit)
  names = layout.file_names(columns)
  checksums = np.fromfile(
    os.path.join(folder, layout.CHECKSUMS), "<u4", len(segment) * len(names)
  ).reshape(len(segment), len(names))
  sums = {name: checksums[:, index] for index, name in enumerate(names)}
  present = {path: segment.is_present(path) for path in columns}
  starts = np.concatenate([np.zeros(1, np.int64), segment.episode_ends])
  for index in range(len(segment)):
    steps = (int(starts[index]), int(starts[index + 1]))
    for path, column in columns.items():
      if not present[path][index]:
        continue
      bounds = steps if column.is_per_step else (index, index + 1)
      writer.append(path, _rows(segment, column, *bounds))
      want, got = int(sums[column.data_file][index]), writer.checksum(column.data_file)
      if got != want:
        raise errors.StoreError(
          f"EpisodeStore: {folder}/{column.data_file}: expected the checksum {want} "
          f"for episode {index}, got {got}. The file is damaged; nothing was merged."
        )
    writer.end_episode(steps[1] - steps[0])


def _rows(segment: Segment, column: Column, start: int, stop: int) -> Rows:
  values = segment.column(column.path)
  if not isinstance(values, BytesColumn):
    return Rows(stop - start, files.as_bytes(values[start:stop]))
  count = column.items_per_row
  offsets = np.asarray(values.offsets[start * count : stop * count + 1])
  data = values.data[offsets[0] : offsets[-1]]
  return Rows(stop - start, np.asarray(data), np.diff(offsets))
