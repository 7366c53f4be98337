"""Ready policies: from a data set, or an environment, to a policy without code."""

from t2r_seq.zoo.act import ACTModel
from t2r_seq.zoo.bcz import BCZPolicyModel
from t2r_seq.zoo.diffusion import DiffusionModel
from t2r_seq.zoo.dqn import DQNModel
from t2r_seq.zoo.embodiments import (
  Embodiment,
  design_embodiments,
  shared_signature,
)
from t2r_seq.zoo.environment import (
  PolicyEnvironment,
  make_environment,
  policy_environment,
)
from t2r_seq.zoo.evaluate import evaluate_export
from t2r_seq.zoo.flow import FlowModel
from t2r_seq.zoo.imitation import ImitationModel
from t2r_seq.zoo.lerobot import import_policy
from t2r_seq.zoo.lstm import LSTMModel
from t2r_seq.zoo.mlp import MLPModel
from t2r_seq.zoo.online import OnlineSchedule, train_online
from t2r_seq.zoo.online_model import OnlineModel
from t2r_seq.zoo.qtopt import QTOptModel
from t2r_seq.zoo.registry import ReadyPolicy, find_policy, policies
from t2r_seq.zoo.sac import SACModel
from t2r_seq.zoo.signature import Signature, find_signature
from t2r_seq.zoo.spaces import EnvSignature
from t2r_seq.zoo.td3 import TD3Model
from t2r_seq.zoo.train import (
  configure_online,
  configure_policy,
  policy_statistics,
  train_policy,
)
from t2r_seq.zoo.transformer import TransformerModel

__all__ = [
  "ACTModel",
  "BCZPolicyModel",
  "DQNModel",
  "DiffusionModel",
  "Embodiment",
  "EnvSignature",
  "FlowModel",
  "ImitationModel",
  "LSTMModel",
  "MLPModel",
  "OnlineModel",
  "OnlineSchedule",
  "PolicyEnvironment",
  "QTOptModel",
  "ReadyPolicy",
  "SACModel",
  "Signature",
  "TD3Model",
  "TransformerModel",
  "configure_online",
  "configure_policy",
  "design_embodiments",
  "evaluate_export",
  "find_policy",
  "find_signature",
  "import_policy",
  "make_environment",
  "policies",
  "policy_environment",
  "policy_statistics",
  "shared_signature",
  "train_online",
  "train_policy",
]
