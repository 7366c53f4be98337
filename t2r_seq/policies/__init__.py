"""Predictors over exported models, and the policies that act with them."""

from t2r_seq.policies.abstract_predictor import AbstractPredictor, NoModelError
from t2r_seq.policies.exploration_policies import (
  OUExploreRegressionPolicy,
  PerEpisodeSwitchPolicy,
  ScheduledExplorationRegressionPolicy,
)
from t2r_seq.policies.exported_savedmodel_predictor import ExportedSavedModelPredictor
from t2r_seq.policies.exports import Export, list_exports
from t2r_seq.policies.packing import (
  flatten_observation,
  pack_observation,
  to_spec_dtype,
)
from t2r_seq.policies.policy import Policy
from t2r_seq.policies.regression_policy import RegressionPolicy

__all__ = [
  "AbstractPredictor",
  "Export",
  "ExportedSavedModelPredictor",
  "NoModelError",
  "OUExploreRegressionPolicy",
  "PerEpisodeSwitchPolicy",
  "Policy",
  "RegressionPolicy",
  "ScheduledExplorationRegressionPolicy",
  "flatten_observation",
  "list_exports",
  "pack_observation",
  "to_spec_dtype",
]
