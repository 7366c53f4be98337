"""Callbacks for training runs, and listeners that export after checkpoints."""

from t2r_seq.hooks.callbacks import (
  CheckpointExport,
  CheckpointExportListener,
  EarlyStopping,
  GoldenValues,
  LaggedCheckpointListener,
  PriorityUpdate,
  ScalarSink,
  TD3Hooks,
  VariableNorms,
)

__all__ = [
  "CheckpointExport",
  "CheckpointExportListener",
  "EarlyStopping",
  "GoldenValues",
  "LaggedCheckpointListener",
  "PriorityUpdate",
  "ScalarSink",
  "TD3Hooks",
  "VariableNorms",
]
