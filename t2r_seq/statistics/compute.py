"""One pass over a source: its parts are counted by threads and merged in order."""

from __future__ import annotations

import collections
import os
from concurrent import futures
from typing import Any

from t2r_seq import errors, specs
from t2r_seq.statistics.checkpoint import Checkpoint
from t2r_seq.statistics.opening import SourceName, open_source
from t2r_seq.statistics.sources import Part, Source
from t2r_seq.statistics.statistics import Statistics
from t2r_seq.statistics.tally import Tally
from t2r_seq.statistics.transforms import Transform, create_transform

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
    source: folder of an `EpisodeStore`, or TFRecord files and patterns.
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
