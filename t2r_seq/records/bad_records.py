"""Bad records that are left out: what is wrong with them, how many, and the limit."""

from __future__ import annotations

from collections.abc import Sequence

from absl import logging

from t2r_seq import errors
from t2r_seq.records.problems import RecordProblem, to_errors


class BadRecordLog:
  """Collects bad records, says so in the log, and stops where they are too many.

  A record that is read again, in a later epoch, is the same bad record.

  Attributes:
    max_bad_records: one more is an error.
    failure: that error, once there is one.
  """

  def __init__(self, max_bad_records: int) -> None:
    """Creates an empty log.

    Args:
      max_bad_records: one more is an error.
    """
    self.max_bad_records = max_bad_records
    # No lock, but steps of which none can be parted: while one is held the garbage
    # collector may end an iterator, which waits for a thread that may want it, too.
    self._found: dict[tuple[str, int | None], list[RecordProblem]] = {}
    self.failure: errors.RecordError | None = None

  @property
  def problems(self) -> tuple[RecordProblem, ...]:
    """What is wrong with the records found so far, in the order of reading."""
    return tuple(problem for found in list(self._found.values()) for problem in found)

  def __len__(self) -> int:
    """Returns how many records were left out, each counted once."""
    return len(self._found)

  def add(self, problems: Sequence[RecordProblem]) -> None:
    """Notes a bad record.

    Args:
      problems: of one record, noted before or not.
    Raises:
      RecordError: there are more than `max_bad_records`: always the same, also of what
        is found in other threads after it.
    """
    if self.failure is not None:
      raise self.failure
    key, found = (problems[0].filename, problems[0].offset), list(problems)
    if self._found.setdefault(key, found) is not found:
      return
    (error,) = to_errors(found)
    logging.warning("Left out bad record %d: %s", len(self._found), error)
    if len(self._found) > self.max_bad_records:
      (error,) = to_errors(list(self._found.values())[self.max_bad_records])
      self.failure = errors.RecordError(
        f"on_bad_record='skip': max_bad_records: expected at most "
        f"{self.max_bad_records}, got one more: {error}"
      )
      raise self.failure
