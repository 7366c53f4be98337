"""Regression by action decoders that gin names, and schedules of the global step."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, layers, models, specs, windows
from t2r_seq.training.trainer import Trainer

_SPEC = specs.ExtendedTensorSpec


@gin.configurable(module="test_action_decoders")
class LeftOrRight(models.RegressionModel):
  """Two steps around an obstacle, to the left or to the right, never straight on."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(width=_SPEC((1,), tf.float32, "width"))

  def get_label_specification(self, mode):
    target = _SPEC((2, 1), tf.float32, "target", time_offsets=(0, 1))
    labels = windows.add_mask_specs(specs.TensorSpecStruct(target=target))
    labels["target_dimension_mask"] = _SPEC((1,), tf.bool, "has")
    return labels

  def create_network(self):
    tower = tf.keras.layers.Dense(16, activation="relu")
    return {"tower": tower, "decoder": self.create_action_decoder()}

  def a_func(self, features, mode):
    embedding = self.network["tower"](features.width)
    return self.network["decoder"](embedding, training=mode == "train")


def _way_around(num=256):
  rng = np.random.default_rng(0)
  width = rng.uniform(0.5, 1.0, (num, 1)).astype(np.float32)
  target = np.stack([width / 2, width], 1) * rng.choice([-1, 1], (num, 1, 1))
  mask = rng.random((num, 2)) < 0.9
  target[~mask] = np.nan  # What is padded may be anything.
  features = {"width": width}
  labels = {
    "target": target.astype(np.float32),
    "target_mask": mask,
    "target_dimension_mask": np.ones((num, 1), bool),
  }
  as_tensors = lambda x: {k: tf.constant(v) for k, v in x.items()}  # noqa: E731
  return as_tensors(features), as_tensors(labels)


# (bindings, a bound of the loss, the learning rate, steps).
_DECODERS = {
  # The mean is straight on: the best loss is the variance, 0.35.
  "MSEDecoder": ("", 0.40, 0.01, 100),
  # The log density of two modes of deviation 0.1 is about 1.1.
  "MDNDecoder": ("MDNDecoder.num_mixture_components = 2", -0.5, 0.02, 200),
  # Two of 20 bins have odds of a half, and the width says which: log 2.
  "DiscreteDecoder": ("DiscreteDecoder.num_bins = 20", 1.2, 0.05, 200),
  "MAFDecoder": (
    "MAFDecoder.num_flows = 3\nMAFDecoder.hidden_layers = (32, 32)",
    0.5,
    0.01,
    200,
  ),
  # Of a velocity whose noise has variance 1: what cannot be known is left.
  "FlowMatchingDecoder": ("Denoiser.hidden_sizes = (64, 64)", 0.8, 0.01, 200),
  "DiffusionDecoder": ("Denoiser.hidden_sizes = (64, 64)", 0.6, 0.01, 500),
}


@pytest.mark.parametrize("name", _DECODERS)
def test_heads_train_by_gin_and_choose_one_mode(name):
  bindings, bound, rate, num_steps = _DECODERS[name]
  gin.parse_config(f"""
    LeftOrRight.action_decoder_cls = @{name}
    LeftOrRight.create_optimizer_fn = @create_adam_optimizer
    create_adam_optimizer.learning_rate_fn = @create_constant_learning_rate
    create_constant_learning_rate.initial_learning_rate = {rate}
    {bindings}
  """)
  tf.keras.utils.set_random_seed(1)
  model = LeftOrRight()
  trainer = Trainer(model, tf.distribute.get_strategy())
  features, labels = _way_around()
  for _ in range(num_steps):
    trainer.train_step(features, labels)
  sums, _, count = trainer.eval_step(features, labels)
  assert float(sums["loss"] / count) < bound
  width = tf.constant(np.linspace(0.55, 0.95, 40, dtype=np.float32)[:, None])
  action = model.export_outputs({"width": width})["inference_output"].numpy()
  assert action.shape == (40, 2, 1)
  way = np.abs(action[:, 1, 0])
  if name == "MSEDecoder":
    assert way.max() < 0.3
  else:
    # A flow that is continuous draws some ways between the two; straight on is 0.75.
    wrong = np.abs(way - width[:, 0])
    assert np.median(wrong) < 0.3, wrong
    assert np.mean(np.sign(action[:, 0]) == np.sign(action[:, 1])) > 0.8


def test_export_draws_what_its_model_draws(tmp_path):
  gin.parse_config("""
    LeftOrRight.action_decoder_cls = @FlowMatchingDecoder
    FlowMatchingDecoder.num_steps = 2
    FlowMatchingDecoder.seed = 7
    Denoiser.hidden_sizes = (8,)
  """)
  model = LeftOrRight()
  model.build()
  # A network that ends with zeros would say nothing of the embedding.
  for i, variable in enumerate(model.trainable_variables):
    value = np.random.default_rng(i).normal(size=variable.shape)
    variable.assign(value.astype(np.float32))
  module = tf.Module()
  module.weights = model.variables
  spec = tf.TensorSpec([None, 1], tf.float32)
  module.step = tf.function(
    lambda width: model.export_outputs({"width": width}), input_signature=[spec]
  )
  tf.saved_model.save(module, str(tmp_path))
  loaded = tf.saved_model.load(str(tmp_path))
  step = loaded.step
  width = tf.constant([[0.5], [0.9], [0.5]])
  action = step(width)["inference_output"].numpy()
  want = model.export_outputs({"width": width})["inference_output"]
  np.testing.assert_allclose(action, want, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(action, step(width)["inference_output"])
  np.testing.assert_allclose(action[0], action[2], rtol=1e-5)
  alone = step(width[1:2])["inference_output"]
  np.testing.assert_allclose(alone[0], action[1], rtol=1e-5, atol=1e-6)


def test_missing_components_have_no_loss_without_a_decoder():
  class Plain(LeftOrRight):
    def create_network(self):
      return tf.keras.layers.Dense(2)

    def a_func(self, features, mode):
      return {"inference_output": self.network(features.width)[..., tf.newaxis]}

  outputs = {"inference_output": tf.constant([[[1.0, 5.0], [2.0, 9.0]]])}
  labels = specs.TensorSpecStruct(
    target=tf.zeros([1, 2, 2]),
    target_mask=tf.constant([[True, True]]),
    target_dimension_mask=tf.constant([[True, False]]),
  )
  assert float(Plain().loss_fn(labels, outputs, "train")) == (1 + 4) / 2
  labels["target_mask"] = tf.constant([[True, False]])
  assert float(Plain().loss_fn(labels, outputs, "train")) == 1
  with pytest.raises(errors.SpecError, match="Plain: action_decoder_cls: expected"):
    Plain(action_decoder_cls=layers.MSEDecoder).build()


def test_schedules():
  line = models.piecewise_linear([0, 10, 20], [1.0, 3.0, -1.0])
  for step, want in {-5: 1, 0: 1, 5: 2, 10: 3, 15: 1, 20: -1, 99: -1}.items():
    assert float(line(tf.constant(step, tf.int64))) == pytest.approx(want)
  assert float(models.piecewise_linear([4], [7.0])(tf.constant(2))) == 7
  of_tensors = models.piecewise_linear(tf.constant([0, 10]), tf.constant([1.0, 3.0]))
  assert float(of_tensors(5)) == 2 and of_tensors.get_config()["boundaries"] == [0, 10]
  stairs = models.exponential_decay(2.0, decay_steps=10, decay_rate=0.5)
  smooth = models.exponential_decay(2.0, 10, 0.5, staircase=False)
  assert float(stairs(tf.constant(19))) == 1
  assert float(smooth(tf.constant(5))) == pytest.approx(2 * 0.5**0.5)
  cosine = models.warmup_cosine(1.0, warmup_steps=10, decay_steps=110, final_value=0.2)
  wants = {0: 0, 5: 0.5, 10: 1, 60: 0.6, 35: 0.2 + 0.4 * (1 + 0.5**0.5), 110: 0.2}
  for step, want in {**wants, 500: 0.2}.items():
    assert float(cosine(step)) == pytest.approx(want, abs=1e-6)


_BAD_SCHEDULES = {
  "more values": (
    lambda: models.piecewise_linear([0, 1], [1.0]),
    r"piecewise_linear: values: expected one for each of 2 boundaries, which grow, got",
  ),
  "boundaries that fall": (
    lambda: models.piecewise_linear([0, 5, 5], [1.0, 2.0, 3.0]),
    r"piecewise_linear: values: expected .* got 3 for \[0, 5, 5\]",
  ),
  "a long warmup": (
    lambda: models.warmup_cosine(1.0, 20, 10),
    r"warmup_cosine: decay_steps: expected more than warmup_steps, 20, got 10",
  ),
}


@pytest.mark.parametrize("case", _BAD_SCHEDULES)
def test_bad_schedules(case):
  create, message = _BAD_SCHEDULES[case]
  with pytest.raises(errors.SpecError, match=message):
    create()


class _Annealed(LeftOrRight):
  """Its loss has a weight that falls from step to step."""

  def create_network(self):
    self.weight = models.piecewise_linear([0, 4], [1.0, 0.0])
    return tf.keras.layers.Dense(2)

  def a_func(self, features, mode):
    weight = self.weight(self.global_step)
    action = self.network(features.width)[..., tf.newaxis]
    return {"inference_output": action, "weight": weight}

  def model_train_fn(self, features, labels, inference_outputs, mode):
    weight = inference_outputs["weight"]
    loss = self.loss_fn(labels, inference_outputs, mode)
    return weight * loss, {"weight": weight}

  def create_export_outputs_fn(self, features, inference_outputs, mode):
    return inference_outputs


def test_model_and_its_learning_rate_follow_the_global_step(tmp_path):
  gin.parse_config("""
    create_gradient_descent_optimizer.learning_rate_fn = @piecewise_linear
    piecewise_linear.boundaries = [0, 2]
    piecewise_linear.values = [0.4, 0.2]
  """)
  model = _Annealed(create_optimizer_fn=models.create_gradient_descent_optimizer)
  trainer = Trainer(model, tf.distribute.get_strategy())
  features, labels = _way_around(8)
  rates, weights = [], []
  for _ in range(3):
    rates.append(trainer.learning_rate)
    weights.append(float(trainer.train_step(features, labels)["weight"]))
  assert weights == pytest.approx([1, 0.75, 0.5])
  # Keras 2 tells the rate of the last step, Keras 3 that of the next.
  assert rates[0] == pytest.approx(0.4) and rates[2] < 0.31
  assert int(model.global_step) == 3
  sums, _, count = trainer.eval_step(features, labels)
  assert float(sums["weight"] / count) == pytest.approx(0.25)
  # An export has the step at which it was made, without the trainer's variable.
  module = tf.Module()
  module.weights = model.variables
  spec = tf.TensorSpec([None, 1], tf.float32)
  module.step = tf.function(
    lambda width: model.export_outputs({"width": width}), input_signature=[spec]
  )
  tf.saved_model.save(module, str(tmp_path))
  loaded = tf.saved_model.load(str(tmp_path))
  assert float(loaded.step(features["width"])["weight"]) == pytest.approx(0.25)


@gin.configurable("Drift", module="test_action_decoders")
class _Drift(models.RecurrentRegressionModel):
  """Sums up what it sees; its decoder leaves out actions in training."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(x=_SPEC((3,), tf.float32, "x", is_sequence=True))

  def get_label_specification(self, mode):
    target = _SPEC((2,), tf.float32, "y", is_sequence=True)
    has = _SPEC((2,), tf.bool, "has")
    return specs.TensorSpecStruct(target=target, target_dimension_mask=has)

  def get_recurrent_state_specification(self, mode):
    return specs.TensorSpecStruct(total=_SPEC((3,), tf.float32))

  def create_network(self):
    return self.create_action_decoder()

  def recurrent_network_fn(self, features, state, mode):
    total = state.total[:, tf.newaxis] + tf.cumsum(features.x, axis=1)
    outputs = self.network(total, training=mode == "train")
    return outputs, specs.TensorSpecStruct(total=total[:, -1])


@pytest.mark.parametrize("burn_in", [0, 2])
def test_decoder_of_a_recurrent_model_has_a_loss_behind_the_burn_in(burn_in):
  create = lambda action_shape: layers.MAFDecoder(action_shape, 1, (4,))  # noqa: E731
  model = _Drift(burn_in=burn_in, action_decoder_cls=create)
  model.build()
  x, y = (tf.random.normal([4, 5, n], seed=n) for n in (3, 2))
  has = tf.constant([[True, False]] * 4)
  features = specs.TensorSpecStruct(x=x)
  labels = specs.TensorSpecStruct(target=y, target_dimension_mask=has)
  loss, _ = model.train_loss(features, labels)
  outputs = model.network(tf.cumsum(x, axis=1)[:, burn_in:], training=True)
  want = model.network.loss(outputs, y[:, burn_in:], None, has)
  np.testing.assert_allclose(loss, want, rtol=1e-5)


@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("decoder_cls", [None, layers.MSEDecoder])
def test_importance_weights_multiply_the_errors_of_examples(burn_in, decoder_cls):
  model = _Drift(burn_in=burn_in, action_decoder_cls=decoder_cls)
  if decoder_cls:
    model.create_action_decoder()
  output, target = (tf.random.normal([3, 5, 2], seed=n) for n in (2, 3))
  weights = [0.0, 0.5, 2.0]

  def loss(rows, **weight):
    labels = specs.TensorSpecStruct(target=target[rows], **weight)
    return model.loss_fn(labels, {"inference_output": output[rows]}, "train")

  want = sum(w * loss(slice(i, i + 1)) for i, w in enumerate(weights)) / len(weights)
  weighted = loss(slice(None), sample={"weight": tf.constant(weights)})
  np.testing.assert_allclose(weighted, want, rtol=1e-5)


def test_recurrent_model_learns_by_gin():
  gin.parse_config("""
    Drift.burn_in = 1
    Drift.action_decoder_cls = @MSEDecoder
    Drift.create_optimizer_fn = @create_adam_optimizer
    create_adam_optimizer.learning_rate_fn = @create_constant_learning_rate
    create_constant_learning_rate.initial_learning_rate = 0.1
  """)
  trainer = Trainer(_Drift(), tf.distribute.get_strategy())
  x = tf.random.normal([32, 4, 3], seed=1)
  has = tf.ones([32, 2], tf.bool)
  labels = {"target": tf.cumsum(x, axis=1)[..., :2], "target_dimension_mask": has}
  for _ in range(100):
    trainer.train_step({"x": x}, labels)
  sums, _, count = trainer.eval_step({"x": x}, labels)
  assert float(sums["loss"] / count) < 0.01
