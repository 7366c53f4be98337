"""Predictors over exported models, and the policies that act with them."""

from t2r_seq.policies.checkpoint_predictor import CheckpointPredictor, ModelPredictor
from t2r_seq.policies.cross_entropy import CEMPolicy, CrossEntropySearch, LSTMCEMPolicy
from t2r_seq.policies.execution import ChunkExecution
from t2r_seq.policies.lite_export import export_lite
from t2r_seq.policies.policy import (
  EpsilonGreedyPolicy,
  LinearSchedule,
  OUExploreRegressionPolicy,
  PerEpisodeSwitchPolicy,
  Policy,
  RegressionPolicy,
  ScheduledExplorationRegressionPolicy,
)
from t2r_seq.policies.predictors import (
  AbstractPredictor,
  EnsembleExportedSavedModelPredictor,
  ExportedSavedModelPredictor,
  RestoreOptions,
)
from t2r_seq.policies.robot_policies import RobotPolicies
from t2r_seq.specs.assets import list_exports

__all__ = [
  "AbstractPredictor",
  "CEMPolicy",
  "CheckpointPredictor",
  "ChunkExecution",
  "CrossEntropySearch",
  "EnsembleExportedSavedModelPredictor",
  "EpsilonGreedyPolicy",
  "ExportedSavedModelPredictor",
  "LSTMCEMPolicy",
  "LinearSchedule",
  "ModelPredictor",
  "OUExploreRegressionPolicy",
  "PerEpisodeSwitchPolicy",
  "Policy",
  "RegressionPolicy",
  "RestoreOptions",
  "RobotPolicies",
  "ScheduledExplorationRegressionPolicy",
  "export_lite",
  "list_exports",
]
