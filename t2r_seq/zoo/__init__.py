"""Ready policies: from a data set, or an environment, to a policy without code."""

from t2r_seq.zoo.act import ACTModel
from t2r_seq.zoo.bcz import BCZPolicyModel
from t2r_seq.zoo.diffusion import DiffusionModel
from t2r_seq.zoo.dqn import DQNModel
from t2r_seq.zoo.flow import FlowModel
from t2r_seq.zoo.imitation import ImitationModel
from t2r_seq.zoo.lstm import LSTMModel
from t2r_seq.zoo.mlp import MLPModel
from t2r_seq.zoo.online import OnlineSchedule, train_online
from t2r_seq.zoo.qtopt import QTOptModel
from t2r_seq.zoo.sac import SACModel
from t2r_seq.zoo.signature import Signature, find_signature
from t2r_seq.zoo.td3 import TD3Model
from t2r_seq.zoo.train import train_policy
from t2r_seq.zoo.transformer import TransformerModel

__all__ = [
  "ACTModel",
  "BCZPolicyModel",
  "DQNModel",
  "DiffusionModel",
  "FlowModel",
  "ImitationModel",
  "LSTMModel",
  "MLPModel",
  "OnlineSchedule",
  "QTOptModel",
  "SACModel",
  "Signature",
  "TD3Model",
  "TransformerModel",
  "find_signature",
  "train_online",
  "train_policy",
]
