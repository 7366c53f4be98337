"""Policies that explore: a script that sees nothing, and the critic's with noise."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np

from research.qtopt import grasp_env, grasp_models, qtopt_models
from t2r_seq import policies

_UP = 0.09  # Higher than objects, and what it takes to have lifted one.


@gin.configurable
class ScriptedGraspPolicy(policies.Policy):
  """Goes down somewhere and closes, lifts, ends: QT-Opt's script for first successes.

  It knows how high and how closed the gripper is, and sees no image. Some episodes are
  wilder than others, and it errs on purpose now and then: whoever learns from it has to
  see what is of no use, too.

  Args:
    random_prob: of a step that does anything at all, in the wildest of episodes.
    error_prob: of a step that is left out, or done at the wrong time.
    stddev: of a displacement before it goes down, in metres.
    seed: of all that is drawn.
  """

  def __init__(
    self,
    random_prob: float = 0.8,
    error_prob: float = 0.1,
    stddev: float = 0.035,
    seed: int | None = None,
  ) -> None:
    super().__init__()
    self._random_prob, self._error_prob = random_prob, error_prob
    self._stddev = stddev
    self._random = np.random.default_rng(seed)
    self._wildness = 0.0

  def reset(self) -> None:
    """Draws how wild an episode is; most are not."""
    self._wildness = self._random_prob * self._random.random() ** 2

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes what is drawn repeatable from here on."""
    self._random = np.random.default_rng([seed, env])

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> dict[str, np.ndarray]:
    """Returns the next part of the grasp."""
    del context, timestep
    random, limit = self._random, grasp_env.MAX_STEP
    height = float(state["state"]["height_to_bottom"][0])
    closed = float(state["state"]["gripper_closed"][0])
    if random.random() < self._wildness:
      commands = [name for name in qtopt_models.COMMANDS if random.random() < 0.25]
      return make_action(random.uniform(-limit, limit), self._turn(), *commands)
    is_error = random.random() < self._error_prob
    if closed < 0.2 and height > _UP:
      to = random.uniform(0.006, 0.05 if is_error else 0.02)
      vector = (*random.normal(0.0, self._stddev, 2), to - height)
      commands = [] if random.random() < self._error_prob else ["close_gripper"]
      return make_action(vector, self._turn(), *commands)
    across = random.normal(0.0, 0.01, 2)
    if closed < 0.2:  # It forgot to close.
      return make_action((*across, 0.0), 0.3 * self._turn(), "close_gripper")
    if height < _UP:
      commands = ["open_gripper"] if is_error else []
      return make_action((*across, random.uniform(0.1, 0.16)), 0.0, *commands)
    last = "open_gripper" if is_error else "terminate_episode"
    return make_action(np.zeros(3), 0.0, last)

  def _turn(self) -> float:
    return float(self._random.normal(0.0, 0.5))


@gin.configurable
class GraspPolicy(policies.RegressionPolicy):
  """Does what an export's search finds, or now and then something near, or anything.

  Attributes:
    predictor: see below.

  Args:
    predictor: of a critic with a search.
    script_prob: of a step that the script takes.
    stddev: of noise on the displacement, in metres.
    seed: of what is drawn.
  """

  def __init__(
    self,
    predictor: policies.AbstractPredictor = gin.REQUIRED,
    script_prob: float = 0.0,
    stddev: float = 0.0,
    seed: int | None = None,
  ) -> None:
    super().__init__(predictor, grasp_models.ACTION_KEY)
    self.predictor = predictor
    self._script = ScriptedGraspPolicy(seed=seed)
    self._script_prob, self._stddev = script_prob, stddev
    self._random = np.random.default_rng(seed)

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the search and the noise repeatable from here on."""
    super().seed(seed, env)
    self._script.seed(seed, env)
    self._random = np.random.default_rng([seed, env, 1])

  def sample_action(self, obs: Any, explore_prob: float = 0.0) -> tuple[Any, Any]:
    """See the base class."""
    action, outputs = super().sample_action(obs, explore_prob)
    if self._random.random() < self._script_prob:
      return self._script.SelectAction(obs), outputs
    noise = self._random.normal(0.0, self._stddev, 3) if self._stddev else np.zeros(3)
    vector = np.clip(
      action["world_vector"] + noise, -grasp_env.MAX_STEP, grasp_env.MAX_STEP
    )
    return {**action, "world_vector": vector.astype(np.float32)}, outputs


def make_action(vector: Any, angle: float, *commands: str) -> dict[str, np.ndarray]:
  """Returns an action of a displacement [3], a turn in radians, and commands."""
  vector = np.clip(vector, -grasp_env.MAX_STEP, grasp_env.MAX_STEP)
  return {
    "world_vector": vector.astype(np.float32),
    "vertical_rotation": np.array([np.sin(angle), np.cos(angle)], np.float32),
    **{
      name: np.array([name in commands], np.float32) for name in qtopt_models.COMMANDS
    },
  }
