"""What is wrong with a record, or a file of them: one form for all who find out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from t2r_seq import errors
from t2r_seq.records import framing
from t2r_seq.records.features import RecordFeature

FRAME, CONTENT, LENGTHS, NAN, INDEX = "frame", "content", "lengths", "nan", "index"


@dataclasses.dataclass(frozen=True)
class RecordProblem:
  """One thing that is wrong with a record, or with a file.

  Attributes:
    filename: the file.
    record: number of the record in the file, from 0; None where it is the file.
    offset: of the record's frame, in bytes; of a compressed file, in the decompressed
      data. None where it is the file.
    kind: 'frame' (its bytes), 'content' (what cannot be parsed), 'lengths' (sequences
      that disagree), 'nan' or 'index' (the sidecar index).
    mismatch: the path and feature, what was expected, what is there, what to do.
    feature: the feature's first path; '' where it is none.
  """

  filename: str
  record: int | None
  offset: int | None
  kind: str
  mismatch: errors.Mismatch
  feature: str = ""

  @property
  def place(self) -> str:
    """Names file, record and byte."""
    if self.record is None or self.offset is None:
      return self.filename
    return framing.place(self.filename, self.record, self.offset)

  def __str__(self) -> str:
    return f"{self.place}: {self.mismatch}"


def to_errors(problems: Iterable[RecordProblem]) -> Iterator[errors.RecordError]:
  """Yields one error a record, which names all of its problems.

  Args:
    problems: in the order of files and records.
  Yields:
    The errors, not raised.
  """
  for place, group in itertools.groupby(problems, lambda problem: problem.place):
    found = [problem.mismatch for problem in group]
    yield errors.mismatch_error(place, found, errors.RecordError)


def path_of(mismatch: errors.Mismatch, features: Iterable[RecordFeature]) -> str:
  """Returns the path of the feature that a mismatch is about; '' for none."""
  path = mismatch.path.rpartition(" (feature '")[0] or mismatch.path
  return path if any(path == feature.path for feature in features) else ""
