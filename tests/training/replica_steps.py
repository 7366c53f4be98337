"""What steps on two replicas must do; run as a script, which fails if they don't."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

from t2r_seq import layers, models, specs
from t2r_seq.training.evaluation import evaluate
from t2r_seq.training.trainer import Trainer

cpu = tf.config.list_physical_devices("CPU")[0]
half = tf.config.LogicalDeviceConfiguration()
tf.config.set_logical_device_configuration(cpu, [half, half])

Spec = specs.ExtendedTensorSpec
keras = tf.keras.optimizers
LossScaleOptimizer = tf.keras.mixed_precision.LossScaleOptimizer
X = np.linspace(-1, 1, 8, dtype=np.float32)[:, None]


class Model(models.RegressionModel):
  """A frozen layer, a head that the loss alone uses, a target network, statistics."""

  def __init__(self, create_optimizer_fn, **kwargs):
    super().__init__(1, create_optimizer_fn=create_optimizer_fn, **kwargs)

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(x=Spec((1,), tf.float32, "x"))

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=Spec((1,), tf.float32, "y"))

  def create_network(self):
    frozen = tf.keras.layers.Dense(1, kernel_initializer="ones")
    frozen.trainable = False
    target = tf.keras.layers.Dense(1, kernel_initializer="zeros")
    target.trainable = False
    return {
      "line": tf.keras.layers.Dense(1, kernel_initializer="ones"),
      "target": target,
      "frozen": frozen,
      "head": tf.keras.layers.Dense(2, kernel_initializer="ones"),
      "norm": tf.keras.layers.BatchNormalization(center=False, scale=False),
    }

  def a_func(self, features, mode):
    self.network["norm"](features.x + 1, training=mode == specs.ModeKeys.TRAIN)
    seen = self.network["frozen"](features.x)
    return {"inference_output": self.network["line"](seen)}

  def model_train_fn(self, features, labels, inference_outputs, mode):
    loss = super().model_train_fn(features, labels, inference_outputs, mode)
    self.network["target"](features.x)
    return loss + 0.1 * tf.reduce_mean(self.network["head"](features.x) ** 2)

  def after_train_step(self):
    models.update_target_network(self.network["target"], self.network["line"], 0.5)


def sgd():
  return keras.SGD(0.1)


def batches(strategy, *targets):
  dataset = tf.data.Dataset.from_tensor_slices(({"x": X}, {"target": targets[0]}))
  for target in targets[1:]:
    more = tf.data.Dataset.from_tensor_slices(({"x": X}, {"target": target}))
    dataset = dataset.concatenate(more)
  return strategy.distribute(dataset.batch(len(X)))


def run(strategy, model, *targets):
  trainer = Trainer(model, strategy)
  for features, labels in batches(trainer, *targets):
    trainer.train_step(features, labels)
  return trainer


def values(model):
  return [np.copy(v) for v in model.trainable_variables]


def close(got, want):
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


one = tf.distribute.get_strategy()
two = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
good = 3 * X + 1

# Scaled losses train alike, averages are the same, and targets follow.
options = {"use_avg_model_params": True, "avg_model_params_decay": 0.5}
want = run(one, Model(sgd, **options), good, good, good)
got = run(two, Model(lambda: LossScaleOptimizer(sgd()), **options), good, good, good)
close(values(got.model), values(want.model))
frozen = got.model.network["frozen"]
np.testing.assert_array_equal(np.copy(frozen.weights[0]), [[1.0]])
targets = [each.model.network["target"].weights[0] for each in (got, want)]
np.testing.assert_allclose(*map(np.copy, targets), rtol=1e-4)
assert np.copy(targets[0]) > 0.9
raw = values(got.model)
with got.model.averaged_weights(), want.model.averaged_weights():
  close(values(got.model), values(want.model))
  assert not np.allclose(values(got.model)[0], raw[0])
for a, b in zip(values(got.model), raw, strict=True):
  np.testing.assert_array_equal(a, b)
metrics = [
  evaluate(trainer, batches(trainer, good), None)["loss"] for trainer in (got, want)
]
np.testing.assert_allclose(*metrics, rtol=1e-4)


def overwriting():
  return keras.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)


want = run(one, Model(overwriting), good, good)
got = run(two, Model(overwriting), good, good)
close(values(got.model), values(want.model))


# A checkpoint of two replicas gives back all of it.
def averaging():
  create = lambda: LossScaleOptimizer(keras.Adam(0.1))  # noqa: E731
  return Model(create, use_avg_model_params=True)


got = run(two, averaging(), good, good)
path = got.checkpoint().write(f"{sys.argv[1]}/ckpt")
restored = Trainer(averaging(), two)
restored.checkpoint().read(path).assert_existing_objects_matched().assert_consumed()
with got.model.averaged_weights(), restored.model.averaged_weights():
  close(values(restored.model), values(got.model))

# Gradients that overflow on the second replica alone: both leave the step out.
steep = np.array(good)
steep[-1] = 1e18
model = Model(lambda: LossScaleOptimizer(sgd(), initial_scale=2.0**100))
trainer = Trainer(model, two)
before = values(trainer.model)
for index, (features, labels) in enumerate(batches(trainer, steep, good)):
  trainer.train_step(features, labels)
  assert trainer.first_bad_step is None
  assert np.allclose(values(trainer.model)[0], before[0]) == (index == 0)


# What is of the whole batch is the same on two replicas: masks, of which one has more
# than the other, clipping, accumulation, groups, statistics that are synchronised.
class Masked(Model):
  def create_network(self):
    norm = tf.keras.layers.BatchNormalization(synchronized=True)
    return {"norm": norm, "line": tf.keras.layers.Dense(1, kernel_initializer="ones")}

  def a_func(self, features, mode):
    seen = self.network["norm"](features.x, training=mode == specs.ModeKeys.TRAIN)
    return {"inference_output": self.network["line"](seen), "x": features.x}

  def model_train_fn(self, features, labels, inference_outputs, mode):
    error = (inference_outputs["inference_output"] - labels.target) ** 2
    return layers.masked_mean(error, features.x > -0.4)

  def after_train_step(self):
    pass


def rate():
  return 0.1


def accumulating():
  clip = {"global_clipnorm": 1.0, "gradient_accumulation_steps": 2}
  return models.create_momentum_optimizer(rate, **clip)


GROUPS = {
  "norm/*": lambda: models.create_keras_optimizer(keras.SGD, rate, clipnorm=0.5),
  "*": lambda: models.create_adam_optimizer(rate, clipvalue=0.2, weight_decay=0.1),
}
OPTIMIZERS = {
  "accumulated": lambda: LossScaleOptimizer(accumulating()),
  "groups": lambda: models.create_grouped_optimizer(GROUPS, global_clipnorm=1.0),
}


for name, create in OPTIMIZERS.items():
  pair = []
  for strategy in (one, two):
    trainer = Trainer(Masked(create, use_avg_model_params=True), strategy)
    losses = [
      {k: float(v) for k, v in trainer.train_step(*batch).items()}
      for batch in batches(trainer, good, -good, good, good, good)
    ]
    ((sums, _, count),) = [
      trainer.eval_step(*batch) for batch in batches(trainer, good)
    ]
    losses.append({"loss": float(sums["loss"] / count)})
    pair.append((trainer, losses))
  for want, got in zip(pair[0][1], pair[1][1], strict=True):
    assert want.keys() == got.keys()
    for key in want:
      np.testing.assert_allclose(
        got[key], want[key], rtol=1e-4, err_msg=f"{name} {key}"
      )
  close(values(pair[1][0].model), values(pair[0][0].model))
  averages = [pair[i][0].model.averages.by_weight.values() for i in (1, 0)]
  close(*[[v.numpy() for v in each] for each in averages])

# What is accumulated is saved: the third step's gradients wait for the fourth's.
trainer = Trainer(Masked(accumulating), two)
for batch in batches(trainer, good, good, good):
  trainer.train_step(*batch)
path = trainer.checkpoint().write(f"{sys.argv[1]}/accumulated")
resumed = Trainer(Masked(accumulating), two)
resumed.checkpoint().read(path).assert_existing_objects_matched().assert_consumed()
for batch in batches(trainer, -good):
  trainer.train_step(*batch)
  resumed.train_step(*batch)
close(values(resumed.model), values(trainer.model))
