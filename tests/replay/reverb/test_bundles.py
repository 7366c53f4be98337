"""Bundles give back what was put in, whatever its dtype."""

import numpy as np
import tensorflow as tf

from t2r_seq.replay.reverb import items

STEPS = {
  "flag": tf.TensorSpec([], tf.bool),
  "half": tf.TensorSpec([2], tf.bfloat16),
  "image": tf.TensorSpec([2, 3], tf.uint8),
  "later": tf.TensorSpec([2], tf.float32),
  "signed": tf.TensorSpec([], tf.int8),
  "text": tf.TensorSpec([], tf.string),
  "time": tf.TensorSpec([2], tf.float64),
}
SPANS = {path: (1, 1) if path == "later" else (-1, 0) for path in reversed(STEPS)}


def test_bundles_what_is_shown_at_the_same_steps():
  (bundle,) = items.make_bundles(SPANS, STEPS)
  assert list(bundle.fields) == ["flag", "half", "image", "signed", "time"]
  want = "(2, 2, 3) uint8 (steps -1 to 0)"
  described = items.describe_columns({bundle.column: bundle.spec(2)})
  assert described["image"] == want and list(described) == list(bundle.fields)


def test_unpacks_what_was_packed():
  (bundle,) = items.make_bundles(SPANS, STEPS)
  rng = np.random.default_rng(0)
  episode = {
    path: np.asarray(rng.integers(0, 2, [2, *field.shape])).astype(
      field.dtype.as_numpy_dtype
    )
    for path, field in bundle.fields.items()
  }
  packed = []
  for t in range(2):
    row = {
      path: items.to_wire(values[t], values.dtype) for path, values in episode.items()
    }
    bundle.pack(row)
    packed.append(row[bundle.column])
  unpacked = bundle.unpack(tf.constant(np.stack(packed)[None]))
  assert list(unpacked) == list(episode)
  for path, values in episode.items():
    assert unpacked[path].dtype == bundle.fields[path].dtype
    np.testing.assert_array_equal(unpacked[path][0].numpy(), values)
