"""Steps: scaled losses, averaged weights, frozen layers, summaries of a model's own."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, models, specs, training
from t2r_seq.training.evaluation import evaluate
from t2r_seq.training.summaries import SummaryWriter
from t2r_seq.training.trainer import Trainer
from tests import warm_python

_SPEC = specs.ExtendedTensorSpec
_KERAS = tf.keras.optimizers
_LossScaleOptimizer = tf.keras.mixed_precision.LossScaleOptimizer
_IS_KERAS_3 = hasattr(_KERAS.SGD, "scale_loss")
_X = np.linspace(-1, 1, 16, dtype=np.float32)[:, None]
_FEATURES = {"x": tf.constant(_X)}
_LABELS = {"target": tf.constant(3 * _X + 1)}


class LineModel(models.RegressionModel):
  """Fits a line; statistics that nothing reads show what becomes of them."""

  def __init__(self, optimizer=None, **kwargs):
    create = lambda: optimizer or _KERAS.SGD(0.1)  # noqa: E731
    super().__init__(action_size=1, create_optimizer_fn=create, **kwargs)

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(x=_SPEC((1,), tf.float32, "x"))

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=_SPEC((1,), tf.float32, "y"))

  def create_network(self):
    return {
      "line": tf.keras.layers.Dense(1, kernel_initializer="zeros"),
      "norm": tf.keras.layers.BatchNormalization(center=False, scale=False),
    }

  def a_func(self, features, mode):
    self.network["norm"](features.x + 1, training=mode == specs.ModeKeys.TRAIN)
    return {"inference_output": self.network["line"](features.x)}


class SteepModel(LineModel):
  """A finite loss whose gradients never are: the root of nothing has no slope."""

  def model_train_fn(self, features, labels, inference_outputs, mode):
    loss = super().model_train_fn(features, labels, inference_outputs, mode)
    output = inference_outputs["inference_output"]
    return loss + tf.reduce_mean(tf.sqrt(output - tf.stop_gradient(output)))


class Delegating(_KERAS.SGD):
  """A wrapper of a user's own."""

  def __init__(self, inner_optimizer):
    super().__init__(1.0)
    self.inner_optimizer = inner_optimizer

  def build(self, variables):
    self.inner_optimizer.build(variables)

  def apply_gradients(self, grads_and_vars, **kwargs):
    return self.inner_optimizer.apply_gradients(grads_and_vars, **kwargs)


def _trainer(model):
  return Trainer(model, tf.distribute.get_strategy())


def _train(model, num_steps, features=_FEATURES, labels=_LABELS):
  trainer = _trainer(model)
  for _ in range(num_steps):
    scalars = trainer.train_step(features, labels)
  return trainer, {name: float(value) for name, value in scalars.items()}


def _weights(model):
  return [np.copy(variable) for variable in model.trainable_variables]


_SCALED = {
  "plain": lambda: _KERAS.SGD(0.1),
  "scaled": lambda: _LossScaleOptimizer(_KERAS.SGD(0.1)),
  "wrapped": lambda: Delegating(_LossScaleOptimizer(_KERAS.SGD(0.1))),
}
if _IS_KERAS_3:
  _SCALED |= {
    "by a factor": lambda: _KERAS.SGD(0.1, loss_scale_factor=1024.0),
    "twice": lambda: _LossScaleOptimizer(_LossScaleOptimizer(_KERAS.SGD(0.1))),
    "a factor, wrapped": lambda: Delegating(_KERAS.SGD(0.1, loss_scale_factor=8.0)),
  }
else:
  _SCALED["by a factor"] = lambda: _LossScaleOptimizer(
    _KERAS.SGD(0.1), dynamic=False, initial_scale=1024.0
  )


@pytest.mark.parametrize("case", _SCALED)
def test_scaled_losses_train_as_unscaled_ones_do(case):
  want, plain = _train(LineModel(), 20)
  got, scalars = _train(LineModel(_SCALED[case]()), 20)
  assert scalars == pytest.approx(plain, rel=1e-5) and plain["loss"] < 0.5
  for a, b in zip(_weights(got.model), _weights(want.model), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.skipif(not _IS_KERAS_3, reason="Keras 2 does not accumulate")
@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, _LossScaleOptimizer])
def test_accumulated_gradients_train_once_in_several_steps(wrap):
  want, _ = _train(LineModel(), 10)
  accumulating = wrap(_KERAS.SGD(0.1, gradient_accumulation_steps=2))
  got, _ = _train(LineModel(accumulating), 20)
  for a, b in zip(_weights(got.model), _weights(want.model), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5)


def test_step_that_the_scaler_skips_is_no_bad_step():
  optimizer = _LossScaleOptimizer(_KERAS.SGD(0.1), initial_scale=2.0**127)
  trainer, scalars = _train(LineModel(optimizer, use_avg_model_params=True), 1)
  assert trainer.first_bad_step is None and np.isfinite(scalars["loss"])
  np.testing.assert_array_equal(_weights(trainer.model)[0], [[0.0]])
  for _ in range(10):
    scalars = trainer.train_step(_FEATURES, _LABELS)
  assert trainer.first_bad_step is None and np.isfinite(scalars["gradient_norm"])
  assert _weights(trainer.model)[0] > 0.1
  assert all(np.isfinite(v).all() for v in trainer.model.averages.by_weight.values())


def test_gradients_that_no_scale_makes_finite_are_a_bad_step():
  optimizer = _LossScaleOptimizer(_KERAS.SGD(0.1), initial_scale=4.0)
  trainer, _ = _train(SteepModel(optimizer), 2)
  assert trainer.first_bad_step is None
  trainer.train_step(_FEATURES, _LABELS)
  assert trainer.first_bad_step == 3


def test_loss_that_is_not_finite_is_a_bad_step_at_any_scale():
  labels = {"target": _LABELS["target"] * float("nan")}
  optimizer = _LossScaleOptimizer(_KERAS.SGD(0.1))
  trainer, _ = _train(LineModel(optimizer), 1, labels=labels)
  assert trainer.first_bad_step == 1


@pytest.fixture(name="policy", params=["mixed_float16", "mixed_bfloat16"])
def fixture_policy(request):
  """The policy of a model's layers, which the process does not get."""
  yield request.param
  assert tf.keras.mixed_precision.global_policy().name == "float32"


def test_half_precision_trains_with_losses_in_float32(policy, tmp_path):
  model = LineModel(_KERAS.SGD(0.1), dtype_policy=policy)
  trainer, scalars = _train(model, 100)
  assert model.network["line"].compute_dtype == policy.removeprefix("mixed_")
  assert scalars["loss"] < 1e-3 and trainer.first_bad_step is None
  assert trainer.train_step(_FEATURES, _LABELS)["loss"].dtype == tf.float32
  assert trainer.eval_step(_FEATURES, _LABELS)[0]["loss"].dtype == tf.float32
  is_scaled = isinstance(trainer.optimizer, _LossScaleOptimizer)
  assert is_scaled == (policy == "mixed_float16")
  loaded = tf.saved_model.load(training.export_saved_model(model, str(tmp_path), 0))
  outputs = loaded.signatures["serving_default"](x=tf.constant([[1.0]]))
  assert outputs["inference_output"].dtype == tf.float32
  np.testing.assert_allclose(outputs["inference_output"], [[4.0]], atol=0.1)


_AVERAGING = {
  "of the model": lambda: LineModel(
    use_avg_model_params=True, avg_model_params_decay=0.9
  ),
  "of the optimizer": lambda: LineModel(
    _KERAS.SGD(0.1, use_ema=True, ema_momentum=0.9)
  ),
  "of a wrapped optimizer": lambda: LineModel(
    _LossScaleOptimizer(_KERAS.SGD(0.1, use_ema=True, ema_momentum=0.9))
  ),
}


def _export(model, folder):
  loaded = tf.saved_model.load(training.export_saved_model(model, str(folder), 0))
  outputs = loaded.signatures["serving_default"](x=tf.constant([[0.0], [1.0]]))
  bias, total = outputs["inference_output"].numpy().ravel()
  return total - bias, bias


@pytest.mark.parametrize("case", _AVERAGING)
def test_averages_are_evaluated_and_exported_and_raw_weights_trained(case, tmp_path):
  model = _AVERAGING[case]()
  trainer = _trainer(model)
  plain = _trainer(LineModel())
  wanted = None
  for _ in range(5):
    for each in (trainer, plain):
      each.train_step(_FEATURES, _LABELS)
    raw = [np.copy(v) for v in plain.model.variables]
    wanted = wanted or raw
    wanted = [0.9 * old + 0.1 * new for old, new in zip(wanted, raw, strict=True)]
  kernel, bias = wanted[:2]
  for got, want in zip(model.variables, raw, strict=True):
    np.testing.assert_allclose(got, want, rtol=1e-6)
  with model.averaged_weights(), model.averaged_weights():
    for got, want in zip(model.variables, wanted, strict=True):
      np.testing.assert_allclose(got, want, rtol=1e-5)
  metrics = evaluate(trainer, [(_FEATURES, _LABELS)], None)
  want = np.mean((kernel * _X + bias - 3 * _X - 1) ** 2)
  assert metrics["loss"] == pytest.approx(want, rel=1e-5)
  np.testing.assert_allclose(
    _export(model, tmp_path), [kernel.item(), bias.item()], rtol=1e-5
  )
  for got, want in zip(model.variables, raw, strict=True):
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_averages_overwrite_weights_at_the_frequency_of_keras():
  optimizer = _KERAS.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
  trainer, _ = _train(LineModel(optimizer), 1)
  first = _weights(trainer.model)
  trainer.train_step(_FEATURES, _LABELS)
  plain, _ = _train(LineModel(), 2)
  for got, a, b in zip(
    _weights(trainer.model), first, _weights(plain.model), strict=True
  ):
    np.testing.assert_allclose(got, (a + b) / 2, rtol=1e-5)


def test_failed_evaluation_leaves_the_raw_weights():
  trainer, _ = _train(LineModel(use_avg_model_params=True), 3)
  raw = _weights(trainer.model)

  def batches():
    yield _FEATURES, _LABELS
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    evaluate(trainer, batches(), None)
  for got, want in zip(_weights(trainer.model), raw, strict=True):
    np.testing.assert_array_equal(got, want)


def test_untrained_model_has_its_weights_as_averages(tmp_path):
  model = LineModel(_KERAS.SGD(0.1, use_ema=True))
  model.build()
  model.network["line"].bias.assign([7.0])
  _trainer(model)
  assert _export(model, tmp_path) == (0.0, 7.0)


@pytest.mark.parametrize("decay", [1.0, -0.1])
def test_decay_of_averages_is_checked(decay):
  with pytest.raises(errors.SpecError, match=r"LineModel: avg_model_params_decay: exp"):
    LineModel(use_avg_model_params=True, avg_model_params_decay=decay)


def test_dtype_policy_is_checked():
  message = "LineModel: dtype_policy: expected the name of a Keras policy, .*'mixed_16'"
  with pytest.raises(errors.SpecError, match=message):
    LineModel(dtype_policy="mixed_16")


def _run(folder, *max_train_steps):
  """Trains in one or several runs; returns all that the last checkpoint holds."""

  def examples():
    while True:
      yield {"x": np.ones(1, np.float32)}, {"target": np.ones(1, np.float32)}

  for num_steps in max_train_steps:
    optimizer = _LossScaleOptimizer(_KERAS.Adam(0.1), 2.0**10 if _IS_KERAS_3 else True)
    result = training.train_eval_model(
      LineModel(optimizer, use_avg_model_params=True),
      data.GeneratorInputGenerator(examples, batch_size=2),
      data.GeneratorInputGenerator(examples, batch_size=2),
      max_train_steps=num_steps,
      model_dir=str(folder),
      eval_steps=2,
      eval_throttle_secs=0,
      run_config=training.RunConfig(save_checkpoints_steps=2, seed=1),
    )
  reader = tf.train.load_checkpoint(str(folder))
  names = reader.get_variable_to_shape_map()
  return result, {
    name: reader.get_tensor(name) for name in names if not name.startswith("_")
  }


def test_resumed_run_is_bit_for_bit_an_unbroken_one(tmp_path):
  metrics, unbroken = _run(tmp_path / "unbroken", 6)
  resumed_metrics, resumed = _run(tmp_path / "resumed", 3, 6)
  assert metrics == resumed_metrics
  assert unbroken.keys() == resumed.keys()
  assert sum(name.startswith("averages/") for name in unbroken) == 4
  # Steps, two slots of two weights, a scale and its counter at least.
  assert sum(name.startswith("optimizer/") for name in unbroken) >= 7
  for name, value in unbroken.items():
    if "save_counter" not in name:
      np.testing.assert_array_equal(value, resumed[name], err_msg=name)


def test_two_replicas_do_the_same(tmp_path):
  script = pathlib.Path(__file__).with_name("replica_steps.py")
  process = warm_python.start(str(script), str(tmp_path))
  _, stderr = process.communicate(timeout=300)
  assert process.returncode == 0, stderr[-3000:]


def test_frozen_layers_are_not_trained():
  class OnBackbone(LineModel):
    def create_network(self):
      backbone = tf.keras.applications.MobileNetV2(
        (32, 32, 3), 0.35, include_top=False, weights=None, pooling="avg"
      )
      backbone.trainable = False
      return {"backbone": backbone, "line": tf.keras.layers.Dense(1)}

    def a_func(self, features, mode):
      images = tf.tile(tf.reshape(features.x, [-1, 1, 1, 1]), [1, 32, 32, 3])
      is_training = mode == specs.ModeKeys.TRAIN
      seen = self.network["backbone"](images, training=is_training)
      return {
        "inference_output": self.network["line"](tf.concat([seen, features.x], 1))
      }

  model = OnBackbone(use_avg_model_params=True)
  trainer = _trainer(model)
  before = [np.copy(v) for v in model.network["backbone"].weights]
  first = trainer.train_step(_FEATURES, _LABELS)
  for _ in range(10):
    last = trainer.train_step(_FEATURES, _LABELS)
  assert float(last["loss"]) < 0.5 * float(first["loss"])
  assert len(model.trainable_variables) == 2
  with model.averaged_weights():
    for got, want in zip(model.network["backbone"].weights, before, strict=True):
      np.testing.assert_array_equal(got, want)


def test_models_own_summaries_are_written_when_scalars_are(tmp_path, read_events):
  class Summing(LineModel):
    def a_func(self, features, mode):
      tf.summary.write("mean of x", tf.reduce_mean(features.x) + 1)
      return super().a_func(features, mode)

  trainer = _trainer(Summing())
  writer = SummaryWriter(str(tmp_path))
  trainer.write_summaries(writer, 3)
  for _ in range(5):
    trainer.train_step(_FEATURES, _LABELS)
  trainer.eval_step(_FEATURES, _LABELS)
  writer.close()
  assert read_events(tmp_path)["mean of x"][::2] == (3, pytest.approx(1.0))


def test_unknown_metric_of_an_exporter_is_refused_before_training(reach, tmp_path):
  def exporters():
    return [training.BestExporter(metric="losss")]

  message = r"BestExporter: metric: expected one of \[loss\], got 'losss'. Did you mean"
  with pytest.raises(errors.SpecError, match=message):
    reach.train(str(tmp_path), None, 1, create_exporters_fn=exporters)
  assert tf.train.latest_checkpoint(str(tmp_path)) is None
