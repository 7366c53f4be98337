"""EpisodeStore as a format of data sets."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from t2r_seq import specs
from t2r_seq.episodes import reading
from t2r_seq.episodes.episodes import EpisodeWriter, Values
from t2r_seq.episodes.registry import register_format
from t2r_seq.episodes.views import Episodes
from t2r_seq.specs.names import VIDEO_FORMATS
from t2r_seq.store import EpisodeStore, layout, verify_store
from t2r_seq.store.videos import VideoEncoding

# `copy_episodes` decides when to commit.
_NEVER = 1 << 62


class StoreWriter(EpisodeWriter):
  """Appends episodes to a new store, which is committed as it grows."""

  def __init__(
    self,
    path: str,
    episodes: Episodes,
    allow_nan: bool = False,
    keep_videos: bool = False,
    video_codec: str = VideoEncoding.codec,
    video_gop: int = VideoEncoding.gop,
    video_quality: int = VideoEncoding.quality,
  ) -> None:
    """Creates the store, or resumes after the episodes that it has committed.

    Args:
      allow_nan: accepts NaN and infinity.
      keep_videos: stores the videos of other formats without decoding them; those of
        stores are always copied.
      video_codec: codec of videos that have to be encoded again, because no key frame
        begins an episode.
      video_gop: frames of such videos from one key frame to the next.
      video_quality: quality of such videos, the codec's crf.
    """
    encoding = VideoEncoding(video_codec, video_gop, video_quality)
    self.episodes = episodes.with_videos(
      VIDEO_FORMATS, encoding if keep_videos else None
    )
    self._path = path
    spec, videos = self.episodes.spec, self.episodes.kept_videos
    layout.make_columns(f"write: {path}", spec, videos, episodes.clocks)
    if os.path.exists(os.path.join(path, layout.MANIFEST)):
      self._writer = EpisodeStore.append(
        path, spec=spec, commit_every=_NEVER, allow_nan=allow_nan
      )
    else:
      self._writer = EpisodeStore.create(
        path,
        spec,
        episodes.metadata,
        commit_every=_NEVER,
        allow_nan=allow_nan,
        videos=videos,
        clocks=episodes.clocks,
      )

    self._num_episodes = self._num_committed = self._writer.num_committed

  @property
  def num_committed(self) -> int:
    return self._num_committed

  def append(self, values: Values) -> None:
    self._writer.append_episode(values)
    self._num_episodes += 1

  def commit(self) -> None:
    """Writes pending episodes, and then the manifest."""
    self._writer.flush()
    self._num_committed = self._num_episodes

  def finish(self) -> None:
    """Commits the rest, and writes the splits."""
    self.close()
    if self.episodes is not None and self.episodes.splits:
      EpisodeStore.write_splits(self._path, self.episodes.splits)

  def close(self) -> None:
    """Commits the rest, and releases the segment."""
    self._writer.close()
    self._num_committed = self._num_episodes


@register_format(
  "store",
  description="a store (with a store.json)",
  recognises=lambda path: os.path.isfile(os.path.join(path, layout.MANIFEST)),
  writer=StoreWriter,
  check=lambda path, spec, *_, **__: verify_store(path, spec),
)
class StoreEpisodes(Episodes):
  """Reads the episodes of an `EpisodeStore`."""

  def __init__(self, path: str) -> None:
    self.path = path
    self._store = EpisodeStore(path)
    self._spec_fields = {
      path: reading.frame_fields(dict(column.fields))
      for path, column in self._store.columns.items()
    }
    self.videos = [p for p, c in self._store.columns.items() if c.is_video]
    self.lengths = np.diff(self._store.episode_ends, prepend=0)
    self.metadata, self.clocks = self._store.metadata, self._store.clocks
    self.splits = self._store.splits

  def rows(self) -> EpisodeStore:
    return self._store

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    names = list(self.spec if paths is None else paths)
    decoded = [path for path in names if path not in self.kept_videos]
    segment, place = self._store.find_episode(episode)
    values = segment.episode(place, decoded, start, stop, out)
    for path in self.kept_videos:
      if path in names and segment.is_present(path)[place]:
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
      (path, leaf if path in kept else specs.extended_tensor_spec.frame_spec(leaf))
      for path, leaf in self._store.spec.items()
    )
    return self.copy(kept_videos=kept, spec=spec)

  def fingerprint(self) -> dict[str, Any]:
    # The index has the checksums of all data. Opened again, as it may have grown.
    segments = {
      segment.name: [segment.commit.episodes, dict(segment.commit.index_crc32)]
      for segment in EpisodeStore(self.path).segments
    }
    return {"spec": self.spec.to_json(), "segments": segments}
