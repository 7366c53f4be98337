"""Repeats of a signal: a process that one signal has stopped must not die of the next.

Supervisors, process groups and impatient people send several. Python restores the
default action of signals when the interpreter ends, which takes TensorFlow a while: a
second SIGTERM would then change the exit status.
"""

from __future__ import annotations

import signal
import threading
import time
import types
from typing import Any, NoReturn

_REPEAT_SECONDS = 1.0
_NUMBERS = ("SIGINT", "SIGTERM", "SIGHUP")


class IgnoreRepeats:
  """A signal handler: ignores the signal for a second, then acts as the one before."""

  def __init__(self, previous: Any) -> None:
    """Starts the second.

    Args:
      previous: the handler to restore.
    """
    self._previous = previous
    self._end = time.monotonic() + _REPEAT_SECONDS

  def __call__(self, number: int, frame: types.FrameType | None) -> None:
    """Handles the signal."""
    if time.monotonic() >= self._end:
      signal.signal(number, self._previous)
      signal.raise_signal(number)


def _interrupt_once(number: int, frame: types.FrameType | None) -> NoReturn:
  signal.signal(number, IgnoreRepeats(_interrupt_once))
  raise KeyboardInterrupt


def begin_process() -> None:
  """Makes repeated SIGINTs of this process one KeyboardInterrupt."""
  if _is_main() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupt_once)


def end_process() -> None:
  """Ignores signals that a command has handled, until the interpreter has ended."""
  if not _is_main():
    return
  for name in _NUMBERS:
    number = getattr(signal, name, None)  # Windows has no SIGHUP.
    handler = number and signal.getsignal(number)
    is_initial = handler in (signal.default_int_handler, _interrupt_once)
    if callable(handler) and not is_initial:
      signal.signal(number, signal.SIG_IGN)


def _is_main() -> bool:
  return threading.current_thread() is threading.main_thread()
