"""One pass over a source: its parts are counted by threads and merged in order."""

from __future__ import annotations

import collections
import dataclasses
import os
from concurrent import futures
from typing import Any

from t2r_seq import errors, files, specs, windows
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct
from t2r_seq.statistics.accumulators import Accumulator, create_accumulator
from t2r_seq.statistics.sources import (
  Item,
  Source,
  SourceName,
  Transform,
  create_transform,
  open_source,
)
from t2r_seq.statistics.statistics import (
  FORMAT,
  LengthCounter,
  PathStatistics,
  Statistics,
)


class Tally:
  """Accumulators by path, and the lengths of the episodes.

  Attributes:
    num_items: episodes, or records where there are none.
  """

  def __init__(self) -> None:
    """Creates an empty tally."""
    self.num_items = 0
    self._paths: dict[str, Accumulator] = {}
    self._lengths = LengthCounter()

  def expect(self, spec: TensorSpecStruct, images: bool) -> None:
    """Makes sure that paths have figures even if no item has them.

    Args:
      spec: by path.
      images: whether encoded images are decoded.
    """
    for path, leaf in spec.items():
      is_encoded = specs.is_encoded_image_spec(leaf) or specs.is_video_spec(leaf)
      self._accumulator(path, leaf, is_encoded and not images)

  @classmethod
  def of_part(cls, part: Any, source: Source, transform: Transform) -> Tally:
    """Counts a part of a source.

    Raises:
      SpecError: an item has other shapes or dtypes than those before.
    """
    tally = cls()
    for item in source.read(part):
      tally._add(item, source, transform)
    for accumulator in tally._paths.values():
      accumulator.flush()  # Here, in the worker.
    return tally

  def _add(self, item: Item, source: Source, transform: Transform) -> None:
    if item.num_steps is None:
      self.num_items += max([len(v) for v in item.values.values()] or [0])
    else:
      self.num_items += 1
      self._lengths.add(item.num_steps)
    for path, (spec, rows) in transform.to_rows(item.values, source).items():
      self._accumulator(path, spec, rows.dtype == object).add(rows)
    if not transform.name:
      for path, count in item.skipped.items():
        self._accumulator(path, source.spec[path], True).rows += count

  def _accumulator(
    self, path: str, spec: ExtendedTensorSpec, is_counted: bool
  ) -> Accumulator:
    if path not in self._paths:
      self._paths[path] = create_accumulator(spec, is_counted)
    found = self._paths[path]
    _check_same(path, found.spec, spec)
    return found

  def merge(self, other: Tally) -> None:
    """Takes in the tally of the parts that follow.

    Raises:
      SpecError: a path has another shape or dtype there.
    """
    self.num_items += other.num_items
    self._lengths.merge(other._lengths)
    for path, accumulator in other._paths.items():
      if path in self._paths:
        _check_same(path, self._paths[path].spec, accumulator.spec)
        self._paths[path].merge(accumulator)
      else:
        self._paths[path] = accumulator

  def finish(self, transform: Transform) -> dict[str, PathStatistics]:
    """Returns the statistics by path, sorted."""
    return {
      path: dataclasses.replace(
        self._paths[path].finish(), transform=transform.representation(path)
      )
      for path in sorted(self._paths)
    }

  @property
  def lengths(self) -> LengthCounter:
    """The lengths of the episodes."""
    return self._lengths


def _check_same(path: str, before: ExtendedTensorSpec, now: ExtendedTensorSpec) -> None:
  if before != now:
    raise errors.SpecError(
      f"statistics: {path}: expected {errors.describe(before)}, as in the episodes "
      f"before, got {errors.describe(now)}. A transform gives the same shapes and "
      "dtypes for every episode."
    )


_MAX_WORKERS = 8


def compute_statistics(
  source: SourceName,
  output: str | os.PathLike[str] | None = None,
  spec: specs.SpecStructure | None = None,
  transform: Any = None,
  images: bool = False,
  num_workers: int | None = None,
  compression: str | None = None,
  cut: windows.Cut | None = None,
) -> Statistics:
  """Computes the statistics of all paths of a source, in one pass.

  The result is the same, bit for bit, for any number of workers: parts are cut and
  merged in a fixed order.

  Args:
    source: a path of any format, patterns of TFRecord files, or episodes that
      `open_episodes` returns.
    output: JSON file to write.
    spec: of what to read, windowed or flat; by default all of a store, what the
      transform needs, or what the first 100 records look like.
    transform: called with the values of each episode by path, [T, ...] and context
      features (plain records: of blocks of them, [B, ...]), returns the values to be
      counted: [T', ...] for every path but the source's own context features. Or a
      preprocessor, or a model, of whose preprocessor the stages before `Normalize`
      count; or 'module:name' of one of these.
    images: decodes encoded images and videos; images are only counted otherwise, and
      videos left out.
    num_workers: threads; by default as many as there are CPUs, at most 8.
    compression: of all files, if the suffixes don't tell.
    cut: how the windows of a preprocessor are cut, as the training cuts them; None for
      `windows.Cut()` with the padding of the model. Steps that are padded don't count.
  Returns:
    The statistics.
  Raises:
    SpecError: a spec that does not fit, nothing to read, or a transform whose values
      change their shape; a RecordError for a bad record, naming its place.
    OSError: the output cannot be written; where its folder is not there, that is found
      before anything is read.
  """
  _check_output(output)
  change = create_transform(transform, images, cut)
  found = open_source(source, spec, change, images, compression)
  change.prepare(found)
  tally = _count(found, change, images, num_workers)
  if not tally.num_items:
    what = "records" if found.kind == "records" else "episodes"
    raise errors.SpecError(f"statistics: {source}: expected {what}, got none.")
  statistics = Statistics(
    kind=found.kind,
    fingerprint=found.fingerprint,
    transform=change.name,
    images=images,
    num_items=tally.num_items,
    lengths=tally.lengths.finish(),
    paths=tally.finish(change),
  )
  if output is not None:
    statistics.save(output)
  return statistics


def _check_output(output: str | os.PathLike[str] | None) -> None:
  """Checks, before the data is read, that the output can be written."""
  errors.check_local("statistics", output or "")
  folder = os.path.dirname(os.path.abspath(os.fspath(output or "")))
  if output is not None and not os.path.isdir(folder):
    raise FileNotFoundError(
      f"statistics: {os.fspath(output)}: expected a file in a folder that is there, "
      f"got no folder {folder}. Make it first."
    )
  if output is not None:
    start = rb'\{\s*"format": "' + FORMAT.encode()
    hint = "Name another file (--output)."
    files.check_output("statistics", output, "statistics", start, hint)


def _count(
  source: Source,
  transform: Transform,
  images: bool,
  num_workers: int | None,
) -> Tally:
  """Counts the parts, a few at a time, and merges them in order."""
  workers = num_workers or min(os.cpu_count() or 1, _MAX_WORKERS)
  tally = Tally()
  if not transform.name:
    tally.expect(source.spec, images)
  waiting: collections.deque[futures.Future[Tally]] = collections.deque()
  with futures.ThreadPoolExecutor(workers) as executor:
    try:
      for part in source.parts():
        waiting.append(executor.submit(Tally.of_part, part, source, transform))
        if len(waiting) > workers:
          tally.merge(waiting.popleft().result())
      while waiting:
        tally.merge(waiting.popleft().result())
    finally:
      executor.shutdown(cancel_futures=True)
  return tally
