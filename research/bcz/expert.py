"""The scripted expert, who demonstrates with a hand that shakes."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np

from research.bcz import table_env
from t2r_seq import policies

_HOVER = 0.3
_PRESSED = table_env.TOP - 0.06  # So low a hand on a block would be, without it.
_PUSH_FROM = np.array([-0.3, 0.0])


@gin.configurable
class TableExpertPolicy(policies.Policy):
  """Does what the instruction says, from wherever it is; its hand may be shaken.

  What the hand does is then not what the expert meant: the action that is taken has
  noise on it for some steps, and the one that is kept beside it (`debug`) has none. So
  demonstrations show how to come back, as in DART (https://arxiv.org/abs/1703.09327)
  and BC-Z.

  Args:
    env: the very environment that the policy acts in.
    noise: standard deviation of the noise, in what a step moves and turns at most.
    noise_prob: probability that a step begins a shake, if there is none.
    noise_steps: steps that a shake goes on for, in one direction.
  """

  def __init__(
    self,
    env: table_env.TableEnv = gin.REQUIRED,
    noise: float = 0.0,
    noise_prob: float = 0.2,
    noise_steps: int = 2,
  ) -> None:
    super().__init__()
    self._env = env
    self._noise, self._prob, self._steps = noise, noise_prob, noise_steps
    self._random = np.random.default_rng()
    self._shake, self._left = np.zeros(4), 0

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the noise repeatable from here on."""
    del env
    self._random = np.random.default_rng(seed)

  def reset(self) -> None:
    """Starts an episode, with a quiet hand."""
    self._left = 0

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> np.ndarray:
    """Returns what the expert means to do, [5]."""
    del state, context, timestep
    env = self._env
    block, hand = env.blocks[env.target], env.position
    if env.verb == "touch":
      return self._descend(block[:2], _PRESSED, 0.0, closed=True)
    if env.verb == "push":
      ahead, beside = block[:2] - hand[:2]
      if ahead > 0.1 and abs(beside) < 0.08 and hand[2] < 0.2:
        # The lower the hand, the faster.
        speed = table_env.STEP * np.clip((0.2 - hand[2]) / 0.1, 0, 1)
        return self._towards([hand[0] + speed, block[1], 0.05], 0.0, closed=True)
      return self._descend(block[:2] + _PUSH_FROM, 0.05, 0.0, closed=True)
    if env.held is not None:
      is_right = env.held == env.target
      return self._towards([*hand[:2], 0.6], env.yaw, closed=is_right)
    is_around = np.linalg.norm(block[:2] - hand[:2]) < 0.06
    is_aligned = abs(block[3] - env.yaw) < 0.3
    if is_around and is_aligned and hand[2] < 0.08:
      return self._towards(hand, block[3], closed=True)
    return self._descend(block[:2], 0.03, block[3], closed=False)

  def _descend(self, place: Any, low: float, yaw: float, closed: bool) -> np.ndarray:
    """Moves in a funnel: what is far from the place, or not yet turned, stays high.

    A hand that is nearly there is nearly down. Were there a threshold, what is learned
    would hover at it, between down and up.
    """
    env = self._env
    away = float(np.linalg.norm(np.asarray(place) - env.position[:2]))
    away += 0.2 * abs(yaw - env.yaw)
    height = low + np.clip(2 * (away - 0.04), 0.0, _HOVER - low)
    return self._towards([*place, height], yaw, closed)

  def sample_action(
    self, obs: Any, explore_prob: float = 0.0
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns what the hand does, and what was meant."""
    del explore_prob
    meant = self.SelectAction(obs)
    if not self._noise:
      return meant, meant
    if self._left == 0 and self._random.random() < self._prob:
      self._shake = self._noise * self._random.standard_normal(4)
      self._left = self._steps
    if self._left == 0:
      return meant, meant
    self._left -= 1
    turn = np.clip(meant[3] - self._env.yaw, -table_env.TURN, table_env.TURN)
    done = meant.copy()
    done[:3] = np.clip(meant[:3], -1, 1) + self._shake[:3]
    done[3] = self._env.yaw + turn + table_env.TURN * self._shake[3]
    return done, meant

  def _towards(self, place: Any, yaw: float, closed: bool) -> np.ndarray:
    move = (np.asarray(place) - self._env.position) / table_env.STEP
    return np.array([*move, yaw, closed], np.float32)
