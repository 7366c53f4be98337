"""Padding and clipping a batch of lists to the length of a spec."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, tensorspec_utils
from t2r_seq.specs import ExtendedTensorSpec

CASES = {
  "pads": (tf.int64, 3.0, [[1, 3], [1, 2]], [[1, 3, 3], [1, 2, 3]]),
  "clips": (tf.int64, 3, [[1, 2, 3, 4]], [[1, 2, 3]]),
  "leaves as is": (tf.int64, 3, [[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]),
  "empty lists": (tf.float32, -1, [[], []], [[-1, -1, -1], [-1, -1, -1]]),
  "bool": (tf.bool, True, [[False]], [[False, True, True]]),
  "bfloat16": (tf.bfloat16, 0.5, [[1]], [[1, 0.5, 0.5]]),
  "string": (tf.string, b"-", [[b"a"]], [[b"a", b"-", b"-"]]),
  "text": (tf.string, "-", [[b"a"]], [[b"a", b"-", b"-"]]),
}


@pytest.mark.parametrize("name", CASES)
def test_lists_of_values(name):
  dtype, default, values, want = CASES[name]
  spec = ExtendedTensorSpec((3,), dtype, "v", varlen_default_value=default)
  tensor = tf.constant(values, dtype)
  padded = tensorspec_utils.pad_or_clip_tensor_to_spec_shape(tensor, spec)
  assert padded.dtype == dtype
  assert padded.numpy().tolist() == want


def test_lists_of_images():
  spec = ExtendedTensorSpec(
    (3, 2, 2, 1), tf.uint8, "v", data_format="png", varlen_default_value=3.0
  )
  images = np.arange(1, 3, dtype=np.uint8).reshape(1, 2, 1, 1, 1) * np.ones((2, 2, 1))
  padded = tensorspec_utils.pad_or_clip_tensor_to_spec_shape(
    tf.cast(images, tf.uint8), spec
  )
  assert padded.shape == (1, 3, 2, 2, 1)
  np.testing.assert_array_equal(padded[0, :, 0, 0, 0], [1, 2, 3])


def test_unknown_sizes():
  spec = ExtendedTensorSpec((3,), tf.int32, "v", varlen_default_value=0)

  @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)])
  def pad(tensor):
    padded = tensorspec_utils.pad_or_clip_tensor_to_spec_shape(tensor, spec)
    assert padded.shape.as_list() == [None, 3]
    return padded

  assert pad(tf.ones((1, 5), tf.int32)).numpy().tolist() == [[1, 1, 1]]
  assert pad(tf.ones((1, 1), tf.int32)).numpy().tolist() == [[1, 0, 0]]


def test_errors():
  fixed = ExtendedTensorSpec((3,), tf.int32, "v")
  with pytest.raises(errors.SpecError, match="v: expected a spec with a varlen"):
    tensorspec_utils.pad_or_clip_tensor_to_spec_shape(tf.ones((1, 3), tf.int32), fixed)
  varlen = ExtendedTensorSpec((3,), tf.int32, "v", varlen_default_value=0)
  with pytest.raises(errors.SpecError, match=r"v: expected shape \(None, None\), got"):
    tensorspec_utils.pad_or_clip_tensor_to_spec_shape(tf.ones((3,), tf.int32), varlen)
