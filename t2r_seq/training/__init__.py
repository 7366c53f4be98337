"""Training: `train_eval_model`, checkpoints, exports."""

from t2r_seq.training.async_exports import AsyncExports
from t2r_seq.training.callbacks import Callback, Run
from t2r_seq.training.checkpoints import Checkpoints, NanLossError
from t2r_seq.training.continuous import continuous_eval
from t2r_seq.training.evaluation import evaluate
from t2r_seq.training.exports import (
  BestExporter,
  Exporter,
  LatestExporter,
  create_default_exporters,
  export_saved_model,
)
from t2r_seq.training.stopping import Stopped, StopSignal
from t2r_seq.training.strategies import (
  create_mirrored_strategy,
  create_multi_worker_mirrored_strategy,
  create_tpu_strategy,
)
from t2r_seq.training.summaries import SummaryWriter
from t2r_seq.training.train_eval import train_eval_model
from t2r_seq.training.trainer import Trainer

__all__ = [
  "AsyncExports",
  "BestExporter",
  "Callback",
  "Checkpoints",
  "Exporter",
  "LatestExporter",
  "NanLossError",
  "Run",
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
