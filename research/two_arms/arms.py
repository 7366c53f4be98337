"""Two arms of PyBullet that reach for a ball: a KUKA of 7 joints, an xArm of 6.

Observations are the positions of tip and ball in the frame of the arm's base, and the
angles of the joints. Actions are changes of the angles in radians, at 10 Hz. An episode
succeeds when the tip is within 3 cm of the ball.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from t2r_seq import imports, specs, store

try:
  import gymnasium
  import pybullet
  import pybullet_data
except ImportError as error:
  raise imports.missing_extra(error.name or "pybullet", "pose-env") from error

# Its file, its joints at the start, and the ball's radius, angle and height.
ARMS = {
  "kuka": (
    "kuka_iiwa/model.urdf",
    (0.0, 0.5, 0.0, -1.4, 0.0, 0.9, 0.0),
    ((0.45, 0.7), (-1.0, 1.0), (0.15, 0.6)),
  ),
  "xarm": (
    "xarm/xarm6_robot.urdf",
    (0.0, -0.4, -0.8, 0.0, 1.2, 0.0),
    ((0.3, 0.5), (-1.0, 1.0), (0.1, 0.45)),
  ),
}
STATE, ACTION = "observation.state", "action"
FPS = 10
MAX_STEPS = 40
NEAR = 0.03  # Metres.
_MAX_TURN = 0.2  # Radians per step.
_EXPERT_SPEED = 0.04  # Metres per step.
_STEP_SECONDS, _NUM_SUBSTEPS = 1 / 120, 12


class ReachEnv(gymnasium.Env):
  """An arm that reaches for a ball.

  Args:
    arm: 'kuka' or 'xarm'.
  """

  def __init__(self, arm: str):
    file, rest, self._ball_ranges = ARMS[arm]
    self._rest = np.asarray(rest)
    self._client: int | None = pybullet.connect(pybullet.DIRECT)
    pybullet.setTimeStep(_STEP_SECONDS, physicsClientId=self._client)
    self._body = pybullet.loadURDF(
      os.path.join(pybullet_data.getDataPath(), file),
      useFixedBase=True,
      physicsClientId=self._client,
    )
    count = pybullet.getNumJoints(self._body, physicsClientId=self._client)
    kinds = [self._call(pybullet.getJointInfo, i)[2] for i in range(count)]
    self._joints = [i for i, k in enumerate(kinds) if k == pybullet.JOINT_REVOLUTE]
    self._ball, self._num_steps = np.zeros(3), 0
    box, size = gymnasium.spaces.Box, len(rest)
    self.observation_space = box(-10, 10, (6 + size,), np.float32)
    self.action_space = box(-_MAX_TURN, _MAX_TURN, (size,), np.float32)

  def reset(
    self, *, seed: int | None = None, options: Any = None
  ) -> tuple[np.ndarray, dict[str, Any]]:
    """Turns the joints to about their rest, and puts the ball somewhere."""
    super().reset(seed=seed)
    angles = self._rest + self.np_random.uniform(-0.2, 0.2, len(self._rest))
    for joint, angle in zip(self._joints, angles, strict=True):
      self._call(pybullet.resetJointState, joint, angle)
    radius, turn, height = (self.np_random.uniform(*each) for each in self._ball_ranges)
    self._ball = np.array([radius * np.cos(turn), radius * np.sin(turn), height])
    self._num_steps = 0
    return self._observe(), {}

  def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
    """Turns the joints for a tenth of a second; the reward is minus the distance."""
    turn = np.clip(np.asarray(action, np.float64), -_MAX_TURN, _MAX_TURN)
    self._call(
      pybullet.setJointMotorControlArray,
      self._joints,
      pybullet.POSITION_CONTROL,
      self._angles + turn,
    )
    for _ in range(_NUM_SUBSTEPS):
      pybullet.stepSimulation(physicsClientId=self._client)
    self._num_steps += 1
    distance = float(np.linalg.norm(self._ball - self._tip))
    is_near, is_late = distance < NEAR, self._num_steps >= MAX_STEPS
    return self._observe(), -distance, is_near, is_late, {"is_success": is_near}

  def expert_action(self) -> np.ndarray:
    """Returns the turn that moves the tip straight to the ball: inverse kinematics."""
    way = self._ball - self._tip
    goal = self._tip + way * min(1, _EXPERT_SPEED / np.linalg.norm(way))
    angles = self._call(
      pybullet.calculateInverseKinematics,
      self._joints[-1],
      goal,
      maxNumIterations=100,
      residualThreshold=1e-5,
    )
    turn = np.asarray(angles) - self._angles
    return np.clip(turn, -_MAX_TURN, _MAX_TURN).astype(np.float32)

  def close(self) -> None:
    """Ends the simulation."""
    if self._client is not None:
      pybullet.disconnect(self._client)
      self._client = None

  @property
  def _angles(self) -> np.ndarray:
    states = self._call(pybullet.getJointStates, self._joints)
    return np.array([state[0] for state in states])

  @property
  def _tip(self) -> np.ndarray:
    link = self._joints[-1]
    state = self._call(pybullet.getLinkState, link, computeForwardKinematics=True)
    return np.asarray(state[4])

  def _observe(self) -> np.ndarray:
    return np.concatenate([self._tip, self._ball, self._angles]).astype(np.float32)

  def _call(self, function: Any, *arguments: Any, **options: Any) -> Any:
    return function(self._body, *arguments, **options, physicsClientId=self._client)


ENVS = {arm: f"{arm.capitalize()}Reach-v0" for arm in ARMS}
for _arm, _name in ENVS.items():
  gymnasium.register(_name, ReachEnv, kwargs={"arm": _arm})


def record(arm: str, path: str, num_episodes: int, seed: int) -> float:
  """Writes episodes of the expert to a store; returns its rate of success.

  Elements have names, which is how several arms share what is the same in each.

  Args:
    arm: 'kuka' or 'xarm'.
    path: of the store.
    num_episodes: how many.
    seed: of the episodes.
  """
  env = ReachEnv(arm)
  size = env.action_space.shape[0]
  joints = [f"joint_{number}" for number in range(1, size + 1)]
  positions = [f"{what}_{axis}" for what in ("tip", "ball") for axis in "xyz"]
  names = {STATE: [*positions, *joints], ACTION: joints}
  columns = {
    path: specs.ExtendedTensorSpec(
      (len(own),), "float32", path, is_sequence=True, convention={"names": own}
    )
    for path, own in names.items()
  }
  successes = []
  with store.EpisodeStore.create(path, columns, {"fps": FPS}) as writer:
    for number in range(num_episodes):
      observation, _ = env.reset(seed=seed if number == 0 else None)
      episode: dict[str, list[np.ndarray]] = {STATE: [], ACTION: []}
      is_over = False
      while not is_over:
        action = env.expert_action()
        episode[STATE].append(observation)
        episode[ACTION].append(action)
        observation, _, terminated, truncated, info = env.step(action)
        is_over = terminated or truncated
      successes.append(info["is_success"])
      writer.append_episode({k: np.stack(values) for k, values in episode.items()})
  env.close()
  return float(np.mean(successes))
