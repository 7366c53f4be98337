"""EpisodeStore: flat columns on disk, every step once, read at memory speed."""

from t2r_seq.store.episode_store import EpisodeStore
from t2r_seq.store.segment import BytesColumn, Segment
from t2r_seq.store.verifying import StoreProblem, StoreReport, verify_store
from t2r_seq.store.writer import EpisodeWriter

__all__ = [
  "BytesColumn",
  "EpisodeStore",
  "EpisodeWriter",
  "Segment",
  "StoreProblem",
  "StoreReport",
  "verify_store",
]
