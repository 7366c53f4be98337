"""Everything that is wrong with one file of records, found in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from t2r_seq import errors
from t2r_seq.records import (
  checked_reads,
  contents,
  explain,
  file_types,
  frame_scan,
  framing,
  problems,
)
from t2r_seq.records.batch_check import BatchCheck, checker_of
from t2r_seq.records.checked_reads import RecordBatch
from t2r_seq.records.feature_tally import FeatureTally
from t2r_seq.records.features import RecordFeature
from t2r_seq.records.frame_scan import Frames
from t2r_seq.records.problems import RecordProblem


class FileCheck:
  """Looks for what is wrong with files of one dataset.

  Attributes:
    tally: what is known of the features of all files so far.
  """

  def __init__(
    self,
    features: Sequence[RecordFeature],
    finds_nan: bool,
    compression: str | None,
    measures: bool = True,
  ) -> None:
    """Creates the check.

    Args:
      features: those of the dataset; none to look at frames and protos only.
      finds_nan: a NaN is a problem.
      compression: of all files, if the suffixes don't tell.
      measures: fills the tally; without it nothing is known of values.
    """
    self._features = list(features)
    self._checker = checker_of(self._features, measures) if features else None
    self._finds_nan = finds_nan
    self._compression = compression
    self.tally = FeatureTally(self._features)
    self.num_records: dict[str, int] = {}

  def find_problems(self, filename: str) -> Iterator[RecordProblem]:
    """Yields what is wrong with a file, in the order of its records.

    Args:
      filename: the file.
    Yields:
      The problems; `num_records` knows the file when all were drawn.
    Raises:
      OSError: the file cannot be read.
    """
    compression = file_types.compression_type(filename, self._compression)
    with checked_reads.open_content(filename, compression) as (content, error):
      frames = frame_scan.scan_frames(content)
      gaps = [*frames.gaps]
      for batch in checked_reads.read_batches(content, frames):
        first = int(frames.starts[batch.frames[0]])
        while gaps and gaps[0][1] < first:
          yield self._gap(filename, content, frames, gaps.pop(0), error, compression)
        yield from self._check_batch(filename, frames, batch)
      for gap in gaps:
        yield self._gap(filename, content, frames, gap, error, compression)
      if error is not None and not _is_cut(frames):
        end = (frames.num_records, frames.size, frames.size)
        yield self._gap(filename, content, frames, end, error, compression)
      self.num_records[filename] = frames.num_records

  def _gap(
    self,
    filename: str,
    content: str,
    frames: Frames,
    gap: tuple[int, int, int],
    error: Exception | None,
    compression: str,
  ) -> RecordProblem:
    """Says what is wrong with bytes that are no frame."""
    number, start, stop = gap
    if error is not None and stop == frames.size:
      expected, got = f"{compression} data", f"{error}"
    else:
      expected, got = checked_reads.damage_of(content, start, stop, False)
    mismatch = errors.Mismatch("frame", expected, got)
    return RecordProblem(filename, number, start, problems.FRAME, mismatch)

  def _check_batch(
    self, filename: str, frames: Frames, batch: RecordBatch
  ) -> Iterator[RecordProblem]:
    places = [
      (int(frames.numbers[frame]), int(frames.starts[frame])) for frame in batch.frames
    ]
    if batch.data is None:
      (frame,) = batch.frames
      start, stop = int(frames.starts[frame]), int(frames.stops[frame])
      expected, got = checked_reads.damage_of(filename, start, stop, True)
      mismatch = errors.Mismatch("frame", expected, got)
      yield RecordProblem(filename, *places[0], problems.FRAME, mismatch)
      return
    check = self._checker.check(batch.data) if self._checker and batch.data else None
    if check is not None:
      self.tally.add(check)
    for index in self._suspects(batch.data, check):
      for kind, mismatch in self._explain(batch.data[index], check, index):
        path = problems.path_of(mismatch, self._features)
        self.tally.add_problem(path, kind)
        yield RecordProblem(filename, *places[index], kind, mismatch, path)

  def _suspects(self, data: list[bytes], check: BatchCheck | None) -> list[int]:
    """Returns which records of a batch are worth a slow look."""
    if check is None:
      return [*range(len(data))]
    is_suspect = ~check.is_parsed | ~check.is_even
    if self._finds_nan:
      for has_nan in check.has_nan.values():
        is_suspect |= has_nan
    return np.flatnonzero(is_suspect).tolist()

  def _explain(
    self, data: bytes, check: BatchCheck | None, index: int
  ) -> Iterator[tuple[str, errors.Mismatch]]:
    if check is None or not check.is_parsed[index]:
      for mismatch in self._explain_content(data):
        yield problems.CONTENT, mismatch
      return
    if not check.is_even[index]:
      for mismatch in explain.explain_lengths(data, self._features):
        yield problems.LENGTHS, mismatch
    having = [self._features[n] for n, found in check.has_nan.items() if found[index]]
    if having and self._finds_nan:
      for mismatch in explain.explain_nan(data, having):
        yield problems.NAN, mismatch

  def _explain_content(self, data: bytes) -> list[errors.Mismatch]:
    if self._checker is None:
      try:
        contents.RecordContents(data)
        return []
      except errors.RecordError:
        return explain.explain_record(data, [])
    reason = self._checker.failure(data)
    if reason is None:
      return []  # It was something else, that did not last.
    found = explain.explain_record(data, self._features)
    return found or [errors.Mismatch("record", "a record that can be parsed", reason)]


def _is_cut(frames: Frames) -> bool:
  """Whether the last bytes are no frame."""
  return bool(frames.gaps) and frames.gaps[-1][2] == frames.size


def read_good_records(
  filename: str, compression: str | None = None
) -> Iterator[framing.Record]:
  """Reads the records of a file that may be damaged, those that are whole protos.

  Args:
    filename: the file.
    compression: of the file, if the suffix doesn't tell.
  Yields:
    The records in order.
  """
  kind = file_types.compression_type(filename, compression)
  with checked_reads.open_content(filename, kind) as (content, _):
    frames = frame_scan.scan_frames(content)
    for batch in checked_reads.read_batches(content, frames):
      for frame, data in zip(batch.frames, batch.data or [], strict=False):
        number, start = int(frames.numbers[frame]), int(frames.starts[frame])
        try:
          contents.RecordContents(data)
        except errors.RecordError:
          continue
        yield framing.Record(filename, number, start, data)
