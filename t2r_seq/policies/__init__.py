"""Predictors over exported models, and the policies that act with them."""

from t2r_seq.lite.policy_io import (
  PolicyState,
  PurePolicy,
  RateWatch,
  StatefulPolicy,
  flatten_observation,
  to_spec_dtype,
)
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
from t2r_seq.policies.exploration_policies import (
  EpsilonGreedyPolicy,
  LinearSchedule,
  OUExploreRegressionPolicy,
  PerEpisodeSwitchPolicy,
  ScheduledExplorationRegressionPolicy,
)
from t2r_seq.policies.lite_export import export_lite
from t2r_seq.policies.loaded_export import Export, list_exports
from t2r_seq.policies.one_task import OneTask
from t2r_seq.policies.policy import (
  Policy,
  RegressionPolicy,
  pack_observation,
)
from t2r_seq.policies.policy_model import (
  PolicyModel,
  PolicyRecord,
  operative_config_path,
)
from t2r_seq.policies.policy_module import PolicyFunctions, exported_feature_specs
from t2r_seq.policies.predictors import (
  AbstractPredictor,
  EnsembleExportedSavedModelPredictor,
  ExportedSavedModelPredictor,
  NoModelError,
  RestoreOptions,
)

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
  "Export",
  "ExportedSavedModelPredictor",
  "LSTMCEMPolicy",
  "LinearSchedule",
  "ModelPredictor",
  "NoModelError",
  "NormalCrossEntropyMethod",
  "OUExploreRegressionPolicy",
  "OneTask",
  "PerEpisodeSwitchPolicy",
  "Policy",
  "PolicyFunctions",
  "PolicyModel",
  "PolicyRecord",
  "PolicyState",
  "PurePolicy",
  "RateWatch",
  "RegressionPolicy",
  "RestoreOptions",
  "ScheduledExplorationRegressionPolicy",
  "StatefulPolicy",
  "export_lite",
  "exported_feature_specs",
  "flatten_observation",
  "list_exports",
  "operative_config_path",
  "pack_observation",
  "to_spec_dtype",
]
