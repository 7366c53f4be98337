"""EpisodeStore: flat columns on disk, every step once, read at memory speed."""

from t2r_seq.store.check import verify_store
from t2r_seq.store.episode_store import EpisodeStore, StoreWindows
from t2r_seq.store.salvage import salvage_store
from t2r_seq.store.segments import BytesColumn
from t2r_seq.store.summary import summarize_store
from t2r_seq.store.videos import DepthQuantizer, VideoOptions
from t2r_seq.store.writer import EpisodeWriter

__all__ = [
  "BytesColumn",
  "DepthQuantizer",
  "EpisodeStore",
  "EpisodeWriter",
  "StoreWindows",
  "VideoOptions",
  "salvage_store",
  "summarize_store",
  "verify_store",
]
