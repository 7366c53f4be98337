"""The peers of `bench_ready_policies`: LeRobot and Stable-Baselines3.

`bench_ready_policies` starts it by a Python that has the peer: neither TensorFlow nor
t2r_seq is imported. The last line of the output is a JSON of what the training reached.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from benchmarks import process_memory

_START = time.perf_counter()
LANDER, META_WORLD = "LunarLanderContinuous-v3", "Meta-World/MT1"
FETCH, PIXELS = "FetchPickAndPlace-v4", "Reacher-v5"
# What `gymnasium.make` needs besides, and the observation's numbers that are the state:
# LeRobot's policies need an image or `observation.environment_state`, which the
# rest becomes: the contacts of the lander's legs, the object and the goal, or Fetch's
# goal. Reacher's state has the joints; only the image shows the target.
DEMOS: dict[str, tuple[dict[str, Any], int]] = {
  LANDER: ({}, 6),
  META_WORLD: ({"env_name": "push-v3", "terminate_on_success": True}, 4),
  FETCH: ({}, 25),
  PIXELS: ({}, 6),
}
_NEEDS = {
  "lerobot": "torch==2.14.1 torchvision==0.29.1 lerobot==0.4.4 diffusers Box2D "
  "metaworld gymnasium-robotics mujoco==3.3.0",
  "stable_baselines3": "torch==2.14.1 stable-baselines3==2.9.2",
}
_FINAL_SEED, _POINT_SEED = 100_000, 200_000


def split(env_id: str, observation: Any) -> dict[str, np.ndarray]:
  """Names the robot's state, and the rest or the image, uint8 [48, 48, 3]."""
  if env_id == PIXELS:
    joints = np.append(observation[:4], observation[6:8])  # And their velocities.
    image = draw_reacher(observation)
    return {
      "observation.state": joints.astype(np.float32),
      "observation.images.front": image,
    }
  if env_id == FETCH:
    observation = np.append(observation["observation"], observation["desired_goal"])
  state, rest = np.split(observation.astype(np.float32), [DEMOS[env_id][1]])
  return {"observation.state": state, "observation.environment_state": rest}


def draw_reacher(observation: np.ndarray, size: int = 48) -> np.ndarray:
  """Draws arm and target from above, uint8 [size, size, 3].

  MuJoCo's own renderer needs OpenGL, and Mesa's crashes beside TensorFlow.
  """
  (cosine, _), (sine, _) = observation[:2], observation[2:4]
  elbow, target = 0.1 * np.asarray([cosine, sine]), observation[4:6]
  tip = target + observation[8:10]
  places = np.linspace(-0.24, 0.24, size)
  pixels = np.stack(np.meshgrid(places, places[::-1]), axis=-1)
  image = np.full((size, size, 3), 230.0)
  for start, end, width, color in (
    (target, target, 0.014, (220, 60, 120)),
    (np.zeros(2), elbow, 0.01, (20, 80, 140)),
    (elbow, tip, 0.01, (20, 120, 160)),
  ):
    along = end - start
    share = (pixels - start) @ along / max(along @ along, 1e-9)
    nearest = start + np.clip(share, 0, 1)[..., np.newaxis] * along
    distance = np.linalg.norm(pixels - nearest, axis=-1)
    # The edge is a pixel wide, so that the drawing shows parts of a pixel.
    cover = np.clip((width - distance) / (places[1] - places[0]) + 0.5, 0, 1)
    image += cover[..., np.newaxis] * (np.asarray(color) - image)
  return image.round().astype(np.uint8)


def make_env(env_id: str, seed: int) -> gymnasium.Env:
  """Creates an environment; Meta-World draws its goals by the seed."""
  if env_id == FETCH:
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
  if env_id != META_WORLD:
    return gymnasium.make(env_id)
  import metaworld  # noqa: F401

  return gymnasium.make(env_id, seed=seed, **DEMOS[env_id][0])


def play(
  spec: Mapping[str, Any],
  act: Callable[[Any], Any],
  reset: Callable[[], Any] = lambda: None,
  first_seed: int = _FINAL_SEED,
) -> list[float]:
  """Returns the returns of episodes, which have the same seeds for all policies.

  An environment that reports success returns 1 or 0: `success` of any step, which ends
  the episode, or `is_success` of the last.
  """
  returns = []
  with make_env(spec["env"], first_seed) as env:
    for i in range(spec["episodes"] if first_seed == _FINAL_SEED else 10):
      observation, _ = env.reset(seed=first_seed + i)
      reset()
      returns.append(0.0)
      is_done = False
      while not is_done:
        observation, reward, *ends, info = env.step(act(observation))
        returns[-1] += float(info.get("success", reward))
        is_done = any(ends)
      if "is_success" in info:
        returns[-1] = float(info["is_success"])
  return returns


def spent() -> dict[str, float]:
  """Returns seconds since the start, imports included, and peak memory."""
  cpu = sum(os.times()[:4])
  seconds = time.perf_counter() - _START
  return {"seconds": seconds, "cpu": cpu, "mib": process_memory.peak_mib()}


def train_lerobot(spec: Mapping[str, Any]) -> dict[str, Any]:
  """Trains by LeRobot's own command, and acts by its checkpoint."""
  import torch
  from lerobot.policies import factory
  from lerobot.scripts import lerobot_train

  torch.set_num_threads(1)
  steps, every = spec["steps"], min(50, spec["steps"])
  options = {
    **{"dataset.repo_id": "demos", "dataset.root": spec["data"]},
    **{"output_dir": spec["out"], "seed": spec["seed"], "num_workers": 0},
    **{"steps": steps, "save_freq": steps, "log_freq": every, "eval_freq": 0},
    **{"policy.device": "cpu", "policy.push_to_hub": "false", "wandb.enable": "false"},
    **{"policy.type": spec["policy"], **spec["options"]},
  }
  sys.argv[1:] = [f"--{name}={value}" for name, value in options.items()]
  messages: list[str] = []
  handler = logging.StreamHandler()
  handler.addFilter(lambda record: messages.append(record.getMessage()) or True)
  logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
  lerobot_train.init_logging = lambda **kwargs: None  # It would remove the handler.
  lerobot_train.train()
  logged = re.findall(r"updt_s:([\d.]+) data_s:([\d.]+)", "\n".join(messages))
  update, wait = np.asarray(logged, float).mean(axis=0)
  found = {**spent(), "wait": wait / (update + wait)}
  path = os.path.join(spec["out"], "checkpoints", "last", "pretrained_model")
  policy = factory.get_policy_class(spec["policy"]).from_pretrained(path)
  before, after = factory.make_pre_post_processors(policy.config, path)

  def act(observation: Any) -> np.ndarray:
    seen = split(spec["env"], observation)
    tensors = {k: torch.from_numpy(v) for k, v in seen.items()}
    for name, value in tensors.items():
      if value.dtype == torch.uint8:
        tensors[name] = value.permute(2, 0, 1) / 255
    with torch.inference_mode():
      return after(policy.select_action(before(tensors)))[0].numpy()

  return {**found, "returns": play(spec, act, policy.reset)}


def train_sb3(spec: Mapping[str, Any]) -> dict[str, Any]:
  """Trains by Stable-Baselines3, and evaluates as often as the other side."""
  import stable_baselines3
  import torch
  from stable_baselines3.common import callbacks, noise

  torch.set_num_threads(1)
  curve: list[tuple[int, float]] = []
  act = lambda observation: model.predict(observation, deterministic=True)[0]  # noqa: E731

  class Evaluate(callbacks.BaseCallback):
    def _on_step(self) -> bool:
      if self.num_timesteps % (spec["steps"] // spec["points"]) == 0:
        returns = play(spec, act, first_seed=_POINT_SEED)
        curve.append((self.num_timesteps, float(np.mean(returns))))
        self.model.save(os.path.join(spec["out"], "policy"))
      return True

  options = dict(spec["options"])
  if scale := options.pop("noise", None):
    options["action_noise"] = noise.NormalActionNoise(np.zeros(1), np.full(1, scale))
  cls = getattr(stable_baselines3, spec["policy"].upper())
  model = cls("MlpPolicy", spec["env"], seed=spec["seed"], device="cpu", **options)
  model.learn(spec["steps"], callback=Evaluate())
  return {**spent(), "curve": curve, "returns": play(spec, act)}


def main(argv: Sequence[str]) -> None:
  """Trains what a JSON names, and prints what it reached.

  Raises:
    ImportError: the peer is missing; names what to install.
  """
  spec = json.loads(argv[0])
  train = train_lerobot if spec["env"] in DEMOS else train_sb3
  try:
    print(json.dumps(train(spec)))
  except ModuleNotFoundError as error:
    packages = _NEEDS["lerobot" if spec["env"] in DEMOS else "stable_baselines3"]
    raise ImportError(f"peer_policies: {error}. pip install {packages}") from error


if __name__ == "__main__":
  os.environ.setdefault("HF_HUB_OFFLINE", "1")
  main(sys.argv[1:])
