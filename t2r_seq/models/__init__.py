"""Models: specs, network, loss and outputs in one class."""

from t2r_seq.models.bellman import BellmanTargets
from t2r_seq.models.classification_model import ClassificationModel
from t2r_seq.models.critic_model import CriticModel
from t2r_seq.models.networks import update_target_network
from t2r_seq.models.optimizers import (
  create_adam_optimizer,
  create_constant_learning_rate,
  create_cosine_learning_rate,
  create_exp_decaying_learning_rate,
  create_gradient_descent_optimizer,
  create_grouped_optimizer,
  create_keras_optimizer,
  create_momentum_optimizer,
  default_create_optimizer_fn,
  exponential_decay,
  piecewise_linear,
  warmup_cosine,
)
from t2r_seq.models.recurrent_model import RecurrentRegressionModel
from t2r_seq.models.regression_model import RegressionModel
from t2r_seq.models.t2r_model import (
  AbstractT2RModel,
  T2RModel,
  training_specification,
)
from t2r_seq.models.warm_start import (
  create_name_filter,
  default_init_from_checkpoint_fn,
)

__all__ = [
  "AbstractT2RModel",
  "BellmanTargets",
  "ClassificationModel",
  "CriticModel",
  "RecurrentRegressionModel",
  "RegressionModel",
  "T2RModel",
  "create_adam_optimizer",
  "create_constant_learning_rate",
  "create_cosine_learning_rate",
  "create_exp_decaying_learning_rate",
  "create_gradient_descent_optimizer",
  "create_grouped_optimizer",
  "create_keras_optimizer",
  "create_momentum_optimizer",
  "create_name_filter",
  "default_create_optimizer_fn",
  "default_init_from_checkpoint_fn",
  "exponential_decay",
  "piecewise_linear",
  "training_specification",
  "update_target_network",
  "warmup_cosine",
]
