"""Batches that can be waited for without becoming deaf to signals."""

from __future__ import annotations

import queue
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_LOOK_SECONDS = 1.0


class Interruptible(Iterator[Any]):
  """Iterates in a thread of its own; a context manager that ends the thread.

  Python's signal handlers run in the main thread, between two of its instructions. A
  wait for a batch inside of TensorFlow is one instruction, and for a live replay it may
  take for ever. Here the main thread waits in Python, whose waits a handler can end.
  Items are taken when they are asked for, none ahead.
  """

  def __init__(
    self,
    items: Iterable[Any],
    watch: Callable[[], Callable[[], Any] | None] = lambda: None,
  ) -> None:
    """Starts the thread, and the iteration in it.

    Args:
      items: what is iterated over, once.
      watch: begins to watch over a wait that lasts for a second, and returns what is
        called in each further one, if anything: it raises where no item will come.
    """
    self._watch = watch
    self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
    self._taken: queue.SimpleQueue[tuple[Any, BaseException | None]]
    self._taken = queue.SimpleQueue()
    # A daemon: nothing ends a wait inside of TensorFlow, so nobody may wait for it.
    threading.Thread(
      target=_take, args=(iter(items), self._wanted, self._taken), daemon=True
    ).start()

  def __next__(self) -> Any:
    """Returns the next item; raises what the iteration or the watch raises."""
    self._wanted.put(True)
    item, error = self._wait()
    if error is not None:
      raise error
    return item

  def _wait(self) -> tuple[Any, BaseException | None]:
    look = None
    while True:
      try:
        return self._taken.get(timeout=_LOOK_SECONDS)
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
    traceback: types.TracebackType | None,
  ) -> None:
    self._wanted.put(False)


def _take(
  items: Iterator[Any],
  wanted: queue.SimpleQueue[bool],
  taken: queue.SimpleQueue[tuple[Any, BaseException | None]],
) -> None:
  """Takes an item for each that is wanted, and passes on what goes wrong."""
  while wanted.get():
    try:
      taken.put((next(items), None))
    except BaseException as error:
      taken.put((None, error))
