"""Policies that act in several environments with one call of the model."""

from __future__ import annotations

import numpy as np
import pytest

from t2r_seq import policies

NUM_STEPS = 5


class _Recorded(policies.ExportedSavedModelPredictor):
  """Counts its steps."""

  num_calls = 0

  def step(self, features, is_first=None):
    self.num_calls += 1
    return super().step(features, is_first)


def _constant(value):
  class Constant(policies.Policy):
    def SelectAction(self, state, context, timestep):
      return np.full([3], value, np.float32)

    def sample_actions(self, observations, is_first, explore_prob=0.0):
      return [np.full([3], value, np.float32)] * len(is_first), [value] * len(is_first)

  return Constant


def _regression(predictor):
  return policies.RegressionPolicy(predictor)


def _ou(predictor):
  return policies.OUExploreRegressionPolicy(predictor, sigma=0.5)


def _scheduled(predictor):
  return policies.ScheduledExplorationRegressionPolicy(predictor, stddev_0=0.5)


def _switch(predictor):
  return policies.PerEpisodeSwitchPolicy(
    lambda: _ou(predictor), lambda: _constant(7.0)(), explore_prob=0.5
  )


POLICIES = {
  "regression": _regression,
  "ou": _ou,
  "scheduled": _scheduled,
  "switch": _switch,
}
# Environment, its seeds by episode, and how many steps its episodes have.
EPISODES = {0: [(1, 5)], 1: [(2, 2), (3, 3)], 2: [(4, 3), (5, 2)]}


def _observe(env, t):
  return np.float32([10**env, t, 1])


def _alone(make, export_dir):
  """Runs each environment's episodes in a policy of its own."""
  actions = {}
  for env, episodes in EPISODES.items():
    policy = make(policies.ExportedSavedModelPredictor(export_dir, timeout=0))
    policy.restore()
    t = 0
    for seed, length in episodes:
      policy.seed(seed)
      policy.reset()
      for _ in range(length):
        observation = {"state/pos": _observe(env, t), "goal": np.zeros(1, np.float32)}
        actions[env, t] = policy.sample_action(observation, 0.0)[0]
        t += 1
  return actions


def _together(make, predictor):
  """Runs all environments in one policy."""
  policy = make(predictor)
  policy.restore()
  starts = {
    (env, sum(length for _, length in episodes[:index])): seed
    for env, episodes in EPISODES.items()
    for index, (seed, _) in enumerate(episodes)
  }
  actions = {}
  for t in range(NUM_STEPS):
    is_first = np.array([(env, t) in starts for env in EPISODES])
    for env in np.flatnonzero(is_first):
      policy.seed(starts[env, t], env)
    observations = {
      "state": {"pos": np.stack([_observe(env, t) for env in EPISODES])},
      "goal": np.zeros([3, 1], np.float32),
    }
    chosen, kept = policy.sample_actions(observations, is_first, 0.0)
    assert len(chosen) == len(kept) == 3
    actions.update({(env, t): chosen[env] for env in EPISODES})
  return actions


@pytest.mark.parametrize("name", POLICIES)
def test_each_acts_as_it_would_alone(export_dir, name):
  predictor = _Recorded(export_dir, timeout=0)
  together = _together(POLICIES[name], predictor)
  assert predictor.num_calls == NUM_STEPS
  alone = _alone(POLICIES[name], export_dir)
  assert together.keys() == alone.keys()
  for key, action in alone.items():
    np.testing.assert_allclose(together[key], action, rtol=1e-6, err_msg=str(key))


def test_both_policies_of_a_switch_are_chosen(export_dir):
  together = _together(_switch, _Recorded(export_dir, timeout=0))
  greedy = {key for key, action in together.items() if action.tolist() == [7.0] * 3}
  assert 0 < len(greedy) < len(together)


def test_from_one_environment_to_several_and_back(export_dir):
  policy = policies.RegressionPolicy(
    policies.ExportedSavedModelPredictor(export_dir, timeout=0)
  )
  policy.restore()
  one = {"state/pos": np.ones(3, np.float32), "goal": np.zeros(1, np.float32)}
  two = {path: np.stack([value, value]) for path, value in one.items()}
  for _ in range(2):
    policy.reset()
    assert policy.sample_action(one)[0].tolist() == [2.0] * 3
    actions, outputs = policy.sample_actions(two, np.array([True, True]))
    assert [action.tolist() for action in actions] == [[2.0] * 3] * 2
    assert outputs[1]["goal_seen"].tolist() == [0.0]


def test_policy_without_several_environments_is_an_error():
  class OneByOne(policies.Policy):
    def SelectAction(self, state, context, timestep):
      return np.zeros(3, np.float32)

  with pytest.raises(NotImplementedError, match="OneByOne acts in one environment at"):
    OneByOne().sample_actions({}, np.array([True]))
