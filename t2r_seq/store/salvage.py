"""Copies every good episode out of a damaged store."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from t2r_seq import errors, specs
from t2r_seq import files as files_lib
from t2r_seq.errors import Salvaged
from t2r_seq.store import check, files, layout
from t2r_seq.store import writer as writer_lib
from t2r_seq.store.check import SegmentCheck
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.manifest import StoreManifest
from t2r_seq.store.segments import SegmentWriter
from t2r_seq.store.values import Rows

_COMMIT_EVERY = 1000


def salvage_store(
  path: str | os.PathLike[str],
  out: str | os.PathLike[str],
  spec: specs.SpecStructure | None = None,
  lenient: bool = False,
) -> Salvaged:
  """Copies every good episode of a store to a new one, byte for byte.

  An episode is good if it is committed and all its bytes match checksums; if the commit
  of a segment is lost, the checksums alone decide. The old store is only read. The new
  store has one segment and no splits, and appears when it is complete.

  Args:
    path: the folder of the old store, damaged or not.
    out: the path of the new store, which must not exist.
    spec: the flat specs that the store was created with; needed only if its
      `store.json` is damaged. The metadata is lost then.
    lenient: whether to keep readable episodes without a valid checksum, too.
  Returns:
    How many episodes were copied, and why the others were not.
  Raises:
    StoreError: no store, one of a newer version, or one whose specs are unknown; or
      `out` exists, or is in the old store.
    SpecError: the store lacks specs or has different ones; all are named.
    OSError: the new store cannot be written; all of it is removed.
  """
  folder, target = os.path.abspath(os.fspath(path)), os.path.abspath(os.fspath(out))
  files_lib.check_vacant("salvage", target, errors.StoreError)
  if os.path.realpath(target).startswith(os.path.realpath(folder) + os.sep):
    raise errors.StoreError(
      f"salvage: {target}: expected a place outside of the damaged store, got one in "
      f"{folder}. The old store must not be changed."
    )
  report, manifest, segments = check.examine(folder, spec)
  if manifest is None:
    hint = "Give the flat specs that the store was created with: spec=..., or --spec."
    problem = errors.Mismatch(
      layout.MANIFEST, "a whole manifest", "a damaged one", hint
    )
    raise errors.mismatch_error(f"salvage: {folder}", [problem], errors.StoreError)
  try:
    with files_lib.new_folder(target) as hidden:
      num_kept, left_out = _copy(segments, manifest, hidden, lenient)
  except OSError as error:
    hint = "Nothing was salvaged; the old store is unchanged."
    raise files.explain(error, target, hint) from error
  return Salvaged(target, report, {writer_lib.DEFAULT_SEGMENT: num_kept}, left_out)


def _copy(
  segments: Sequence[SegmentCheck], store: StoreManifest, target: str, lenient: bool
) -> tuple[int, dict[tuple[str, int], str]]:
  """Writes the new store; returns how many episodes it has, and why it lacks others."""
  os.makedirs(os.path.join(target, layout.SEGMENTS))
  store.write(target)
  num_kept = 0
  left_out: dict[tuple[str, int], str] = {}
  writer = SegmentWriter(
    layout.segment_folder(target, writer_lib.DEFAULT_SEGMENT), store.columns
  )
  try:
    for segment in segments:
      reasons = _reasons(segment, lenient)
      for episode in range(segment.commit.episodes):
        reason = reasons.get(episode)
        if reason is None:
          reason = _copy_episode(writer, segment, store.columns, episode)
        if reason:
          left_out[segment.name, episode] = reason
        else:
          num_kept += 1
        if num_kept % _COMMIT_EVERY == 0:
          writer.write_commit()
    writer.write_commit()
  finally:
    writer.close()
  return num_kept, left_out


def _reasons(segment: SegmentCheck, lenient: bool) -> dict[int, str]:
  """Returns why episodes are not good, by number."""
  unverified = "no valid checksum"
  reasons = {} if lenient else dict.fromkeys(segment.unverified, unverified)
  names: dict[int, dict[str, None]] = {}
  for problem in segment.problems:
    for episode in problem.episodes:
      names.setdefault(episode, {})[problem.path] = None
  return reasons | {
    e: f"damaged in {', '.join(columns)}" for e, columns in names.items()
  }


def _copy_episode(
  writer: SegmentWriter, segment: SegmentCheck, columns: Columns, episode: int
) -> str:
  """Appends one episode; returns why not if its bytes have changed, else ''."""
  steps = int(segment.steps.stops[episode] - segment.steps.starts[episode])
  for column in columns.values():
    try:
      is_optional = column.is_optional
      if is_optional and not _read(segment, column.present_file, episode)[0]:
        continue
      writer.append(column.path, _read_rows(segment, column, episode, steps))
    except _UnreadableError as error:
      writer.roll_back()
      return f"{column.path} cannot be read: {error}"
    sums = segment.sums[column.data_file]
    is_same = episode >= len(sums) or episode in segment.unverified
    if not is_same and writer.checksum(column.data_file) != int(sums[episode]):
      writer.roll_back()
      return f"{column.data_file} changed while it was read"
  writer.end_episode(steps)
  return ""


class _UnreadableError(Exception):
  """Bytes of the old store that could be read when it was examined."""


def _read_rows(segment: SegmentCheck, column: Column, episode: int, steps: int) -> Rows:
  data = _read(segment, column.data_file, episode)
  num_rows = steps if column.is_per_step else 1
  if not column.is_bytes:
    return Rows(num_rows, data)
  ends = _read(segment, column.offsets_file, episode).view("<i8")
  start = segment.file_spans[column.data_file].starts[episode]
  lengths = np.diff(ends, prepend=start)
  if (lengths < 0).any() or lengths.sum() != len(data):
    raise _UnreadableError("its offsets are damaged")
  return Rows(num_rows, data, lengths)


def _read(segment: SegmentCheck, name: str, episode: int) -> np.ndarray:
  span = segment.file_spans[name]
  start, stop = int(span.starts[episode]), int(span.stops[episode])
  place = os.path.join(segment.folder, name)
  try:
    data = np.fromfile(place, np.uint8, stop - start, offset=start)
  except OSError as error:
    raise _UnreadableError(str(error)) from error
  if len(data) != stop - start:
    raise _UnreadableError(f"it became shorter than {stop} bytes")
  return data
