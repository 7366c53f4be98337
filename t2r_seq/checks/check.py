"""Checks a data set of any format: damage, NaN, time stamps, stored statistics."""

from __future__ import annotations

import collections
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.episodes import registry
from t2r_seq.episodes.splits import describe_splits
from t2r_seq.errors import PathReport, Problem, Report
from t2r_seq.specs import names
from t2r_seq.store import layout

if TYPE_CHECKING:
  from t2r_seq.episodes import Episodes
  from t2r_seq.episodes.episodes import Episode, Fields
  from t2r_seq.statistics.accumulators import Accumulator
  from t2r_seq.store import EpisodeStore


def check(
  source: str | os.PathLike[str] | Episodes,
  spec: specs.SpecStructure | None = None,
  label_spec: specs.SpecStructure | None = None,
  *,
  allow_nan: bool = False,
  time_keys: Collection[str] = (),
  schema: int = 1,
  format: str | None = None,
  **options: Any,
) -> Report:
  """Finds damage, and probable mistakes, in a data set of any format.

  A record or episode that cannot be read is one problem; those after it are still read.
  Checksums, NaN, infinities and the order of time stamps are checked, and statistics
  that are stored with the episodes are compared.

  >>> import numpy as np
  >>> from t2r_seq import checks, specs, store
  >>> x = specs.ExtendedTensorSpec((1,), "float32", is_sequence=True)
  >>> values = {"x": np.array([[1.0], [np.nan]], np.float32)}
  >>> with store.EpisodeStore.create("demo", {"x": x}, allow_nan=True) as writer:
  ...   _ = writer.append_episode(values)
  >>> report = checks.check("demo")
  >>> [(problem.path, problem.kind) for problem in report.problems]
  [('x', 'nan')]

  Args:
    source: a path, as for `open_episodes`, patterns of TFRecord files, or episodes.
    spec: flat specs that records must fit; None compares them with the most frequent
      schema. Or those that a store was created with, if its `store.json` is damaged.
    label_spec: specs of the labels of records, or None.
    allow_nan: accepts NaN and infinities.
    time_keys: paths of time stamps, beside those with such a name.
    schema: rank of the schema that records are compared with if `spec` is None; 1 for
      the most frequent one.
    format: its name; None recognises it by the path.
    **options: arguments of `open_episodes`.
  Returns:
    What was checked, and the problems in the order of the data.
  Raises:
    SpecError: a path of `time_keys` is missing, or is not a number for each step;
      `spec` or `label_spec` would be ignored; or an option is invalid.
    ConversionError: no data set of a known format, or one that cannot be opened.
    ImportError: an extra is not installed; names it.
  """
  if not isinstance(source, (str, os.PathLike)):
    if spec is not None or label_spec is not None:
      raise errors.SpecError("check: spec: expected None for open episodes, got specs.")
    return _check_values(source, None, allow_nan, time_keys)
  path = os.fspath(source)
  # `find_format` recognises a store only by its store.json, which may be missing.
  if format is None and os.path.isdir(os.path.join(path, layout.SEGMENTS)):
    format = "store"
  chosen = registry.find_format(path, format)
  if spec is not None and chosen.check is None and chosen.has_specs:
    hint = "Only TFRecord files and stores are checked by specs."
    raise errors.SpecError(f"check: {path}: spec: expected None, got specs. {hint}")
  report = None
  if chosen.check is not None:
    given = {"allow_nan": allow_nan, "time_keys": time_keys, "schema": schema}
    report = chosen.check(path, spec, label_spec, given, **options)
  if label_spec is not None and (report is None or report.unit != "record"):
    hint = "Only TFRecord files are checked by label specs: put them into spec."
    raise errors.SpecError(
      f"check: {path}: label_spec: expected None, got specs. {hint}"
    )
  if report is not None and (report.problems or report.paths is not None):
    return report
  opened = registry.as_episodes(path, chosen.name, spec=spec, **options)
  return _check_values(opened, report, allow_nan, time_keys)


def _check_values(
  episodes: Episodes,
  verified: Report | None,
  allow_nan: bool,
  time_keys: Collection[str],
) -> Report:
  """Checks the values of all episodes; `verified` is a report on their bytes."""
  values = _Values(episodes, allow_nan, time_keys)
  found = tuple(values.find_problems(verified is not None))
  counts = {episodes.path: values.num_episodes}
  if verified and sum(verified.counts.values()) == values.num_episodes:
    counts = dict(verified.counts)  # By segment.
  notes = [*(verified.notes if verified else ()), *episodes.notes]
  if episodes.splits:
    notes.append(describe_splits(episodes.splits))
  return Report(
    path=verified.path if verified else episodes.path,
    counts=counts,
    problems=found,
    paths=tuple(values.reports()),
    notes=tuple(notes),
    num_bytes=verified.num_bytes if verified else 0,
  )


class _Values:
  """One pass over the values of a data set.

  Attributes:
    num_episodes: number of episodes so far, unreadable ones included.
  """

  def __init__(
    self, episodes: Episodes, allow_nan: bool, time_keys: Collection[str]
  ) -> None:
    self._episodes, self._fields = episodes, episodes.fields
    self._allow_nan = allow_nan
    named = _time_paths(self._fields, time_keys)
    self._rising = _rising_paths(episodes.metadata, named)
    self._timed = {*named, *episodes.clocks.values()}
    self._counts: dict[str, collections.Counter[str]] = {
      kind: collections.Counter() for kind in (errors.TIMES, errors.NAN, "absent")
    }
    self.num_episodes = 0

  def find_problems(self, is_verified: bool) -> Iterator[Problem]:
    """Yields the problems of all episodes.

    Args:
      is_verified: whether a checksum has verified the bytes. Then only the numbers of a
        store are read, without TensorFlow. Else all values are read and decoded, files
        are checked for damage that reading does not meet, and stored statistics are
        compared.
    """
    episodes = self._episodes
    yield from (Problem("", text) for text in episodes.problems)
    if is_verified and episodes.rows() is not None:
      yield from self._check_columns(episodes.rows())
      return
    seen: dict[str, Accumulator] = {}
    is_whole = True
    while episodes.num_episodes is None or self.num_episodes < episodes.num_episodes:
      try:
        for episode in episodes.iterate(self.num_episodes):
          yield from self._check_episode(episode)
          if not is_verified:
            _count(episode, episodes, seen)
          self.num_episodes += 1
        break
      except errors.SpecError as error:
        number = (self.num_episodes,)
        yield Problem("", str(error), errors.CONTENT, episodes=number)
        self.num_episodes, is_whole = self.num_episodes + 1, False
        if episodes.num_episodes is None:  # There is no way to the next episode.
          break
    yield from (Problem("", text) for text in episodes.check_files())
    if is_whole:
      yield from (Problem("", text) for text in _compare(episodes, seen))

  def _check_episode(self, episode: Episode) -> Iterator[Problem]:
    for path, fields in self._fields.items():
      if path not in episode.values:
        self._counts["absent"][path] += 1
        continue
      is_sequence = fields.get("is_sequence", False) or path in self._episodes.clocks
      values = episode.values[path] if is_sequence else episode.values[path][None]
      for _, kind, text in self._find(path, values, [len(values)], is_sequence):
        numbers = (self.num_episodes,)
        yield Problem(episode.place, text, kind, path, episodes=numbers)

  def _check_columns(self, opened: EpisodeStore) -> Iterator[Problem]:
    """Yields the problems of the numbers of a store, which are mapped."""
    self.num_episodes = len(opened)
    for path, column in opened.columns.items():
      first = 0
      for segment in opened.segments:
        self._counts["absent"][path] += int((~segment.is_present(path)).sum())
        values, ends = segment.column(path), np.arange(1, len(segment) + 1)
        if column.is_ragged:
          values, _, ends = segment.ragged_rows(path)
        elif column.is_per_step:
          ends = segment.episode_ends
        is_sequence = column.is_per_step or column.is_ragged
        if not (column.as_steps if column.is_ragged else column).is_bytes:
          for number, kind, text in self._find(path, values, ends, is_sequence):
            number += first
            place = self._episodes.place(number)
            yield Problem(place, text, kind, path, episodes=(number,))
        first += len(segment)

  def _find(
    self, path: str, values: Any, ends: Any, is_sequence: bool
  ) -> Iterator[tuple[int, str, str]]:
    """Yields the bad episodes of a path, each with kind and text.

    Args:
      path: path of the values.
      values: values of episodes, [rows, ...]; rows are steps, or one per episode.
      ends: the row after each episode's last one, [episodes].
      is_sequence: rows are steps.
    """
    values, ends = np.asarray(values), np.asarray(ends)
    found = {errors.NAN: errors.find_bad_numbers(values, ends, is_sequence)}
    if path in self._timed:
      is_rising = path in self._rising
      found[errors.TIMES] = errors.find_misplaced(values, ends, is_rising)
    for kind, findings in found.items():
      for number, finding in findings:
        self._counts[kind][path] += 1
        if kind != errors.NAN or not self._allow_nan:
          yield number, kind, str(errors.Mismatch(path, *finding))

  def reports(self) -> Iterator[PathReport]:
    """Yields a report of each path."""
    for path, fields in self._fields.items():
      shape, encoding = tuple(fields["shape"]), fields.get("data_format") or ""
      described = f"{shape} {fields['dtype']} {encoding}".rstrip()
      counts = self._counts
      yield PathReport(
        path,
        described,
        counts[errors.TIMES][path],
        counts["absent"][path],
        counts[errors.NAN][path],
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


def _compare(episodes: Episodes, seen: Mapping[str, Accumulator]) -> list[str]:
  """Compares statistics that are stored with the episodes; returns the differences."""
  from t2r_seq.statistics import accumulators
  from t2r_seq.statistics.statistics import MEASURES

  found = {path: accumulator.finish() for path, accumulator in seen.items()}
  return episodes.compare_statistics(
    {
      path: {name: each.measure(name) for name in MEASURES}
      for path, each in found.items()
      # Statistics of other tools may include NaN and infinities, or exclude them.
      if each.per == accumulators.ELEMENT and np.all(each.count == each.rows)
    }
  )


def _time_paths(fields: Mapping[str, Fields], named: Collection[str]) -> list[str]:
  """Returns the paths of time stamps: those with such a name, and those `named`."""
  for path in named:
    if path not in fields:
      near = errors.nearest(path, fields)
      raise errors.SpecError(
        f"--time_key: expected a path of {errors.listing(fields)}, got '{path}'.{near}"
      )
    if not _is_number_a_step(fields[path]):
      raise errors.SpecError(
        f"--time_key: {path}: expected a number for each step, got "
        f"{tuple(fields[path]['shape'])} {fields[path]['dtype']}."
      )
  return [
    path
    for path, leaf in fields.items()
    if path in named or (_is_number_a_step(leaf) and names.is_time(path))
  ]


def _is_number_a_step(fields: Fields) -> bool:
  is_number = re.fullmatch(r"u?int\d+|b?float\d+", fields["dtype"])
  is_one = math.prod(size or 0 for size in fields["shape"]) == 1
  return bool(is_number) and is_one and fields.get("is_sequence", False)


def _rising_paths(metadata: Mapping[str, Any], paths: Collection[str]) -> list[str]:
  """Returns the paths of time stamps that must rise: those of the steps' clock."""
  clocks = [path for path in paths if path.startswith(f"{names.CLOCKS}/")]
  recorded = metadata.get("mcap")
  if isinstance(recorded, Mapping):
    topic = str(recorded.get("layout", {}).get("clock"))
    return [p for p in clocks if p == f"{names.CLOCKS}/{topic.strip('/')}"]
  return clocks if len(clocks) == 1 else []
