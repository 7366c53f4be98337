"""Rate limiters: when inserts or samples wait; the rules are Reverb's."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable

from absl import logging

from t2r_seq import errors
from t2r_seq.replay import options

StopFn = Callable[[], bool]

_UNBOUNDED = sys.float_info.max
# Seconds between two log lines of a wait, and between two checks of `should_stop`.
_LOG_EVERY, _CHECK_EVERY = 30.0, 1.0
# At exit: seconds between two checks whether samplers still retry, and of all checks.
_LOOK_SECONDS, _EXIT_SECONDS = 0.2, 3.0
# Seconds of one wait of a TensorFlow thread, which can be ended only between waits.
_PAUSE_SECONDS = 0.25


class NotYet(Exception):
  """Nothing can be sampled yet; retry.

  Attributes:
    began: when the wait began, by `time.monotonic()`.
  """

  def __init__(self, began: float) -> None:
    super().__init__(began)
    self.began = began


def make_rate_limiter(
  option: options.RateLimiterOption, lock: threading.RLock | None = None
) -> RateLimiter:
  """Returns the rate limiter of an option; None creates a new lock for it."""
  match option:
    case options.MinSize(size):
      return RateLimiter(1.0, size, -_UNBOUNDED, _UNBOUNDED, lock)
    case options.SampleToInsertRatio(ratio, size):
      return RateLimiter(ratio, size, *option.bounds, lock)
  return RateLimiter(1.0, 1, 0.0, float(option.size), lock)


class RateLimiter:
  """Makes inserts and samples wait for each other.

  As in Reverb, with difference = inserts * samples_per_insert - samples:

  - a sample waits while `inserts - deletes < min_size_to_sample`, and while it would
    take the difference below `min_diff`;
  - an insert never waits if `inserts - deletes <= min_size_to_sample` after it, and
    otherwise waits while it would take the difference above `max_diff`.

  Hold the lock from before `await_...` until after `did_...`. Waiting releases it.

  Attributes:
    num_inserts: items inserted so far; restoring a checkpoint sets all three.
    num_samples: items sampled so far.
    num_deletes: items deleted so far.
  """

  def __init__(
    self,
    samples_per_insert: float,
    min_size_to_sample: int,
    min_diff: float,
    max_diff: float,
    lock: threading.RLock | None = None,
  ) -> None:
    """Creates a rate limiter; see `make_rate_limiter`."""
    self._samples_per_insert = samples_per_insert
    self._min_size_to_sample = min_size_to_sample
    self._min_diff = min_diff
    self._max_diff = max_diff
    self._lock = threading.RLock() if lock is None else lock
    self._changed = threading.Condition(self._lock)
    self._num_waiting = 0
    self._num_refused = 0
    self._paused = -math.inf  # When `NotYet` was last raised.
    self._is_closed = False
    self._given_up = ""
    self.num_inserts = 0
    self.num_samples = 0
    self.num_deletes = 0

  @property
  def size(self) -> int:
    """Number of items."""
    return self.num_inserts - self.num_deletes

  def can_insert(self, count: int = 1) -> bool:
    """Whether `count` items can be inserted now."""
    if self.size + count <= self._min_size_to_sample:
      return True
    difference = (self.num_inserts + count) * self._samples_per_insert
    return difference - self.num_samples <= self._max_diff

  def can_sample(self, count: int = 1) -> bool:
    """Whether `count` items can be sampled now."""
    if self.size < self._min_size_to_sample:
      return False
    difference = self.num_inserts * self._samples_per_insert - self.num_samples
    return difference - count >= self._min_diff

  def await_insert(
    self,
    count: int = 1,
    timeout: float | None = None,
    should_stop: StopFn | None = None,
  ) -> int:
    """Waits until an item can be inserted; logs a warning every 30 s.

    Args:
      count: items to insert.
      timeout: seconds; None for no limit.
      should_stop: called about once per second; True ends the wait.
    Returns:
      How many of them can be inserted now, at least 1.
    Raises:
      ReplayTimeoutError: the timeout or `should_stop` ended the wait.
      ReplayError: the limiter was closed.
    """
    why_not = self._why_no_insert
    return self._await("insert", self.can_insert, why_not, count, timeout, should_stop)

  def await_sample(
    self, count: int = 1, timeout: float | None = None, began: float | None = None
  ) -> int:
    """Waits until an item can be sampled; see `await_insert`.

    Args:
      count: items to sample.
      timeout: seconds; None for no limit.
      began: when the wait began, by `time.monotonic()`, if it is split into short ones.
    Raises:
      NotYet: a quarter to half a second has passed; only with `began`.
      ReplayError: also if `fail_waiting` was called.
    """
    why_not = self._why_no_sample
    return self._await("sample", self.can_sample, why_not, count, timeout, began=began)

  def did_insert(self, count: int = 1) -> None:
    with self._lock:
      self.num_inserts += count
      self._wake()

  def did_sample(self, count: int = 1) -> None:
    with self._lock:
      self.num_samples += count
      self._wake()

  def did_delete(self, count: int = 1) -> None:
    with self._lock:
      self.num_deletes += count
      self._wake()

  def close(self) -> None:
    """Ends all waits, now and later, with an error."""
    with self._changed:
      self._is_closed = True
      self._changed.notify_all()

  def fail_waiting(self, why: str) -> None:
    """Fails samplers that wait, for this reason; '' allows waiting again."""
    with self._changed:
      self._given_up = why
      self._changed.notify_all()

  def close_for_good(self) -> None:
    """Closes, and returns when the waiting threads have ended.

    For the exit of the interpreter: a TensorFlow thread that calls Python afterwards
    never returns, and TensorFlow waits for its threads. An iterator retries a few times
    after the first error, and then stops.
    """
    retries = time.monotonic() - self._paused < _EXIT_SECONDS
    seen = -1 if self._num_waiting or retries else self._num_refused
    self.close()
    end = time.monotonic() + _EXIT_SECONDS
    while seen != self._num_refused and time.monotonic() < end:
      seen = self._num_refused
      time.sleep(_LOOK_SECONDS)

  def _wake(self) -> None:
    if self._num_waiting:
      self._changed.notify_all()

  def _await(
    self,
    operation: str,
    can: Callable[[int], bool],
    why_not: Callable[[], str],
    count: int,
    timeout: float | None,
    should_stop: StopFn | None = None,
    began: float | None = None,
  ) -> int:
    with self._lock:
      if can(count) and not self._is_closed:
        return count  # The usual case, at half the cost.
      self._num_waiting += 1
      try:
        self._wait(operation, can, why_not, timeout, should_stop, began)
      finally:
        self._num_waiting -= 1
      if self._is_closed:
        self._num_refused += 1
        raise errors.ReplayError(
          f"replay: {operation}: expected an open replay, got a closed one."
        )
      # As in Reverb: a part of a batch passes if there is room for it.
      return next(some for some in range(count, 0, -1) if can(some))

  def _wait(
    self,
    operation: str,
    can: Callable[[int], bool],
    why_not: Callable[[], str],
    timeout: float | None,
    should_stop: StopFn | None,
    began: float | None,
  ) -> None:
    now = since = time.monotonic()
    look = _LOG_EVERY if should_stop is None else _CHECK_EVERY
    # If the wait has timed out, it has raised: this retry begins a new wait.
    if began is not None and (timeout is None or now < began + timeout):
      since = began
    end = None if timeout is None else since + timeout
    if began is not None:
      # Another retry would come after the end: wait until the end here.
      is_last = end is not None and end - now < 2 * _PAUSE_SECONDS
      look = (1 + is_last) * _PAUSE_SECONDS
    logged = now - (now - since) % _LOG_EVERY

    def is_over() -> bool:
      gives_up = operation == "sample" and bool(self._given_up)
      return self._is_closed or can(1) or gives_up

    while not self._changed.wait_for(is_over, _until(end, look)):
      now = time.monotonic()
      if end is not None and now >= end:
        raise errors.ReplayTimeoutError(
          f"replay: {operation}: waited {timeout:g} s: {why_not()}"
        )
      if should_stop is not None and should_stop():
        raise errors.ReplayTimeoutError(
          f"replay: {operation}: stopped while it waited: {why_not()}"
        )
      if now - logged >= _LOG_EVERY:
        logged = now
        logging.warning("replay: %s: waiting: %s", operation, why_not())
      if began is not None:
        self._paused = now
        raise NotYet(since)
    if not (self._is_closed or can(1)):
      raise errors.ReplayError(
        f"replay: {operation}: expected a writer that appends steps, got none: "
        f"{self._given_up}. {why_not()}"
      )

  def _why_no_sample(self) -> str:
    if self.size < self._min_size_to_sample:
      return (
        f"{self.size} of {self._min_size_to_sample} items are there. Sampling begins "
        "with min_size_to_sample: append more steps, or lower it."
      )
    return (
      f"{self._so_far()} would be too few inserts with another sample. Append more "
      "steps, from another thread, or allow for more with error_buffer."
    )

  def _why_no_insert(self) -> str:
    return (
      f"{self._so_far()} would be too few samples with another insert. Sample more, "
      "from another thread, or allow for more with error_buffer or size."
    )

  def _so_far(self) -> str:
    return (
      f"{self.num_inserts} inserts and {self.num_samples} samples, for "
      f"{self._samples_per_insert:g} samples per insert,"
    )


def _until(end: float | None, at_most: float) -> float:
  """Returns the seconds until a monotonic time, 0 to `at_most`; `at_most` for None."""
  return at_most if end is None else min(at_most, max(0.0, end - time.monotonic()))
