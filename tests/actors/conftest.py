"""A small environment with Gymnasium's methods, and a policy for it."""

from __future__ import annotations

import numpy as np
import pytest


class WalkEnv:
  """A point that starts at random and moves by the action; ends beyond 3."""

  def __init__(self, length=100):
    self.length = length
    self.is_closed = False
    self.reset_seeds = []
    self._rng = np.random.default_rng()

  def reset(self, seed=None, options=None):
    self.reset_seeds.append(seed)
    if seed is not None:
      self._rng = np.random.default_rng(seed)
    self._pos = self._rng.random(2).astype(np.float32)
    self._t = 0
    return self._observe(), {"t": 0}

  def step(self, action):
    self._pos = self._pos + np.asarray(action, np.float32)
    self._t += 1
    is_over = bool(self._pos[0] > 3)
    return self._observe(), 1.0, is_over, self._t >= self.length, {"t": self._t}

  def close(self):
    self.is_closed = True

  def _observe(self):
    return {"state": {"pos": self._pos.copy()}, "t": np.int64(self._t)}


class NoisyPolicy:
  """Moves by 1, and a little noise."""

  def __init__(self):
    self.num_resets = 0
    self.num_restores = 0
    self.explore_probs = set()
    self._rng = np.random.default_rng()

  def seed(self, seed):
    self._rng = np.random.default_rng(seed)

  def reset(self):
    self.num_resets += 1

  def restore(self):
    self.num_restores += 1

  def sample_action(self, obs, explore_prob):
    self.explore_probs.add(explore_prob)
    action = np.float32([1, 0]) + self._rng.random(2).astype(np.float32) / 10
    return action, {"seen": obs["state"]["pos"]}


@pytest.fixture(name="env")
def fixture_env():
  return WalkEnv()


@pytest.fixture(name="make_env")
def fixture_make_env():
  return WalkEnv


@pytest.fixture(name="policy")
def fixture_policy():
  return NoisyPolicy()


@pytest.fixture(name="make_policy")
def fixture_make_policy():
  return NoisyPolicy
