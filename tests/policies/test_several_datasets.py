"""Records of several datasets, parsed inside of an export."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, models, policies, records, specs

_SPEC = specs.ExtendedTensorSpec


class TwoModel(models.RegressionModel):
  """The difference of what two datasets hold."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      a=_SPEC((2,), tf.float32, "x", dataset_key="first"),
      b=_SPEC((2,), tf.float32, "x", dataset_key="second"),
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=_SPEC((2,), tf.float32, "y"))

  def create_network(self):
    return tf.keras.layers.Dense(2, kernel_initializer="zeros")

  def a_func(self, features, mode):
    difference = features.a - features.b
    return {"inference_output": difference + self.network(difference)}


def test_each_dataset_has_its_records():
  predictor = policies.CheckpointPredictor(TwoModel())
  predictor.init_randomly()
  spec = {"x": _SPEC((2,), tf.float32, "x")}
  first, second = (
    [records.encode_example(spec, {"x": np.array(x, np.float32)})]
    for x in ([5, 7], [1, 2])
  )
  outputs = predictor.predict_records({"second": second, "first": first})
  np.testing.assert_array_equal(outputs["inference_output"], [[4, 5]])
  with pytest.raises(
    errors.SpecError,
    match=r"serialized: expected records for \[examples_first, examples_second\], got",
  ):
    predictor.predict_records(first)
