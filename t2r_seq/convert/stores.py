"""Stores as sources and targets."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from t2r_seq import specs
from t2r_seq.convert.episodes import (
  EpisodeSource,
  EpisodeTarget,
  SourceEpisode,
  Values,
)
from t2r_seq.store import EpisodeStore, layout
from t2r_seq.store.videos import VideoEncoding, VideoOptions

# The target commits when it is told to.
_NEVER = 1 << 62


class StoreSource(EpisodeSource):
  """Reads the episodes of a store."""

  def __init__(self, path: str) -> None:
    """Opens the store.

    Raises:
      StoreError: it cannot be opened.
    """
    self._store = EpisodeStore(path)
    self._path = path
    self.spec = specs.map_leaves(specs.frame_spec, self._store.spec)
    self.videos = [p for p, c in self._store.columns.items() if c.is_video]
    self.num_episodes = len(self._store)
    self.metadata = self._store.metadata
    self.episode_ends = self._store.episode_ends.tolist()
    self.splits = self._store.splits

  def keep_videos(
    self, formats: Collection[str], encoding: VideoEncoding | None = None
  ) -> None:
    """Gives the videos of columns as they are; see `EpisodeSource.keep_videos`."""
    self.kept_videos = {
      path: column.video
      for path, column in self._store.columns.items()
      if column.video is not None and column.spec.data_format in formats
    }
    self.spec = specs.TensorSpecStruct(
      (path, leaf if path in self.kept_videos else specs.frame_spec(leaf))
      for path, leaf in self._store.spec.items()
    )

  def fingerprint(self) -> dict[str, Any]:
    """Returns the specs and the checksums of all segments."""
    # The index has the checksums of all data.
    segments = {
      segment.name: [segment.commit.episodes, dict(segment.commit.index_crc32)]
      for segment in EpisodeStore(self._path).segments
    }
    return {"spec": self.spec.to_json(), "segments": segments}

  def episodes(self, start: int = 0) -> Iterator[SourceEpisode]:
    """Yields the episodes from a number on; see `EpisodeSource.episodes`."""
    for index in range(start, len(self._store)):
      segment, place = self._store.find_episode(index)
      decoded = [path for path in self.spec if path not in self.kept_videos]
      values = segment.episode(place, decoded)
      for path in self.kept_videos:
        if segment.is_present(path)[place]:
          values[path] = np.array(segment.bytes_column(path)[place], object)
      yield SourceEpisode(values, f"episode {index} of {self._path}")


class StoreTarget(EpisodeTarget):
  """Appends the episodes to a new store."""

  def __init__(
    self,
    path: str,
    spec: specs.TensorSpecStruct,
    metadata: Mapping[str, Any],
    allow_nan: bool = False,
    videos: Mapping[str, VideoOptions] | None = None,
  ) -> None:
    """Makes the store, or goes on with the one that a killed conversion left.

    Args:
      path: of the folder.
      spec: of the episodes.
      metadata: JSON values.
      allow_nan: accepts NaN and infinity.
      videos: how those are kept that the values have, by path.
    Raises:
      SpecError: the specs cannot be stored, or are not those of the store.
      StoreError: another process writes to it.
    """
    if os.path.exists(os.path.join(path, layout.MANIFEST)):
      self._writer = EpisodeStore.append(
        path, spec=spec, commit_every=_NEVER, allow_nan=allow_nan
      )
    else:
      self._writer = EpisodeStore.create(
        path, spec, metadata, commit_every=_NEVER, allow_nan=allow_nan, videos=videos
      )

  @property
  def num_committed(self) -> int:
    """The episodes that the manifest counts."""
    return self._writer.num_committed

  def append(self, values: Values) -> None:
    """Appends an episode; see `EpisodeTarget.append`."""
    self._writer.append_episode(values)

  def commit(self) -> None:
    """Writes what was appended, and then the manifest."""
    self._writer.flush()

  def finish(self) -> None:
    """Commits what is left."""
    self._writer.close()

  def close(self) -> None:
    """Commits what is left, and lets go of the segment."""
    self._writer.close()
