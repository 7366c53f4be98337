"""The table of ready policies: name, model class and gin files of each."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.resources
from typing import Any

from t2r_seq import errors

IMITATION, ONLINE = "imitation", "online"
SIZES = ("tiny", "base")


@dataclasses.dataclass(frozen=True)
class ReadyPolicy:
  """A policy that trains without model code.

  Attributes:
    name: name on the command line, such as 'mlp'.
    kind: 'imitation' trains from a data set, 'online' in an environment.
    model: the model class, as 'module:Class' below `t2r_seq.zoo`.
    summary: one line for lists.
    paper: address of the paper that it follows, or ''.
  """

  name: str
  kind: str
  model: str
  summary: str
  paper: str = ""

  @property
  def model_name(self) -> str:
    """The name of the model's class, also in gin."""
    return self.model.partition(":")[2]

  @property
  def model_cls(self) -> Any:
    """The model's class; imports it."""
    module, _, name = self.model.partition(":")
    return getattr(importlib.import_module(f"t2r_seq.zoo.{module}"), name)

  def config_file(self, size: str = "base") -> str:
    """Returns the path of a size's gin file, as in gin's `include`.

    Raises:
      SpecError: `size` is neither 'tiny' nor 'base'.
    """
    if size not in SIZES:
      raise errors.SpecError(
        f"{self.name}: size: expected one of {errors.listing(SIZES)}, got '{size}'."
        f"{errors.nearest(size, SIZES)}"
      )
    name = self.name.replace("-", "")
    return f"t2r_seq/configs/policies/{name}{'_tiny' if size == 'tiny' else ''}.gin"


_POLICIES = (
  ReadyPolicy(
    "act",
    IMITATION,
    "act:ACTModel",
    "a transformer that predicts chunks, trained as a conditional VAE",
    "https://arxiv.org/abs/2304.13705",
  ),
  ReadyPolicy(
    "diffusion",
    IMITATION,
    "diffusion:DiffusionModel",
    "denoises chunks by a 1-D U-Net or a transformer: for multimodal actions",
    "https://arxiv.org/abs/2303.04137",
  ),
  ReadyPolicy(
    "mlp",
    IMITATION,
    "mlp:MLPModel",
    "dense layers over the last steps, fitted by squared error",
    "https://arxiv.org/abs/2108.03298",
  ),
  ReadyPolicy(
    "lstm",
    IMITATION,
    "lstm:LSTMModel",
    "LSTMs over the episode with a mixture head (robomimic's BC-RNN-GMM)",
    "https://arxiv.org/abs/2108.03298",
  ),
  ReadyPolicy(
    "transformer",
    IMITATION,
    "transformer:TransformerModel",
    "a causal transformer over the last steps with a mixture head",
    "https://arxiv.org/abs/2108.03298",
  ),
  ReadyPolicy(
    "flow",
    IMITATION,
    "flow:FlowModel",
    "flow matching of chunks by a transformer (the small form of pi0's action expert)",
    "https://arxiv.org/abs/2410.24164",
  ),
  ReadyPolicy(
    "bc-z",
    IMITATION,
    "bcz:BCZPolicyModel",
    "a ResNet that the text of the task modulates (BC-Z)",
    "https://arxiv.org/abs/2202.02005",
  ),
  ReadyPolicy(
    "dqn",
    ONLINE,
    "dqn:DQNModel",
    "deep Q-learning for discrete actions, from vectors or images",
    "https://www.nature.com/articles/nature14236",
  ),
  ReadyPolicy(
    "sac",
    ONLINE,
    "sac:SACModel",
    "soft actor-critic with a learned temperature, for continuous actions",
    "https://arxiv.org/abs/1812.05905",
  ),
  ReadyPolicy(
    "td3",
    ONLINE,
    "td3:TD3Model",
    "twin delayed DDPG, for continuous actions",
    "https://arxiv.org/abs/1802.09477",
  ),
  ReadyPolicy(
    "qtopt",
    ONLINE,
    "qtopt:QTOptModel",
    "Q-learning of continuous actions by the cross-entropy method",
    "https://arxiv.org/abs/1806.10293",
  ),
)


def policies() -> dict[str, ReadyPolicy]:
  """Returns all ready policies by name."""
  return {policy.name: policy for policy in _POLICIES}


def find_policy(name: str) -> ReadyPolicy:
  """Returns a ready policy by name, in any case, with '-' or '_'.

  Raises:
    SpecError: no policy has this name; suggests the nearest.
  """
  names = policies()
  folded = name.lower().replace("_", "-")
  if folded not in names:
    raise errors.SpecError(
      f"policy: expected one of {errors.listing(names)}, got '{name}'."
      f"{errors.nearest(folded, names)}"
    )
  return names[folded]


def config_text(config_file: str) -> str:
  """Returns the text of a gin file, with the files that it includes inlined."""
  package, _, name = config_file.removesuffix(".gin").rpartition("/")
  folder = importlib.resources.files(package.replace("/", "."))
  lines = []
  for line in (folder / f"{name}.gin").read_text("utf-8").splitlines():
    if line.startswith("include "):
      lines.append(config_text(line.split()[1].strip("'\"")))
    else:
      lines.append(line)
  return "\n".join(lines)
