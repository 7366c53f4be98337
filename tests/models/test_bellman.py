"""Bellman targets by lagged networks, of a critic whose values can be told by hand."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, models, policies, replay, specs, training, windows

Spec = specs.ExtendedTensorSpec
SEARCH = policies.CrossEntropySearch(
  num_iterations=1, num_samples=400, num_elites=2, low=-1.0, high=1.0
)


class Critic(models.CriticModel):
  """w x - (a - 0.5)^2: its best action is 0.5, of the value w x."""

  def get_state_specification(self):
    x = Spec((1,), tf.float32, "state/x", time_offsets=0)
    stack = Spec((2, 1), tf.float32, "state/stack", time_offsets=(-1, 0))
    return specs.TensorSpecStruct(x=x, stack=stack)

  def get_action_specification(self):
    return specs.TensorSpecStruct(a=Spec((1,), tf.float32, "action/a", time_offsets=0))

  def get_label_specification(self, mode):
    reward = Spec((1,), tf.float32, "reward", time_offsets=0)
    return specs.TensorSpecStruct(reward=reward)

  def create_network(self):
    return {"w": tf.keras.layers.Dense(1, use_bias=False)}

  def state_func(self, state, mode):
    return self.network["w"](state.x)

  def q_func(self, state, action, mode):
    return {"q_predicted": state - tf.square(action.a - 0.5)}


class QLearner(models.BellmanTargets, Critic):
  pass


@pytest.fixture(scope="module")
def model():
  model = QLearner(bellman_search=SEARCH, target_rate=0.25, lag_steps=10)
  model.build()
  return model


def _weights(model):
  return {name: float(part["w"].kernel[0, 0]) for name, part in model.network.items()}


def _set(model, **weights):
  for name, value in weights.items():
    model.network[name]["w"].kernel.assign([[value]])


def test_labels_are_the_state_one_step_later_and_what_joins_transitions():
  labels = QLearner(bellman_search=SEARCH).get_label_specification("train")
  assert {path: spec.time_offsets for path, spec in labels.items()} == {
    "terminated": 0,
    "reward": 0,
    "discount": None,
    "next_state/x": 1,
    "next_state/stack": (0, 1),
  }
  assert labels["next_state/x"].name == "state/x"
  assert labels["terminated"].dtype == tf.bool


def test_targets_are_the_minimum_of_two_critics(model):
  _set(model, learner=100.0, target=2.0, lagged=3.0)
  x = np.array([[1.0], [-1.0], [1.0]], np.float32)
  labels = specs.TensorSpecStruct(
    {
      "reward": tf.constant([[0.5], [0.5], [1.0]]),
      "discount": tf.constant([[0.9], [0.9], [0.0]]),
      "next_state/x": tf.constant(x),
    }
  )
  want = [[0.5 + 0.9 * 2.0], [0.5 + 0.9 * -3.0], [1.0]]
  np.testing.assert_allclose(model.bellman_targets(labels), want, atol=1e-3)


def test_losses_are_of_the_targets_and_only_the_learner_is_trained(model):
  _set(model, learner=0.0, target=2.0, lagged=2.0)
  ones = tf.ones([1, 1])
  stack = tf.zeros([1, 2, 1])
  features = {"state/x": ones, "state/stack": stack, "action/a": 0.5 * ones}
  labels = {
    "reward": ones,
    "discount": 0.5 * ones,
    "terminated": tf.zeros([1, 1], tf.bool),
    "next_state/x": ones,
    "next_state/stack": stack,
  }
  loss, scalars, gradients = model.compute_gradients(
    specs.TensorSpecStruct(features), specs.TensorSpecStruct(labels), lambda x: x
  )
  assert float(loss) == pytest.approx(4.0, abs=1e-2)  # (0 - (1 + 0.5 * 2)) ** 2
  assert float(scalars["q_target"]) == pytest.approx(2.0, abs=1e-3)
  assert len(gradients) == 1
  assert float(gradients[0][0, 0]) == pytest.approx(-4.0, abs=1e-2)


def test_polyak_targets_and_periodic_lagged_network(model):
  step = tf.Variable(0, dtype=tf.int64)
  model.follow_global_step(step)
  _set(model, learner=4.0, target=0.0, lagged=8.0)
  seen = []
  for number in (1, 2, 10):
    step.assign(number - 1)  # A trainer counts a step at its end.
    _set(model, learner=4.0 * number)
    model.after_train_step()
    found = _weights(model)
    seen.append((found["target"], found["lagged"]))
  assert seen == [(4.0, 4.0), (5.0, 4.0), (13.75, 13.75)]


@pytest.mark.parametrize(
  ("options", "want"),
  [
    ({}, "bellman_search: expected a CrossEntropySearch"),
    ({"search": SEARCH, "target_rate": 0.0}, r"target_rate: .* in \(0, 1\], got 0.0"),
    ({"search": SEARCH, "lag_steps": 0}, "lag_steps: expected .*1"),
  ],
)
def test_bellman_rejects_specs_that_it_cannot_learn_from(options, want):
  with pytest.raises(errors.SpecError, match=want):
    QLearner(**options)


class NamedCritic(Critic):
  """Its state's name in records is no path: 'obs', at state/x."""

  def get_state_specification(self):
    return specs.TensorSpecStruct(x=Spec((1,), tf.float32, "obs", time_offsets=0))


class NamedQLearner(models.BellmanTargets, NamedCritic):
  pass


def test_next_states_are_those_of_the_states_name_in_a_live_replay(tmp_path):
  model = NamedQLearner(bellman_search=SEARCH)
  buffer = replay.ReplayBuffer(
    models.training_specification(model),
    capacity_steps=20,
    n_step=windows.NStep(1, 0.9, rew="reward", done="terminated"),
  )
  with buffer:
    with buffer.writer() as writer:
      for t in range(5):
        state, action = np.float32([t]), np.float32([0.5])
        step = {"state/x": state, "action/a": action, "reward": np.float32([1])}
        writer.append({**step, "terminated": np.array([False])})
      writer.end_episode()
    batch = buffer.sample(4)
    np.testing.assert_array_equal(batch["next_state/x"], batch["state/x"] + 1)
    result = training.train_eval_model(
      model,
      replay.ReplayInputGenerator(buffer, batch_size=4),
      max_train_steps=1,
      model_dir=str(tmp_path),
      create_exporters_fn=None,
    )
  assert np.isfinite(result["loss"])
