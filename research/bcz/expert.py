"""The scripted expert, who demonstrates with a hand that shakes."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np

from research.bcz import table_env
from t2r_seq import policies

_HOVER = 0.3
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
    noise: standard deviation of the noise, in units of the action.
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
    self._shake, self._left = np.zeros(5), 0

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
    is_close = lambda place, limit: np.linalg.norm(place - hand[:2]) < limit  # noqa: E731
    if env.verb == "touch":
      low = table_env.TOP if is_close(block[:2], 0.06) else _HOVER
      return self._towards([*block[:2], low], env.yaw, closed=True)
    if env.verb == "push":
      start = block[:2] + _PUSH_FROM
      is_behind = hand[0] < block[0] - 0.1 and abs(hand[1] - block[1]) < 0.08
      if hand[2] < table_env.TOP and is_behind:
        return self._towards([hand[0] + 1, block[1], 0.05], env.yaw, closed=True)
      low = 0.05 if is_close(start, 0.06) else _HOVER
      return self._towards([*start, low], env.yaw, closed=True)
    if env.held is not None:
      is_right = env.held == env.target
      return self._towards([*hand[:2], 0.6], env.yaw, closed=is_right)
    is_ready = is_close(block[:2], 0.05) and abs(block[3] - env.yaw) < 0.2
    if is_ready and hand[2] < 0.07:
      return self._towards(hand, block[3], closed=True)
    # A hand that is low beside a block rises first, else it would push.
    low = 0.04 if is_ready else _HOVER
    place = block[:2] if is_ready or hand[2] > table_env.TOP + 0.05 else hand[:2]
    return self._towards([*place, low], block[3], closed=False)

  def sample_action(
    self, obs: Any, explore_prob: float = 0.0
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns what the hand does, and what was meant."""
    del explore_prob
    meant = self.SelectAction(obs)
    if not self._noise:
      return meant, meant
    if self._left == 0 and self._random.random() < self._prob:
      self._shake = self._noise * np.append(self._random.standard_normal(4), 0.0)
      self._left = self._steps
    if self._left == 0:
      return meant, meant
    self._left -= 1
    return (meant + self._shake).astype(np.float32), meant

  def _towards(self, place: Any, yaw: float, closed: bool) -> np.ndarray:
    env = self._env
    move = (np.asarray(place) - env.position) / table_env.STEP
    turn = (yaw - env.yaw) / table_env.TURN
    return np.array([*np.clip([*move, turn], -1, 1), closed], np.float32)
