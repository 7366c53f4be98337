"""Signals: repeats of one, and waits inside of TensorFlow that one can end.

A process that one signal has stopped must not die of the next: supervisors, process
groups and impatient people send several. Python restores the default action of signals
when the interpreter ends, which takes TensorFlow a while: a second SIGTERM would then
change the exit status.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
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
    if not hasattr(signal, name):  # Windows has no SIGHUP.
      continue
    number = getattr(signal, name)
    handler = signal.getsignal(number)
    is_initial = handler in (signal.default_int_handler, _interrupt_once)
    if callable(handler) and not is_initial:
      signal.signal(number, signal.SIG_IGN)


def _is_main() -> bool:
  return threading.current_thread() is threading.main_thread()


class _Watch:
  """Reports SIGINT to threads, while the main thread is inside of TensorFlow.

  Python runs its signal handlers in the main thread only, between two instructions. A
  wait for a batch is one instruction. `faulthandler` has a handler in C, which writes
  to a pipe and then calls Python's.
  """

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._count = 0
    self._pipe: tuple[int, int] | None = None

  @contextlib.contextmanager
  def watching(self) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether SIGINT was sent since the last call."""
    with self._lock:
      if not self._count and hasattr(faulthandler, "register"):
        if self._pipe is None:
          self._pipe = os.pipe()
          for end in self._pipe:
            os.set_blocking(end, False)
        faulthandler.register(signal.SIGINT, self._pipe[1], False, True)
      self._count += 1
    try:
      yield self._is_sent
    finally:
      with self._lock:
        self._count -= 1
        if not self._count and self._pipe is not None:
          faulthandler.unregister(signal.SIGINT)

  def _is_sent(self) -> bool:
    with self._lock, contextlib.suppress(BlockingIOError):
      return self._pipe is not None and bool(os.read(self._pipe[0], 1 << 16))
    return False


_watch = _Watch()


@contextlib.contextmanager
def watched_wait() -> Iterator[Callable[[], bool]]:
  """Watches for SIGINT in a moment of a wait, in a thread of TensorFlow.

  Yields:
    A function that returns whether to end the wait with an error: the main thread then
    returns from TensorFlow, and Python raises KeyboardInterrupt. A handler that does
    not raise it ends no wait.
  """
  handlers = (signal.default_int_handler, _interrupt_once)
  if _is_main() or signal.getsignal(signal.SIGINT) not in handlers:
    yield lambda: False
    return
  with _watch.watching() as is_sent:
    yield lambda: is_sent() and _is_main_in_tensorflow()


def _is_main_in_tensorflow() -> bool:
  frame = sys._current_frames().get(threading.main_thread().ident or 0)
  return frame is not None and "tensorflow" in frame.f_code.co_filename
