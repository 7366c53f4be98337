"""Callbacks for training runs, and listeners that export after checkpoints."""

from t2r_seq.hooks.callbacks import (
  CheckpointExport,
  EarlyStopping,
  GoldenValues,
  PriorityUpdate,
  ReplayCheckpoint,
  ScalarSink,
  TargetNetworkUpdate,
  TD3Hooks,
  VariableNorms,
)
from t2r_seq.hooks.checkpoint_hooks import (
  CheckpointExportListener,
  LaggedCheckpointListener,
)

__all__ = [
  "CheckpointExport",
  "CheckpointExportListener",
  "EarlyStopping",
  "GoldenValues",
  "LaggedCheckpointListener",
  "PriorityUpdate",
  "ReplayCheckpoint",
  "ScalarSink",
  "TD3Hooks",
  "TargetNetworkUpdate",
  "VariableNorms",
]
