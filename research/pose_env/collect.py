"""Scripted policies, and what an episode's record holds of its steps."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np

from research.pose_env import pose_env
from t2r_seq import actors, policies, specs
from t2r_seq.actors.rollouts import EpisodeStep


@gin.configurable
class PoseEnvRandomPolicy(policies.Policy):
  """Answers anything: the labels come from the simulator, not from the action."""

  def __init__(self) -> None:
    super().__init__()
    self._random = np.random.default_rng()

  def seed(self, seed: int) -> None:
    """Makes the answers repeatable from here on."""
    self._random = np.random.default_rng(seed)

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> np.ndarray:
    """Returns a uniformly random action [2] in [-1, 1]."""
    del state, context, timestep
    return self._random.uniform(-1.0, 1.0, 2).astype(np.float32)


@gin.configurable
class PoseEnvExpertPolicy(policies.Policy):
  """Reads the answer from the simulator's own state.

  With `knows_velocity=False` it reads only where the object is now. On the moving task
  that is the best answer that a single frame allows, so it tells whether a model that
  sees one frame fails for want of training or for want of memory.

  Args:
    env: the very environment that the policy acts in.
    noise: standard deviation that is added to each coordinate, in metres.
    knows_velocity: whether it may read the target itself.
  """

  def __init__(
    self,
    env: pose_env.PoseEnv = gin.REQUIRED,
    noise: float = 0.0,
    knows_velocity: bool = True,
  ) -> None:
    super().__init__()
    self._env = env
    self._noise = noise
    self._knows_velocity = knows_velocity
    self._random = np.random.default_rng()

  def seed(self, seed: int) -> None:
    """Makes the noise repeatable from here on."""
    self._random = np.random.default_rng(seed)

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> np.ndarray:
    """Returns the target [2], or the present position, with noise on it."""
    del state, context, timestep
    env = self._env
    answer = env.target_pose if self._knows_velocity else env.object_position
    noise = self._noise * self._random.standard_normal(2)
    return (answer + noise).astype(np.float32)


@gin.configurable
def pose_episode_to_features(steps: actors.rollouts.Episode) -> specs.TensorSpecStruct:
  """Turns an episode's steps into the record of `episode_specification`.

  Args:
    steps: T steps of a pose environment.
  Returns:
    Numpy arrays [T, ...] by path. Each step has its own observation, the action that
    was chosen on it, the reward of that action, and the target that came with it.
  """
  images = [step["observation"]["state"]["image"] for step in steps]
  return specs.TensorSpecStruct(
    {
      "state/image": np.stack(images),
      "pose": np.stack([np.asarray(step["action"], np.float32) for step in steps]),
      "target_pose": np.stack([step["info"]["target_pose"] for step in steps]),
      "reward": np.array([[step["reward"]] for step in steps], np.float32),
    }
  )


@gin.configurable
def pose_step_to_features(step: EpisodeStep) -> specs.TensorSpecStruct:
  """Turns one step into what a replay keeps of it: what was seen, done, and rewarded.

  The target stays with the environment: online nobody tells it.

  Args:
    step: of a pose environment.
  Returns:
    Numpy arrays by path.
  """
  return specs.TensorSpecStruct(
    {
      "state/image": step["observation"]["state"]["image"],
      "pose": np.asarray(step["action"], np.float32),
      "reward": np.array([step["reward"]], np.float32),
    }
  )


@gin.configurable
def pose_error(steps: actors.rollouts.Episode) -> dict[str, float]:
  """Measures an episode for `run_env`: the mean distance to the target, in metres."""
  distances = [
    np.linalg.norm(np.asarray(step["action"]) - step["info"]["target_pose"])
    for step in steps
  ]
  return {"pose_error": float(np.mean(distances))}
