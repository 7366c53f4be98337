"""Training: `train_eval_model`, checkpoints, exports."""

from t2r_seq.training.callbacks import Callback, Run
from t2r_seq.training.checkpoints import Checkpoints, NanLossError
from t2r_seq.training.evaluation import continuous_eval, evaluate
from t2r_seq.training.exports import (
  BestExporter,
  Exporter,
  LatestExporter,
  create_default_exporters,
  export_saved_model,
)
from t2r_seq.training.stopping import Stopped, StopSignal
from t2r_seq.training.summaries import SummaryWriter
from t2r_seq.training.train_eval import RunConfig, train_eval_model
from t2r_seq.training.trainer import Trainer
from t2r_seq.training.workers import (
  create_mirrored_strategy,
  create_multi_worker_mirrored_strategy,
  create_tpu_strategy,
)

__all__ = [
  "BestExporter",
  "Callback",
  "Checkpoints",
  "Exporter",
  "LatestExporter",
  "NanLossError",
  "Run",
  "RunConfig",
  "StopSignal",
  "Stopped",
  "SummaryWriter",
  "Trainer",
  "continuous_eval",
  "create_default_exporters",
  "create_mirrored_strategy",
  "create_multi_worker_mirrored_strategy",
  "create_tpu_strategy",
  "evaluate",
  "export_saved_model",
  "train_eval_model",
]
