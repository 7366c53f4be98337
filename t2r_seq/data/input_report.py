"""What an input generator can tell about what it has read."""

from __future__ import annotations

from typing import Protocol


class InputReport(Protocol):
  """Counts of what a dataset read; printed, it is a line for the log."""

  @property
  def too_short(self) -> int:
    """Episodes that gave nothing, because they are shorter than a window."""

  def __str__(self) -> str:
    """Returns the counts as text."""
