"""EpisodeStore as a format of data sets."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from t2r_seq import specs
from t2r_seq.episodes.episodes import Episodes, EpisodeWriter, Values
from t2r_seq.episodes.registry import register_format
from t2r_seq.store import EpisodeStore, layout
from t2r_seq.store.videos import VideoEncoding, VideoOptions

# The target commits when it is told to.
_NEVER = 1 << 62


@register_format(
  "store",
  description="stores (with a store.json)",
  recognises=lambda path: os.path.isfile(os.path.join(path, layout.MANIFEST)),
)
class StoreEpisodes(Episodes):
  """Reads the episodes of an `EpisodeStore`."""

  def __init__(self, path: str) -> None:
    """Opens the store.

    Raises:
      StoreError: it cannot be opened.
    """
    self.path = path
    self._store = EpisodeStore(path)
    self.spec = specs.map_leaves(specs.frame_spec, self._store.spec)
    self.videos = [p for p, c in self._store.columns.items() if c.is_video]
    self.lengths = np.diff(self._store.episode_ends, prepend=0)
    self.metadata = self._store.metadata
    self.splits = self._store.splits

  def rows(self) -> EpisodeStore:
    """Returns the store, whose columns are tensors."""
    return self._store

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    """Reads steps of an episode; see `Episodes.read`."""
    own = list(self.spec if paths is None else paths)
    decoded = [path for path in own if path not in self.kept_videos]
    segment, place = self._store.find_episode(episode)
    values = segment.episode(place, decoded, start, stop, out)
    for path in self.kept_videos:
      if path in own and segment.is_present(path)[place]:
        values[path] = np.array(segment.bytes_column(path)[place], object)
    return values

  def with_videos(
    self, formats: Collection[str], encoding: VideoEncoding | None = None
  ) -> Episodes:
    """Returns the videos of columns as byte strings; see `Episodes.with_videos`."""
    kept = {
      path: column.video
      for path, column in self._store.columns.items()
      if column.video is not None and column.spec.data_format in formats
    }
    spec = specs.TensorSpecStruct(
      (path, leaf if path in kept else specs.frame_spec(leaf))
      for path, leaf in self._store.spec.items()
    )
    return self.copy(kept_videos=kept, spec=spec)

  def fingerprint(self) -> dict[str, Any]:
    """Returns the specs and the checksums of all segments."""
    # The index has the checksums of all data.
    segments = {
      segment.name: [segment.commit.episodes, dict(segment.commit.index_crc32)]
      for segment in EpisodeStore(self.path).segments
    }
    return {"spec": self.spec.to_json(), "segments": segments}


class StoreWriter(EpisodeWriter):
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
    """Appends an episode; see `EpisodeWriter.append`."""
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
