"""Names of variables, weights to begin with, and what is trained."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, models, specs, training
from t2r_seq.models.warm_start import init_from_keras_weights_fn
from t2r_seq.training.trainer import Trainer

Spec = specs.ExtendedTensorSpec
BATCH = ({"x": tf.ones([4, 3])}, {"target": tf.ones([4, 1])})


class Model(models.RegressionModel):
  def __init__(self, **kwargs):
    kwargs.setdefault("create_optimizer_fn", lambda: tf.keras.optimizers.SGD(0.1))
    super().__init__(action_size=1, **kwargs)

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(x=Spec((3,), tf.float32, "x"))

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=Spec((1,), tf.float32, "y"))

  def create_network(self):
    layers = tf.keras.layers
    tower = tf.keras.Sequential(
      [layers.Dense(2), layers.BatchNormalization(), layers.Dense(2, name="block_2")]
    )
    return {"tower": tower, "head": layers.Dense(1)}

  def a_func(self, features, mode):
    net = self.network["tower"](features.x, training=mode == "train")
    return {"inference_output": self.network["head"](net)}


NAMES = {
  *(f"tower/dense/{leaf}" for leaf in ("kernel", "bias")),
  *(f"tower/block_2/{leaf}" for leaf in ("kernel", "bias")),
  *(f"head/{leaf}" for leaf in ("kernel", "bias")),
  *(
    f"tower/batch_normalization/{leaf}"
    for leaf in ("gamma", "beta", "moving_mean", "moving_variance")
  ),
}


def built(**kwargs):
  model = Model(**kwargs)
  model.build()
  return model


def values(model):
  return {name: v.numpy() for name, v in model.named_variables.items()}


def same(mine, others, names):
  return all(np.array_equal(mine[name], others[name]) for name in names)


@pytest.fixture(name="trained", scope="module")
def fixture_trained(tmp_path_factory):
  """A model that was trained for a step, and the prefix of its checkpoint."""
  trainer = Trainer(Model(), tf.distribute.get_strategy())
  trainer.train_step(*BATCH)
  prefix = str(tmp_path_factory.mktemp("trained") / "model.ckpt-1")
  return values(trainer.model), trainer.checkpoint().write(prefix)


def test_names_are_of_the_structure_and_no_counters(trained):
  _, prefix = trained
  tf.keras.layers.Dense(1), tf.keras.Sequential()
  model = built()
  assert set(model.named_variables) == NAMES
  assert len(model.variables) == len(NAMES)
  keys = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
  assert {f"model/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in NAMES} <= set(keys)


def test_names_of_lists_modules_and_recurrent_layers():
  class Module(tf.Module):
    def __init__(self):
      super().__init__()
      self.scale = tf.Variable(1.0)
      self.parts = [tf.Variable([2.0])]

  cell = tf.keras.layers.LSTM(2)
  cell.build((1, 4, 3))
  twins = [tf.keras.layers.Dense(1) for _ in range(2)]
  stacked = tf.keras.Sequential(twins)
  stacked.build((1, 3))
  got = models.T2RModel.named_variables.fget(
    type("Fake", (), {"network": [Module(), cell, stacked]})()
  )
  assert set(got) >= {
    *("0/scale", "0/parts/0", "1/lstm_cell/kernel", "1/lstm_cell/bias"),
    *("2/dense/kernel", "2/dense_1/kernel", "2/dense_1/bias"),
  }
  assert got["2/dense_1/kernel"] is not got["2/dense/kernel"]


def test_whole_checkpoint_of_the_same_model_is_loaded(trained, caplog):
  want, prefix = trained
  model = built()
  assert not same(values(model), want, ["head/kernel"])
  with caplog.at_level(logging.INFO, "absl"):
    models.default_init_from_checkpoint_fn(model, prefix)
  assert same(values(model), want, NAMES)
  assert f"Initialized 10 of 10 variables from {prefix}" in caplog.text


def test_averages_are_loaded_as_weights(tmp_path):
  kwargs = {"use_avg_model_params": True, "avg_model_params_decay": 0.5}
  trainer = Trainer(Model(**kwargs), tf.distribute.get_strategy())
  for _ in range(2):
    trainer.train_step(*BATCH)
  prefix = trainer.checkpoint().write(str(tmp_path / "model.ckpt-2"))
  raw, want = values(trainer.model), trainer.model.policy_weights
  assert not same(raw, want, ["head/kernel"])
  assert not same(raw, want, ["tower/batch_normalization/moving_mean"])
  model = built()
  models.default_init_from_checkpoint_fn(model, prefix)
  assert same(values(model), want, NAMES)


def test_filter_and_a_map_of_scopes(trained):
  want, prefix = trained
  model = built()
  before = values(model)
  choose = models.create_name_filter(["tower/*"], ["*/bias"])
  models.default_init_from_checkpoint_fn(model, prefix, filter_restorables_fn=choose)
  assert same(values(model), want, ["tower/dense/kernel", "tower/block_2/kernel"])
  assert same(values(model), before, ["head/kernel", "tower/dense/bias"])
  other = {"arm": model.network["tower"]}
  fake = type("Fake", (), {"network": other})
  fake.named_variables = models.T2RModel.named_variables.fget(fake)
  models.default_init_from_checkpoint_fn(fake, prefix, assignment_map={"tower": "arm"})
  assert same(values(model), want, NAMES - {"head/kernel", "head/bias"})


def test_checkpoint_of_tensorflow_1(tmp_path):
  arrays = {"slim/fc/weights": np.ones((2, 1), np.float32), "slim/fc/biases": [5.0]}
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    variables = [
      tf.compat.v1.get_variable(name, initializer=tf.constant(value))
      for name, value in arrays.items()
    ]
    session.run([v.initializer for v in variables])
    prefix = tf.compat.v1.train.Saver(variables).save(session, str(tmp_path / "old"))
  model = built()
  models.default_init_from_checkpoint_fn(
    model, prefix, assignment_map={"slim/fc": "head"}
  )
  assert model.named_variables["head/bias"].numpy() == [5.0]
  np.testing.assert_array_equal(model.named_variables["head/kernel"], [[1.0], [1.0]])


def test_keras_weights_of_a_part(tmp_path):
  first, second = built(), built()
  path = str(tmp_path / "tower.weights.h5")
  first.network["tower"].save_weights(path)
  init_from_keras_weights_fn(second, path, part="tower")
  want = values(first)
  assert same(values(second), want, NAMES - {"head/kernel", "head/bias"})
  with pytest.raises(
    errors.SpecError, match=re.escape("one of [head, tower], got 't'")
  ):
    init_from_keras_weights_fn(second, path, part="t")
  with pytest.raises(errors.SpecError, match=r"tower: expected an \.h5 or \.keras"):
    init_from_keras_weights_fn(second, str(tmp_path / "tower"), part="tower")


def test_warm_start_names_mismatched_variables(trained, tmp_path):
  _, prefix = trained
  model = built()
  part = tf.train.Checkpoint(model={"head": {"kernel": tf.ones([3, 1])}})
  part.model["head"]["kernel"] = tf.Variable(tf.ones([3, 1]))
  odd = part.write(str(tmp_path / "odd"))
  with pytest.raises(errors.SpecError) as e:
    models.default_init_from_checkpoint_fn(model, odd)
  assert "head/kernel: expected (2, 1), got (3, 1) at 'head/kernel'" in str(e.value)
  assert "tower/dense/bias: expected 'tower/dense/bias', got nothing" in str(e.value)
  with pytest.raises(errors.SpecError, match="names: expected variables of the model"):
    models.default_init_from_checkpoint_fn(
      model, prefix, allow_partial_restore=True, assignment_map={"nowhere": ""}
    )
  with pytest.raises(errors.SpecError, match="expected a checkpoint, got"):
    models.default_init_from_checkpoint_fn(model, str(tmp_path / "none"))
  lacking = tf.train.Checkpoint(model={"head": {"bias": tf.Variable([7.0])}})
  models.default_init_from_checkpoint_fn(
    model, lacking.write(str(tmp_path / "part")), allow_partial_restore=True
  )
  assert model.named_variables["head/bias"].numpy() == [7.0]


def examples():
  for _ in range(4):
    yield {"x": np.ones(3, np.float32)}, {"target": np.ones(1, np.float32)}


def test_run_begins_with_them_and_trains_what_is_chosen(trained, tmp_path):
  want, prefix = trained
  calls = []

  def init(model):
    calls.append(model)
    models.default_init_from_checkpoint_fn(model, prefix)

  def run(steps):
    model = Model(
      init_from_checkpoint_fn=init,
      filter_trainables_fn=models.create_name_filter(["head/*"]),
    )
    training.train_eval_model(
      model,
      data.GeneratorInputGenerator(examples, batch_size=2),
      max_train_steps=steps,
      model_dir=str(tmp_path),
      create_exporters_fn=None,
    )
    return values(model)

  got = run(2)
  frozen = [n for n in NAMES if n.startswith("tower") and "moving" not in n]
  assert same(got, want, frozen) and not same(got, want, ["head/bias"])
  run(3)
  assert len(calls) == 1  # What resumes has weights of its own.


def test_filter_that_leaves_nothing_is_refused():
  model = built(filter_trainables_fn=models.create_name_filter(["heads/*"]))
  with pytest.raises(
    errors.SpecError, match="filter_trainables_fn: expected to choose"
  ):
    model.create_optimizer()


class ProjectingModel(Model):
  """PCGrad (Yu et al., 2020): of two tasks' gradients what conflicts is left out."""

  def compute_gradients(self, features, labels, scale):
    variables = self.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
      packed, targets = self.pack(features, labels, "train")
      error = self.a_func(packed, "train")["inference_output"] - targets.target
      losses = [tf.reduce_mean(tf.square(error)), tf.reduce_mean(error)]
      scaled = [scale(loss) for loss in losses]
    gradients = [tape.gradient(loss, variables) for loss in scaled]
    flat = [tf.concat([tf.reshape(g, [-1]) for g in each], 0) for each in gradients]
    projected = []
    for own, other in (flat, flat[::-1]):
      conflict = tf.minimum(tf.tensordot(own, other, 1), 0.0)
      projected.append(own - conflict / tf.tensordot(other, other, 1) * other)
    parts = tf.split(projected[0] + projected[1], [tf.size(v) for v in variables])
    done = [tf.reshape(p, v.shape) for p, v in zip(parts, variables, strict=True)]
    self.flat = flat, projected
    return losses[0] + losses[1], {"tasks/error": losses[1]}, done


def test_gradients_can_be_replaced():
  model = ProjectingModel(filter_trainables_fn=models.create_name_filter(["head/*"]))
  trainer = Trainer(model, tf.distribute.get_strategy())
  before = values(model)
  tf.config.run_functions_eagerly(True)
  try:
    scalars = trainer.train_step(*BATCH)
  finally:
    tf.config.run_functions_eagerly(False)
  (first, second), (left, right) = [[g.numpy() for g in pair] for pair in model.flat]
  if first @ second < 0:  # The error is negative: the tasks pull apart.
    assert abs(left @ second) < 1e-5 and abs(right @ first) < 1e-5
  step = np.concatenate(
    [(before[n] - values(model)[n]).ravel() for n in ("head/kernel", "head/bias")]
  )
  np.testing.assert_allclose(step, 0.1 * (left + right), atol=1e-5)
  assert "tasks/error" in scalars and np.isfinite(scalars["gradient_norm"])
