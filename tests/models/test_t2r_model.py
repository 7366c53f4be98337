"""T2RModel and RegressionModel: specs, network, losses, outputs."""

from __future__ import annotations

import importlib.util
import logging
import threading

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, models, preprocessors, specs

_SPEC = specs.ExtendedTensorSpec


class _Linear(models.RegressionModel):
  def __init__(self, penalty: float = 0.0, **kwargs):
    super().__init__(action_size=1, **kwargs)
    self.penalty = penalty
    self.num_networks = 0

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      x=_SPEC((2,), tf.float32, "x"),
      hint=_SPEC((2,), tf.float32, "hint", is_optional=True),
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=_SPEC((1,), tf.float32, "target"))

  def create_network(self):
    self.num_networks += 1
    regularizer = tf.keras.regularizers.L2(self.penalty) if self.penalty else None
    return {
      "norm": tf.keras.layers.BatchNormalization(),
      "dense": tf.keras.layers.Dense(
        1, kernel_initializer="ones", kernel_regularizer=regularizer
      ),
    }

  def a_func(self, features, mode):
    normed = self.network["norm"](features.x, training=mode == specs.ModeKeys.TRAIN)
    return {"inference_output": self.network["dense"](normed), "normed": normed}


_FEATURES = {"x": tf.constant([[1.0, 2.0], [3.0, 4.0]])}
_LABELS = {"target": tf.zeros([2, 1])}


def test_network_is_created_once_with_all_its_variables():
  model = _Linear()
  model.build()
  model.build()
  assert model.num_networks == 1
  assert len(model.trainable_variables) == 4 and len(model.variables) == 6


def test_second_thread_waits_for_the_network():
  """An actor's thread and a trainer ask for it at the same time."""
  threads = []

  class Asked(_Linear):
    def create_network(self):
      if not threads:
        threads.append(threading.Thread(target=self.build))
        threads[0].start()
      return super().create_network()

  model = Asked()
  model.build()
  threads[0].join()
  assert model.num_networks == 1 and len(model.variables) == 6


def test_unbuilt_model_is_an_error():
  with pytest.raises(errors.SpecError, match=r"_Linear: network: expected a built"):
    _ = _Linear().variables


def test_regularisation_is_added_to_the_training_loss_only():
  model = _Linear(penalty=0.5)
  model.build()
  loss, scalars = model.train_loss(_FEATURES, _LABELS)
  assert float(scalars["regularization_loss"]) == pytest.approx(1.0)
  plain, none = _plain_loss()
  assert float(loss) == pytest.approx(float(plain) + 1.0) and not none
  assert model.eval_metrics(_FEATURES, _LABELS)[0].keys() == {"loss"}


def _plain_loss():
  model = _Linear()
  model.build()
  return model.train_loss(_FEATURES, _LABELS)


def test_layers_that_the_loss_alone_uses_are_built_and_nothing_is_changed():
  class WithHead(_Linear):
    def create_network(self):
      norm = tf.keras.layers.BatchNormalization()
      target = tf.keras.layers.Dense(1, kernel_initializer="zeros")
      target.trainable = False
      head = tf.keras.Sequential([tf.keras.layers.Dense(3), norm])
      return {**super().create_network(), "head": head, "target": target}

    def model_train_fn(self, features, labels, inference_outputs, mode):
      loss = super().model_train_fn(features, labels, inference_outputs, mode)
      extra = self.network["head"](inference_outputs["normed"], training=True)
      self.network["target"](features.x)
      tf.debugging.assert_positive(features.x, "is traced only")
      for moved, value in zip(
        self.network["target"].weights, self.network["dense"].weights, strict=True
      ):
        moved.assign(value)
      return loss + tf.reduce_mean(extra)

  model = WithHead()
  model.build()
  assert len(model.variables) == 6 + 6 + 2 and len(model.trainable_variables) == 4 + 4
  for name in ("norm", "head"):
    *_, moving_mean, moving_variance = model.network[name].weights
    np.testing.assert_array_equal(moving_mean, tf.zeros_like(moving_mean))
    np.testing.assert_array_equal(moving_variance, tf.ones_like(moving_variance))
  np.testing.assert_array_equal(model.network["target"].kernel, [[0.0], [0.0]])
  model.train_loss(_FEATURES, _LABELS)
  np.testing.assert_array_equal(model.network["target"].kernel, [[1.0], [1.0]])


def test_target_networks_follow_at_their_rate():
  source, target = [tf.keras.layers.BatchNormalization() for _ in range(2)]
  for layer, mean in ((source, 8.0), (target, 4.0)):
    layer.build((None, 2))
    layer.moving_mean.assign([mean, 0.0])
  models.update_target_network(target, source, 0.25)
  np.testing.assert_array_equal(target.moving_mean, [5.0, 0.0])
  target.moving_mean.assign([np.nan, np.inf])
  models.update_target_network({"a": target}, [source])
  np.testing.assert_array_equal(target.moving_mean, [8.0, 0.0])
  with pytest.raises(
    errors.SpecError, match=r"update_target_network: target: expected"
  ):
    models.update_target_network(target, tf.keras.layers.Dense(1))


def test_layers_that_nothing_uses_are_warned_of(caplog):
  class Idle(_Linear):
    def create_network(self):
      return {**super().create_network(), "idle": tf.keras.layers.Dense(1, name="idle")}

  with caplog.at_level(logging.WARNING, logger="absl"):
    Idle().build()
  assert "Idle: the layers ['idle'] of create_network are used neither" in caplog.text


def test_missing_loss_is_added_to_the_eval_metrics():
  class Errors(_Linear):
    def model_eval_fn(self, features, labels, inference_outputs, mode):
      return {"error": tf.constant(2.0)}

  model = Errors()
  model.build()
  assert model.eval_metric_names() == ["error", "loss"]
  metrics, _ = model.eval_metrics(_FEATURES, _LABELS)
  plain = _Linear()
  plain.build()
  assert float(metrics["loss"]) == float(
    plain.eval_metrics(_FEATURES, _LABELS)[0]["loss"]
  )


def _with_update_ops(self, features, labels, mode):
  del self, features, labels, mode
  return {"inference_output": tf.zeros([1, 1])}, ["update"]


_BAD_OUTPUTS = {
  "update ops": (
    ("inference_network_fn", _with_update_ops),
    "expected a dict of tensors by name, got a tuple that begins with it. There are no "
    "update_ops in TensorFlow 2: .* Return the outputs alone",
  ),
  "update ops of a_func": (
    ("a_func", lambda self, features, mode: _with_update_ops(self, 0, 0, mode)),
    "expected a dict of tensors by name, got a tuple that begins with it",
  ),
  "nothing": (
    ("inference_network_fn", lambda self, features, labels, mode: None),
    "expected a dict of tensors by name, got NoneType",
  ),
}


@pytest.mark.parametrize("case", _BAD_OUTPUTS)
def test_outputs_that_are_no_dict_are_refused(case):
  (method, function), message = _BAD_OUTPUTS[case]
  model = type("Bad", (_Linear,), {method: function})()
  with pytest.raises(errors.SpecError, match=f"Bad.{method}: outputs: {message}"):
    model.build()


@pytest.mark.skipif(
  importlib.util.find_spec("tensorboard") is not None, reason="tensorboard is there"
)
def test_summaries_without_tensorboard_say_what_to_do():
  class Summing(_Linear):
    def a_func(self, features, mode):
      tf.summary.scalar("mean", tf.reduce_mean(features.x))
      return super().a_func(features, mode)

  with pytest.raises(errors.SpecError, match=r"Summing: tf.summary: expected the pack"):
    Summing().build()


def test_moving_averages_are_updated_by_training_alone():
  model = _Linear()
  model.build()
  moving = model.network["norm"].moving_mean
  np.testing.assert_array_equal(moving, [0.0, 0.0])
  model.eval_metrics(_FEATURES, _LABELS)
  model.export_outputs(_FEATURES)
  np.testing.assert_array_equal(moving, [0.0, 0.0])
  model.train_loss(_FEATURES, _LABELS)
  np.testing.assert_allclose(moving, [0.02, 0.03], rtol=1e-5)


def test_only_the_inference_output_is_exported():
  model = _Linear()
  model.build()
  assert model.export_outputs(_FEATURES).keys() == {"inference_output"}


def test_scalars_beside_the_loss_are_kept():
  class WithScalars(_Linear):
    def model_train_fn(self, features, labels, inference_outputs, mode):
      loss = super().model_train_fn(features, labels, inference_outputs, mode)
      return loss, {"bias": tf.constant(3.0)}

  model = WithScalars()
  model.build()
  assert float(model.train_loss(_FEATURES, _LABELS)[1]["bias"]) == 3.0
  assert model.eval_metrics(_FEATURES, _LABELS)[0].keys() == {"loss", "bias"}


def test_optional_features_may_be_absent_and_required_may_not():
  model = _Linear()
  features, _ = model.pack(_FEATURES, None, "infer")
  assert features.hint is None
  with pytest.raises(errors.SpecError, match=r"x: expected .*got nothing"):
    model.pack({"X": _FEATURES["x"]}, None, "infer")


def test_a_func_without_its_output_is_named():
  class Misspelt(_Linear):
    def a_func(self, features, mode):
      return {"inference_ouput": super().a_func(features, mode)["inference_output"]}

  with pytest.raises(
    errors.SpecError,
    match=r"Misspelt.a_func: inference_output: .*Did you mean 'inference_ouput'",
  ):
    Misspelt().build()


def test_network_that_hides_its_variables_is_refused():
  class Hidden(_Linear):
    def create_network(self):
      return {"fn": lambda x: x}

  with pytest.raises(errors.SpecError, match=r"expected Keras layers .*got function"):
    Hidden().build()


def test_masked_targets_have_no_loss():
  class Masked(_Linear):
    def get_label_specification(self, mode):
      mask = _SPEC((), tf.bool)
      return specs.TensorSpecStruct(
        super().get_label_specification(mode), target_mask=mask
      )

  model = Masked()
  model.build()
  outputs = {"inference_output": tf.constant([[1.0], [float("nan")]])}
  labels = specs.TensorSpecStruct(_LABELS, target_mask=tf.constant([True, False]))
  assert float(model.loss_fn(labels, outputs, "train")) == 1.0


def test_training_reads_features_and_labels_as_stored():
  def from_bytes(**kwargs):
    return preprocessors.ImageToFloatPreprocessor(image_paths=["x"], **kwargs)

  stored = models.training_specification(_Linear(preprocessor_cls=from_bytes))
  assert list(stored) == ["x", "hint", "target"]
  assert [stored["x"].dtype, stored["hint"].dtype] == [tf.uint8, tf.float32]

  class Twice(_Linear):
    def get_label_specification(self, mode):
      return specs.TensorSpecStruct(x=_SPEC((1,), tf.float32, "x"))

  with pytest.raises(errors.SpecError, match=r"Twice: expected other .*got \[x\] of"):
    models.training_specification(Twice())


_BAD_LOSSES = {
  "none": (None, "loss: expected a scalar, got nothing"),
  "a vector": (tf.zeros([4]), r"loss: expected a scalar, got \(4,\) float32"),
  "a vector to log": (
    (tf.constant(0.0), {"errors": tf.zeros([2])}),
    r"errors: expected a scalar, got \(2,\) float32. Reduce it",
  ),
}


@pytest.mark.parametrize("case", _BAD_LOSSES)
def test_loss_that_is_no_scalar_is_refused(case):
  value, message = _BAD_LOSSES[case]

  class Bad(_Linear):
    def model_train_fn(self, features, labels, inference_outputs, mode):
      return value

  with pytest.raises(errors.SpecError, match=f"Bad.model_train_fn: {message}"):
    Bad().build()


def test_optimizer_in_place_of_its_factory_is_refused():
  model = _Linear(create_optimizer_fn=tf.keras.optimizers.SGD(0.1))
  model.build()
  with pytest.raises(errors.SpecError, match=r"got SGD\. In gin, leave out the par"):
    model.create_optimizer()


def test_padding_is_checked():
  with pytest.raises(errors.SpecError, match=r"expected one of drop, repeat, zero"):
    _Linear(padding="repaet")


def test_preprocessor_is_built_from_the_models_specs():
  assert isinstance(_Linear().preprocessor, preprocessors.NoOpPreprocessor)
  model = _Linear(preprocessor_cls=preprocessors.NoOpPreprocessor)
  given = model.preprocessor.get_in_feature_specification("train")
  assert list(given) == ["x", "hint"]
  assert model.preprocessor is model.preprocessor


def test_tf_modules_are_networks_too():
  class Scale(tf.Module):
    def __init__(self):
      super().__init__()
      self.factor = tf.Variable([[2.0], [2.0]])

    def __call__(self, x):
      return x @ self.factor

  class Scaled(_Linear):
    def create_network(self):
      return Scale()

    def a_func(self, features, mode):
      return {"inference_output": self.network(features.x)}

  model = Scaled()
  model.build()
  (variable,) = model.trainable_variables
  assert variable is model.network.factor


_OPTIMIZERS = {
  "create_adam_optimizer": ("Adam", None),
  "create_gradient_descent_optimizer": ("SGD", None),
  "create_momentum_optimizer": ("SGD", None),
}


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_optimizers_are_configured_by_gin(name):
  gin.parse_config(f"""
    create_constant_learning_rate.initial_learning_rate = 0.25
    {name}.learning_rate_fn = @create_constant_learning_rate
  """)
  optimizer = getattr(models, name)()
  assert type(optimizer).__name__ == _OPTIMIZERS[name][0]
  assert float(optimizer.learning_rate) == 0.25


@pytest.mark.parametrize(
  ("schedule", "want"),
  [
    (models.create_exp_decaying_learning_rate(1.0, 10, 0.5), 0.5),
    (models.create_cosine_learning_rate(1.0, 20), 0.5),
  ],
)
def test_learning_rates_decay(schedule, want):
  assert float(schedule(0)) == 1.0
  assert float(schedule(10)) == pytest.approx(want)


def test_autograph_takes_what_a_train_step_calls_by_default():
  """It warns of a function that it cannot convert, such as one of words alone."""
  tf.autograph.to_graph(models.T2RModel.after_train_step)(None)
