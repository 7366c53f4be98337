"""Success rates and rewards of policies, with their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from t2r_seq import actors, errors
from t2r_seq.actors.evaluation import evaluation_table


class CoinEnv:
  """One step; succeeds where the action is above a number that the seed draws."""

  def __init__(self, says_success=True):
    self._says_success = says_success

  def close(self):
    pass

  def reset(self, seed=None, options=None):
    self._number = np.random.default_rng(seed).random()
    return np.zeros([1]), {}

  def step(self, action):
    is_success = action > self._number
    info = {"is_success": is_success} if self._says_success else {}
    return np.zeros([1]), float(action), True, False, info


class Always:
  def __init__(self, action):
    self._action = action

  def reset(self):
    pass

  def sample_action(self, obs, explore_prob):
    return self._action, None


def test_policies_meet_the_same_episodes_and_have_intervals():
  policies = {"never": Always(0.0), "half": Always(0.5), "again": Always(0.5)}
  found = actors.evaluate_policies(policies, CoinEnv, num_episodes=10, seeds=(3, 5))
  assert found["half"] == found["again"]
  never, half = found["never"], found["half"]
  assert (never.num_episodes, never.success_rate, never.episode_length) == (20, 0, 1)
  # Wilson's interval of 0 of 20, as in tables of it.
  np.testing.assert_allclose(never.success_interval, [0, 0.1611], atol=1e-4)
  low, high = half.success_interval
  assert 0.2 < low < half.success_rate < high < 0.9
  assert half.reward_interval == (0.5, 0.5)
  assert half.reward_by_seed == {3: 0.5, 5: 0.5}
  header, _, row, *_ = evaluation_table(found).split("\n")
  assert header.startswith("| policy | success | 95 % |")
  assert row == "| never | 0% | 0% to 16% | 0.00 | 0.00 to 0.00 | 1.0 | 20 |"


def test_interval_of_rewards_holds_their_mean():
  episodes = actors.evaluate_policies(
    {"x": Always(1.0)}, lambda: CoinEnv(False), num_episodes=3, seeds=[0]
  )["x"]
  assert (episodes.success_rate, episodes.success_interval) == (None, None)
  assert "| x | - | - | 1.00 |" in evaluation_table({"x": episodes})


@pytest.mark.parametrize("seeds", [(), (1, 1)])
def test_seeds_are_checked(seeds):
  with pytest.raises(errors.SpecError, match="seeds: expected at least one seed, each"):
    actors.evaluate_policies({"x": Always(1.0)}, CoinEnv, seeds=seeds)
