"""Axes of tasks and of samples, joined and split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.meta_learning import meta_tfdata
from t2r_seq.specs import TensorSpecStruct

VALUES = tf.reshape(tf.range(24), [2, 3, 4])


def test_axes_round_trip():
  given = TensorSpecStruct({"a/b": VALUES, "mode": tf.constant([True, False])})
  joined = meta_tfdata.flatten_batch_examples(given)
  assert joined["a/b"].shape == (6, 4) and joined["mode"].shape == (2,)
  split = meta_tfdata.unflatten_batch_examples({"a": {"b": joined["a/b"]}}, 3)
  np.testing.assert_array_equal(split["a/b"], VALUES)
  merged = meta_tfdata.merge_first_n_dims({"x": VALUES, "n": 7}, 3)
  assert merged["x"].shape == (24,) and merged["n"] == 7
  again = meta_tfdata.expand_batch_dims(merged, [2, 3, 4])
  np.testing.assert_array_equal(again["x"], VALUES)


@pytest.mark.parametrize("known", [[2, 3, 4], [None, None, 4]])
def test_multi_batch_apply(known):
  shapes = []

  def both(x, scale, *, more):
    shapes.append(x.shape.as_list())
    return {"sum": tf.reduce_sum(x + more, axis=-1), "scaled": x * scale}

  @tf.function(input_signature=[tf.TensorSpec(known, tf.int32)])
  def apply(x):
    return meta_tfdata.multi_batch_apply(both, 2, x, 3, more=x)

  done = apply(VALUES)
  assert shapes[-1] == [6 if known[0] else None, 4]
  np.testing.assert_array_equal(done["sum"], 2 * tf.reduce_sum(VALUES, -1))
  np.testing.assert_array_equal(done["scaled"], 3 * VALUES)


def test_split_train_val():
  dataset = tf.data.Dataset.from_tensors(({"x": tf.range(5)}, {"y": tf.range(5, 10)}))
  (pair,) = meta_tfdata.split_train_val(dataset, 2).batch(3)
  features, labels = pair
  np.testing.assert_array_equal(features.train["x"], [[0, 1]])
  np.testing.assert_array_equal(labels.val["y"], [[7, 8, 9]])
  assert features.val_mode.shape == (1, 1)


def test_tile_val_mode():
  samples = {"x": VALUES}
  pair = TensorSpecStruct(train=samples, val=samples, val_mode=tf.constant([[1], [0]]))
  meta_tfdata.tile_val_mode(pair)
  np.testing.assert_array_equal(pair.val_mode[:, 0], [1, 1, 1, 0, 0, 0])
  pair.val = {"x": VALUES[:, :2]}
  with pytest.raises(errors.SpecError, match=r"tile_val_mode: .* got 3 and 2"):
    meta_tfdata.tile_val_mode(pair)
