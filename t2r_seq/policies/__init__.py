"""Predictors over exported models, and the policies that act with them."""

from t2r_seq.policies.exploration_policies import (
  OUExploreRegressionPolicy,
  PerEpisodeSwitchPolicy,
  ScheduledExplorationRegressionPolicy,
)
from t2r_seq.policies.policy import (
  Policy,
  RegressionPolicy,
  flatten_observation,
  pack_observation,
  to_spec_dtype,
)
from t2r_seq.policies.predictors import (
  AbstractPredictor,
  Export,
  ExportedSavedModelPredictor,
  NoModelError,
  list_exports,
)

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
