"""A clean end when the process is told to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import types
from collections.abc import Iterator
from typing import Any, Protocol

from absl import logging

from t2r_seq import errors

_LOOK_SECONDS = 0.1


class StopCondition(Protocol):
  """E.g. a `threading.Event`, or a `StopSignal`."""

  def is_set(self) -> bool:
    """Whether to stop."""


class Stopped(BaseException):
  """The process was told to stop during a wait.

  No Exception, as KeyboardInterrupt is none: whoever goes on after any error must not
  go on after this one.
  """


class StopSignal:
  """Turns SIGTERM into a question that a loop asks between two steps.

  A context manager: within it, SIGTERM only makes `is_set` true. What was in force
  before is put back at the end, and after the first signal, so that a second one ends
  the process at once. Signals reach the main thread only; elsewhere there is `other`.
  """

  def __init__(self, other: StopCondition | None = None) -> None:
    """Creates the signal.

    Args:
      other: stops as the signal does, once it is set.
    """
    self._other = other
    self._was_sent = False
    self._is_waiting = False
    self._previous: Any = None

  def is_set(self) -> bool:
    """Whether to stop."""
    return self._was_sent or (self._other is not None and self._other.is_set())

  def check(self) -> None:
    """Raises Stopped if it is time to stop."""
    if self.is_set():
      raise Stopped

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Within it, the signal ends a wait at once.

    Raises:
      Stopped: the signal was sent, before or meanwhile.
    """
    self._is_waiting = True
    try:
      self.check()
      yield
    finally:
      self._is_waiting = False

  def wait(self, seconds: float) -> None:
    """Waits.

    Raises:
      Stopped: there is no reason to wait any longer.
    """
    deadline = time.monotonic() + seconds
    with self.waiting():
      while (left := deadline - time.monotonic()) > 0:
        self.check()
        time.sleep(min(left, _LOOK_SECONDS))

  def __enter__(self) -> StopSignal:
    if threading.current_thread() is threading.main_thread():
      self._previous = signal.signal(signal.SIGTERM, self._handle)
    return self

  def __exit__(
    self,
    exc_type: type[BaseException] | None,
    exc_value: BaseException | None,
    traceback: types.TracebackType | None,
  ) -> None:
    self._put_back()

  def _handle(self, number: int, frame: types.FrameType | None) -> None:
    self._note()
    logging.info("Told to stop by %s.", signal.Signals(number).name)
    if self._is_waiting:
      raise Stopped

  def _note(self) -> None:
    # A flag, no Event: this thread may hold an Event's lock just now.
    self._was_sent = True
    self._put_back()
    if isinstance(self._other, StopSignal):
      self._other._note()  # It would take the second signal, which ends the process.

  def _put_back(self) -> None:
    if self._previous is not None:
      signal.signal(signal.SIGTERM, self._previous)
      self._previous = None


@contextlib.contextmanager
def given_up(stop: StopCondition) -> Iterator[None]:
  """Within it, a wait for a replay that is given up to stop is no failure.

  Raises:
    Stopped: in place of the wait's ReplayTimeoutError.
  """
  try:
    yield
  except errors.ReplayTimeoutError as error:
    if stop.is_set():  # It would have waited on.
      raise Stopped from error
    raise
