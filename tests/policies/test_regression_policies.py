"""Policies over an exported model."""

from __future__ import annotations

import numpy as np
import pytest

from t2r_seq import errors, policies


@pytest.fixture(name="predictor")
def fixture_predictor(export_dir):
  return policies.ExportedSavedModelPredictor(export_dir, timeout=0)


def _observation(value):
  return {"state": {"pos": np.full([3], value, np.float32)}}


GOAL = {"goal": np.array([0.5], np.float32)}


def _rollout(policy, values=(1, 10, 100)):
  policy.reset()
  return [
    policy.sample_action({**_observation(v), "goal": np.zeros([1], np.float32)}, 0.0)[0]
    for v in values
  ]


def test_regression_policy_keeps_its_history(predictor):
  policy = policies.RegressionPolicy(predictor)
  assert policy.restore()
  for _ in range(2):
    assert [a.tolist() for a in _rollout(policy)] == [[2] * 3, [11] * 3, [110] * 3]
  assert (policy.global_step, policy.model_path) == (70, predictor.model_path)


@pytest.mark.parametrize(
  "pos",
  [[1.0, 1.0, 1.0], [1, 1, 1], np.ones(3), np.ones(3, np.int64)],
  ids=["list", "list of integers", "float64", "int64"],
)
def test_policy_accepts_default_dtypes_of_numpy_and_gymnasium(predictor, pos):
  policy = policies.RegressionPolicy(predictor)
  policy.restore()
  action, _ = policy.sample_action({"state": {"pos": pos}, "goal": [0.5]})
  assert action.tolist() == [2.5] * 3
  assert action.dtype == np.float32


def test_policy_rejects_observations_of_another_kind(predictor):
  policy = policies.RegressionPolicy(predictor)
  policy.restore()
  want = r"step: state/pos: expected \(batch, 3\) float32, got \(1, 3\) uint8"
  with pytest.raises(errors.SpecError, match=want):
    policy.sample_action({"state": {"pos": np.ones(3, np.uint8)}, **GOAL})


def test_step_before_restore(predictor):
  with pytest.raises(ValueError, match=r"step: no model is loaded from .*Call restore"):
    policies.RegressionPolicy(predictor).sample_action({**_observation(1), **GOAL})


def test_sample_action_returns_all_outputs(predictor):
  policy = policies.RegressionPolicy(predictor, action_key="goal_seen")
  policy.restore()
  action, debug = policy.sample_action({**_observation(1), **GOAL}, 0.0)
  assert action.tolist() == [0.5]
  assert debug["inference_output"].tolist() == [2.5] * 3


def test_select_action_takes_context_and_timestep(predictor):
  policy = policies.RegressionPolicy(predictor)
  policy.restore()
  got = [
    policy.SelectAction(_observation(v), GOAL, timestep)[0]
    for v, timestep in ((1, 0), (10, 1), (100, 0), (1000, None))
  ]
  assert got == [2.5, 11.5, 200.5, 1100.5]


def test_unknown_output_is_named(predictor):
  policy = policies.RegressionPolicy(predictor, action_key="acton")
  policy.restore()
  with pytest.raises(
    errors.SpecError, match=r"no output 'acton', only \[goal_seen, inference_output\]"
  ):
    policy.sample_action({**_observation(1), **GOAL})


def test_restore_without_any_model(tmp_path):
  predictor = policies.ExportedSavedModelPredictor(tmp_path, timeout=0)
  with pytest.raises(ValueError, match="no model is loaded"):
    policies.RegressionPolicy(predictor).restore()


@pytest.mark.parametrize(
  "make_policy",
  [
    lambda p, seed: policies.OUExploreRegressionPolicy(p, seed=seed),
    lambda p, seed: policies.ScheduledExplorationRegressionPolicy(p, seed=seed),
  ],
  ids=["ou", "scheduled"],
)
def test_noise_is_seeded(predictor, make_policy):
  def run(seed):
    policy = make_policy(predictor, seed)
    policy.restore()
    return np.array(_rollout(policy))

  greedy = policies.RegressionPolicy(predictor)
  greedy.restore()
  noise = run(seed=1) - np.array(_rollout(greedy))
  assert noise.dtype == np.float32
  assert 0.001 < np.abs(noise).mean() < 1
  np.testing.assert_array_equal(run(seed=1), run(seed=1))
  assert not np.array_equal(run(seed=1), run(seed=2))
  reseeded = make_policy(predictor, 1)
  reseeded.restore()
  reseeded.seed(2)
  np.testing.assert_array_equal(np.array(_rollout(reseeded)), run(seed=2))


def test_ou_noise_drifts_and_restarts_at_reset(predictor):
  policy = policies.OUExploreRegressionPolicy(predictor, theta=0.0, sigma=1.0, seed=3)
  kicks = np.random.default_rng(3).standard_normal([4, 2])
  zeros = np.zeros([2])
  got = [policy.explore(zeros) for _ in range(3)]
  np.testing.assert_allclose(got, np.cumsum(kicks[:3], axis=0))
  policy.reset()
  np.testing.assert_allclose(policy.explore(zeros), kicks[3])
  quiet = policies.OUExploreRegressionPolicy(predictor, use_noise=False)
  assert quiet.explore(zeros) is zeros


def test_scheduled_noise_follows_the_training_step(predictor):
  policy = policies.ScheduledExplorationRegressionPolicy(
    predictor, stddev_0=1.0, slope=-0.01
  )
  policy.restore()
  assert policy.stddev == pytest.approx(1.0 - 0.7)
  policy = policies.ScheduledExplorationRegressionPolicy(predictor, 1.0, slope=-1.0)
  policy.restore()
  assert policy.stddev == 0


class _Constant(policies.Policy):
  """Acts by one value."""

  control_period, is_timed = 0.05, True

  def __init__(self, value, global_step=0):
    super().__init__()
    self._value, self._step = value, global_step
    self.seeds = []

  def SelectAction(self, state, context, timestep):
    return self._value

  def seed(self, seed):
    self.seeds.append(seed)

  @property
  def global_step(self):
    return self._step


def test_switch_policy_switches_between_episodes_only():
  def run(seed):
    policy = policies.PerEpisodeSwitchPolicy(
      lambda: _Constant("explore"), lambda: _Constant("greedy", 5), 0.25, seed
    )
    assert (policy.global_step, policy.control_period) == (5, 0.05)
    assert policy.is_timed and policy.restore()
    episodes = []
    for _ in range(200):
      policy.reset()
      actions = {policy.sample_action(None)[0] for _ in range(3)}
      assert len(actions) == 1
      episodes += actions
    return episodes

  episodes = run(seed=0)
  assert 25 < episodes.count("explore") < 75
  assert episodes == run(seed=0)
  assert episodes != run(seed=1)


def test_switch_policy_seeds_are_apart():
  explore, greedy = _Constant(0), _Constant(1)
  policy = policies.PerEpisodeSwitchPolicy(lambda: explore, lambda: greedy, 0.5)
  policy.seed(3)
  assert explore.seeds != greedy.seeds
  assert len(explore.seeds) == len(greedy.seeds) == 1


def test_switch_policy_checks_its_probability():
  with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
    policies.PerEpisodeSwitchPolicy(lambda: _Constant(0), lambda: _Constant(1), 1.5)
