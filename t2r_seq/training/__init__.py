"""Training: `train_eval_model`, checkpoints, exports."""

from t2r_seq.training.callbacks import Callback
from t2r_seq.training.evaluation import continuous_eval
from t2r_seq.training.exports import (
  BestExporter,
  LatestExporter,
  create_default_exporters,
  export_saved_model,
)
from t2r_seq.training.train_eval import RunConfig, train_eval_model

__all__ = [
  "BestExporter",
  "Callback",
  "LatestExporter",
  "RunConfig",
  "continuous_eval",
  "create_default_exporters",
  "export_saved_model",
  "train_eval_model",
]
