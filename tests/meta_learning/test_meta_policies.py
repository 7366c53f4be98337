"""Policies that learn a task: over critics, with noise, and of whole episodes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, meta_learning, models, policies
from t2r_seq.meta_learning.meta_policies import (
  FixedLengthSequentialRegressionPolicy,
  MAMLCEMPolicy,
  ScheduledExplorationMAMLRegressionPolicy,
)
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct


class PeakCritic(models.CriticModel):
  """Values an action by its distance from a peak, which is what adapts."""

  def get_state_specification(self):
    return TensorSpecStruct(x=ExtendedTensorSpec((1,), tf.float32, "x"))

  def get_action_specification(self):
    return TensorSpecStruct(action=ExtendedTensorSpec((2,), tf.float32, "action"))

  def get_label_specification(self, mode):
    return TensorSpecStruct(reward=ExtendedTensorSpec((1,), tf.float32, "reward"))

  def create_network(self):
    return Peak()

  def q_func(self, state, action, mode):
    error = action.action - (self.network.peak + 0 * state.x)
    return {"q_predicted": -tf.reduce_sum(tf.abs(error), -1, keepdims=True)}


class Peak(tf.Module):
  def __init__(self):
    super().__init__()
    self.peak = tf.Variable([[0.5, 0.5]], name="peak")


def predictor_of(base):
  inner = meta_learning.MAMLInnerLoopGradientDescent(0.1)
  model = meta_learning.MAMLModel(base, inner_loop=inner)
  predictor = policies.CheckpointPredictor(model)
  predictor.init_randomly()
  return predictor


@pytest.mark.parametrize("is_named", [True, False])
def test_critic_search_depends_on_the_condition(is_named):
  policy = MAMLCEMPolicy(
    predictor=predictor_of(PeakCritic()), cem_iters=6, cem_samples=128, seed=0
  )
  x, action = np.zeros(1, np.float32), np.array([-1, 2], np.float32)
  state = {"state": {"x": x}} if is_named else x
  step = {
    "observation": state,
    "action": {"action": action} if is_named else action,
    "reward": 0.0,
  }
  _, found = policy.sample_action(state)
  assert found["q_predicted"] == 0  # Nothing is known of the task.
  policy.adapt([[step]])
  # The value -3 was too low by 3: the peak moves by 0.1 * 2 * 3 towards the action.
  action, found = policy.sample_action(state)
  np.testing.assert_allclose(action, [-0.1, 1.1], atol=0.15)
  assert -0.3 < found["q_predicted"] < 0
  for forget in (policy.reset_task, lambda: policy.adapt([])):
    forget()
    assert policy.sample_action(state)[1]["q_predicted"] == 0
    policy.adapt([[step]])


class PlaceModel(models.RegressionModel):
  """Says what it has learned, wherever it is."""

  def get_feature_specification(self, mode):
    return TensorSpecStruct(x=ExtendedTensorSpec((1,), tf.float32, "x"))

  def get_label_specification(self, mode):
    return TensorSpecStruct(target=ExtendedTensorSpec((2,), tf.float32, "y"))

  def create_network(self):
    return Peak()

  def a_func(self, features, mode):
    return {"inference_output": self.network.peak + 0 * features.x}


def test_exploring_policy_adapts():
  policy = ScheduledExplorationMAMLRegressionPolicy(
    predictor=predictor_of(PlaceModel(action_size=2)), stddev_0=0.2, slope=0.0, seed=0
  )
  state = np.zeros(1, np.float32)
  step = {"observation": state, "action": np.float32([-1, 2]), "reward": 0.0}
  for adapts, want in ((False, [0.5, 0.5]), (True, [0.35, 0.65])):
    if adapts:
      policy.adapt([[step]])
    actions = np.stack([policy.sample_action(state, 1.0)[0] for _ in range(100)])
    np.testing.assert_allclose(actions.mean(axis=0), want, atol=0.06)
    np.testing.assert_allclose(actions.std(axis=0), 0.2, atol=0.06)


class EpisodeModel:
  """Packs all that it is given; see `predict` of its predictor."""

  def pack_features(self, state, prev_episode_data, current_episode_data, timestep):
    return {
      "state": state,
      "shown": prev_episode_data,
      "before": current_episode_data,
      "timestep": timestep,
    }


class EpisodePredictor:
  """Gives the actions of three steps: what was shown, and how far it is."""

  def predict(self, features):
    shown = features["shown"] or 0
    actions = [[shown + t, float(features["state"])] for t in range(3)]
    self.asked = features
    return {"inference_output": np.array([[actions]])}


def test_sequence_policy_returns_the_action_of_each_step():
  predictor = EpisodePredictor()
  policy = FixedLengthSequentialRegressionPolicy(EpisodeModel(), predictor)
  policy.adapt(10)
  for state in range(3):
    action = policy.SelectAction(state)
    np.testing.assert_array_equal(action, [10 + state, state])
    before = predictor.asked["before"]
    assert (before and before["state"]) == (state - 1 if state else None)
  with pytest.raises(errors.SpecError, match="more than 3 steps"):
    policy.SelectAction(3)
  policy.reset()
  np.testing.assert_array_equal(policy.SelectAction(7), [10, 7])
  policy.reset_task()
  np.testing.assert_array_equal(policy.SelectAction(7), [1, 7])


class Always(policies.Policy):
  """Does the same in all steps, and keeps what it was shown."""

  control_period, is_timed = None, False

  def __init__(self, action):
    super().__init__()
    self.action, self.seen, self.seeds, self.num_resets = action, None, [], 0

  def reset_task(self):
    self.seen = None

  def adapt(self, episode_data):
    self.seen = len(episode_data)

  def reset(self):
    self.num_resets += 1

  def seed(self, seed, env=0):
    self.seeds.append((seed, env))

  def SelectAction(self, state, context=None, timestep=None):
    return self.action


def test_retrial_policy_acts_after_trials():
  first, second = Always(1), Always(2)
  first.control_period, second.control_period = 0.05, 0.1
  first.is_timed, second.is_timed = False, True
  policy = meta_learning.WatchTryLearnPolicy(first, second, num_demos=2)
  assert (policy.control_period, policy.is_timed) == (0.05, False)
  episode = [{"observation": 0, "action": 0, "reward": 0.0}]
  policy.seed(3)
  assert first.seeds == second.seeds == [(3, 0)]
  assert policy.SelectAction(0) == 1  # Nothing is known of the task.
  policy.adapt([episode] * 2)
  policy.reset()
  assert policy.sample_action(0) == (1, None)
  assert (first.seen, second.seen) == (2, None)
  policy.adapt([episode] * 3)
  policy.reset()
  assert policy.sample_action(0) == (2, None)
  assert (policy.control_period, policy.is_timed) == (0.1, True)
  assert (first.seen, second.seen) == (2, 3)
  assert (first.num_resets, second.num_resets) == (1, 1)
  policy.reset_task()
  assert policy.SelectAction(0) == 1 and second.seen is None


def test_model_path_is_that_of_the_retrial_policy():
  predictors = [predictor_of(PeakCritic()) for _ in range(2)]
  both = [MAMLCEMPolicy(predictor=each) for each in predictors]
  policy = meta_learning.WatchTryLearnPolicy(*both)
  policy.init_randomly()
  assert policy.global_step == both[1].global_step
  assert policy.model_path == both[1].model_path
