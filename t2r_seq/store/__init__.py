"""EpisodeStore: flat columns on disk, every step once, read at memory speed."""

from t2r_seq.store.check import verify_store
from t2r_seq.store.episode_store import EpisodeStore
from t2r_seq.store.videos import VideoOptions

__all__ = [
  "EpisodeStore",
  "VideoOptions",
  "verify_store",
]
