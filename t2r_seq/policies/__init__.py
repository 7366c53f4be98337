"""Predictors over exported models, and the policies that act with them."""

from t2r_seq.policies.checkpoint_predictor import CheckpointPredictor
from t2r_seq.policies.execution import ChunkExecution
from t2r_seq.policies.exploration_policies import (
  OUExploreRegressionPolicy,
  PerEpisodeSwitchPolicy,
  ScheduledExplorationRegressionPolicy,
)
from t2r_seq.policies.loaded_export import Export, PolicyState, list_exports
from t2r_seq.policies.policy import (
  Policy,
  RegressionPolicy,
  flatten_observation,
  pack_observation,
  to_spec_dtype,
)
from t2r_seq.policies.policy_model import PolicyModel
from t2r_seq.policies.policy_module import PolicyFunctions, exported_feature_specs
from t2r_seq.policies.predictors import (
  AbstractPredictor,
  ExportedSavedModelPredictor,
  NoModelError,
  RestoreOptions,
)

__all__ = [
  "AbstractPredictor",
  "CheckpointPredictor",
  "ChunkExecution",
  "Export",
  "ExportedSavedModelPredictor",
  "NoModelError",
  "OUExploreRegressionPolicy",
  "PerEpisodeSwitchPolicy",
  "Policy",
  "PolicyFunctions",
  "PolicyModel",
  "PolicyState",
  "RegressionPolicy",
  "RestoreOptions",
  "ScheduledExplorationRegressionPolicy",
  "exported_feature_specs",
  "flatten_observation",
  "list_exports",
  "pack_observation",
  "to_spec_dtype",
]
