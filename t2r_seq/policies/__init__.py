"""Predictors over exported models, and the policies that act with them."""

from t2r_seq.lite.overlap import OverlappedPolicy, SimulatedLatency
from t2r_seq.lite.policy_io import StatefulPolicy
from t2r_seq.policies.checkpoint_predictor import CheckpointPredictor, ModelPredictor
from t2r_seq.policies.cross_entropy import (
  CategoricalCrossEntropyMethod,
  CEMPolicy,
  CrossEntropyMethod,
  CrossEntropySearch,
  LSTMCEMPolicy,
  NormalCrossEntropyMethod,
)
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
  pack_observation,
)
from t2r_seq.policies.policy_model import operative_config_path
from t2r_seq.policies.predictors import (
  AbstractPredictor,
  EnsembleExportedSavedModelPredictor,
  ExportedSavedModelPredictor,
  NoModelError,
  RestoreOptions,
)
from t2r_seq.policies.robot_policies import RobotPolicies
from t2r_seq.specs.assets import list_exports

__all__ = [
  "AbstractPredictor",
  "CEMPolicy",
  "CategoricalCrossEntropyMethod",
  "CheckpointPredictor",
  "ChunkExecution",
  "CrossEntropyMethod",
  "CrossEntropySearch",
  "EnsembleExportedSavedModelPredictor",
  "EpsilonGreedyPolicy",
  "ExportedSavedModelPredictor",
  "LSTMCEMPolicy",
  "LinearSchedule",
  "ModelPredictor",
  "NoModelError",
  "NormalCrossEntropyMethod",
  "OUExploreRegressionPolicy",
  "OverlappedPolicy",
  "PerEpisodeSwitchPolicy",
  "Policy",
  "RegressionPolicy",
  "RestoreOptions",
  "RobotPolicies",
  "ScheduledExplorationRegressionPolicy",
  "SimulatedLatency",
  "StatefulPolicy",
  "export_lite",
  "list_exports",
  "operative_config_path",
  "pack_observation",
]
