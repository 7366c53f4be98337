"""Steps of several environments at once, for engines that take them one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.replay.replay import Replay, ReplayVectorWriter


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
    self._writers = [replay.writer() for _ in range(num_environments)]

  def append(self, steps: Any, priorities: Any = None) -> None:
    """Appends one step to each episode; see `ReplayVectorWriter.append`."""
    flat = specs.flatten_spec_structure(steps)
    check_vector("append", flat, len(self._writers))
    for row, writer in enumerate(self._writers):
      priority = None if priorities is None else float(priorities[row])
      writer.append({path: value[row] for path, value in flat.items()}, priority)

  def end_episodes(self, is_last: Any = None) -> None:
    """Ends episodes; see `ReplayVectorWriter.end_episodes`."""
    for row in np.flatnonzero(check_is_last(is_last, len(self._writers))):
      self._writers[row].end_episode()

  def close(self) -> None:
    """Closes the writers."""
    for writer in self._writers:
      writer.close()


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
