"""Whole grasps as single steps: the bin before, the bin after, and what was lifted.

`GraspEnv` of the project qtopt moves the gripper; here are two more cameras, and a
script that drives the gripper out of the sight of one before they look.
"""

from __future__ import annotations

from typing import Any

import gin
import numpy as np
import pybullet
import tensorflow as tf

from research.qtopt import grasp_env, grasp_policies
from t2r_seq import actors, policies, specs

# Metres. At the back of the bin and above it, the gripper is in no picture of the bin.
_ASIDE = np.array([0.0, grasp_env.BIN_HALF_SIZE, 0.18])
_EYE, _LOOKED_AT, _FIELD = np.array([0.0, -0.28, 0.52]), np.zeros(3), 29.0
# What is held is seen from below, against nothing.
_HELD_EYE, _HELD_FIELD = np.array([0.0, -0.11, -0.04]), 42.0
_MAX_STEPS = 40


@gin.configurable
class GraspOutcomeEnv(grasp_env.GraspEnv):
  """A bin, one grasp, and what came of it.

  Observations are `{"state": {"scene": ..., "held": ...}}`, [height, width, 3] uint8
  both: the bin without the gripper, and the gripper close up, with what it holds. The
  action is where to grasp, [2] in metres; the reward is 1 if something was lifted, and
  the episode is over. `info` then has the truth about it, which nothing learns from:
  `pixel` [2], its column and row in the scene before, and `kind` [4], shape and colour.

  Args:
    num_objects: least and most of them.
    scene_size: height and width of the pictures of the bin.
    held_size: of what is held.
  """

  def __init__(
    self,
    num_objects: tuple[int, int] = (3, 5),
    scene_size: tuple[int, int] = (64, 64),
    held_size: tuple[int, int] = (64, 64),
  ):
    # The camera of the carriage is not used.
    super().__init__(num_objects, max_steps=_MAX_STEPS, image_size=(2, 2))
    self._scene_size, self._held_size = tuple(scene_size), tuple(held_size)
    box, dictionary = grasp_env.gymnasium.spaces.Box, grasp_env.gymnasium.spaces.Dict
    state = {
      "scene": box(0, 255, (*self._scene_size, 3), np.uint8),
      "held": box(0, 255, (*self._held_size, 3), np.uint8),
    }
    self.observation_space = dictionary({"state": dictionary(state)})
    limit = grasp_env.BIN_HALF_SIZE
    self.action_space = box(-limit, limit, (2,), np.float32)

  def reset(
    self, *, seed: int | None = None, options: dict[str, Any] | None = None
  ) -> tuple[grasp_env.Observation, dict[str, Any]]:
    """Draws objects, and drives aside; returns (observation, info)."""
    super().reset(seed=seed, options=options)
    self._go(_ASIDE)
    return self._look(), _truth()

  def step(
    self, action: Any
  ) -> tuple[grasp_env.Observation, float, bool, bool, dict[str, Any]]:
    """Grasps there and drives aside; the episode is over."""
    before = self.object_positions
    x, y = np.asarray(action, float)
    self._go((x, y, _ASIDE[2]))
    self._go((x, y, 0.0))
    self._do(np.zeros(3), "close_gripper")
    self._go((x, y, _ASIDE[2]))
    self._go(_ASIDE)
    heights = self.object_positions[:, 2]
    lifted, info = int(heights.argmax()), _truth()
    is_lifted = bool(heights[lifted] > grasp_env.LIFTED_HEIGHT)
    if is_lifted:
      shape = self._call("getVisualShapeData", self._objects[lifted])[0]
      kind = np.array([shape[2], *shape[7][:3]], np.float32)
      info = {"pixel": self.project(before[lifted]), "kind": kind}
    return self._look(), float(is_lifted), True, False, info

  def project(self, position: Any) -> np.ndarray:
    """Returns where a position [3] is in the scene: column and row, [2] float32."""
    height, width = self._scene_size
    view, projection = _camera(_EYE, _LOOKED_AT, _FIELD, width / height)
    x, y, _, w = projection @ view @ np.array([*position, 1.0])
    return np.array([(1 + x / w) * width / 2, (1 - y / w) * height / 2], np.float32)

  def _go(self, position: Any) -> None:
    """Moves until the gripper is told to be there, as far as the bin lets it."""
    while True:
      x, y, z, yaw = before = self.pose
      away = np.asarray(position, float) - (x, y, z)
      cosine, sine = np.cos(yaw), np.sin(yaw)
      across = np.array([[cosine, sine], [-sine, cosine]]) @ away[:2]
      self._do((*across, away[2]))
      if np.abs(self.pose - before).max() < 1e-3:
        return

  def _do(self, vector: Any, *commands: str) -> None:
    super().step(grasp_policies.make_action(vector, 0.0, *commands))

  def _look(self) -> grasp_env.Observation:
    x, y, z, yaw = self.pose
    cosine, sine = np.cos(yaw), np.sin(yaw)
    right, forward, up = _HELD_EYE
    tips = np.array([x, y, z])
    across = np.array([[cosine, -sine], [sine, cosine]]) @ (right, forward)
    eye = tips + np.array([*across, up])
    tips[2] += 0.01
    scene = self._seen_from(self._scene_size, _EYE, _LOOKED_AT, _FIELD)
    held = self._seen_from(self._held_size, eye, tips, _HELD_FIELD)
    return {"state": {"scene": scene, "held": held}}

  def _seen_from(
    self, size: tuple[int, int], eye: np.ndarray, to: np.ndarray, field: float
  ) -> np.ndarray:
    view, projection = _camera(eye, to, field, size[1] / size[0])
    return self.picture(size, view.T.ravel().tolist(), projection.T.ravel().tolist())


def _camera(
  eye: np.ndarray, to: np.ndarray, field: float, aspect: float
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the matrices of view and projection, [4, 4] both."""
  view = pybullet.computeViewMatrix(eye, to, (0, 0, 1))
  projection = pybullet.computeProjectionMatrixFOV(field, aspect, 0.02, 2.0)
  return np.reshape(view, (4, 4)).T, np.reshape(projection, (4, 4)).T


def _truth() -> dict[str, np.ndarray]:
  return {"pixel": np.full(2, -1, np.float32), "kind": np.zeros(4, np.float32)}


@gin.configurable
def grasp2vec_episode_specification(
  scene_size: tuple[int, int] = (64, 64), held_size: tuple[int, int] = (64, 64)
) -> specs.TensorSpecStruct:
  """Returns what is stored of a grasp: two steps, before and after it."""
  shapes = {
    "state/scene": ((*scene_size, 3), tf.uint8),
    "state/held": ((*held_size, 3), tf.uint8),
    "action": ((2,), tf.float32),
    "reward": ((1,), tf.float32),
    "truth/pixel": ((2,), tf.float32),
    "truth/kind": ((4,), tf.float32),
  }
  make = specs.ExtendedTensorSpec
  return specs.TensorSpecStruct(
    (path, make(shape, dtype, path, is_sequence=True))
    for path, (shape, dtype) in shapes.items()
  )


@gin.configurable
def grasp2vec_step_to_features(step: actors.rollouts.EpisodeStep) -> dict[str, Any]:
  """Takes of a step what was seen, and where it led."""
  info = step["next_info"]
  return {
    "state/scene": step["observation"]["state"]["scene"],
    "state/held": step["observation"]["state"]["held"],
    "action": step["action"],
    "reward": np.array([step["reward"]], np.float32),
    "truth/pixel": info["pixel"],
    "truth/kind": info["kind"],
  }


@gin.configurable
class PointingPolicy(policies.Policy):
  """Points at one of the objects, which it is told: what makes logs cheap.

  Args:
    env: whose objects.
    seed: of what is drawn.
  """

  def __init__(self, env: grasp_env.GraspEnv = gin.REQUIRED, seed: int | None = None):
    super().__init__()
    self._env, self._random = env, np.random.default_rng(seed)

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes what is drawn repeatable from here on."""
    self._random = np.random.default_rng([seed, env])

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> np.ndarray:
    """Returns where an object is, [2]."""
    del state, context, timestep
    return self._random.choice(self._env.object_positions)[:2].astype(np.float32)
