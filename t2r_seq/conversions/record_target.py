"""TFRecord files as targets: a SequenceExample per episode, in shards."""

from __future__ import annotations

import glob
import os

from t2r_seq import errors, records, specs
from t2r_seq.conversions.episodes import EpisodeTarget, Values


def shard_names(path: str, num_shards: int) -> list[str]:
  """Returns the files of a target: `path` itself where there is one shard."""
  return [path] if num_shards == 1 else records.shard_paths(path, num_shards)


def check_spec(
  path: str, spec: specs.TensorSpecStruct, num_episodes: int, num_shards: int
) -> None:
  """Checks that TFRecord files can hold the episodes.

  Args:
    path: of the file, for the error.
    spec: of the episodes.
    num_episodes: that will be written.
    num_shards: how many files.
  Raises:
    SpecError: with every spec that a record cannot hold; or a wrong number of shards.
  """
  if not 1 <= num_shards <= num_episodes:
    raise errors.ConversionError(
      f"convert: {path}: expected 1 to {num_episodes} shards for as many episodes, got "
      f"{num_shards}."
    )
  records.ExampleEncoder(record_spec(spec))


class RecordTarget(EpisodeTarget):
  """Writes shards, each of which appears when it is whole.

  Which episodes are in which shard follows from their numbers alone, so a conversion
  that was killed goes on with the first shard that is not there.
  """

  def __init__(
    self,
    path: str,
    spec: specs.TensorSpecStruct,
    num_episodes: int,
    num_shards: int = 1,
    compression: str | None = None,
  ) -> None:
    """Finds the shards that are there.

    Args:
      path: of the file; its shards are named by `records.shard_paths`.
      spec: of the episodes; a spec without a name gets its path as name.
      num_episodes: that will be written.
      num_shards: how many files.
      compression: 'GZIP', 'ZLIB' or ''; by default as the suffix says.
    """
    self._spec = record_spec(spec)
    self._names = shard_names(path, num_shards)
    self._compression = compression
    self._ends = [num_episodes * (i + 1) // num_shards for i in range(num_shards)]
    whole = [os.path.exists(name) for name in self._names]
    self._shard = whole.index(False) if False in whole else num_shards
    self._episodes = self._ends[self._shard - 1] if self._shard else 0
    self._committed = self._episodes
    self._writer: records.RecordWriter | None = None
    for name in self._names:
      _remove_leavings(name)

  @property
  def num_committed(self) -> int:
    """The episodes in finished files."""
    return self._committed

  def append(self, values: Values) -> None:
    """Writes a record, and finishes the file with its last one."""
    if self._writer is None:
      name = self._names[self._shard]
      self._writer = records.RecordWriter(name, self._spec, self._compression)
    self._writer.write(values)
    self._episodes += 1
    if self._episodes == self._ends[self._shard]:
      self._writer.close()
      self._writer = None
      self._shard += 1
      self._committed = self._episodes

  def commit(self) -> None:
    """Does nothing: a shard is committed when it is full."""

  def finish(self) -> None:
    """Completes the target: a file got its name with its last record."""
    self.close()

  def close(self) -> None:
    """Drops the file in progress."""
    if self._writer is not None:
      self._writer.discard()
      self._writer = None


def record_spec(spec: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
  """Returns the specs with a name each: that of the path where there is none."""
  return specs.TensorSpecStruct(
    (path, specs.ExtendedTensorSpec(**{**leaf.fields(), "name": leaf.name or path}))
    for path, leaf in spec.items()
  )


def _remove_leavings(path: str) -> None:
  """Removes what a killed writer of this file left beside it."""
  folder, name = os.path.split(os.path.abspath(path))
  pattern = os.path.join(glob.escape(folder), f".{glob.escape(name)}.*.tmp")
  for leaving in glob.glob(pattern):
    os.remove(leaving)
