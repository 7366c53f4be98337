"""Python that TensorFlow's threads call comes back before the interpreter ends."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Iterator
from typing import ClassVar

# A call that came back is in the interpreter for some moments more, and an iterator
# that reads ahead tries some others.
_QUIET_SECONDS = 0.3
_MOST_SECONDS = 10.0


class PythonCalls:
  """Counts the calls of one reader, and refuses them when the interpreter ends.

  A thread that wants the interpreter while that ends never gets it. What destroys the
  iterator which waits for the thread would wait for ever then: a script that is done,
  with an iterator that still reads ahead, would not end.
  """

  _live: ClassVar[weakref.WeakSet[PythonCalls]] = weakref.WeakSet()

  def __init__(self) -> None:
    """Watches from now on, as long as the object lives."""
    self._is_ended = False
    self._lock = threading.Lock()
    self._num_active, self._last = 0, 0.0
    self._live.add(self)

  @contextlib.contextmanager
  def one(self) -> Iterator[None]:
    """Surrounds a call.

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
    """Raises RuntimeError where the interpreter ends; for calls that take long."""
    if self._is_ended:
      self._change(0)
      raise RuntimeError("the interpreter ends: nothing is read any more.")

  @classmethod
  def end(cls) -> None:
    """Refuses calls, and waits for those in progress until no more come."""
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
