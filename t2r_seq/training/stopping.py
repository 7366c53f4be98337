"""A clean end on SIGTERM or SIGINT, and waits that a signal can end."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from absl import logging

from t2r_seq import errors, process

_LOOK_SECONDS = 0.1
# Signals within this time of the first are the same wish: process groups, supervisors
# and terminals that close send several.
_INSISTS_SECONDS = 10.0
_WATCH_SECONDS = 1.0
# How long an iterator may take to close, on a machine that is busy: one that outlives
# the interpreter aborts the process. Less where a run was stopped, and somebody waits;
# and of one that nothing comes from any more.
_CLOSE_SECONDS, _STOP_SECONDS, _GIVE_UP_SECONDS = 120.0, 20.0, 1.0


class StopCondition(Protocol):
  """E.g. a `threading.Event`, or a `StopSignal`."""

  def is_set(self) -> bool:
    """Whether to stop."""


class Stopped(BaseException):
  """A signal asked the process to stop during a wait.

  Like KeyboardInterrupt it is not an Exception: code that continues after any error
  must not continue after this one.
  """


class StopSignal:
  """Turns SIGTERM and SIGHUP into a flag that a loop checks between two steps.

  A context manager: within it, the signals only set `is_set`. Further signals within 10
  s are ignored; a later one has its previous effect, i.e. it ends the process. The
  previous handlers are restored at the end; a signal that has stopped the loop is
  ignored for a second more. Signals that are ignored, as under nohup, stay ignored.
  Signals reach the main thread only; elsewhere there is `other`.
  """

  def __init__(
    self,
    other: StopCondition | None = None,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGHUP),
  ) -> None:
    """Creates the signal.

    Args:
      other: stops as the signal does, once it is set.
      signals: numbers of the signals.
    """
    self._other = other
    self._signals = signals
    self._first: float | None = None
    self._is_waiting = False
    self._is_held = False
    self._previous: dict[int, Any] = {}
    # The first signal that was sent, if any.
    self.number: int | None = None

  def is_set(self) -> bool:
    """Whether to stop."""
    is_sent = self.number is not None
    return is_sent or (self._other is not None and self._other.is_set())

  def check(self) -> None:
    """Raises Stopped if a stop was requested."""
    if self.is_set():
      raise Stopped

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Within it, the signal ends a wait at once.

    Raises:
      Stopped: the signal arrived before or during the wait.
    """
    self._is_waiting = True
    try:
      self.check()
      yield
    finally:
      self._is_waiting = False

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Within it, no signal ends the process, however many are sent."""
    self._is_held = True
    try:
      yield
    finally:
      self._is_held = False

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
      for number in self._signals:
        previous = signal.getsignal(number)
        # None: the handler was not set from Python, and could not be restored.
        if previous not in (signal.SIG_IGN, None):
          self._previous[number] = previous
          signal.signal(number, self._handle)
    return self

  def __exit__(
    self,
    exc_type: type[BaseException] | None,
    exc_value: BaseException | None,
    exc_traceback: types.TracebackType | None,
  ) -> None:
    self._put_back()

  def _handle(self, number: int, frame: types.FrameType | None) -> None:
    now = time.monotonic()
    if self._first is None:
      self._first = now
      self._note(number)
      logging.info("Told to stop by %s.", signal.Signals(number).name)
      # Raised once: a second signal must not disturb what the first one has begun.
      if self._is_waiting:
        self._is_waiting = False
        raise Stopped
    elif not self._is_held and now - self._first > _INSISTS_SECONDS:
      self._first = None  # Ended by this signal, which is not a repeat.
      self._put_back()
      signal.raise_signal(number)

  def _note(self, number: int) -> None:
    # A flag, no Event: this thread may hold an Event's lock just now.
    self.number = number
    if isinstance(self._other, StopSignal):
      self._other._first = self._first
      self._other._note(number)

  def _put_back(self) -> None:
    while self._previous:
      number, previous = self._previous.popitem()
      is_nested = isinstance(getattr(previous, "__self__", None), StopSignal)
      if self._first is not None and not is_nested:
        previous = process.IgnoreRepeats(previous)
      signal.signal(number, previous)


@contextlib.contextmanager
def given_up(stop: StopCondition) -> Iterator[None]:
  """Within it, a wait for a replay that is given up to stop is not a failure.

  Raises:
    Stopped: in place of the wait's ReplayTimeoutError.
  """
  try:
    yield
  except errors.ReplayTimeoutError as error:
    if stop.is_set():  # It would have waited on.
      raise Stopped from error
    raise


class Interruptible(Iterator[Any]):
  """Iterates in a separate thread; a context manager that ends the thread.

  Python's signal handlers run in the main thread, between two of its instructions. A
  wait for a batch inside of TensorFlow is one instruction, and for a live replay it may
  never end. Here the main thread waits in Python, whose waits a handler can end.
  Items are taken on request, none ahead.

  Only the thread holds the iterator, and releases it before the block is left. An
  iterator that lived until the interpreter ends would crash the process, since
  TensorFlow's own threads may then be inside of Python.
  """

  def __init__(
    self,
    items: Iterable[Any],
    watch: Callable[[], Callable[[], Any] | None] = lambda: None,
  ) -> None:
    """Starts the thread, and the iteration in it.

    Args:
      items: iterable, iterated over once.
      watch: starts to watch a wait that has lasted for a second, and returns a function
        for each further second, or None: it raises if no item will come.
    """
    self._watch = watch
    self._is_asked = False
    self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
    self._results: queue.SimpleQueue[tuple[Any, BaseException | None]]
    self._results = queue.SimpleQueue()
    # A daemon: a wait inside of TensorFlow cannot be ended, so exit must not join it.
    self._thread = threading.Thread(
      target=_take, args=(iter(items), self._requests, self._results), daemon=True
    )
    self._thread.start()

  def __next__(self) -> Any:
    """Returns the next item; raises what the iteration or the watch raises."""
    self._is_asked = True
    self._requests.put(True)
    item, error = self._wait()
    self._is_asked = False
    if error is not None:
      raise error
    return item

  def _wait(self) -> tuple[Any, BaseException | None]:
    look = None
    while True:
      try:
        return self._results.get(timeout=_WATCH_SECONDS)
      except queue.Empty:
        look = look or self._watch()
        if look is not None:
          look()

  def __enter__(self) -> Interruptible:
    return self

  def __exit__(
    self,
    exc_type: type[BaseException] | None,
    exc_value: BaseException | None,
    exc_traceback: types.TracebackType | None,
  ) -> None:
    self._requests.put(False)
    limit = _CLOSE_SECONDS if exc_type is None else _STOP_SECONDS
    self._thread.join(_GIVE_UP_SECONDS if self._is_asked else limit)
    if self._thread.is_alive():
      logging.warning("The input still waits for data, and could not be closed.")


def _take(
  items: Iterator[Any],
  requests: queue.SimpleQueue[bool],
  results: queue.SimpleQueue[tuple[Any, BaseException | None]],
) -> None:
  """Passes on an item, or an error, for each request."""
  while requests.get():
    try:
      results.put((next(items), None))
    except BaseException as error:
      _let_go(error)
      results.put((None, error))
  del items  # The traceback of an error holds this frame, too.


def _let_go(error: BaseException | None) -> None:
  """Clears the variables of an error's frames, which would hold the iterator."""
  while error is not None:
    traceback.clear_frames(error.__traceback__)
    error = error.__cause__ or error.__context__
