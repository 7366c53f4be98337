"""Searching for actions: the cross-entropy method, in Python and inside of a step."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, models, policies, preprocessors, specs, training
from t2r_seq.policies.cross_entropy import (
  CategoricalCrossEntropyMethod,
  CrossEntropyMethod,
  NormalCrossEntropyMethod,
)

_SPEC = specs.ExtendedTensorSpec
GOALS = np.array([[0.4, -0.6], [-0.3, 0.8]], np.float32)


def test_method_with_a_distribution_of_ones_own():
  """Whole grids as samples, so that every number is known."""
  seen = []

  def sample(center, width):
    return center + width * np.arange(-2, 3)

  def update(params, elites):
    seen.append(elites.tolist())
    return {"center": elites.mean(), "width": params["width"] / 2}

  objective = lambda x: -np.abs(np.asarray(x) - 3.0)  # noqa: E731
  samples, values, params = CrossEntropyMethod(
    sample, objective, update, {"center": 0.0, "width": 1.0}, 2, num_iterations=3
  )
  # The best elite is the last.
  assert seen == [[1.0, 2.0], [2.0, 2.5], [2.5, 2.75]]
  assert samples.tolist() == [1.75, 2.0, 2.25, 2.5, 2.75]
  assert values.tolist() == [-1.25, -1.0, -0.75, -0.5, -0.25]
  assert params["width"] == 1 / 8


def test_method_with_samples_by_name_and_a_threshold():
  calls = []

  def objective(samples):
    calls.append(1)
    return samples["a"] + samples["b"]

  draw = lambda: {"a": np.array([1, 5, 3]), "b": np.array([1, 1, 9])}  # noqa: E731

  def update(params, elites):
    assert {name: each.tolist() for name, each in elites.items()} == {
      "a": [5, 3],
      "b": [1, 9],
    }
    return params

  _, values, _ = CrossEntropyMethod(draw, objective, update, {}, 2, 9, 11.0)
  assert (len(calls), values.max()) == (1, 12)


def test_normal_distributions_find_a_maximum_within_bounds():
  def objective(x):
    return -np.square(x - [1.0, 5.0]).sum(axis=1)

  mean, stddev = NormalCrossEntropyMethod(
    objective, 0.0, [1.0, 1.0], 64, 10, 12, high=[9.0, 2.0], seed=0
  )
  np.testing.assert_allclose(mean, [1.0, 2.0], atol=0.05)
  assert (stddev < 0.1).all()
  slow, _ = NormalCrossEntropyMethod(
    objective, [0.0, 0.0], 1.0, 64, 10, 1, decay=0.75, seed=0
  )
  fast, _ = NormalCrossEntropyMethod(objective, [0.0, 0.0], 1.0, 64, 10, 1, seed=0)
  np.testing.assert_allclose(slow, fast / 4)


def test_categories_find_a_maximum():
  probabilities = CategoricalCrossEntropyMethod(
    lambda x: -np.abs(x - [2, 0]).sum(axis=1), np.full([2, 4], 0.25), 50, 5, 5, seed=0
  )
  np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
  assert probabilities.argmax(axis=1).tolist() == [2, 0]


class ReachCritic(models.CriticModel):
  """The value of an action is how near to the goal it is; the goal is the state."""

  encoded = 0

  def get_state_specification(self):
    return specs.TensorSpecStruct(
      goal=_SPEC((2, 2), tf.float32, "goal", time_offsets=(-1, 0))
    )

  def get_action_specification(self):
    return specs.TensorSpecStruct(pose=_SPEC((2,), tf.float32, "pose", time_offsets=0))

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(reward=_SPEC((), tf.float32, "reward"))

  def create_network(self):
    return tf.keras.layers.Dense(1, kernel_initializer="zeros")

  def state_func(self, state, mode):
    self.encoded += 1
    return state.goal[:, -1]

  def q_func(self, state, action, mode):
    far = tf.reduce_sum(tf.square(state - action.pose), axis=-1)
    return {"q_predicted": self.network(state)[:, 0] - far}


def _predictor(model):
  predictor = policies.CheckpointPredictor(model)
  predictor.init_randomly()
  return predictor


SEARCH = policies.CrossEntropySearch(num_iterations=4, num_samples=64, num_elites=8)


@pytest.fixture(name="searching", scope="module")
def fixture_searching(tmp_path_factory):
  """A predictor of an exported critic whose step searches."""
  model = ReachCritic(search=SEARCH)
  model.build()
  folder = str(tmp_path_factory.mktemp("critic"))
  model.encoded = 0
  training.export_saved_model(model, folder, 5)
  # Once for each function that is traced, whatever the number of iterations.
  assert model.encoded == 3
  predictor = policies.ExportedSavedModelPredictor(folder, timeout=0)
  predictor.restore()
  return predictor


def test_step_of_a_critic_finds_the_best_action(searching):
  assert list(searching.get_step_specification()) == ["state/goal"]
  searching.reset(2)
  outputs = searching.step({"state/goal": GOALS})
  np.testing.assert_allclose(outputs["action"], GOALS, atol=0.15)
  value = -np.square(outputs["action"] - GOALS).sum(axis=1)
  np.testing.assert_allclose(outputs["q_predicted"], value, atol=1e-5)
  # Whole windows of states and candidates are valued, too.
  candidates = np.zeros([1, 64, 2], np.float32)
  served = searching.predict(
    {"state/goal": GOALS[np.newaxis], "action/pose": candidates}
  )
  assert served["q_predicted"].shape == (1, 64)


def test_searches_are_seeded_by_environment(searching):
  def act(num_envs, seeds, num_steps=2):
    searching.reset(num_envs)
    for env, seed in enumerate(seeds):
      searching.seed(seed, env)
    goals = np.repeat(GOALS[:1], num_envs, axis=0)
    return [searching.step({"state/goal": goals})["action"] for _ in range(num_steps)]

  alone, again, other = act(1, [7]), act(1, [7]), act(1, [8])
  np.testing.assert_array_equal(alone, again)
  assert not np.array_equal(alone, other)
  assert not np.array_equal(alone[0], alone[1])
  together = act(2, [8, 7])
  np.testing.assert_allclose(together[0][1], alone[0][0], rtol=1e-5)
  np.testing.assert_allclose(together[1][1], alone[1][0], rtol=1e-5)
  # The caller's own state draws the same.
  state = searching.pure.initial_state([7])
  for want in alone:
    outputs, state = searching.pure.step({"state/goal": GOALS[:1]}, state)
    np.testing.assert_array_equal(outputs["action"], want)


def test_policy_acts_by_the_search_inside_of_the_export(searching):
  searching.reset(1)
  policy = policies.RegressionPolicy(searching, action_key="action")
  policy.seed(3)
  policy.reset()
  action, outputs = policy.sample_action(GOALS[0])
  np.testing.assert_allclose(action, GOALS[0], atol=0.15)
  assert outputs["q_predicted"] > -0.05


class MixedCritic(ReachCritic):
  """A pose, and one of five grips; pixels in the state, scaled by the preprocessor.

  Its reward is (1,), as Tensor2Robot's critics have it.
  """

  default_preprocessor_cls = preprocessors.ImageToFloatPreprocessor

  def get_state_specification(self):
    image = _SPEC((4, 4, 3), tf.float32, "image", data_format="png", time_offsets=0)
    return specs.TensorSpecStruct(image=image)

  def get_action_specification(self):
    return specs.TensorSpecStruct(
      pose=_SPEC((2,), tf.float32, "pose"), grip=_SPEC((), tf.int32, "grip")
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(reward=_SPEC((1,), tf.float32, "reward"))

  def state_func(self, state, mode):
    return state.image[:, 0, 0]

  def q_func(self, state, action, mode):
    far = tf.reduce_sum(tf.square(state[:, :2] - action.pose), axis=-1)
    wrong = tf.abs(tf.cast(action.grip, tf.float32) - 3.0)
    return {"q_predicted": self.network(state) - (far + wrong)[:, tf.newaxis]}


def test_integers_are_searched_as_categories():
  search = policies.CrossEntropySearch(
    4, 64, 8, low=[0, 0, 0], high=[1, 1, 4], mean=0.5
  )
  predictor = _predictor(MixedCritic(search=search))
  image = np.full([1, 4, 4, 3], 51, np.uint8)
  outputs = predictor.step({"state/image": image})
  assert outputs["action_grip"].tolist() == [3]
  assert outputs["q_predicted"].shape == (1, 1)
  np.testing.assert_allclose(outputs["action_pose"], [[0.2, 0.2]], atol=0.1)
  acting = policies.RegressionPolicy(
    predictor, {"grip": "action_grip", "pose": "action_pose"}
  )
  action, _ = acting.sample_action({"state/image": image[0]})
  assert action["grip"] == 3 and action["pose"].shape == (2,)


BAD_SEARCHES = {
  "no bounds of integers": (
    lambda: _predictor(MixedCritic(search=SEARCH)),
    r"CrossEntropySearch: action/grip: expected bounds of the integers, got \(\) int32",
  ),
  "bounds of other elements": (
    lambda: _predictor(
      ReachCritic(search=policies.CrossEntropySearch(low=[0.0, 0.0, 0.0]))
    ),
    r"CrossEntropySearch: low: expected one number, or 2, .*got 3",
  ),
  "another number of candidates": (
    lambda: ReachCritic(action_batch_size=3, search=SEARCH),
    r"action_batch_size: expected the search's num_samples, 64, or None, got 3",
  ),
  "fewer samples than elites": (
    lambda: policies.CrossEntropySearch(num_samples=5),
    "num_samples: expected at least num_elites, got 5",
  ),
}


@pytest.mark.parametrize("case", BAD_SEARCHES)
def test_searches_that_cannot_be_are_refused(case):
  make, message = BAD_SEARCHES[case]
  with pytest.raises(errors.SpecError, match=message):
    make()


class _Critic(policies.AbstractPredictor):
  """A critic of one state at a time, or of several candidates of one state."""

  def __init__(self, num_candidates=None):
    shape = (2,) if num_candidates is None else (num_candidates, 2)
    self.spec = specs.TensorSpecStruct(
      {
        "state/goal": _SPEC((2,), tf.float32),
        "action/pose": _SPEC(shape, tf.float32),
      }
    )

  def predict(self, features):
    flat = specs.flatten_spec_structure(features)
    goal, pose = flat["state/goal"], flat["action/pose"]
    specs.validate_and_flatten(self.spec, flat, ignore_batch=True)
    goal = goal.reshape([-1, *[1] * (pose.ndim - 2), 2])
    value = -np.square(pose - goal).sum(axis=-1)
    hidden = pose + flat.get("hidden", goal)
    return {"q_predicted": value, "lstm_hidden_state": hidden}

  def get_feature_specification(self):
    return self.spec

  def restore(self, is_async=None):
    return True

  def assert_is_loaded(self):
    pass

  step = reset = get_step_specification = close = None


def test_another_number_of_elements_is_refused():
  policy = policies.CEMPolicy(action_size=3, predictor=_Critic(), seed=0)
  want = r"action_size: expected that of the critic's action/pose, \(2,\) float32, .* 3"
  with pytest.raises(errors.SpecError, match=want):
    policy.SelectAction({"state": {"goal": GOALS[0]}})


@pytest.mark.parametrize("num_candidates", [None, 64])
def test_python_search_works_with_any_critic(num_candidates):
  policy = policies.CEMPolicy(predictor=_Critic(num_candidates), cem_iters=5, seed=0)
  action = policy.SelectAction({"state": {"goal": GOALS[0]}})
  np.testing.assert_allclose(action, GOALS[0], atol=0.1)
  policy.seed(4)
  once, found = policy.sample_action({"state/goal": GOALS[0]})
  policy.seed(4)
  np.testing.assert_array_equal(policy.sample_action({"state/goal": GOALS[0]})[0], once)
  assert set(found) == {"q_predicted", "final_params", "best_idx"}


def test_recurrent_critic_keeps_the_chosen_actions_state():
  seen = []

  def pack(model, state, hidden, timestep, samples):
    seen.append((model, hidden.copy(), timestep))
    count = len(samples)
    return {
      "state/goal": np.repeat(state[None], count, 0),
      "action/pose": samples.astype(np.float32),
      "hidden": np.repeat(hidden[None], count, 0),
    }

  policy = policies.LSTMCEMPolicy(
    2, t2r_model="model", predictor=_Critic(), pack_fn=pack, cem_iters=2, seed=0
  )
  first = policy.SelectAction(GOALS[0], None, 0)
  second = policy.SelectAction(GOALS[0], None, 1)
  assert [(model, step) for model, _, step in seen] == [
    ("model", 0), ("model", 0), ("model", 1), ("model", 1)
  ]  # fmt: skip
  np.testing.assert_array_equal(seen[0][1], [0, 0])
  np.testing.assert_allclose(seen[2][1], first, rtol=1e-6)
  policy.reset()
  policy.SelectAction(GOALS[0], None, 0)
  np.testing.assert_array_equal(seen[4][1], [0, 0])
  assert second.shape == (2,)
  with pytest.raises(errors.SpecError, match="pack_fn: expected a function"):
    policies.LSTMCEMPolicy(2, predictor=_Critic())


class _Scores(_Critic):
  """Scores of three actions, the same whatever is seen; at training step 50."""

  global_step = 50

  def get_step_specification(self):
    return specs.TensorSpecStruct(x=_SPEC((), tf.float32))

  def step(self, features, is_first=None):
    return {"q_predicted": np.tile([[0.0, 2.0, 1.0]], [len(is_first), 1])}

  def reset(self, num_envs=1):
    pass


@pytest.mark.parametrize(
  ("epsilon", "want", "share"),
  [
    (0.0, 0.0, 1.0),
    (1.0, 1.0, 1 / 3),
    (policies.LinearSchedule(1.0, 0.2, 100), 0.6, 0.4 + 0.6 / 3),
  ],
)
def test_epsilon_greedy(epsilon, want, share):
  policy = policies.EpsilonGreedyPolicy(_Scores(), epsilon=epsilon, seed=0)
  assert policy.epsilon == pytest.approx(want)
  actions = [policy.sample_action(np.float32(0))[0] for _ in range(600)]
  assert set(actions) <= {0, 1, 2}
  assert np.mean(np.equal(actions, 1)) == pytest.approx(share, abs=0.07)


def test_schedule_ends():
  schedule = policies.LinearSchedule(1.0, 0.5, 10)
  assert [schedule(step) for step in (-1, 0, 5, 10, 99)] == [1.0, 1.0, 0.75, 0.5, 0.5]


@pytest.mark.parametrize("num_steps", [0, -1, float("nan")])
def test_schedule_rejects_no_steps(num_steps):
  with pytest.raises(errors.SpecError, match="num_steps: expected more than 0"):
    policies.LinearSchedule(num_steps=num_steps)
