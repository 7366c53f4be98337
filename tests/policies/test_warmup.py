"""What TensorFlow Serving warms exports up with, read by its own protos."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import tensor_pb2

from t2r_seq import models, specs, training

_SPEC = specs.ExtendedTensorSpec
# From tensorflow_serving/apis/{model,predict,prediction_log}.proto: (message, field,
# number, type).
FIELDS = (
  ("ModelSpec", "name", 1, "string"),
  ("ModelSpec", "signature_name", 3, "string"),
  ("PredictRequest", "model_spec", 1, "ModelSpec"),
  ("PredictRequest", "inputs", 2, "InputsEntry"),
  ("InputsEntry", "key", 1, "string"),
  ("InputsEntry", "value", 2, "bytes"),
  ("PredictLog", "request", 1, "PredictRequest"),
  ("PredictionLog", "predict_log", 6, "PredictLog"),
)


def _prediction_log():
  file = descriptor_pb2.FileDescriptorProto(name="serving.proto", package="serving")
  file.syntax = "proto3"
  messages = {}
  for owner, name, number, kind in FIELDS:
    if owner not in messages:
      messages[owner] = file.message_type.add(name=owner)
    field = messages[owner].field.add(name=name, number=number)
    is_map = kind == "InputsEntry"
    field.label = field.LABEL_REPEATED if is_map else field.LABEL_OPTIONAL
    if kind in ("string", "bytes"):
      field.type = field.TYPE_STRING if kind == "string" else field.TYPE_BYTES
    else:
      field.type, field.type_name = field.TYPE_MESSAGE, f".serving.{kind}"
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  found = pool.FindMessageTypeByName("serving.PredictionLog")
  return message_factory.GetMessageClass(found)


class StackModel(models.RegressionModel):
  """A stack of two."""

  def get_feature_specification(self, mode):
    pos = _SPEC((2, 3), tf.float32, "pos", time_offsets=(-1, 0))
    return specs.TensorSpecStruct(pos=pos)

  def get_label_specification(self, mode):
    target = _SPEC((2,), tf.float32, "target", time_offsets=0)
    return specs.TensorSpecStruct(target=target)

  def create_network(self):
    return tf.keras.layers.Dense(2)

  def a_func(self, features, mode):
    return {"inference_output": self.network(tf.reshape(features.pos, [-1, 6]))}


def test_every_request_is_one_that_the_export_answers(tmp_path):
  model = StackModel()
  model.build()
  path = training.export_saved_model(model, str(tmp_path), 0, warmup_batch_sizes=(1, 3))
  requests = os.path.join(path, "assets.extra", "tf_serving_warmup_requests")
  loaded = tf.saved_model.load(path)
  answered = []
  for record in tf.data.TFRecordDataset(requests).as_numpy_iterator():
    request = _prediction_log().FromString(record).predict_log.request
    inputs = {}
    for entry in request.inputs:
      proto = tensor_pb2.TensorProto.FromString(entry.value)
      inputs[entry.key] = tf.constant(tf.make_ndarray(proto))
      assert not np.any(inputs[entry.key])
    name = request.model_spec.signature_name
    outputs = loaded.signatures[name](**inputs)
    answered.append((name, *outputs["inference_output"].shape))
  assert answered == [
    (name, size, 2) for name in ("serving_default", "step") for size in (1, 3)
  ]
