"""A clean stop on SIGTERM, SIGHUP or SIGINT, and waits that a signal can end."""

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
# Signals within this time of the first are repeats of it: process groups, supervisors
# and terminals that close send several.
_INSISTS_SECONDS = 10.0
_WATCH_SECONDS = 1.0
# Seconds to wait for an iterator to close. Long, as one that outlives the interpreter
# aborts the process; shorter after a stop, as the user waits; and shortest while it
# still waits for its next item.
_CLOSE_SECONDS, _STOP_SECONDS, _GIVE_UP_SECONDS = 120.0, 20.0, 1.0


class StopCondition(Protocol):
  """A condition for stopping, such as a `threading.Event` or a `StopSignal`."""

  def is_set(self) -> bool:
    """Whether to stop."""


class Stopped(BaseException):
  """A stop was requested during a wait.

  Like KeyboardInterrupt it is not an Exception: code that continues after any error
  must not continue after this one.
  """


class StopSignal:
  """Turns SIGTERM and SIGHUP into a flag that a loop checks between two steps.

  A context manager: within it, a signal sets `is_set` and ends a `waiting` block.
  Further signals within 10 s are ignored; a later one has its previous effect, i.e. it
  ends the process. The previous handlers are restored at the end; a signal that has
  stopped the loop is ignored for a second more. Signals that are ignored, as under
  nohup, stay ignored. Outside of the main thread it handles no signals: use `other`.
  """

  def __init__(
    self,
    other: StopCondition | None = None,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGHUP),
  ) -> None:
    """Creates the signal.

    Args:
      other: another condition that sets `is_set`.
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
    """Within it, the signal ends a wait immediately.

    Raises:
      Stopped: the signal arrived before or during the wait, or `other` was set before.
    """
    self._is_waiting = True
    try:
      self.check()
      yield
    finally:
      self._is_waiting = False

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Within it, no signal ends the process, not even a later one."""
    self._is_held = True
    try:
      yield
    finally:
      self._is_held = False

  def wait(self, seconds: float) -> None:
    """Waits for some seconds.

    Raises:
      Stopped: a stop was requested before or during the wait.
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
      logging.info("Stopping: received %s.", signal.Signals(number).name)
      # Raised once: a second signal must not interrupt the end of the run.
      if self._is_waiting:
        self._is_waiting = False
        raise Stopped
    elif not self._is_held and now - self._first > _INSISTS_SECONDS:
      self._first = None  # This signal is no repeat: `_put_back` must not ignore it.
      self._put_back()
      signal.raise_signal(number)

  def _note(self, number: int) -> None:
    # No Event: the thread that runs this handler may hold an Event's lock.
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
  """Within it, a replay's timeout after a requested stop raises Stopped.

  Raises:
    Stopped: in place of the ReplayTimeoutError.
    ReplayTimeoutError: the wait timed out without a stop.
  """
  try:
    yield
  except errors.ReplayTimeoutError as error:
    if stop.is_set():
      raise Stopped from error
    raise


class Interruptible(Iterator[Any]):
  """Iterates in a separate thread; a context manager that ends the thread.

  Python's signal handlers run in the main thread, between two of its instructions. A
  wait for a batch inside of TensorFlow is one instruction, and for a live replay it may
  never end. Here the main thread waits in Python, whose waits a handler can end.
  Items are taken on request, none ahead.

  Only the thread holds the iterator, and it releases it before the block ends. An
  iterator that lives until the interpreter ends would crash the process, since
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
      watch: called each second of a wait until it returns a function; that is called
        at once and each further second, and raises if no item will come.
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
    """Returns the next item; raises the error of the iteration or of `watch`."""
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
  """Puts an item, or an error, into `results` for each request."""
  while requests.get():
    try:
      results.put((next(items), None))
    except BaseException as error:
      _clear_frames(error)
      results.put((None, error))
  del items  # The traceback of an error holds this frame, too.


def _clear_frames(error: BaseException | None) -> None:
  """Clears the variables of an error's frames, which would hold the iterator."""
  while error is not None:
    traceback.clear_frames(error.__traceback__)
    error = error.__cause__ or error.__context__
