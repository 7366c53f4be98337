"""Calls of Python from dataset threads, none of which is in the way of a process's end.

A thread that wants to go on in Python while the interpreter shuts down never does, and
the dataset that waits for it keeps the process from ending. So at its end the process
waits until no call goes on, and none begins any more: each one fails then, and a
dataset whose elements fail calls no further.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Iterator

_MAX_WAIT_SECS = 30.0
# A thread that TensorFlow has sent to Python is there after some milliseconds.
_QUIET_SECS = 0.1

_state = threading.Condition()
_active = 0
_last_call = -_QUIET_SECS
_is_ending = False


@contextlib.contextmanager
def call_of_python() -> Iterator[None]:
  """Marks a call: the process ends after it.

  Raises:
    RuntimeError: the process is about to end.
  """
  global _active, _last_call
  with _state:
    _last_call = time.monotonic()
    if _is_ending:
      raise RuntimeError("The process ends; there is nobody to read on for.")
    _active += 1
  try:
    yield
  finally:
    with _state:
      _last_call = time.monotonic()
      _active -= 1
      _state.notify_all()


@atexit.register
def _wait_for_calls() -> None:
  global _is_ending
  deadline = time.monotonic() + _MAX_WAIT_SECS
  with _state:
    _is_ending = True
    while (now := time.monotonic()) < deadline:
      quiet_at = _last_call + _QUIET_SECS
      if not _active and now >= quiet_at:
        return
      _state.wait(deadline - now if _active else quiet_at - now)
