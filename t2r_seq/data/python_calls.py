"""Calls of Python from dataset threads, none of which is in the way of a process's end.

A thread that wants to go on in Python while the interpreter shuts down never does, and
the dataset that waits for it keeps the process from ending. So at its end the process
waits until no call goes on, and none begins any more: each one fails then, and a
dataset whose elements fail calls no further.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import time
from collections.abc import Iterator

_MAX_WAIT_SECS = 30.0
_LOOK_SECS = 0.01
# A thread that TensorFlow has sent to Python is there after some milliseconds.
_QUIET_SECS = 0.1

# No lock: within any line the garbage collector may end an iterator, which waits for a
# call that may want the same lock. An entry for each call that goes on.
_calls: collections.deque[None] = collections.deque()
_last_call = -_QUIET_SECS
_is_ending = False


@contextlib.contextmanager
def call_of_python() -> Iterator[None]:
  """Marks a call: the process ends after it.

  Raises:
    RuntimeError: the process is about to end.
  """
  global _last_call
  _last_call = time.monotonic()
  # In this order: a process that is about to end sees it, or it sees that.
  _calls.append(None)
  try:
    if _is_ending:
      raise RuntimeError("The process ends; there is nobody to read on for.")
    yield
  finally:
    _last_call = time.monotonic()
    _calls.pop()


@atexit.register
def _wait_for_calls() -> None:
  global _is_ending
  deadline = time.monotonic() + _MAX_WAIT_SECS
  _is_ending = True
  while (now := time.monotonic()) < deadline:
    if not _calls and now >= _last_call + _QUIET_SECS:
      return
    time.sleep(_LOOK_SECS)
