"""Requests that TensorFlow Serving warms a model up with, when it loads it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq.specs.assets import EXTRA_ASSETS_DIRECTORY

WARMUP_REQUESTS = "tf_serving_warmup_requests"
# Those that change nothing.
_SIGNATURES = ("serving_default", "stateless_step")
_MODEL_NAME = "policy"


def write_warmup_requests(
  export_path: str, signatures: Mapping[str, Any], batch_sizes: Sequence[int] = (1,)
) -> None:
  """Writes requests of zeros for each signature that keeps no state.

  Without them the first client waits for what TensorFlow sets up at a first call. The
  file is a TFRecord of `tensorflow.serving.PredictionLog`.

  Args:
    export_path: the folder of a SavedModel.
    signatures: functions with an `input_signature`, by name.
    batch_sizes: of the requests of each.
  """
  extra = os.path.join(export_path, EXTRA_ASSETS_DIRECTORY)
  tf.io.gfile.makedirs(extra)
  with tf.io.TFRecordWriter(os.path.join(extra, WARMUP_REQUESTS)) as writer:
    for name in _SIGNATURES:
      for size in batch_sizes if name in signatures else ():
        writer.write(_prediction_log(name, signatures[name].input_signature, size))


def _prediction_log(signature: str, inputs: Any, batch_size: int) -> bytes:
  """Encodes a request; the numbers are those of the fields in the protos of Serving."""
  model_spec = _field(1, _MODEL_NAME.encode()) + _field(3, signature.encode())
  request = _field(1, model_spec)
  for spec in inputs:
    shape = [1 if size is None else size for size in spec.shape]
    shape[:1] = [batch_size]
    empty = b"" if spec.dtype == tf.string else np.zeros([], spec.dtype.as_numpy_dtype)
    # One value stands for all.
    tensor = tf.make_tensor_proto(empty, spec.dtype, shape).SerializeToString()
    request += _field(2, _field(1, spec.name.encode()) + _field(2, tensor))
  predict_log = _field(1, request)
  return _field(6, predict_log)


def _field(number: int, data: bytes) -> bytes:
  """Encodes a field of a message, a string or bytes."""
  return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
  encoded = b""
  while value > 0x7F:
    encoded += bytes([value & 0x7F | 0x80])
    value >>= 7
  return encoded + bytes([value])
