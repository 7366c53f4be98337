"""Several steps with one call, and train steps that XLA compiles."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, hooks, layers, models, specs, training
from t2r_seq.specs.samples import make_constant_numpy
from t2r_seq.training import train_eval
from t2r_seq.training.trainer import Trainer

_SPEC = specs.ExtendedTensorSpec
_TRAIN = specs.ModeKeys.TRAIN


class Chunks(models.RegressionModel):
  """Chunks of two actions from a state, with what layers have of their own."""

  dropout = 0.1

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(state=_SPEC((3,), tf.float32, "s"))

  def get_label_specification(self, mode):
    chunk = _SPEC((2, 2), tf.float32, "a", time_offsets=(0, 1))
    return specs.TensorSpecStruct(
      target=chunk, target_mask=_SPEC((2,), tf.bool, "mask", time_offsets=(0, 1))
    )

  def create_network(self):
    return {
      "tower": tf.keras.Sequential(
        [
          tf.keras.layers.Dense(4),
          tf.keras.layers.BatchNormalization(),
          tf.keras.layers.Dropout(self.dropout),
        ]
      ),
      "decoder": self.create_action_decoder(),
    }

  def a_func(self, features, mode):
    seen = self.network["tower"](features.state, training=mode == _TRAIN)
    return self.network["decoder"](seen, training=mode == _TRAIN)


class Classes(models.ClassificationModel):
  """Three classes, of small images."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(image=_SPEC((6, 6, 1), tf.float32, "image"))

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(classes=_SPEC((), tf.int32, "classes"))

  def create_network(self):
    dense, flatten = tf.keras.layers.Dense(3), tf.keras.layers.Flatten()
    return tf.keras.Sequential([tf.keras.layers.Conv2D(2, 3), flatten, dense])

  def a_func(self, features, mode):
    return {"logits": self.network(features.image)}


class Critic(models.CriticModel):
  """A value, and a target network that follows inside of the step."""

  def get_state_specification(self):
    return specs.TensorSpecStruct(state=_SPEC((3,), tf.float32, "s"))

  def get_action_specification(self):
    return specs.TensorSpecStruct(action=_SPEC((2,), tf.float32, "a"))

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(reward=_SPEC((), tf.float32, "reward"))

  def create_network(self):
    target = tf.keras.layers.Dense(1)
    target.trainable = False
    return {"q": tf.keras.layers.Dense(1), "target": target}

  def q_func(self, state, action, mode):
    seen = tf.concat([state.state, action.action], -1)
    target = tf.stop_gradient(self.network["target"](seen))
    return {"q_predicted": (self.network["q"](seen) + 0.1 * target)[:, 0]}

  def after_train_step(self):
    models.update_target_network(self.network["target"], self.network["q"], 0.1)


class Recurrent(models.RecurrentRegressionModel):
  """A GRU over a sequence, with a burn-in."""

  def get_feature_specification(self, mode):
    state = _SPEC((3,), tf.float32, "s", is_sequence=True)
    return specs.TensorSpecStruct(state=state)

  def get_label_specification(self, mode):
    target = _SPEC((2,), tf.float32, "a", is_sequence=True)
    return specs.TensorSpecStruct(target=target)

  def get_recurrent_state_specification(self, mode):
    return specs.TensorSpecStruct(h=_SPEC((4,), tf.float32, "h"))

  def create_network(self):
    gru = tf.keras.layers.GRU(4, return_sequences=True, return_state=True)
    return {"gru": gru, "out": tf.keras.layers.Dense(2)}

  def recurrent_network_fn(self, features, state, mode):
    seen, last = self.network["gru"](features.state, initial_state=state.h)
    outputs = {"inference_output": self.network["out"](seen)}
    return outputs, specs.TensorSpecStruct(h=last)


def _optimizer():
  """Averages, a schedule, clipping and accumulation, which are of a step, too."""
  return models.create_adam_optimizer(
    models.exponential_decay, 1.0, weight_decay=0.1, gradient_accumulation_steps=2
  )


_FAMILIES = {
  "classification": lambda: Classes(
    use_avg_model_params=True, create_optimizer_fn=_optimizer
  ),
  "critic": lambda: Critic(),
  "recurrent": lambda: Recurrent(burn_in=1),
  "half precision": lambda: Chunks(dtype_policy="mixed_float16"),
} | {
  name: lambda name=name: Chunks(action_decoder_cls=getattr(layers, f"{name}Decoder"))
  for name in ("MDN", "Discrete", "FlowMatching", "Diffusion", "MAF")
}


def _batch(spec_structure):
  """Returns four examples of ones, four steps long."""
  flat = specs.flatten_spec_structure(spec_structure)
  ones = make_constant_numpy(flat, 1, 4, 4)
  return specs.map_leaves(tf.convert_to_tensor, ones)


@pytest.mark.parametrize("name", _FAMILIES)
def test_every_family_trains_where_xla_compiles_the_step(name):
  """An operation that only a host has would be an error."""
  model = _FAMILIES[name]()
  trainer = Trainer(model, tf.distribute.get_strategy(), jit_compile=True)
  before = [np.copy(v) for v in model.trainable_variables]
  features = _batch(model.get_feature_specification(_TRAIN))
  labels = _batch(model.get_label_specification(_TRAIN))
  for _ in range(3):
    scalars = trainer.train_step(features, labels)
  assert np.isfinite(float(scalars["loss"])) and trainer.first_bad_step is None
  assert trainer.global_step == 3
  after = [np.copy(v) for v in model.trainable_variables]
  assert any(np.any(a != b) for a, b in zip(after, before, strict=True))


class Seen(training.Callback):
  """Notes the steps that it is told of."""

  step_interval = 0

  def __init__(self):
    self.steps, self.logged, self.saved = [], [], []

  def after_step(self, run, scalars):
    self.steps.append(run.step)

  def after_log(self, run, scalars):
    self.logged.append(run.step)

  def after_checkpoint(self, run, path):
    self.saved.append(run.step)


def _train(folder, num_steps, callbacks, **config):
  def examples():
    rng = np.random.default_rng(0)
    for _ in range(32):
      state = rng.normal(size=3).astype(np.float32)
      target = np.stack([state[:2], state[1:]])
      yield {"state": state}, {"target": target, "target_mask": np.array([True, True])}

  model = Chunks(create_optimizer_fn=lambda: tf.keras.optimizers.SGD(0.1))
  model.dropout = 0.0  # Keras 2 draws other numbers in another function.
  training.train_eval_model(
    model,
    data.GeneratorInputGenerator(examples, batch_size=4),
    max_train_steps=num_steps,
    model_dir=str(folder),
    create_exporters_fn=None,
    run_config=training.RunConfig(seed=0, **config),
    callbacks=callbacks,
  )
  return [np.copy(v) for v in model.variables]


def test_several_steps_a_call_train_the_same(tmp_path):
  every = {"log_every_n_steps": 5, "save_checkpoints_steps": 10}
  want = _train(tmp_path / "1", 23, [], steps_per_loop=1, **every)
  seen = Seen()
  got = _train(tmp_path / "4", 23, [seen], steps_per_loop=4, **every)
  assert seen.steps == [1, 5, 9, 10, 14, 15, 19, 20, 21, 22, 23]
  assert seen.logged == [5, 10, 15, 20, 23] and seen.saved == [10, 20, 23]
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


class SeesEach(Seen):
  """Needs each step, as callbacks do by default where they are told of steps."""

  step_interval = training.Callback.step_interval


_RATES = {
  "fast steps": (0.0, [], [1, 2, 3, 4, 5, 10, 15, 20]),
  "slow steps": (np.inf, [], list(range(1, 21))),
  "a callback that sees each": (0.0, [SeesEach()], list(range(1, 21))),
  "one that sees every fourth": (0.0, [hooks.VariableNorms(4)], [*range(1, 17), 20]),
}


@pytest.mark.parametrize("case", _RATES)
def test_default_follows_the_rate_of_steps(case, tmp_path, monkeypatch):
  threshold, callbacks, want = _RATES[case]
  monkeypatch.setattr(train_eval, "_LOOPED_STEPS_PER_SECOND", threshold)
  seen = Seen()
  _train(tmp_path, 20, [*callbacks, seen], log_every_n_steps=5)
  assert seen.steps == want


def test_each_of_several_steps_draws_its_own_numbers():
  class Drawing(Chunks):
    def create_network(self):
      self.draws = tf.Variable(tf.zeros([0]), shape=[None], trainable=False)
      return super().create_network()

    def after_train_step(self):
      drawn = tf.random.normal([1])
      self.draws.assign(tf.concat([self.draws.read_value(), drawn], 0))

  tf.random.set_seed(0)
  model = Drawing()
  trainer = Trainer(model, tf.distribute.get_strategy())
  features = _batch(model.get_feature_specification(_TRAIN))
  labels = _batch(model.get_label_specification(_TRAIN))
  trainer.train_step(features, labels)
  trainer.train_steps([(features, labels)] * 3)
  assert len(set(model.draws.numpy()[1:])) == 3


def test_replicas_are_not_compiled():
  class Two:
    num_replicas_in_sync = 2

  message = "jit_compile: expected one replica, got 2"
  with pytest.raises(errors.SpecError, match=message):
    Trainer(Chunks(), Two(), jit_compile=True)
