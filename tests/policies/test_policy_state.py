"""A policy's state: in the export or with the caller; recurrent networks, chunks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, models, policies, specs, training, windows
from t2r_seq.lite import policy_io

_SPEC = specs.ExtendedTensorSpec
LENGTHS = (7, 1, 4)


class StackModel(models.RegressionModel):
  """Chunks of four actions from stacks, masks of them, and a goal."""

  target_shape = (4, 2)
  target_offsets = (0, 1, 2, 3)

  def get_feature_specification(self, mode):
    spec = {
      "state/pos": _SPEC((2, 3), tf.float32, "pos", time_offsets=(-3, 0)),
      "goal": _SPEC((1,), tf.float32, "goal"),
    }
    return windows.add_mask_specs(specs.TensorSpecStruct(spec))

  def get_label_specification(self, mode):
    target = _SPEC(
      self.target_shape, tf.float32, "target", time_offsets=self.target_offsets
    )
    return specs.TensorSpecStruct(target=target)

  def create_network(self):
    return tf.keras.layers.Dense(int(np.prod(self.target_shape)))

  def a_func(self, features, mode):
    mask = tf.cast(features.state.pos_mask, tf.float32)
    pos = tf.reshape(features.state.pos, [-1, 6])
    out = self.network(tf.concat([pos, mask, features.goal], axis=-1))
    return {"inference_output": tf.reshape(out, [-1, *self.target_shape])}


class SingleModel(StackModel):
  """One action, no chunk."""

  target_shape, target_offsets = (2,), 0


class LSTMModel(models.RecurrentRegressionModel):
  """An LSTM over positions, with a learned initial state."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      pos=_SPEC((3,), tf.float32, "pos", is_sequence=True),
      goal=_SPEC((1,), tf.float32, "goal"),
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(
      target=_SPEC((2,), tf.float32, "target", is_sequence=True)
    )

  def get_recurrent_state_specification(self, mode):
    return {"lstm": {name: _SPEC((5,), tf.float32) for name in "hc"}}

  def initial_recurrent_state(self, batch_size):
    learned = self.network["initial"](tf.ones([batch_size, 1]))
    return {"lstm": {"h": learned[:, :5], "c": learned[:, 5:]}}

  def create_network(self):
    return {
      "initial": tf.keras.layers.Dense(10, kernel_initializer="glorot_uniform"),
      "lstm": tf.keras.layers.LSTM(5, return_sequences=True, return_state=True),
      "out": tf.keras.layers.Dense(2),
    }

  def recurrent_network_fn(self, features, state, mode):
    initial = [state["lstm"]["h"], state["lstm"]["c"]]
    goal = tf.repeat(features.goal[:, None], tf.shape(features.pos)[1], axis=1)
    seen = tf.concat([features.pos, goal], axis=-1)
    out, h, c = self.network["lstm"](seen, initial_state=initial)
    return (
      {"inference_output": self.network["out"](out)},
      {"lstm": {"h": h, "c": c}},
    )


def _predictor(model):
  """A predictor of the model, untrained, without an export."""
  predictor = policies.CheckpointPredictor(model)
  predictor.init_randomly()
  return predictor


MODELS = {
  "stack": lambda: StackModel(padding="zero"),
  "chunks": lambda: StackModel(execution=policies.ChunkExecution(3, 0.5)),
  "lstm": LSTMModel,
}


@pytest.fixture(scope="module", params=MODELS)
def exported(request, tmp_path_factory):
  """A model, and a predictor of its export."""
  tf.keras.utils.set_random_seed(1)
  model = MODELS[request.param]()
  model.build()
  folder = str(tmp_path_factory.mktemp("exports"))
  training.export_saved_model(model, folder, global_step=3)
  predictor = policies.ExportedSavedModelPredictor(folder, timeout=0)
  assert predictor.restore()
  return model, predictor


def _episodes(spec, seed=0):
  rng = np.random.default_rng(seed)
  return [
    {
      path: rng.normal(size=(length, *leaf.shape)).astype(np.float32)
      for path, leaf in spec.items()
    }
    for length in LENGTHS
  ]


def _observations(episodes, t):
  """Observations of environments that begin anew whenever an episode is over."""
  numbers = [t % len(next(iter(episode.values()))) for episode in episodes]
  observations = {
    path: np.stack([e[path][n] for e, n in zip(episodes, numbers, strict=True)])
    for path in episodes[0]
  }
  return observations, np.array(numbers) == 0


def test_both_forms_of_a_step_are_equal_bit_for_bit(exported):
  _, predictor = exported
  episodes = _episodes(predictor.get_step_specification())
  predictor.reset(len(episodes))
  pure = predictor.pure
  state = pure.initial_state(range(len(episodes)))
  shared = pure.initial_state()  # Another client of the same export.
  for t in range(9):
    observations, is_first = _observations(episodes, t)
    want = predictor.step(observations, is_first)
    got, state = pure.step(observations, state, is_first)
    alone = {path: value[:1] for path, value in observations.items()}
    other, shared = pure.step(alone, shared, is_first[:1])
    assert want.keys() == got.keys() == other.keys()
    for name, value in want.items():
      np.testing.assert_array_equal(got[name], value)
      np.testing.assert_allclose(other[name], value[:1], rtol=1e-5, atol=1e-6)


def test_environments_and_episodes_are_independent(exported):
  _, predictor = exported
  spec = predictor.get_step_specification()
  together = _episodes(spec)
  predictor.reset(len(together))
  many = [predictor.step(*_observations(together, t)) for t in range(7)]
  for env, episode in enumerate(together):
    predictor.reset(1)
    for t in range(7):
      alone = predictor.step(*_observations([episode], t))
      for name, value in alone.items():
        np.testing.assert_allclose(many[t][name][env], value[0], rtol=1e-5, atol=1e-6)


def test_recurrent_policy_steps_as_it_was_trained():
  model = LSTMModel()
  predictor = _predictor(model)
  episodes = _episodes(predictor.get_step_specification())
  for episode in episodes:
    goal = episode["goal"] = np.broadcast_to(episode["goal"][:1], episode["goal"].shape)
    features = specs.TensorSpecStruct(pos=episode["pos"][None], goal=goal[:1])
    want = model.inference_network_fn(features, None, "eval")["inference_output"][0]
    predictor.reset()
    for t, step in enumerate(want):
      outputs = predictor.step(*_observations([episode], t))
      np.testing.assert_allclose(outputs["inference_output"][0], step, atol=1e-5)
  served = predictor.predict({"pos": features.pos, "goal": features.goal})
  np.testing.assert_allclose(served["inference_output"][0], want, atol=1e-5)


@pytest.mark.parametrize("burn_in", [0, 2])
def test_burnt_in_steps_have_no_loss_and_no_gradient(burn_in):
  tf.keras.utils.set_random_seed(1)
  model = LSTMModel(burn_in=burn_in)
  model.build()
  pos = tf.constant(np.random.default_rng(0).normal(size=(2, 5, 3)), tf.float32)
  labels = specs.TensorSpecStruct(target=tf.random.normal([2, 5, 2], seed=1))
  with tf.GradientTape() as tape:
    tape.watch(pos)
    features = specs.TensorSpecStruct(pos=pos, goal=tf.ones([2, 1]))
    loss, _ = model.train_loss(features, labels)
  outputs = model.inference_network_fn(features, None, "eval")["inference_output"]
  error = np.square(outputs - labels.target)[:, burn_in:]
  np.testing.assert_allclose(loss, error.mean(), rtol=1e-5)
  reached = np.abs(tape.gradient(loss, pos)).sum(axis=(0, 2)) > 0
  assert reached.tolist() == [t >= burn_in for t in range(5)]


class StoredModel(LSTMModel):
  """Its windows begin with the state that the policy had there."""

  def get_feature_specification(self, mode):
    features = super().get_feature_specification(mode)
    return self.with_stored_state(features, mode)


@pytest.mark.parametrize("burn_in", [0, 2])
def test_windows_continue_from_a_given_state(burn_in):
  model = StoredModel(burn_in=burn_in, stored_state=True)
  predictor = _predictor(model)
  spec = predictor.get_step_specification()
  assert list(spec) == ["pos", "goal"]
  (episode, *_) = _episodes(spec)
  episode["goal"] = np.broadcast_to(episode["goal"][:1], episode["goal"].shape)
  predicted = [predictor.step(*_observations([episode], t)) for t in range(7)]
  steps = {
    name: np.concatenate([x[name] for x in predicted])[None] for name in predicted[0]
  }
  features = specs.TensorSpecStruct(
    {"pos": episode["pos"][None, 3:], "goal": episode["goal"][:1]}
    | {
      f"recurrent_state/lstm/{x}": steps[f"recurrent_state_lstm_{x}"][:, 3:]
      for x in "hc"
    }
  )
  got = model.inference_network_fn(features, None, "train")["inference_output"]
  np.testing.assert_allclose(got, steps["inference_output"][:, 3:], atol=1e-5)
  # Without it they would begin as episodes do.
  fresh = model.inference_network_fn(features, None, "eval")["inference_output"]
  assert np.abs(fresh[:, 0] - got[:, 0]).max() > 1e-3


def test_stored_state_that_no_feature_has_is_named():
  with pytest.raises(errors.SpecError, match=r"return self\.with_stored_state"):
    LSTMModel(stored_state=True).build()


class SayModel(StackModel):
  """Chunks that tell what was seen: the position, and the place in the chunk."""

  def a_func(self, features, mode):
    place = tf.reshape(tf.range(4.0), [1, 4, 1])
    seen = tf.reshape(features.state.pos[:, -1, :1], [-1, 1, 1])
    unused = 0.0 * tf.reduce_sum(self.network(tf.ones([1, 9])))
    predicted = seen + tf.concat([place, place], axis=-1) / 100 + unused
    return {"inference_output": predicted, "seen": seen[:, 0]}

  def create_export_outputs_fn(self, features, inference_outputs, mode):
    # In the units of the data, which are those that are executed.
    predicted = 100 * inference_outputs["inference_output"]
    return {**inference_outputs, "inference_output": predicted}


def _ensembled(asked, decay, t):
  """What chunks of the steps `asked` say about step t, averaged as ACT does it."""
  predicted = np.array([100 * step + (t - step) for step in asked if 0 <= t - step < 4])
  weights = np.exp(
    -decay * (np.arange(len(predicted)) - (len(predicted) - 1) * (decay < 0))
  )
  return (predicted * weights).sum() / weights.sum()


EXECUTIONS = {
  "the first action only": (policies.ChunkExecution(), range(9), None),
  "three of four": (policies.ChunkExecution(3), range(0, 9, 3), None),
  "all four": (policies.ChunkExecution(4), range(0, 9, 4), None),
  "ensembled": (policies.ChunkExecution(1, 0.3), range(9), 0.3),
  "ensembled, equal weights": (policies.ChunkExecution(1, 0.0), range(9), 0.0),
  "ensembled, two of four": (policies.ChunkExecution(2, 0.3), range(0, 9, 2), 0.3),
  "ensembled, the newest most": (policies.ChunkExecution(1, -200.0), range(9), -200.0),
}


@pytest.mark.parametrize("case", EXECUTIONS)
def test_chunks_are_executed_as_declared(case):
  execution, asked, decay = EXECUTIONS[case]
  predictor = _predictor(SayModel(execution=execution))
  predictor.reset(2)
  for t in range(9):
    # The second environment's episode begins at step 2.
    times = np.array([t, t - 2], np.float32)
    pos = np.repeat(times[:, None], 3, axis=1)
    observation = {"state/pos": pos, "goal": np.zeros([2, 1], np.float32)}
    is_first = [t == 0, t in (0, 2)]
    # Every observation is in the history, whether the network is asked or not.
    window = predictor.inspect(observation, is_first).seen["state/pos"][:, :, 0]
    outputs = predictor.step(observation, is_first)
    np.testing.assert_array_equal(window[0], [max(t - 3, 0), t])
    for env, now in ((0, t), (1, t - 2)):
      if now < 0:
        continue
      steps = [step for step in asked if step <= now]
      newest = steps[-1]
      want = _ensembled(steps, decay, now) if decay is not None else None
      want = 100 * newest + now - newest if want is None else want
      np.testing.assert_allclose(outputs["inference_output"][env], [want] * 2, 1e-5)
      chunk = 100 * newest + np.arange(4)
      predicted = outputs["inference_output_chunk"][env]
      np.testing.assert_allclose(predicted, np.stack([chunk, chunk], axis=1), 1e-5)
      assert outputs["chunk_step"][env] == now - newest
      assert outputs["seen"][env] == newest


BAD_CHUNKS = {
  "no chunk": (
    SingleModel,
    policies.ChunkExecution(),
    r"execute chunks: inference_output: expected an action chunk, \(batch, several "
    r"steps, \.\.\.\), got \(None, 2\) float32. A label with",
  ),
  "no such output": (
    StackModel,
    policies.ChunkExecution(outputs=("inference_outptu",)),
    r"inference_outptu: expected the name of a model output, got only "
    r"\[inference_output\]. Did you mean",
  ),
  "m > n": (
    StackModel,
    policies.ChunkExecution(5),
    r"expected a chunk of at least num_executed=5 steps, got \(None, 4, 2\)",
  ),
}


@pytest.mark.parametrize("case", BAD_CHUNKS)
def test_execution_rejects_chunks_that_do_not_fit(case):
  model_class, execution, message = BAD_CHUNKS[case]
  with pytest.raises(errors.SpecError, match=message):
    _predictor(model_class(execution=execution))


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"num_executed": 0}, "num_executed: expected at least 1, got 0"),
    ({"ensemble_decay": np.nan}, "ensemble_decay: expected a finite number"),
    ({"outputs": "action"}, "outputs: expected names"),
  ],
)
def test_options_of_an_execution_are_checked(options, message):
  with pytest.raises(errors.SpecError, match=message):
    policies.ChunkExecution(**options)


def test_state_that_does_not_fit_is_refused():
  predictor = _predictor(StackModel())
  observation = {"state/pos": np.zeros([2, 3], "f"), "goal": np.zeros([2, 1], "f")}
  pure = predictor.pure
  state = pure.initial_state([0, 1])
  foreign = policy_io.PolicyState(state.tensors, state.leaves, "exports/7")
  for bad, message in (
    (foreign, r"state: expected one of the model .*got one of exports/7\. Start"),
    (dict(state.tensors), r"state: expected one of the model .*got .*dict"),
    (pure.initial_state(), r"step: [\s\S]*state/pos: expected 1 environments"),
  ):
    with pytest.raises(errors.SpecError, match=message):
      pure.step(observation, bad)


def test_state_is_readable_and_convertible_to_arrays():
  pure = _predictor(StackModel()).pure
  observation = {"state/pos": np.ones([1, 3], "f"), "goal": np.zeros([1, 1], "f")}
  want, state = pure.step(observation, pure.initial_state(), True)
  assert state["history/state/pos"].shape[0] == 1
  np.testing.assert_array_equal(state["history/state/pos"], 1)
  assert state["age"].tolist() == [1]
  # Few tensors: one of each dtype.
  assert sorted(state.tensors) == ["policy_state_float32", "policy_state_int32"]
  arrays = {name: np.asarray(value) for name, value in state.tensors.items()}
  kept = policy_io.PolicyState(arrays, state.leaves, state.model_path)
  got, _ = pure.step(observation, kept)
  want, _ = pure.step(observation, state)
  np.testing.assert_array_equal(got["inference_output"], want["inference_output"])


def test_steps_with_and_without_accelerators_are_equal(monkeypatch):
  """On hosts with several devices TensorFlow calls the function as it calls others."""
  model = StackModel()
  direct = _predictor(model).pure
  devices = tf.config.list_logical_devices()
  monkeypatch.setattr(tf.config, "list_logical_devices", lambda: [*devices, "a GPU"])
  placed = _predictor(model).pure
  spec = direct.step_specification()
  states = [each.initial_state([0, 1]) for each in (direct, placed)]
  for t in range(3):
    observation = specs.make_random_numpy(spec, 2, seed=t)
    outputs = []
    for number, each in enumerate((direct, placed)):
      predicted, states[number] = each.step(
        observation, states[number], [t == 0, t == 2]
      )
      outputs.append(predicted["inference_output"])
    np.testing.assert_array_equal(*outputs)
