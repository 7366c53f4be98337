"""Where is the duck? Two Gymnasium environments, one still and one moving.

`PoseEnv` is Tensor2Robot's pose prediction task: an object at a random pose, seen
by a camera that stands somewhere else in every episode; the action is the predicted
(x, y). `MovingPoseEnv` needs memory: the object slides at a constant velocity that
no frame shows, and the action is where it will be some steps ahead.

World: metres, origin at the centre of the table. The camera looks at the origin and
is drawn once per episode, around a nominal view over the table's near edge:
yaw +-25 degrees, pitch -55 +- 8 degrees, distance 3.6 +- 0.2 m. The table's edges
have four colours, so a frame tells where the camera stands.
"""

from __future__ import annotations

from typing import Any

import gin
import numpy as np

from t2r_seq import imports

try:
  import gymnasium
except ImportError as error:
  raise imports.missing_extra("gymnasium", "pose-env") from error

from research.pose_env import scene as scene_lib

Observation = dict[str, dict[str, np.ndarray]]


@gin.configurable
class PoseEnv(gymnasium.Env):
  """An object lies still; the action says where, the reward is minus the distance.

  Observations are `{"state": {"image": [size, size, 3] uint8}}`. The `info` that
  comes with an observation holds what that observation's action should have been:
  `target_pose` [2] float32, beside `object_pose` [3] (x, y, heading) and
  `object_velocity` [2] in metres per step.

  All randomness comes from `reset(seed=...)`: the same seed gives the same bytes.

  Args:
    num_steps: actions in an episode.
    image_size: height and width of the frames in pixels.
    yaw_range: the camera's yaw is uniform in +- this many degrees.
    pitch_range: its pitch, likewise, around -55 degrees.
    distance_range: its distance, likewise, around 3.6 metres.
    hidden_offset: what no frame shows: the target lies beside the object, by what
      `reset_task` draws in +- this many metres. 0: on it.
    render_mode: None or "rgb_array".
  """

  metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

  def __init__(
    self,
    num_steps: int = 1,
    image_size: int = 64,
    yaw_range: float = 25.0,
    pitch_range: float = 8.0,
    distance_range: float = 0.2,
    hidden_offset: float = 0.0,
    render_mode: str | None = None,
  ):
    if num_steps < 1:
      raise ValueError(f"PoseEnv: num_steps: expected >= 1, got {num_steps}.")
    self.num_steps = num_steps
    self.render_mode = render_mode
    self._camera_center = np.array([0.0, -55.0, 3.6])
    self._camera_range = np.array([yaw_range, pitch_range, distance_range])
    self._scene = scene_lib.Scene(image_size)
    image_space = gymnasium.spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
    self.observation_space = gymnasium.spaces.Dict(
      {"state": gymnasium.spaces.Dict({"image": image_space})}
    )
    self.action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)
    self._camera = scene_lib.Camera(*self._camera_center)
    self._start, self._heading = np.zeros(2), 0.0
    self._velocity = np.zeros(2)
    self._hidden_offset, self._offset = hidden_offset, np.zeros(2)
    self._step = 0
    self._frame = np.zeros(image_space.shape, np.uint8)

  @property
  def object_position(self) -> np.ndarray:
    """Where the object is now: [2] float32. No policy under test may read it."""
    return self._position().astype(np.float32)

  @property
  def target_pose(self) -> np.ndarray:
    """The right action for the current observation: [2] float32."""
    return (self._position() + self._offset).astype(np.float32)

  def reset_task(self, seed: int) -> None:
    """Begins a task: draws the offset of its targets, which stays until the next."""
    limit = self._hidden_offset
    self._offset = np.random.default_rng(seed).uniform(-limit, limit, 2)

  def reset(
    self, *, seed: int | None = None, options: dict[str, Any] | None = None
  ) -> tuple[Observation, dict[str, Any]]:
    """Draws a camera and an object pose; returns (observation, info)."""
    super().reset(seed=seed, options=options)
    offsets = self.np_random.uniform(-self._camera_range, self._camera_range)
    self._camera = scene_lib.Camera(*(self._camera_center + offsets))
    self._heading = self.np_random.uniform(-np.pi, np.pi)
    self._start, self._velocity = self._sample_motion()
    self._step = 0
    self._frame = self._render_frame()
    return self._observe(), self._info()

  def step(
    self, action: np.ndarray
  ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
    """Scores the action against the observation it was chosen on, then moves on."""
    reward = -float(np.linalg.norm(np.asarray(action) - self.target_pose))
    self._step += 1
    if self._velocity.any():
      self._frame = self._render_frame()
    terminated = self._step >= self.num_steps
    return self._observe(), reward, terminated, False, self._info()

  def render(self) -> np.ndarray | None:
    """Returns the current frame in the mode "rgb_array", else None."""
    if self.render_mode is None:
      return None
    return self._frame.copy()

  def to_pixels(self, position: np.ndarray) -> tuple[float, float]:
    """Returns the column and row of a position [2] in this episode's frames."""
    return self._scene.to_pixels(self._camera, *position)

  def close(self) -> None:
    """Frees the physics world; a second call does nothing."""
    self._scene.close()

  def _sample_motion(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the object's first position and its velocity: [2] each."""
    return self.np_random.uniform(-0.8, 0.8, 2), np.zeros(2)

  def _position(self, steps_ahead: int = 0) -> np.ndarray:
    return self._start + self._velocity * (self._step + steps_ahead)

  def _render_frame(self) -> np.ndarray:
    x, y = self._position()
    self._scene.place_duck(x, y, self._heading)
    return self._scene.render(self._camera)

  def _observe(self) -> Observation:
    return {"state": {"image": self._frame.copy()}}

  def _info(self) -> dict[str, Any]:
    return {
      "target_pose": self.target_pose,
      "object_pose": np.append(self._position(), self._heading).astype(np.float32),
      "object_velocity": self._velocity.astype(np.float32),
    }


@gin.configurable
class MovingPoseEnv(PoseEnv):
  """The object slides; the action says where it will be `horizon` steps ahead.

  Where the object is at half of the episode, its direction and its heading are
  drawn independently, so that neither its place nor its looks say which way it
  goes: over all episodes the velocity given one frame has mean zero, and the best
  that one frame allows is to answer the present position. Two frames suffice.

  Args:
    num_steps: actions in an episode.
    horizon: how many steps ahead the target lies.
    min_speed: in metres per step.
    max_speed: in metres per step.
    **kwargs: of `PoseEnv`.
  """

  def __init__(
    self,
    num_steps: int = 16,
    horizon: int = 6,
    min_speed: float = 0.04,
    max_speed: float = 0.07,
    **kwargs: Any,
  ):
    super().__init__(num_steps=num_steps, **kwargs)
    self.horizon = horizon
    self._speeds = (min_speed, max_speed)

  @property
  def target_pose(self) -> np.ndarray:
    """Where the object will be `horizon` steps from now: [2] float32."""
    return (self._position(self.horizon) + self._offset).astype(np.float32)

  def _sample_motion(self) -> tuple[np.ndarray, np.ndarray]:
    middle = self.np_random.uniform(-0.4, 0.4, 2)
    direction = self.np_random.uniform(-np.pi, np.pi)
    speed = self.np_random.uniform(*self._speeds)
    velocity = speed * np.array([np.cos(direction), np.sin(direction)])
    return middle - velocity * (self.num_steps - 1) / 2, velocity
