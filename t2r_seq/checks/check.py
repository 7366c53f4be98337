"""Checks the episodes of a data set: whether all can be read, NaN, time stamps."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from t2r_seq import errors
from t2r_seq.checks import times

if TYPE_CHECKING:
  from t2r_seq.episodes import Episode, Episodes
  from t2r_seq.statistics.accumulators import Accumulator


@dataclasses.dataclass(frozen=True)
class Problem:
  """Something that is damaged, or is probably a mistake.

  Attributes:
    place: the episode; '' for the data set, or if the text names it.
    text: a sentence: which path, what was expected, what there is, what to do.
  """

  place: str
  text: str

  def __str__(self) -> str:
    return f"{self.place}: {self.text}" if self.place else self.text


def check_episodes(
  episodes: Episodes, time_keys: Collection[str] = (), allow_nan: bool = False
) -> Iterator[Problem]:
  """Reads every episode, and yields each problem when it is found.

  An episode that cannot be read is one problem, and the next ones are read. Statistics
  that are stored with the episodes are compared, and files are checked for what reading
  does not meet.

  Args:
    episodes: as from `open_episodes`.
    time_keys: paths of time stamps, beside those with such a name.
    allow_nan: accepts NaN.
  Raises:
    SpecError: a path of `time_keys` is missing, or is no number for each step.
  """
  # `doctor` checks the time stamps of a store without TensorFlow.
  from t2r_seq.records import features
  from t2r_seq.statistics import accumulators
  from t2r_seq.statistics.statistics import MEASURES

  timed = times.time_paths(episodes.spec, features.is_number_a_step, time_keys)
  yield from (Problem("", text) for text in episodes.problems)
  rising = times.rising_paths(episodes.metadata, timed)
  seen: dict[str, Accumulator] = {}
  number, is_whole = 0, True
  while episodes.num_episodes is None or number < episodes.num_episodes:
    try:
      for episode in episodes.iterate(number):
        yield from _check_values(episode, timed, rising, allow_nan)
        _count(episode, episodes, seen)
        number += 1
      break
    except errors.SpecError as error:
      yield Problem("", str(error))
      number, is_whole = number + 1, False
      if episodes.num_episodes is None:  # What follows cannot be found.
        break
  yield from (Problem("", text) for text in episodes.check_files())
  if is_whole:
    found = {path: accumulator.finish() for path, accumulator in seen.items()}
    computed = {
      path: {name: each.measure(name) for name in MEASURES}
      for path, each in found.items()
      if each.per == accumulators.ELEMENT
    }
    for text in episodes.compare_statistics(computed):
      yield Problem("", text)


def _check_values(
  episode: Episode, timed: Collection[str], rising: Collection[str], allow_nan: bool
) -> Iterator[Problem]:
  for path in timed:
    if path in episode.values:
      stamps = episode.values[path]
      ends = np.asarray([len(stamps)])
      for _, text in times.misplaced(path, stamps, ends, path in rising):
        yield Problem(episode.place, text)
  for path, values in episode.values.items():
    if not allow_nan and (found := _find_nan(values)):
      yield Problem(episode.place, f"{path}: expected numbers, got {found}")


def _find_nan(values: np.ndarray) -> str:
  """Describes where an array has NaN; '' if it has none."""
  # bfloat16 is of kind 'V'.
  is_nan: Any = np.isnan(values) if values.dtype.kind in "fcV" else np.zeros(0, bool)
  if not is_nan.any():
    return ""
  place = tuple(int(i) for i in np.unravel_index(int(np.argmax(is_nan)), is_nan.shape))
  where = place if len(place) != 1 else place[0]
  share = f"{int(is_nan.sum()):,} of {is_nan.size:,}"
  return f"NaN at {where}, {share}. To accept it: --allow_nan."


def _count(episode: Episode, episodes: Episodes, seen: dict[str, Accumulator]) -> None:
  """Adds the numbers of an episode to the statistics of the data set."""
  from t2r_seq.statistics import accumulators

  for path, values in episode.values.items():
    if values.dtype.kind in "biuf" and values.ndim < 4:
      spec = episodes.spec[path]
      if path not in seen:
        seen[path] = accumulators.create_accumulator(spec, is_counted=False)
      seen[path].add(values if spec.is_sequence else values[None])
