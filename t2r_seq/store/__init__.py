"""EpisodeStore: flat columns on disk, every step once, read at memory speed."""

from t2r_seq.store.columns import StoreColumns
from t2r_seq.store.episode_store import EpisodeStore
from t2r_seq.store.file_columns import FileColumns
from t2r_seq.store.held_tensors import HeldTensor, dataset_over
from t2r_seq.store.reports import StoreProblem, StoreReport
from t2r_seq.store.salvage import SalvageReport, salvage_store
from t2r_seq.store.segment import BytesColumn, Segment
from t2r_seq.store.summary import (
  ColumnSummary,
  StoreSummary,
  WindowSummary,
  summarize_store,
)
from t2r_seq.store.verifying import verify_store
from t2r_seq.store.window_reader import StoreWindows
from t2r_seq.store.writer import EpisodeWriter

__all__ = [
  "BytesColumn",
  "ColumnSummary",
  "EpisodeStore",
  "EpisodeWriter",
  "FileColumns",
  "HeldTensor",
  "SalvageReport",
  "Segment",
  "StoreColumns",
  "StoreProblem",
  "StoreReport",
  "StoreSummary",
  "StoreWindows",
  "WindowSummary",
  "dataset_over",
  "salvage_store",
  "summarize_store",
  "verify_store",
]
