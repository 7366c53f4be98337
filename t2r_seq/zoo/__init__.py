"""Ready policies: from a data set, or an environment, to a policy without code."""

from t2r_seq.zoo.act import ACTModel
from t2r_seq.zoo.actor_critic import SACModel, TD3Model
from t2r_seq.zoo.diffusion import DiffusionModel
from t2r_seq.zoo.imitation import ImitationModel
from t2r_seq.zoo.lerobot import import_policy
from t2r_seq.zoo.mlp import MLPModel
from t2r_seq.zoo.online import OnlineSchedule, train_online
from t2r_seq.zoo.online_model import OnlineModel
from t2r_seq.zoo.q_learning import DQNModel, QTOptModel
from t2r_seq.zoo.registry import ReadyPolicy, find_policy, policies
from t2r_seq.zoo.signature import Signature, find_signature
from t2r_seq.zoo.spaces import EnvSignature
from t2r_seq.zoo.train import configure_online, configure_policy, train_policy

__all__ = [
  "ACTModel",
  "DQNModel",
  "DiffusionModel",
  "EnvSignature",
  "ImitationModel",
  "MLPModel",
  "OnlineModel",
  "OnlineSchedule",
  "QTOptModel",
  "ReadyPolicy",
  "SACModel",
  "Signature",
  "TD3Model",
  "configure_online",
  "configure_policy",
  "find_policy",
  "find_signature",
  "import_policy",
  "policies",
  "train_online",
  "train_policy",
]
