"""The mean over real steps, and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, layers

NAN, INF = float("nan"), float("inf")

# name: (values, mask, axis, want)
MEANS = {
  "all real": ([1.0, 2.0, 6.0], [True, True, True], None, 3.0),
  "some": ([1.0, 2.0, 6.0], [True, False, True], None, 3.5),
  "none": ([1.0, 2.0], [False, False], None, 0.0),
  "no values": (np.zeros([0]), np.zeros([0], bool), None, 0.0),
  "nan under the mask": ([1.0, NAN], [True, False], None, 1.0),
  "inf under the mask": ([INF, 2.0, -INF], [False, True, False], None, 2.0),
  "scalar": (4.0, True, None, 4.0),
  "axis": ([[1.0, 3.0], [5.0, 9.0]], [[True, True], [True, False]], 1, [2.0, 5.0]),
  "an empty row": ([[1.0, 3.0], [5.0, 9.0]], [[True, True], [False, False]], 1, [2, 0]),
  "negative axis": ([[1.0, 3.0]], [[False, True]], -1, [3.0]),
  "axes": (np.arange(8.0).reshape(2, 2, 2), [[1, 0], [1, 0]], (0, 1), [2.0, 3.0]),
  "leading axes": ([[1.0, 3.0], [5.0, 9.0]], [True, False], None, 2.0),
  "leading axes, square": ([[1.0, 3.0], [5.0, 9.0]], [False, True], 0, [5.0, 9.0]),
}


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16, tf.float16])
@pytest.mark.parametrize("name", MEANS)
def test_means(name, dtype):
  values, mask, axis, want = MEANS[name]
  values, mask = tf.cast(values, dtype), tf.cast(mask, tf.bool)
  mean = layers.masked_mean(values, mask, axis)
  assert mean.dtype == dtype
  np.testing.assert_allclose(tf.cast(mean, tf.float32), want)
  graph = tf.function(layers.masked_mean)(values, mask, axis)
  assert bool(tf.reduce_all(graph == mean))


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_more_values_than_a_half_can_count(dtype):
  values = tf.ones([70000], dtype)
  mean = layers.masked_mean(values, tf.ones([70000], tf.bool))
  assert float(mean) == 1.0


def test_padded_steps_have_no_gradient():
  values = tf.Variable([[1.0, NAN], [INF, 3.0]])
  mask = tf.constant([[True, False], [False, True]])
  with tf.GradientTape() as tape:
    loss = layers.masked_mean(tf.square(values), mask)
  assert float(loss) == 5.0
  gradient = tape.gradient(loss, values).numpy()
  assert gradient[0, 0] == 1.0 and gradient[1, 1] == 3.0
  values = tf.Variable([1.0, NAN, INF])
  with tf.GradientTape() as tape:
    loss = layers.masked_mean(values, [True, False, False])
  np.testing.assert_array_equal(tape.gradient(loss, values), [1.0, 0.0, 0.0])


def test_gradient_where_all_is_padding():
  values = tf.Variable([1.0, 2.0])
  with tf.GradientTape() as tape:
    loss = layers.masked_mean(values, [False, False])
  np.testing.assert_array_equal(tape.gradient(loss, values), [0.0, 0.0])


def test_xla():
  values, mask = tf.constant([[1.0, NAN], [5.0, 9.0]]), tf.constant([[1, 0], [1, 1]])
  mean = tf.function(layers.masked_mean, jit_compile=True)(values, mask > 0)
  assert float(mean) == 5.0


def test_unknown_sizes():
  mean = tf.function(layers.masked_mean).get_concrete_function(
    tf.TensorSpec([None, None, 2], tf.float32), tf.TensorSpec([None, None], tf.bool)
  )
  values = tf.constant([[[1.0, 2.0], [3.0, 4.0]]])
  assert float(mean(values, tf.constant([[False, True]]))) == 3.5


BAD = {
  "integers": (
    [1, 2],
    [True, True],
    r"masked_mean: values: expected floating point, got \(2,\) int32\. Cast",
  ),
  "mask of numbers": ([1.0], [1.0], r"mask: expected bools .*, got \(1,\) float32"),
  "mask of more axes": (
    [1.0, 2.0],
    [[True, False]],
    r"masked_mean: mask: expected .* axes of the values, \(2,\) float32, got \(1, 2\)",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(name):
  values, mask, match = BAD[name]
  with pytest.raises(errors.SpecError, match=match):
    layers.masked_mean(values, mask)
