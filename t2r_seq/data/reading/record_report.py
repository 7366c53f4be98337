"""Counts of what an input generator read of records, and of what it left out."""

from __future__ import annotations

from t2r_seq import windows
from t2r_seq.records.check import BadRecordLog
from t2r_seq.records.explain import RecordProblem


class RecordInputReport:
  """What was read, where bad records are left out."""

  def __init__(self, counts: windows.WindowReport | None, log: BadRecordLog) -> None:
    """Creates the report.

    Args:
      counts: of the windows; None where records are not cut into any.
      log: of the bad records.
    """
    self.window_report = counts
    self._log = log

  @property
  def skipped(self) -> int:
    """Records left out, each counted once, however many epochs there were."""
    return len(self._log)

  @property
  def problems(self) -> tuple[RecordProblem, ...]:
    """What is wrong with them: file, record, byte, path, expected and found."""
    return self._log.problems

  @property
  def too_short(self) -> int:
    """Episodes that were too short for a window."""
    return self.window_report.too_short if self.window_report else 0

  def __str__(self) -> str:
    left_out = f"{self.skipped} bad records left out"
    if self.window_report is None:
      return left_out
    return f"{self.window_report}; {left_out}"
