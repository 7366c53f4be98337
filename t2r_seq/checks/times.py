"""Time stamps that run backwards; needs no TensorFlow."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from t2r_seq import errors
from t2r_seq.specs import names

if TYPE_CHECKING:
  from t2r_seq.store import EpisodeStore


def time_paths(
  leaves: Mapping[str, Any], is_number: Callable[[Any], bool], named: Collection[str]
) -> list[str]:
  """Returns the paths of time stamps: those with such a name, and those named.

  Args:
    leaves: flat specs, or columns, by path.
    is_number: whether one of them is a number for each step.
    named: paths that a user names, --time_key.
  Raises:
    SpecError: a path is missing, or is no number for each step.
  """
  for path in named:
    if path not in leaves:
      near = errors.nearest(path, leaves)
      raise errors.SpecError(
        f"--time_key: expected a path of {errors.listing(leaves)}, got '{path}'.{near}"
      )
    if not is_number(leaves[path]):
      raise errors.SpecError(
        f"--time_key: {path}: expected a number for each step, got "
        f"{errors.describe(leaves[path])}."
      )
  return [
    path
    for path, leaf in leaves.items()
    if path in named or (is_number(leaf) and names.is_time(path))
  ]


def rising_paths(metadata: Mapping[str, Any], paths: Collection[str]) -> list[str]:
  """Returns the time stamps that differ in each step: those of the clock of the steps.

  Args:
    metadata: of the episodes.
    paths: of time stamps.
  """
  clocks = [path for path in paths if path.startswith(f"{names.CLOCKS}/")]
  recorded = metadata.get("mcap")
  if isinstance(recorded, Mapping):
    topic = str(recorded.get("layout", {}).get("clock"))
    return [p for p in clocks if p == f"{names.CLOCKS}/{topic.strip('/')}"]
  return clocks if len(clocks) == 1 else []


def misplaced(
  path: str, times: np.ndarray, ends: np.ndarray, is_rising: bool
) -> Iterator[tuple[int, str]]:
  """Yields the episodes whose time stamps run backwards, each with a sentence.

  Args:
    path: of the time stamps.
    times: one for each step of all episodes, [n] or [n, 1].
    ends: the step after each episode's last one, int64 [episodes].
    is_rising: equal time stamps are misplaced, too.
  """
  times = np.asarray(times).reshape(len(times))
  # A NaN is in no order.
  in_order = times[1:] > times[:-1] if is_rising else times[1:] >= times[:-1]
  back = np.flatnonzero(~in_order) + 1
  back = back[~np.isin(back, ends)]
  expected = "rise" if is_rising else "do not run backwards"
  episodes = np.searchsorted(ends, back, side="right")
  for episode, at in zip(*np.unique(episodes, return_index=True), strict=True):
    row = back[at]
    step = row - (ends[episode - 1] if episode else 0)
    yield (
      int(episode),
      f"{path}: expected time stamps that {expected}, got {times[row]} at step "
      f"{step}, after {times[row - 1]}.",
    )


def check_store(opened: EpisodeStore, named: Collection[str]) -> Iterator[str]:
  """Yields a sentence for each episode of a store whose time stamps run backwards.

  Args:
    opened: the store; only the columns of time stamps are read.
    named: paths of time stamps, beside those with such a name.
  Raises:
    SpecError: a named path is missing, or is no number for each step.
  """
  columns = opened.columns
  is_number = operator.attrgetter("is_number_a_step")
  timed = time_paths(columns, is_number, named)
  rising = rising_paths(opened.metadata, timed)
  for path in timed:
    first = 0
    for segment in opened.segments:
      stamps, ends = np.asarray(segment.column(path)), segment.episode_ends
      for episode, problem in misplaced(path, stamps, ends, path in rising):
        yield f"episode {first + episode}: {problem}"
      first += len(segment)
