"""Checks the episodes of a data set: whether all can be read, NaN, time stamps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from t2r_seq import errors
from t2r_seq.errors import Problem
from t2r_seq.specs import names

if TYPE_CHECKING:
  from t2r_seq.episodes import Episodes
  from t2r_seq.episodes.episodes import Episode
  from t2r_seq.statistics.accumulators import Accumulator
  from t2r_seq.store import EpisodeStore


def check_episodes(
  episodes: Episodes, time_keys: Collection[str] = (), allow_nan: bool = False
) -> Iterator[Problem]:
  """Reads every episode, and yields each problem when it is found.

  An episode that cannot be read is one problem, and the next ones are read. Statistics
  that are stored with the episodes are compared, and files are checked for damage that
  reading does not meet.

  >>> import numpy as np
  >>> from t2r_seq import checks, open_episodes, specs, store
  >>> x = specs.ExtendedTensorSpec((1,), "float32", is_sequence=True)
  >>> values = {"x": np.array([[1.0], [np.nan]], np.float32)}
  >>> with store.EpisodeStore.create("demo", {"x": x}, allow_nan=True) as writer:
  ...   _ = writer.append_episode(values)
  >>> for problem in checks.check_episodes(open_episodes("demo")):
  ...   print(problem.text)
  x: expected numbers, got NaN at (1, 0), 1 of 2. To accept it: --allow_nan.

  Args:
    episodes: as from `open_episodes`.
    time_keys: paths of time stamps, beside those with such a name.
    allow_nan: accepts NaN.
  Raises:
    SpecError: a path of `time_keys` is missing, or is no number for each step.
  """
  # `check_time_stamps` needs no TensorFlow.
  from t2r_seq.records import features
  from t2r_seq.statistics import accumulators
  from t2r_seq.statistics.statistics import MEASURES

  timed = _time_paths(episodes.spec, features.is_number_a_step, time_keys)
  rising = _rising_paths(episodes.metadata, timed)
  timed = [*dict.fromkeys([*timed, *episodes.clocks.values()])]
  yield from (Problem("", text) for text in episodes.problems)
  seen: dict[str, Accumulator] = {}
  number, is_whole = 0, True
  while episodes.num_episodes is None or number < episodes.num_episodes:
    try:
      for episode in episodes.iterate(number):
        for text in _check_values(episode, timed, rising, allow_nan):
          yield Problem(episode.place, text)
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
    statistics = {path: accumulator.finish() for path, accumulator in seen.items()}
    computed = {
      path: {name: each.measure(name) for name in MEASURES}
      for path, each in statistics.items()
      if each.per == accumulators.ELEMENT
    }
    yield from (Problem("", text) for text in episodes.compare_statistics(computed))


def _check_values(
  episode: Episode, timed: Collection[str], rising: Collection[str], allow_nan: bool
) -> Iterator[str]:
  for path in timed:
    if path in episode.values:
      stamps = episode.values[path]
      ends = np.asarray([len(stamps)])
      yield from (text for _, text in _misplaced(path, stamps, ends, path in rising))
  for path, values in episode.values.items():
    # bfloat16 is of kind 'V'.
    if allow_nan or values.dtype.kind not in "fcV":
      continue
    is_nan: Any = np.isnan(values)
    if is_nan.any():
      element = np.unravel_index(int(np.argmax(is_nan)), is_nan.shape)
      index = tuple(map(int, element))
      place = index if len(index) != 1 else index[0]
      yield (
        f"{path}: expected numbers, got NaN at {place}, {int(is_nan.sum()):,} of "
        f"{is_nan.size:,}. To accept it: --allow_nan."
      )


def _count(episode: Episode, episodes: Episodes, seen: dict[str, Accumulator]) -> None:
  """Adds the numbers of an episode to the statistics of the data set."""
  from t2r_seq.episodes.episodes import steps_spec
  from t2r_seq.statistics import accumulators

  for path, values in episode.values.items():
    if values.dtype.kind in "biuf" and values.ndim < 4:
      spec = episodes.spec[path]
      spec = steps_spec(spec) if path in episodes.clocks else spec
      if path not in seen:
        seen[path] = accumulators.create_accumulator(spec, is_counted=False)
      seen[path].add(values if spec.is_sequence else values[None])


def check_time_stamps(
  opened: EpisodeStore, named: Collection[str]
) -> Iterator[Problem]:
  """Yields a problem for each episode of a store whose time stamps run backwards.

  Reads the columns of time stamps only, without TensorFlow.

  Args:
    opened: the store.
    named: paths of time stamps, beside those with such a name.
  Raises:
    SpecError: a named path is missing, or is no number for each step.
  """
  is_number = operator.attrgetter("is_number_a_step")
  timed = _time_paths(opened.columns, is_number, named)
  rising = _rising_paths(opened.metadata, timed)
  clocks = {*opened.clocks.values()}
  for path in dict.fromkeys([*timed, *sorted(clocks)]):
    first = 0
    for segment in opened.segments:
      if path in clocks:
        stamps, _, ends = segment.ragged_rows(path)
      else:
        stamps, ends = np.asarray(segment.column(path)), segment.episode_ends
      for episode, text in _misplaced(path, stamps, ends, path in rising):
        yield Problem(f"episode {first + episode}", text, path=path)
      first += len(segment)


def _time_paths(
  leaves: Mapping[str, Any], is_number: Callable[[Any], bool], named: Collection[str]
) -> list[str]:
  """Returns the paths of time stamps: those with such a name, and those named.

  Args:
    leaves: flat specs, or columns, by path.
    is_number: whether one of them is a number for each step.
    named: paths that a user names, --time_key.
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


def _rising_paths(metadata: Mapping[str, Any], paths: Collection[str]) -> list[str]:
  """Returns the time stamps that differ in each step: those of the steps' clock."""
  clocks = [path for path in paths if path.startswith(f"{names.CLOCKS}/")]
  recorded = metadata.get("mcap")
  if isinstance(recorded, Mapping):
    topic = str(recorded.get("layout", {}).get("clock"))
    return [p for p in clocks if p == f"{names.CLOCKS}/{topic.strip('/')}"]
  return clocks if len(clocks) == 1 else []


def _misplaced(
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
