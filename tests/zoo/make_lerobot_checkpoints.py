"""Makes the small checkpoints of LeRobot in `lerobot_checkpoints`, and its actions.

Needs LeRobot's package (0.4.4 made the committed files), which the tests do not:

  python tests/zoo/make_lerobot_checkpoints.py

Each folder is what LeRobot saves of a policy, with random weights, and `rollout.npz`:
observations of an episode, and the actions that LeRobot chooses. The backbone is its
ResNet-18 with a 32nd of the channels.
"""

import json
import os
import pathlib

import numpy as np
import torch
import torchvision
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
from lerobot.policies.factory import make_pre_post_processors

FOLDER = pathlib.Path(__file__).parent / "lerobot_checkpoints"
NUM_STEPS = 8
SHARE = 32


class _NarrowResNet(torchvision.models.ResNet):
  """Torchvision's ResNet with fewer channels."""

  def __setattr__(self, name, value):
    if name == "inplanes" and value == 64:
      value //= SHARE
    super().__setattr__(name, value)

  def _make_layer(self, block, planes, *args, **kwargs):
    return super()._make_layer(block, planes // SHARE, *args, **kwargs)


def _narrow_resnet18(weights=None, **kwargs):
  block = torchvision.models.resnet.BasicBlock
  network = _NarrowResNet(block, [2, 2, 2, 2], **kwargs)
  network.fc = torch.nn.Linear(512 // SHARE, 1)
  return network


_IMAGE = PolicyFeature(FeatureType.VISUAL, (3, 48, 48))
_STATE = {"observation.state": PolicyFeature(FeatureType.STATE, (3,))}
_CAMERAS = {f"observation.images.{name}": _IMAGE for name in ("front", "wrist")}
_ENVIRONMENT = {"observation.environment_state": PolicyFeature(FeatureType.ENV, (4,))}
_ACTION = {"action": PolicyFeature(FeatureType.ACTION, (2,))}
_ACT = {
  "chunk_size": 4,
  "n_action_steps": 3,
  "dim_model": 16,
  "n_heads": 2,
  "dim_feedforward": 24,
  "n_encoder_layers": 2,
  "n_vae_encoder_layers": 1,
  "latent_dim": 4,
  "pretrained_backbone_weights": None,
}
_DIFFUSION = {
  "horizon": 8,
  "n_action_steps": 3,
  "down_dims": (8, 16),
  "kernel_size": 3,
  "diffusion_step_embed_dim": 8,
  "noise_scheduler_type": "DDIM",
  "num_inference_steps": 5,
  "spatial_softmax_num_keypoints": 4,
  "use_group_norm": False,
  "crop_shape": (44, 44),
}
POLICIES = {
  "act": lambda: ACTPolicy(
    ACTConfig(input_features={**_STATE, **_CAMERAS}, output_features=_ACTION, **_ACT)
  ),
  "act_ensembling": lambda: ACTPolicy(
    ACTConfig(
      input_features={**_STATE, **_ENVIRONMENT},
      output_features=_ACTION,
      **{**_ACT, "n_action_steps": 1},
      temporal_ensemble_coeff=0.01,
      pre_norm=True,
      feedforward_activation="gelu",
      n_decoder_layers=2,
    )
  ),
  "diffusion": lambda: DiffusionPolicy(
    DiffusionConfig(
      input_features={**_STATE, **_CAMERAS}, output_features=_ACTION, **_DIFFUSION
    )
  ),
  "diffusion_of_samples": lambda: DiffusionPolicy(
    DiffusionConfig(
      input_features={**_STATE, **_ENVIRONMENT},
      output_features=_ACTION,
      **{**_DIFFUSION, "crop_shape": None, "n_obs_steps": 3},
      beta_schedule="linear",
      prediction_type="sample",
      clip_sample_range=0.8,
      use_film_scale_modulation=False,
    )
  ),
  "diffusion_of_two_cameras": lambda: DiffusionPolicy(
    DiffusionConfig(
      input_features={**_STATE, **_CAMERAS},
      output_features=_ACTION,
      **_DIFFUSION,
      use_separate_rgb_encoder_per_camera=True,
    )
  ),
}


def _randomize(policy, rng):
  """Fills what starts at 0 or 1, so that no two tensors can be exchanged unseen."""
  for name, tensor in policy.state_dict().items():
    if name.endswith("final_conv.1.weight"):
      # A random denoiser magnifies float32's rounding from step to step, beyond 1e-5.
      tensor.mul_(0.1)
    if tensor.ndim == 1 and tensor.dtype == torch.float32:
      low, high = (0.5, 1.5) if name.endswith(("weight", "var")) else (-0.3, 0.3)
      tensor.copy_(torch.from_numpy(rng.uniform(low, high, tensor.shape)))


def _statistics(config, rng):
  """Returns made-up statistics of each feature."""
  found = {}
  for key, feature in {**config.input_features, **config.output_features}.items():
    shape = (feature.shape[0], 1, 1) if len(feature.shape) == 3 else feature.shape
    low, high = rng.uniform(-2, -1, shape), rng.uniform(1, 2, shape)
    mean, std = rng.uniform(0.2, 0.5, shape), rng.uniform(0.2, 0.9, shape)
    values = {"min": low, "max": high, "mean": mean, "std": std}
    found[key] = {name: np.float32(value) for name, value in values.items()}
  return found


def make(name):
  """Saves a policy and its actions."""
  rng = np.random.default_rng(len(name))
  torch.manual_seed(0)
  policy = POLICIES[name]().eval()
  _randomize(policy, rng)
  config = policy.config
  config.device = "cpu"
  statistics = _statistics(config, rng)
  before, after = make_pre_post_processors(config, dataset_stats=statistics)
  folder = FOLDER / name
  policy.save_pretrained(folder)
  before.save_pretrained(folder)
  after.save_pretrained(folder)
  arrays = {}
  for key, feature in config.input_features.items():
    if len(feature.shape) == 3:
      coarse = rng.integers(0, 256, (NUM_STEPS, 3, 12, 12), np.uint8)
      arrays[key] = coarse.repeat(4, axis=2).repeat(4, axis=3)
    else:
      arrays[key] = rng.normal(size=(NUM_STEPS, *feature.shape)).astype(np.float32)
  options = {}
  if config.type == "diffusion":
    noise = np.random.default_rng(0).standard_normal((config.horizon, 2))
    options["noise"] = torch.from_numpy(noise.astype(np.float32))[None]
  actions = []
  for t in range(NUM_STEPS):
    values = {
      key: torch.from_numpy(value[t] / np.float32(255) if value.ndim == 4 else value[t])
      for key, value in arrays.items()
    }
    action = policy.select_action(before(values), **options)
    actions.append(after(action)[0].numpy())
  images = {k: v.transpose(0, 2, 3, 1) for k, v in arrays.items() if v.ndim == 4}
  np.savez_compressed(
    folder / "rollout.npz", **{**arrays, **images}, action=np.stack(actions)
  )


def count_parameters():
  """Prints what `test_lerobot.py` has of LeRobot's numbers of parameters."""
  image = {"observation.image": PolicyFeature(FeatureType.VISUAL, (3, 96, 96))}
  features = {"input_features": {**_STATE, **image}, "output_features": _ACTION}
  act = ACTPolicy(ACTConfig(**features, pretrained_backbone_weights=None))
  diffusion = DiffusionPolicy(DiffusionConfig(**features))
  count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
  found = {
    "act": count(act),
    "diffusion": count(diffusion),
    "unet": count(diffusion.diffusion.unet),
  }
  print(json.dumps(found))


if __name__ == "__main__":
  os.environ.setdefault("HF_HUB_OFFLINE", "1")
  count_parameters()
  torchvision.models.resnet18 = _narrow_resnet18
  for each in POLICIES:
    make(each)
