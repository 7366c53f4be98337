"""Steps of several environments at once, for engines that take them one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.replay.priorities import to_priorities
from t2r_seq.replay.replay import Replay, ReplayVectorWriter, ReplayWriter

_Writer = TypeVar("_Writer", bound=ReplayWriter)


class SplitVectorWriter(ReplayVectorWriter):
  """Gives each of N environments a writer of its own."""

  def __init__(self, replay: Replay, num_environments: int) -> None:
    """Opens the writers.

    Args:
      replay: to write to.
      num_environments: N.
    Raises:
      SpecError: there cannot be as many writers.
    """
    self._writers = open_writers(replay.writer, num_environments)

  def append(self, steps: Any, priorities: Any = None) -> None:
    """Appends one step to each episode; see `ReplayVectorWriter.append`."""
    flat = specs.flatten_spec_structure(steps)
    check_vector("append", flat, len(self._writers))
    if priorities is not None:
      # All of them first: where one is wrong, nothing is appended.
      priorities = to_priorities("append", priorities, (len(self._writers),))
    for row, writer in enumerate(self._writers):
      priority = None if priorities is None else priorities.item(row)
      with appended_before(row):
        writer.append({path: value[row] for path, value in flat.items()}, priority)

  def end_episodes(self, is_last: Any = None) -> None:
    """Ends episodes; see `ReplayVectorWriter.end_episodes`."""
    for row in np.flatnonzero(check_is_last(is_last, len(self._writers))):
      self._writers[row].end_episode()

  def close(self) -> None:
    """Closes the writers."""
    close_writers(self._writers)


def open_writers(open_one: Callable[[], _Writer], count: int) -> list[_Writer]:
  """Opens several writers, or, where one cannot be opened, none."""
  writers: list[_Writer] = []
  try:
    for _ in range(count):
      writers.append(open_one())
  except BaseException:
    close_writers(writers)
    raise
  return writers


def close_writers(writers: Sequence[ReplayWriter]) -> None:
  """Closes all writers, also where one of them fails."""
  with contextlib.ExitStack() as stack:
    for writer in writers:
      stack.callback(writer.close)


@contextlib.contextmanager
def appended_before(count: int) -> Iterator[None]:
  """Says of a timeout how many of the environments' steps were appended before it."""
  try:
    yield
  except errors.ReplayTimeoutError as error:
    error.num_appended = count
    raise


def check_vector(operation: str, flat: Mapping[str, Any], count: int) -> None:
  """Checks that there is a value for each environment.

  Args:
    operation: for the error.
    flat: values by path.
    count: N.
  Raises:
    SpecError: with every path that has not N values.
  """
  found = [
    errors.Mismatch(path, f"a value for each of {count} environments", got)
    for path, value in flat.items()
    if np.shape(value)[:1] != (count,) and (got := errors.describe(np.asarray(value)))
  ]
  if found:
    raise errors.mismatch_error(operation, found)


def check_is_last(is_last: Any, count: int) -> np.ndarray:
  """Returns which of the episodes end, bool [N].

  Args:
    is_last: [N], or None for all.
    count: N.
  Raises:
    SpecError: it is not one bool for each environment.
  """
  if is_last is None:
    return np.ones(count, bool)
  ends = np.asarray(is_last)
  if ends.shape != (count,) or ends.dtype != np.bool_:
    raise errors.SpecError(
      f"end_episodes: is_last: expected ({count},) bool, got {errors.describe(ends)}."
    )
  return ends
