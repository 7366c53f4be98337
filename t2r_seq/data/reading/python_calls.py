"""Calls of Python from dataset threads, none of which is in the way of a process's end.

A thread that wants to go on in Python while the interpreter shuts down never does, and
the dataset that waits for it keeps the process from ending.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterator

_MAX_WAIT_SECS = 30.0

_state = threading.Condition()
_active = 0
_is_ending = False


@contextlib.contextmanager
def call_of_python() -> Iterator[None]:
  """Marks a call: the process ends after it.

  Raises:
    RuntimeError: the process is about to end.
  """
  global _active
  with _state:
    if _is_ending:
      raise RuntimeError("The process ends; there is nobody to read on for.")
    _active += 1
  try:
    yield
  finally:
    with _state:
      _active -= 1
      _state.notify_all()


@atexit.register
def _wait_for_calls() -> None:
  global _is_ending
  with _state:
    _is_ending = True
    _state.wait_for(lambda: not _active, _MAX_WAIT_SECS)
