"""A gripper over a table, seen from above; kinematic, and drawn by numpy.

Two scenes. With a post between the gripper and a single block there are two ways to
it, and the mean of both runs into the post. With three blocks it is a task's secret
which one is meant: the red, the green or the blue one.

World: x to the right, y away, the table is [-1, 1] in both. The gripper hangs above the
blocks; closing it ends the episode.
"""

from __future__ import annotations

import colorsys
from typing import Any

import gin
import numpy as np

from t2r_seq import imports, policies

try:
  import gymnasium
except ImportError as error:
  raise imports.missing_extra("gymnasium", "envs") from error

# What an action of 1 is: a step along each axis.
STEP = 0.2
PLACES = (-0.6, 0.0, 0.6)
_HALF, _REACH = 0.14, 0.14  # Of a block; how far from its middle the gripper takes it.
_POST, _POST_RADIUS, _PASS = np.array([0.0, -0.05]), 0.25, 0.5
_FINGER = 0.2
_TABLE, _STEEL, _SKIN, _WOOD = (
  (205, 196, 184),
  (38, 40, 46),
  (224, 172, 140),
  (96, 72, 52),
)
_SUBSTEPS = 4
_VIEW, _RENDERED = 2.4, 120  # The width of a frame; and in pixels, the default.

Observation = dict[str, np.ndarray]


@gin.configurable
class VRGripperEnv(gymnasium.Env):
  """Takes a block; the reward of the right one is 1, and the episode ends.

  Observations are `{"image": [size, size, 3] uint8, "blocks": [3, 4], "gripper_pose":
  [2], "hand_pose": [2]}`, float32 but for the image; of a block x, y, and its hue on
  the color circle; what there is not is 0. A hand is seen from the other side. An
  action [3] is how far to move, in `STEP`s, clipped to [-1, 1], and whether to close:
  above 0. The `info` has `is_success`.

  All randomness comes from seeds: that of `reset_task` says which block is meant, and
  that of `reset` where they lie.
  """

  metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

  def __init__(
    self,
    has_post: bool = False,
    starts_by_hand: bool = False,
    has_lamp: bool = False,
    num_steps: int = 16,
    image_size: int | None = 40,
    render_mode: str | None = None,
  ) -> None:
    """Creates the environment.

    Args:
      has_post: one block behind a post, in place of three.
      starts_by_hand: the first episode of each task shows a human hand in place of the
        gripper, whose pose is not known.
      has_lamp: the first episode of each task is seen by a colored light, which turns
        all hues half the way to the next, forth or back: which of two colors was taken
        it does not tell.
      num_steps: actions after which an episode is cut off.
      image_size: height and width of the frames in pixels; None: there are none.
      render_mode: None or "rgb_array".
    """
    self.has_post, self._starts_by_hand = has_post, starts_by_hand
    self._has_lamp = has_lamp
    self.num_steps, self.render_mode = num_steps, render_mode
    self._size = image_size
    spaces = gymnasium.spaces
    seen = {
      "blocks": spaces.Box(-1.0, 1.0, (len(PLACES), 4), np.float32),
      "gripper_pose": spaces.Box(-1.0, 1.0, (2,), np.float32),
      "hand_pose": spaces.Box(-1.0, 1.0, (2,), np.float32),
    }
    if image_size is not None:
      seen["image"] = spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
    self.observation_space = spaces.Dict(seen)
    self.action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    self.reset_task(0)
    self._begin(np.zeros((1, 2)), np.zeros(1), np.zeros(2), 0)
    self._is_new = True

  def reset_task(self, seed: int) -> None:
    """Draws which color the block has that is meant."""
    self._is_new = True
    count = len(PLACES)
    self.hue = int(np.random.default_rng(seed).integers(count)) / count

  def reset(
    self, *, seed: int | None = None, options: dict[str, Any] | None = None
  ) -> tuple[Observation, dict[str, Any]]:
    """Draws where blocks lie, their other colours, and where the gripper is."""
    super().reset(seed=seed, options=options)
    random = self.np_random
    if self.has_post:
      block = random.uniform([-0.15, 0.55], [0.15, 0.8])
      gripper = random.uniform([-0.15, -0.9], [0.15, -0.75])
      self._begin(block[np.newaxis], np.array([self.hue]), gripper, 0)
    else:
      count = len(PLACES)
      blocks = np.column_stack([PLACES, random.uniform(-0.1, 0.8, count)])
      blocks[:, 0] += random.uniform(-0.1, 0.1, count)
      order = random.permutation(count)
      hues = order / count
      meant = int(np.argmax(hues == self.hue))
      hues += random.uniform(-0.05, 0.05, count)
      if self._has_lamp and self._is_new:
        hues += random.choice([-1, 1]) / (2 * count)
      gripper = random.uniform([-0.7, -0.9], [0.7, -0.5])
      self._begin(blocks, hues % 1.0, gripper, meant)
    return self._observe(), {"is_success": False}

  def step(
    self, action: np.ndarray
  ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
    """Moves, then closes; that, or a blow against the post, ends the episode."""
    action = np.asarray(action, np.float64)
    is_crash = False
    for _ in range(_SUBSTEPS):
      move = np.clip(action[:2], -1.0, 1.0) * STEP / _SUBSTEPS
      self.position = np.clip(self.position + move, -1.0, 1.0)
      is_crash |= self.has_post and bool(
        np.linalg.norm(self.position - _POST) < _POST_RADIUS
      )
    is_closed = bool(action[2] > 0) and not is_crash
    away = np.abs(self.blocks[self.meant] - self.position).max()
    is_success = is_closed and bool(away < _REACH)
    self._step += 1
    is_over = is_closed or is_crash
    is_cut = self._step >= self.num_steps and not is_over
    info = {"is_success": is_success}
    return self._observe(), float(is_success), is_over, is_cut, info

  def render(self) -> np.ndarray | None:
    """Returns the current frame in the mode "rgb_array", else None."""
    return None if self.render_mode is None else self._draw(self._size or _RENDERED)

  def _begin(
    self, blocks: np.ndarray, hues: np.ndarray, gripper: np.ndarray, meant: int
  ) -> None:
    self.blocks, self.hues, self.position = blocks, hues, gripper
    self.meant = meant
    self.is_hand, self._is_new = self._starts_by_hand and self._is_new, False
    self._step = 0

  def _observe(self) -> Observation:
    blocks, count = np.zeros((len(PLACES), 4), np.float32), len(self.blocks)
    angle = 2 * np.pi * self.hues
    blocks[:count] = np.column_stack([self.blocks, np.cos(angle), np.sin(angle)])
    pose, none = self.position.astype(np.float32), np.zeros(2, np.float32)
    seen = {
      "blocks": blocks,
      "gripper_pose": none if self.is_hand else pose,
      "hand_pose": -pose if self.is_hand else none,
    }
    return seen if self._size is None else {**seen, "image": self._draw(self._size)}

  def _draw(self, size: int) -> np.ndarray:
    scale = size / _VIEW
    line = (np.arange(size) + 0.5) / scale - _VIEW / 2
    x, y = line[np.newaxis, :], -line[:, np.newaxis]
    frame = np.full((size, size, 3), _TABLE, np.float32)

    def paint(outside: np.ndarray, color: Any) -> None:
      # Edges are smooth: a pixel is covered in part.
      cover = np.clip(0.5 - outside * scale, 0.0, 1.0)[..., np.newaxis]
      frame[:] += cover * (np.asarray(color, np.float32) - frame)

    def box(center: Any, half: Any) -> np.ndarray:
      return np.maximum(
        np.abs(x - center[0]) - half[0], np.abs(y - center[1]) - half[1]
      )

    def disc(center: Any, radius: float) -> np.ndarray:
      return np.hypot(x - center[0], y - center[1]) - radius

    for block, hue in zip(self.blocks, self.hues, strict=True):
      color = 255 * np.array(colorsys.hsv_to_rgb(hue, 0.9, 0.85))
      paint(box(block, (_HALF, _HALF)), color)
    if self.has_post:
      paint(disc(_POST, _POST_RADIUS - 0.05), _WOOD)
    px, py = self.position
    if self.is_hand:
      paint(box((px, py - _FINGER - 0.3), (0.12, 0.3)), _SKIN)
      for side in (-1, 1):
        paint(disc((px + side * _FINGER, py - 0.05), 0.1), _SKIN)
      paint(box((px, py - _FINGER), (_FINGER, 0.06)), _SKIN)
    else:
      for side in (-1, 1):
        paint(box((px + side * _FINGER, py), (0.04, 0.14)), _STEEL)
      paint(box((px, py + _FINGER), (_FINGER + 0.04, 0.04)), _STEEL)
    return np.round(frame).astype(np.uint8)


@gin.configurable
class VRGripperExpertPolicy(policies.Policy):
  """Takes the block that is meant, past the post on either side.

  Args:
    env: the very environment that the policy acts in.
  """

  def __init__(self, env: VRGripperEnv = gin.REQUIRED) -> None:
    super().__init__()
    self._env = env
    self._random = np.random.default_rng()
    self._side = 1.0

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the sides repeatable from here on."""
    del env
    self._random = np.random.default_rng(seed)

  def reset(self) -> None:
    """Starts an episode: chooses a side."""
    self._side = self._random.choice([-1.0, 1.0])

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> np.ndarray:
    """Returns what the expert does, [3]."""
    del state, context, timestep
    env = self._env
    goal = env.blocks[env.meant]
    if env.has_post and env.position[1] < _POST[1]:
      goal = _POST + np.array([self._side * _PASS, 0.1])
    way = (goal - env.position) / STEP
    is_there = float(np.linalg.norm(way)) < 0.3
    way /= max(1.0, float(np.linalg.norm(way)))
    return np.array([*way, 1.0 if is_there else -1.0], np.float32)
