"""EpisodeStore: flat columns on disk, every step once, read at memory speed."""

from t2r_seq.store.check import StoreProblem, StoreReport, verify_store
from t2r_seq.store.episode_store import EpisodeStore, StoreColumns, StoreWindows
from t2r_seq.store.file_columns import FileColumns
from t2r_seq.store.mapped import HeldTensor, dataset_over
from t2r_seq.store.salvage import SalvageReport, salvage_store
from t2r_seq.store.segments import BytesColumn, Segment
from t2r_seq.store.summary import (
  ColumnSummary,
  StoreSummary,
  WindowSummary,
  summarize_store,
)
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
