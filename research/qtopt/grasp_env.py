"""Grasping from a bin in PyBullet, as a Gymnasium environment.

A gripper of two fingers hangs on a gantry above a bin with a few random objects. Each
step moves it, turns it, opens or closes it, or ends the episode; the reward is 1 if an
object hangs in the air then. The frame of the gripper is that of its displacements and
of the camera on its carriage: x along the way that the fingers close, y across, z up.
Nothing is loaded from files, and the same seed gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, imports

try:
  import gymnasium
  import pybullet
except ImportError as error:
  raise imports.missing_extra(error.name or "pybullet", "pose-env") from error

Observation = dict[str, dict[str, np.ndarray]]
Action = Mapping[str, np.ndarray]

# Metres. A step goes at most so far: from the start, two are over any object, and one
# of them reaches the bottom.
MAX_STEP = np.array([0.08, 0.08, 0.16])
BIN_HALF_SIZE = 0.12
FINGER_REACH = 0.04  # Of an open finger, from the middle.
START_HEIGHT = 0.14
LIFTED_HEIGHT = 0.08
_LOWEST, _HIGHEST = 0.006, 0.18
_FINGER = (0.005, 0.012, 0.030)  # Half extents.
_PALM = (0.046, 0.006, 0.006)
# The camera of the carriage hangs at a fixed height, off the fingers' axis, so that it
# sees what is between them.
CAMERA_HEIGHT, CAMERA_OFFSET, CAMERA_VIEW = 0.45, -0.04, 0.18
_SECONDS = 1 / 120
_MOVING, _GRIPPING, _SETTLING = 24, 12, 12  # Steps of the simulation.
_SPEED = 1.0
_JOINTS = {"x": 0, "y": 1, "z": 2, "yaw": 3, "left": 4, "right": 5}
_COLORS = (
  (0.85, 0.20, 0.18, 1.0),
  (0.15, 0.55, 0.30, 1.0),
  (0.15, 0.35, 0.85, 1.0),
  (0.95, 0.75, 0.10, 1.0),
  (0.60, 0.25, 0.70, 1.0),
)


def to_pixels(x: Any, y: Any, size: Sequence[int]) -> tuple[Any, Any]:
  """Returns where the carriage's camera sees places of the bottom.

  Args:
    x: of the gripper's frame in metres, arrays or tensors.
    y: the same.
    size: height and width of the picture, or of maps of it.
  Returns:
    (columns, rows): 0 is in the middle of the first pixel.
  """
  height, width = size
  column = x / CAMERA_VIEW * width / 2 + (width - 1) / 2
  row = (CAMERA_OFFSET - y) / CAMERA_VIEW * height / 2 + (height - 1) / 2
  return column, row


@gin.configurable
class GraspEnv(gymnasium.Env):
  """A gripper above a bin: what it sees, what it does, whether it lifts anything.

  Observations are `{"state": {...}}` of `image` [height, width, 3] uint8,
  `gripper_closed` [1] (how far, from 0 to 1), and `height_to_bottom` [1] in metres.
  Actions are Tensor2Robot's: `world_vector` [3] in metres, `vertical_rotation` [2]
  (sine and cosine of the turn), and `close_gripper`, `open_gripper`,
  `terminate_episode` [1], each meant if above 0.5. The gripper moves first, and then
  closes or opens. The reward is 1 if an object is held in the air as the episode
  terminates; an episode that takes too long is cut off, without.

  Args:
    num_objects: least and most of them; boxes, balls and cylinders.
    max_steps: actions in an episode.
    image_size: height and width of the frames in pixels.
    camera: 'carriage' looks down and turns with the gripper; 'shoulder' stands still,
      as in QT-Opt, and sees bin and gripper from the side.
    render_mode: None or "rgb_array".
  Raises:
    ValueError: there are no such objects, steps or camera.
  """

  metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

  def __init__(
    self,
    num_objects: tuple[int, int] = (2, 5),
    max_steps: int = 10,
    image_size: tuple[int, int] = (48, 48),
    camera: str = "carriage",
    render_mode: str | None = None,
  ):
    if not 1 <= num_objects[0] <= num_objects[1] <= len(_COLORS):
      raise ValueError(
        "GraspEnv: num_objects: expected the least and the most, from 1 to "
        f"{len(_COLORS)}, got {num_objects}."
      )
    if camera not in ("carriage", "shoulder"):
      raise ValueError(
        f"GraspEnv: camera: expected 'carriage' or 'shoulder', got {camera!r}."
      )
    self._num_objects = num_objects
    self._max_steps = errors.check_count("GraspEnv", "max_steps", max_steps)
    self._image_size, self._camera = tuple(image_size), camera
    self.render_mode = render_mode
    box = gymnasium.spaces.Box
    image = box(0, 255, (*self._image_size, 3), np.uint8)
    state = {
      "image": image,
      "gripper_closed": box(0.0, 1.0, (1,), np.float32),
      "height_to_bottom": box(0.0, 1.0, (1,), np.float32),
    }
    self.observation_space = gymnasium.spaces.Dict(
      {"state": gymnasium.spaces.Dict(state)}
    )
    command = box(0.0, 1.0, (1,), np.float32)
    limit = MAX_STEP.astype(np.float32)
    self.action_space = gymnasium.spaces.Dict(
      {
        "world_vector": box(-limit, limit, dtype=np.float32),
        "vertical_rotation": box(-1.0, 1.0, (2,), np.float32),
        "close_gripper": command,
        "open_gripper": command,
        "terminate_episode": command,
      }
    )
    self._client: int | None = pybullet.connect(pybullet.DIRECT)
    self._gripper, self._objects = -1, list[int]()
    self._target = np.zeros(4)  # x, y, z and yaw of the gripper.
    self._step, self._frame = 0, np.zeros(image.shape, np.uint8)

  @property
  def pose(self) -> np.ndarray:
    """Where the gripper is told to be: x, y, height of its tips, yaw; [4] float64."""
    return self._target.copy()

  @property
  def object_positions(self) -> np.ndarray:
    """Where the objects are: [n, 3] float64. No policy under test may read it."""
    poses = [
      self._call("getBasePositionAndOrientation", each) for each in self._objects
    ]
    return np.array([position for position, _ in poses])

  def reset(
    self, *, seed: int | None = None, options: dict[str, Any] | None = None
  ) -> tuple[Observation, dict[str, Any]]:
    """Draws objects and a place to begin at; returns (observation, info)."""
    super().reset(seed=seed, options=options)
    # A world of its own for each episode: nothing of the last one is left in a cache.
    self._call("resetSimulation")
    self._call("setGravity", 0.0, 0.0, -9.81)
    self._call("setTimeStep", _SECONDS)
    self._call(
      "setPhysicsEngineParameter",
      numSolverIterations=30,
      deterministicOverlappingPairs=1,
    )
    random = self.np_random
    place = random.uniform(-0.05, 0.05, 2)
    height = START_HEIGHT + random.uniform(-0.02, 0.02)
    self._target = np.array([*place, height, random.uniform(-np.pi, np.pi)])
    self._add_bin()
    self._gripper = self._add_gripper()
    count = random.integers(self._num_objects[0], self._num_objects[1] + 1)
    self._objects = self._add_objects(int(count))
    self._grip(is_closing=False)
    self._move(_SETTLING)
    self._step, self._frame = 0, self._render_frame()
    return self._observe(), self._info()

  def step(
    self, action: Action
  ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
    """Moves and turns, then closes or opens, or terminates."""
    vector = np.clip(np.asarray(action["world_vector"], float), -MAX_STEP, MAX_STEP)
    sine, cosine = np.asarray(action["vertical_rotation"], float)
    is_meant = {
      name: float(np.squeeze(action[name])) > 0.5
      for name in ("close_gripper", "open_gripper", "terminate_episode")
    }
    self._step += 1
    terminated = is_meant["terminate_episode"]
    if not terminated:
      x, y, z, yaw = self._target
      forward = _turned(vector[:2], yaw)
      limit = BIN_HALF_SIZE - 0.01
      x, y = np.clip([x + forward[0], y + forward[1]], -limit, limit)
      z = np.clip(z + vector[2], _LOWEST, _HIGHEST)
      self._target = np.array([x, y, z, yaw + np.arctan2(sine, cosine)])
      self._move(_MOVING)
      if is_meant["close_gripper"] != is_meant["open_gripper"]:
        self._grip(is_meant["close_gripper"])
        self._move(_GRIPPING)
      self._frame = self._render_frame()
    info = self._info(terminated)
    truncated = not terminated and self._step >= self._max_steps
    return self._observe(), float(info["is_success"]), terminated, truncated, info

  def render(self) -> np.ndarray | None:
    """Returns the current frame in the mode "rgb_array", else None."""
    return None if self.render_mode is None else self._frame.copy()

  def close(self) -> None:
    """Frees the world; a second call does nothing."""
    if self._client is not None:
      pybullet.disconnect(physicsClientId=self._client)
      self._client = None

  def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
    if self._client is None:
      raise RuntimeError("GraspEnv: used after close(). Make a new one.")
    return getattr(pybullet, name)(*args, physicsClientId=self._client, **kwargs)

  def _observe(self) -> Observation:
    opening = self._call("getJointState", self._gripper, _JOINTS["left"])[0]
    opening += self._call("getJointState", self._gripper, _JOINTS["right"])[0]
    closed = np.clip(1 - opening / (2 * FINGER_REACH), 0, 1)
    height = self._call("getJointState", self._gripper, _JOINTS["z"])[0]
    return {
      "state": {
        "image": self._frame.copy(),
        "gripper_closed": np.array([closed], np.float32),
        "height_to_bottom": np.array([height], np.float32),
      }
    }

  def _info(self, terminated: bool = False) -> dict[str, Any]:
    is_lifted = bool((self.object_positions[:, 2] > LIFTED_HEIGHT).any())
    return {"is_success": terminated and is_lifted, "is_lifted": is_lifted}

  def _move(self, num_steps: int) -> None:
    """Goes where the target is, and holds the fingers as they are told."""
    for name, position in zip(("x", "y", "z", "yaw"), self._target, strict=True):
      self._control(name, position, 60.0, _SPEED * (10 if name == "yaw" else 1))
    for _ in range(num_steps):
      self._call("stepSimulation")

  def _grip(self, is_closing: bool) -> None:
    for name in ("left", "right"):
      self._control(name, 0.0 if is_closing else FINGER_REACH, 8.0, 0.5)

  def _control(self, joint: str, position: float, force: float, speed: float) -> None:
    self._call(
      "setJointMotorControl2",
      self._gripper,
      _JOINTS[joint],
      pybullet.POSITION_CONTROL,
      targetPosition=position,
      force=force,
      maxVelocity=speed,
      positionGain=0.3,
    )

  def _add_bin(self) -> None:
    size, wall, height = BIN_HALF_SIZE, 0.006, 0.02
    outer = size + 2 * wall
    self._add_box((0.6, 0.6, 0.01), (0.0, 0.0, -0.03), (0.30, 0.32, 0.36, 1.0))
    self._add_box((outer, outer, 0.01), (0.0, 0.0, -0.01), (0.75, 0.75, 0.72, 1.0))
    for side in (-1.0, 1.0):
      at, color = side * (size + wall), (0.45, 0.40, 0.35, 1.0)
      self._add_box((wall, outer, height), (at, 0.0, height), color)
      self._add_box((outer, wall, height), (0.0, at, height), color)

  def _add_box(self, half: Any, position: Any, color: Any) -> None:
    shapes = self._shapes(pybullet.GEOM_BOX, color, halfExtents=half)
    self._call("createMultiBody", 0, *shapes, position)

  def _shapes(self, kind: int, color: Any, **size: Any) -> tuple[int, int]:
    """Returns the shape that collides and the one that is seen."""
    seen = {{"height": "length"}.get(name, name): value for name, value in size.items()}
    return (
      self._call("createCollisionShape", kind, **size),
      self._call("createVisualShape", kind, rgbaColor=color, **seen),
    )

  def _add_objects(self, count: int) -> list[int]:
    """Puts objects on the bottom, none in another."""
    random, places, found = self.np_random, list[np.ndarray](), list[int]()
    colors = random.permutation(len(_COLORS))[:count]
    misses = 0
    while len(places) < count:
      # Between an object and the walls there is room for a finger.
      place = random.uniform(-BIN_HALF_SIZE + 0.05, BIN_HALF_SIZE - 0.05, 2)
      if all(np.linalg.norm(place - other) > 0.055 for other in places):
        places.append(place)
      elif (misses := misses + 1) % 200 == 0:  # There may be no room left.
        places.clear()
    for place, color in zip(places, colors, strict=True):
      kind, half = random.integers(3), random.uniform(0.013, 0.020, 3)
      if kind == 0:
        shapes = self._shapes(pybullet.GEOM_BOX, _COLORS[color], halfExtents=half)
      elif kind == 1:
        shapes = self._shapes(pybullet.GEOM_SPHERE, _COLORS[color], radius=half[2])
      else:
        shapes = self._shapes(
          pybullet.GEOM_CYLINDER, _COLORS[color], radius=half[0], height=2 * half[2]
        )
      yaw = pybullet.getQuaternionFromEuler((0.0, 0.0, random.uniform(-np.pi, np.pi)))
      body = self._call("createMultiBody", 0.05, *shapes, (*place, half[2]), yaw)
      self._call(
        "changeDynamics",
        body,
        -1,
        lateralFriction=1.0,
        rollingFriction=0.002,
        spinningFriction=0.002,
      )
      found.append(body)
    return found

  def _add_gripper(self) -> int:
    """Makes the gantry: slides of x, y and z, a turn, and two fingers on slides."""
    finger, palm = 2 * _FINGER[2], _PALM[2]
    gray = (0.12, 0.12, 0.14, 1.0)
    bar = self._shapes(pybullet.GEOM_BOX, gray, halfExtents=_PALM)
    tip = self._shapes(pybullet.GEOM_BOX, gray, halfExtents=_FINGER)
    none, slide, turn = (-1, -1), pybullet.JOINT_PRISMATIC, pybullet.JOINT_REVOLUTE
    # (shapes, where in its parent, parent, joint, axis); parents count from 1.
    links = [
      (none, (0, 0, 0), 0, slide, (1, 0, 0)),
      (none, (0, 0, 0), 1, slide, (0, 1, 0)),
      (none, (0, 0, finger + palm), 2, slide, (0, 0, 1)),
      (bar, (0, 0, 0), 3, turn, (0, 0, 1)),
      (tip, (-_FINGER[0], 0, -palm - _FINGER[2]), 4, slide, (-1, 0, 0)),
      (tip, (_FINGER[0], 0, -palm - _FINGER[2]), 4, slide, (1, 0, 0)),
    ]
    count, upright = len(links), (0.0, 0.0, 0.0, 1.0)
    shapes, places, parents, joints, axes = zip(*links, strict=True)
    body = self._call(
      "createMultiBody",
      0,
      -1,
      -1,
      (0.0, 0.0, 0.0),
      upright,
      linkMasses=[0.2] * count,
      linkCollisionShapeIndices=[each[0] for each in shapes],
      linkVisualShapeIndices=[each[1] for each in shapes],
      linkPositions=places,
      linkOrientations=[upright] * count,
      linkInertialFramePositions=[(0.0, 0.0, 0.0)] * count,
      linkInertialFrameOrientations=[upright] * count,
      linkParentIndices=parents,
      linkJointTypes=joints,
      linkJointAxis=axes,
    )
    for joint, position in zip(
      _JOINTS.values(), (*self._target, FINGER_REACH, FINGER_REACH), strict=True
    ):
      self._call("resetJointState", body, joint, position)
    for joint in (_JOINTS["left"], _JOINTS["right"]):
      self._call("changeDynamics", body, joint, lateralFriction=1.5)
    return body

  def _render_frame(self) -> np.ndarray:
    height, width = self._image_size
    x, y, _, yaw = self._target
    if self._camera == "carriage":
      eye = (*(np.array([x, y]) + _turned((0.0, CAMERA_OFFSET), yaw)), CAMERA_HEIGHT)
      below, up = (eye[0], eye[1], 0.0), (*_turned((0.0, 1.0), yaw), 0.0)
      field = 2 * np.degrees(np.arctan2(CAMERA_VIEW, CAMERA_HEIGHT))
    else:
      eye, below, up, field = (0.25, -0.35, 0.40), (0.0, 0.0, 0.03), (0, 0, 1), 42.0
    return self.picture(
      self._image_size,
      pybullet.computeViewMatrix(eye, below, up),
      pybullet.computeProjectionMatrixFOV(field, width / height, 0.05, 2.0),
    )

  def picture(
    self, size: tuple[int, int], view: Sequence[float], projection: Sequence[float]
  ) -> np.ndarray:
    """Renders the world from anywhere: [height, width, 3] uint8.

    Args:
      size: height and width in pixels.
      view: matrix of the camera, 16 numbers by columns, as PyBullet has it.
      projection: matrix of its lens.
    """
    height, width = size
    pixels = self._call(
      "getCameraImage",
      width,
      height,
      view,
      projection,
      shadow=0,
      lightDirection=(0.4, -0.6, 1.5),
      renderer=pybullet.ER_TINY_RENDERER,
      flags=pybullet.ER_NO_SEGMENTATION_MASK,
    )[2]
    return np.array(np.reshape(pixels, (height, width, 4))[..., :3], np.uint8)


def _turned(vector: Any, yaw: float) -> np.ndarray:
  """Returns a vector [2] of the gripper's frame in the world's."""
  cosine, sine = np.cos(yaw), np.sin(yaw)
  return np.array([[cosine, -sine], [sine, cosine]]) @ np.asarray(vector)
