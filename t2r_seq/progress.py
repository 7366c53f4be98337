"""Progress of a long job: bars, times, and a line for episodes or files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

_BAR_WIDTH = 24
_TERMINAL_SECONDS = 0.1
_LINE_SECONDS = 60.0


def bar_text(fraction: float) -> str:
  """Returns a bar of 24 characters, of which a fraction (0 to 1) is full."""
  full = round(_BAR_WIDTH * min(fraction, 1.0))
  return "█" * full + "░" * (_BAR_WIDTH - full)


def duration_text(seconds: float) -> str:
  """Returns a time to wait, such as '0:07' or '2:05:09'."""
  minutes, rest = divmod(max(0, round(seconds)), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
  """Shows the number of episodes, MB/s and the remaining time."""

  def __init__(
    self,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
    noun: str = "episodes",
  ) -> None:
    """Shows nothing yet.

    Args:
      stream: stream to write to; None for stderr. On a terminal, one line is updated;
        otherwise there is one line per minute.
      clock: returns a time in seconds.
      noun: name of the counted items.
    """
    self._noun = noun
    self._stream = sys.stderr if stream is None else stream
    self._clock = clock
    self._is_terminal = self._stream.isatty()
    self.start("", 0, None)

  def start(self, label: str, done: int, total: int | None) -> None:
    """Starts a new count.

    Args:
      label: name of the work.
      done: number of episodes that are already done.
      total: number of all episodes; None if it is unknown.
    """
    self._label, self._first, self._total = label, done, total
    self._episodes, self._bytes = done, 0
    self._begin = self._last = self._clock()
    self._first_fraction: float | None = None
    if label and self._is_terminal:
      self._show(label)  # The first episode may take long.

  def advance(self, num_bytes: int, fraction: float | None = None) -> None:
    """Counts an episode.

    Args:
      num_bytes: bytes of its values.
      fraction: share of the work that is done, 0 to 1, if the total is unknown.
    """
    self._episodes += 1
    self._bytes += num_bytes
    if self._total:
      fraction = self._episodes / self._total
      self._first_fraction = self._first / self._total
    elif self._first_fraction is None:
      self._first_fraction = fraction
    now = self._clock()
    if now - self._last >= (_TERMINAL_SECONDS if self._is_terminal else _LINE_SECONDS):
      self._last = now
      self._show(self._render(now, fraction))

  def stop(self) -> None:
    """Clears the bar; a result can be printed."""
    if self._is_terminal:
      self._stream.write("\r\x1b[K")
      self._stream.flush()

  def _render(self, now: float, fraction: float | None) -> str:
    seconds = max(now - self._begin, 1e-9)
    of_total = f"/{self._total}" if self._total else ""
    parts = [f"{self._episodes:,}{of_total} {self._noun}"]
    if self._bytes:
      parts.append(f"{self._bytes / seconds / 1e6:.1f} MB/s")
    if fraction is None:
      return f"{self._label} {', '.join(parts)}"
    gained = fraction - (self._first_fraction or 0.0)
    if gained > 0:
      parts.append(f"ETA {duration_text(seconds * (1 - fraction) / gained)}")
    bar = f"{bar_text(fraction)} " if self._is_terminal else ""
    return f"{self._label} {bar}{fraction:4.0%} {', '.join(parts)}"

  def _show(self, line: str) -> None:
    self._stream.write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")
    self._stream.flush()
