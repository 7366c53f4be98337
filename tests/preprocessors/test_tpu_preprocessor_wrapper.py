"""Float features travel as bfloat16, and the model takes float32."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, models, preprocessors, specs, training

_SPEC = specs.ExtendedTensorSpec


@gin.configurable
class Line(models.RegressionModel):
  """Fits a line; keeps what it was given."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      x=_SPEC((1,), tf.float32, "x"), n=_SPEC((1,), tf.int32, "n")
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=_SPEC((1,), tf.float32, "y"))

  def create_network(self):
    return tf.keras.layers.Dense(1, kernel_initializer="ones")

  def a_func(self, features, mode):
    assert features.x.dtype == tf.float32
    return {"inference_output": self.network(features.x)}


def _examples():
  yield (
    {"x": np.array([1.001], np.float32), "n": np.array([3], np.int32)},
    {"target": np.array([1.001], np.float32)},
  )


@pytest.mark.parametrize("cast_labels", [False, True])
def test_what_is_sent_is_bfloat16_and_what_is_taken_float32(cast_labels, tmp_path):
  gin.parse_config(f"""
    Line.preprocessor_cls = @TPUPreprocessorWrapper
    TPUPreprocessorWrapper.preprocessor_cls = @NoOpPreprocessor
    TPUPreprocessorWrapper.cast_labels = {cast_labels}
  """)
  model = Line(action_size=1)
  generator = data.GeneratorInputGenerator(_examples, batch_size=1)
  generator.set_specification_from_model(model, "train")
  dataset = generator.create_dataset("train")
  features, labels = next(iter(dataset))
  assert (features["x"].dtype, features["n"].dtype) == (tf.bfloat16, tf.int32)
  assert labels["target"].dtype == (tf.bfloat16 if cast_labels else tf.float32)

  trainer = training.Trainer(model, tf.distribute.get_strategy())
  loss = float(trainer.train_step(features, labels)["loss"])
  # bfloat16 has no number between 1 and 1.0078.
  assert loss == pytest.approx(0.0 if cast_labels else 0.001**2, rel=1e-3)

  model.network.set_weights([np.ones((1, 1)), np.zeros(1)])
  loaded = tf.saved_model.load(training.export_saved_model(model, str(tmp_path), 0))
  outputs = loaded.signatures["serving_default"](
    x=tf.constant([[1.001]]), n=tf.constant([[3]])
  )
  np.testing.assert_allclose(outputs["inference_output"], [[1.001]], rtol=1e-6)
  assert isinstance(model.preprocessor, preprocessors.TPUPreprocessorWrapper)
