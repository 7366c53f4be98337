"""One pass over a source: its parts are counted by threads and merged in order."""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import time
import zipfile
from concurrent import futures
from typing import Any

import numpy as np
from absl import logging

from t2r_seq import errors, files, specs
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct
from t2r_seq.statistics.accumulators import Accumulator, Arrays, create_accumulator
from t2r_seq.statistics.sources import (
  Item,
  Part,
  Source,
  SourceName,
  Transform,
  create_transform,
  open_source,
)
from t2r_seq.statistics.statistics import LengthCounter, PathStatistics, Statistics

_SEPARATOR = "|"


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
      self._accumulator(path, leaf, specs.is_encoded_image_spec(leaf) and not images)

  @classmethod
  def of_part(cls, part: Part, source: Source, transform: Transform) -> Tally:
    """Counts a part of a source.

    Raises:
      SpecError: an item has other shapes or dtypes than those before.
    """
    tally = cls()
    for item in source.read(part):
      tally._add(item, source, transform)
    for accumulator in tally._paths.values():
      accumulator.to_arrays()  # Works on what is buffered, here in the worker.
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

  def finish(self) -> dict[str, PathStatistics]:
    """Returns the figures by path, sorted."""
    return {path: self._paths[path].finish() for path in sorted(self._paths)}

  @property
  def lengths(self) -> LengthCounter:
    """The lengths of the episodes."""
    return self._lengths

  def to_state(self) -> tuple[dict[str, Any], Arrays]:
    """Returns the state: JSON values, and arrays by name."""
    arrays = {
      f"lengths{_SEPARATOR}{k}": v for k, v in self._lengths.to_arrays().items()
    }
    described = []
    for index, (path, accumulator) in enumerate(self._paths.items()):
      is_counted = type(accumulator) is Accumulator
      described.append([path, accumulator.spec.to_json(), is_counted])
      for name, array in accumulator.to_arrays().items():
        arrays[f"{index}{_SEPARATOR}{name}"] = array
    return {"num_items": self.num_items, "paths": described}, arrays

  @classmethod
  def from_state(cls, values: dict[str, Any], arrays: Arrays) -> Tally:
    """Restores what `to_state` gave."""
    by_owner: dict[str, Arrays] = {}
    for name, array in arrays.items():
      owner, _, field = name.partition(_SEPARATOR)
      by_owner.setdefault(owner, {})[field] = array
    tally = cls()
    tally.num_items = int(values["num_items"])
    tally._lengths = LengthCounter.from_arrays(by_owner["lengths"])
    for index, (path, text, is_counted) in enumerate(values["paths"]):
      spec = specs.ExtendedTensorSpec.from_json(text)
      tally._paths[path] = create_accumulator(spec, is_counted)
      tally._paths[path].restore(by_owner[str(index)])
    return tally


def _check_same(path: str, before: ExtendedTensorSpec, now: ExtendedTensorSpec) -> None:
  if before != now:
    raise errors.SpecError(
      f"statistics: {path}: expected {errors.describe(before)}, as in the episodes "
      f"before, got {errors.describe(now)}. A transform gives the same shapes and "
      "dtypes for every episode."
    )


_FORMAT = "t2r_seq.statistics.compute"
_VERSION = 1
_HEADER = "header"


class Checkpoint:
  """Partial sums of the parts that are done, and where to go on.

  It is used by a run of the same source, unchanged, with the same arguments only.
  """

  def __init__(self, path: str | None, run: dict[str, Any], seconds: float) -> None:
    """Creates the checkpoint of a run; nothing is read or written yet.

    Args:
      path: of the file; None keeps none.
      run: JSON values that say what is computed; another run starts anew.
      seconds: at least so much time between two writes.
    """
    self._path = path
    self._run = json.loads(json.dumps(run))
    self._seconds = seconds
    self._written = time.monotonic()

  def restore(self) -> tuple[Tally, dict[str, int]]:
    """Reads how far the run has come.

    Returns:
      The tally, and the cursor to go on from; both empty where there is no file.
    Raises:
      SpecError: the file is damaged, or no checkpoint.
    """
    if self._path is None or not os.path.exists(self._path):
      return Tally(), {}
    try:
      with np.load(self._path, allow_pickle=False) as loaded:
        arrays = {name: loaded[name] for name in loaded.files}
      header = json.loads(arrays.pop(_HEADER).tobytes())
      if header["format"] != _FORMAT or header["version"] != _VERSION:
        raise ValueError(f"{header['format']!r} of version {header['version']!r}")
      if header["run"] != self._run:
        logging.info("%s is of another run: starting anew.", self._path)
        return Tally(), {}
      tally = Tally.from_state(header["tally"], arrays)
    except (KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
      raise errors.SpecError(
        f"statistics: {self._path}: expected a checkpoint of version {_VERSION}, got "
        f"{error!r}. Remove the file to start anew."
      ) from error
    logging.info("Going on from %s: %d items are done.", self._path, tally.num_items)
    return tally, {name: int(value) for name, value in header["cursor"].items()}

  def save(self, tally: Tally, cursor: dict[str, int], is_due: bool = False) -> None:
    """Writes how far the run has come, if it is time.

    Args:
      tally: of all parts up to the cursor.
      cursor: `Part.end` of the last one.
      is_due: writes whatever the time.
    """
    now = time.monotonic()
    if self._path is None or not (is_due or now >= self._written + self._seconds):
      return
    values, arrays = tally.to_state()
    header = {
      "format": _FORMAT,
      "version": _VERSION,
      "run": self._run,
      "cursor": cursor,
      "tally": values,
    }
    encoded = np.frombuffer(json.dumps(header).encode(), np.uint8)
    buffer = io.BytesIO()
    named: dict[str, Any] = {_HEADER: encoded, **arrays}
    np.savez(buffer, **named)
    files.replace_file(os.path.abspath(self._path), buffer.getvalue())
    self._written = time.monotonic()

  def remove(self) -> None:
    """Removes the file, if there is one, and what a killed write has left of it."""
    if self._path is not None:
      folder, name = os.path.split(os.path.abspath(self._path))
      path = os.path.join(folder, name)
      for leaving in (path, *files.left_behind(path)):
        with contextlib.suppress(FileNotFoundError):
          os.remove(leaving)


_MAX_WORKERS = 8


def compute_statistics(
  source: SourceName,
  output: str | os.PathLike[str] | None = None,
  spec: specs.SpecStructure | None = None,
  transform: Any = None,
  images: bool = False,
  num_workers: int | None = None,
  compression: str | None = None,
  checkpoint_seconds: float = 10.0,
) -> Statistics:
  """Computes the statistics of all paths of a source, in one pass.

  The result is the same, bit for bit, for any number of workers, and whether or not
  the run was interrupted: parts are cut and merged in a fixed order.

  Args:
    source: folder of an `EpisodeStore`, or TFRecord files and patterns; or the episodes
      of another format, as `convert.open_episodes` gives them.
    output: JSON file to write. Until it is there, `.<its name>.partial` beside it keeps
      the partial sums: a run that was killed goes on from them, if source and arguments
      are the same.
    spec: of what to read, windowed or flat; by default all of a store, what the
      transform needs, or what the first 100 records look like.
    transform: called with the values of each episode by path, [T, ...] and context
      features (plain records: of blocks of them, [B, ...]), returns the values to be
      counted: [T', ...] for every path but the source's own context features. Or a
      preprocessor; or 'module:name' of either.
    images: decodes encoded images; they are only counted otherwise.
    num_workers: threads; by default as many as there are CPUs, at most 8.
    compression: of all files, if the suffixes don't tell.
    checkpoint_seconds: at least so much time between two writes of the partial sums.
  Returns:
    The statistics.
  Raises:
    SpecError: a spec that does not fit, nothing to read, or a transform whose values
      change their shape; a RecordError for a bad record, naming its place.
    OSError: the output cannot be written; where its folder is not there, that is found
      before anything is read.
  """
  _check_folder(output)
  change = create_transform(transform, images)
  found = open_source(source, spec, change, images, compression)
  run = {
    "fingerprint": found.fingerprint,
    "spec": found.spec.to_json(),
    "transform": [change.name, change.checksum],
    "images": images,
  }
  progress = Checkpoint(_partial_path(output), run, checkpoint_seconds)
  tally = _count(found, change, images, num_workers, progress)
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
    paths=tally.finish(),
  )
  if output is not None:
    statistics.save(output)
    progress.remove()
  return statistics


def _check_folder(output: str | os.PathLike[str] | None) -> None:
  """Checks, before the data is read, that the figures will have a folder."""
  folder = os.path.dirname(os.path.abspath(os.fspath(output or "")))
  if output is not None and not os.path.isdir(folder):
    raise FileNotFoundError(
      f"statistics: {os.fspath(output)}: expected a file in a folder that is there, "
      f"got no folder {folder}. Make it first."
    )


def _partial_path(output: str | os.PathLike[str] | None) -> str | None:
  if output is None:
    return None
  folder, name = os.path.split(os.path.abspath(os.fspath(output)))
  return os.path.join(folder, f".{name}.partial")


def _count(
  source: Source,
  transform: Transform,
  images: bool,
  num_workers: int | None,
  progress: Checkpoint,
) -> Tally:
  """Counts the parts that are not done yet, a few at a time, and merges in order."""
  workers = num_workers or min(os.cpu_count() or 1, _MAX_WORKERS)
  tally, cursor = progress.restore()
  if not cursor and not transform.name:
    tally.expect(source.spec, images)
  waiting: collections.deque[tuple[Part, futures.Future[Tally]]] = collections.deque()
  with futures.ThreadPoolExecutor(workers) as executor:
    try:
      for part in source.parts(cursor):
        waiting.append((part, executor.submit(Tally.of_part, part, source, transform)))
        if len(waiting) > workers:
          cursor = _merge_first(waiting, tally)
          progress.save(tally, cursor)
      while waiting:
        cursor = _merge_first(waiting, tally)
        progress.save(tally, cursor)
    except KeyboardInterrupt:
      progress.save(tally, cursor, is_due=True)
      raise
    finally:
      executor.shutdown(cancel_futures=True)
  return tally


def _merge_first(
  waiting: collections.deque[tuple[Part, futures.Future[Tally]]], tally: Tally
) -> dict[str, int]:
  part, future = waiting.popleft()
  tally.merge(future.result())
  return part.end
