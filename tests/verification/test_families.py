"""A policy of each family has training's windows, and its model's actions."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import layers, models, policies, specs, verification
from t2r_seq.store import EpisodeStore

_SPEC = specs.ExtendedTensorSpec
_POS = _SPEC((2, 3), tf.float32, "pos", time_offsets=(-2, 0))
_GOAL = _SPEC((2,), tf.float32, "goal")


class _StackModel(models.RegressionModel):
  """Chunks of four actions from a stack and a goal, by any decoder."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(pos=_POS, goal=_GOAL)

  def get_label_specification(self, mode):
    target = _SPEC((4, 2), tf.float32, "target", time_offsets=(0, 1, 2, 3))
    return specs.TensorSpecStruct(target=target)

  def create_network(self):
    tower = tf.keras.layers.Dense(8, activation="relu")
    return {"tower": tower, "decoder": self.create_action_decoder()}

  def a_func(self, features, mode):
    seen = tf.concat([tf.reshape(features.pos, [-1, 6]), features.goal], axis=-1)
    return self.network["decoder"](
      self.network["tower"](seen), training=mode == "train"
    )


class _SequenceModel(models.RecurrentRegressionModel):
  """What models of sequences have in common: stacks at every step, and a goal."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      pos=_SPEC((2, 3), tf.float32, "pos", time_offsets=(-2, 0), is_sequence=True),
      goal=_GOAL,
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(
      target=_SPEC((2,), tf.float32, "target", time_offsets=0, is_sequence=True)
    )

  def _tokens(self, features):
    length = tf.shape(features.pos)[1]
    goal = tf.repeat(features.goal[:, tf.newaxis], length, axis=1)
    pos = tf.reshape(features.pos, [tf.shape(features.pos)[0], length, 6])
    return tf.ensure_shape(tf.concat([pos, goal], axis=-1), [None, None, 8])


class _LSTMModel(_SequenceModel):
  """An LSTM."""

  def get_recurrent_state_specification(self, mode):
    return {name: _SPEC((4,), tf.float32) for name in "hc"}

  def create_network(self):
    return {
      "lstm": tf.keras.layers.LSTM(4, return_sequences=True, return_state=True),
      "out": tf.keras.layers.Dense(2),
    }

  def recurrent_network_fn(self, features, state, mode):
    initial = [state["h"], state["c"]]
    out, h, c = self.network["lstm"](self._tokens(features), initial_state=initial)
    return {"inference_output": self.network["out"](out)}, {"h": h, "c": c}


class _TransformerModel(_StackModel):
  """A transformer over the steps of the stack."""

  def create_network(self):
    return {
      "in": tf.keras.layers.Dense(8),
      "transformer": layers.CausalTransformer(1, 1, 8, window=2, mlp_size=8),
      "out": tf.keras.layers.Dense(8),
    }

  def a_func(self, features, mode):
    goal = tf.repeat(features.goal[:, tf.newaxis], 2, axis=1)
    tokens = self.network["in"](tf.concat([features.pos, goal], axis=-1))
    seen = self.network["transformer"](tokens[:, :, tf.newaxis])
    said = self.network["out"](seen[:, -1, 0])
    return {"inference_output": tf.reshape(said, [-1, 4, 2])}


class _CriticModel(models.CriticModel):
  """Values an action in a state."""

  def get_state_specification(self):
    return specs.TensorSpecStruct(pos=_POS, goal=_GOAL)

  def get_action_specification(self):
    pose = _SPEC((2,), tf.float32, "target", time_offsets=0)
    return specs.TensorSpecStruct(pose=pose)

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(reward=_SPEC((), tf.float32))

  def create_network(self):
    return tf.keras.layers.Dense(1)

  def q_func(self, state, action, mode):
    seen = tf.concat([tf.reshape(state.pos, [-1, 6]), state.goal, action.pose], axis=-1)
    return {"q_predicted": self.network(seen)[:, 0]}


_FLOW = functools.partial(layers.FlowMatchingDecoder, num_steps=2, seed=7)
_SEARCH = policies.CrossEntropySearch(num_iterations=2, num_samples=8, num_elites=2)
FAMILIES = {
  "chunks": (
    lambda: _StackModel(execution=policies.ChunkExecution(2, 0.1)),
    "the execution of the chunks of inference_output",
  ),
  "flow": (
    lambda: _StackModel(action_decoder_cls=_FLOW, padding="zero"),
    "inference_output with the export's network",
  ),
  "lstm": (_LSTMModel, "inference_output with the export's network"),
  "transformer": (_TransformerModel, "inference_output with the export's network"),
  "critic": (
    lambda: _CriticModel(search=_SEARCH), "q_predicted with the export's network",
  ),
}  # fmt: skip


@pytest.fixture(name="store", scope="module")
def fixture_store(tmp_path_factory):
  """Three episodes."""
  path = str(tmp_path_factory.mktemp("data") / "store")
  rng = np.random.default_rng(0)
  spec = {
    "pos": _SPEC((3,), tf.float32, "pos", is_sequence=True),
    "target": _SPEC((2,), tf.float32, "target", is_sequence=True),
    "goal": _GOAL,
  }
  with EpisodeStore.create(path, spec) as writer:
    for num_steps in (6, 1, 4):
      writer.append_episode(
        {
          "pos": rng.normal(size=[num_steps, 3]).astype(np.float32),
          "target": rng.normal(size=[num_steps, 2]).astype(np.float32),
          "goal": rng.normal(size=2).astype(np.float32),
        }
      )
  return path


@pytest.mark.parametrize("family", FAMILIES)
def test_training_and_both_steps_are_one(family, store):
  make, compared = FAMILIES[family]
  model = make()
  predictor = policies.CheckpointPredictor(model)
  predictor.init_randomly()
  report = verification.verify(predictor, store, model)
  assert report.is_identical, str(report)
  assert (report.num_episodes, report.num_steps) == (3, 11)
  text = " ".join(str(report).split())
  path = "state/pos" if family == "critic" else "pos"
  assert f"{path}, bit for bit" in text
  assert compared in text
