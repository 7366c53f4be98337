"""The process: its signals, its freed memory, and Python calls while it ends.

A process that one signal has stopped must not die of the next: supervisors, process
groups and impatient people send several. Python restores the default action of signals
when the interpreter ends, which takes TensorFlow a while: a second SIGTERM would then
change the exit status.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import logging
import os
import signal
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn

_REPEAT_SECONDS = 1.0
_NUMBERS = ("SIGINT", "SIGTERM", "SIGHUP")

# Constants of glibc's malloc.h: parameter and value.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_KEPT_BYTES, _LEFT_BYTES, _MMAP_BYTES = 72 << 20, 24 << 20, 2**25
_ARENAS_A_CORE, _MAX_ARENAS = 2, 8

# A call that has returned is still in the interpreter for some moments, and an iterator
# that reads ahead makes more calls.
_QUIET_SECONDS = 0.3
_MOST_SECONDS = 10.0


class IgnoreRepeats:
  """A signal handler that ignores a signal for a second; then the previous one acts."""

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

  Python runs its signal handlers in the main thread only, between two instructions, and
  a wait for a batch is one instruction. `faulthandler` has a handler in C, which writes
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
  """Watches for SIGINT during a wait in a thread of TensorFlow.

  Yields:
    A function that returns whether to end the wait with an error: the main thread then
    returns from TensorFlow, and Python raises KeyboardInterrupt. It returns False if
    SIGINT has a handler of the user, which may not raise that.
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


@functools.cache
def keep_freed_memory() -> bool:
  """Makes glibc keep freed memory for the next batch, once per process.

  By default glibc returns blocks of some megabytes to the system when two or three are
  free, and the next batch takes them again page by page, each filled with zeros. If
  page faults are expensive, this takes half of the time of a batch of frames. And each
  thread frees to an arena that others do not use. With this, up to 72 MiB stay at the
  top of an arena, and there are two arenas for each core, at most eight.

  The command line calls this, because it owns its process. The library does not: a
  program that needs it calls it first.

  Returns:
    Whether all settings were applied. False if a variable of glibc's malloc is set
    (`MALLOC_ARENA_MAX` and others, or `glibc.malloc` in `GLIBC_TUNABLES`), or if the
    libc has no `mallopt`. A preloaded allocator is not detected.
  """
  tunables = os.environ.get("GLIBC_TUNABLES", "")
  is_configured = any(name.startswith("MALLOC_") for name in os.environ)
  mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
  if is_configured or "glibc.malloc." in tunables or mallopt is None:
    return False
  cores = len(os.sched_getaffinity(0))
  arenas = min(_MAX_ARENAS, _ARENAS_A_CORE * cores)
  settings = {
    _MMAP_THRESHOLD: _MMAP_BYTES,
    _TRIM_THRESHOLD: _KEPT_BYTES,
    _TOP_PAD: _LEFT_BYTES,
    _ARENA_MAX: arenas,
  }
  # A return value of 1 means success.
  if not all(mallopt(option, value) for option, value in settings.items()):
    return False
  logging.debug(
    "keep_freed_memory: %d arenas keep up to %d bytes each.", arenas, _KEPT_BYTES
  )
  return True


class PythonCalls:
  """Counts the calls of one reader, and refuses them when the interpreter ends.

  A thread that needs the interpreter while it ends waits forever, and so would the
  destructor of an iterator that waits for the thread: a script with an iterator that
  still reads ahead would not end.
  """

  _live: ClassVar[weakref.WeakSet[PythonCalls]] = weakref.WeakSet()

  def __init__(self) -> None:
    """Registers the reader, as long as the object lives."""
    self._is_ended = False
    self._lock = threading.Lock()
    self._num_active, self._last = 0, 0.0
    self._live.add(self)

  @contextlib.contextmanager
  def active(self) -> Iterator[None]:
    """Counts a call while the block runs.

    Raises:
      RuntimeError: the interpreter ends.
    """
    self.check()
    self._change(1)
    try:
      yield
    finally:
      self._change(-1)

  def check(self) -> None:
    """Raises RuntimeError if the interpreter ends; for calls that take long."""
    if self._is_ended:
      self._change(0)
      raise RuntimeError("the interpreter ends: nothing is read any more.")

  @classmethod
  def end(cls) -> None:
    """Refuses calls, and waits, up to 10 s, until none is active and no more come."""
    live = list(cls._live)
    for calls in live:
      calls._is_ended = True
    most = time.monotonic() + _MOST_SECONDS
    while any(calls._is_busy() for calls in live) and time.monotonic() < most:
      time.sleep(_QUIET_SECONDS / 10)

  def _change(self, by: int) -> None:
    with self._lock:
      self._num_active += by
      self._last = time.monotonic()

  def _is_busy(self) -> bool:
    is_recent = time.monotonic() - self._last < _QUIET_SECONDS
    return bool(self._last) and (is_recent or self._num_active > 0)


atexit.register(PythonCalls.end)
