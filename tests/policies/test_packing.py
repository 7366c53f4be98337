"""From observations to features."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.policies.policy import pack_observation

ONE = specs.TensorSpecStruct(
  [("state/pos", specs.ExtendedTensorSpec((3,), tf.float32))]
)
TWO = specs.TensorSpecStruct(
  [
    ("state/pos", specs.ExtendedTensorSpec((3,), tf.float32)),
    ("goal", specs.ExtendedTensorSpec((1,), tf.float32)),
  ]
)
POS = np.array([1, 2, 3], np.float32)
GOAL = np.array([4], np.float32)


@pytest.mark.parametrize(
  ("observation", "spec", "context", "want"),
  [
    (POS, ONE, None, {"state/pos": POS}),
    ({"state/pos": POS}, ONE, None, {"state/pos": POS}),
    (
      {"state": {"pos": POS}, "goal": GOAL},
      TWO,
      None,
      {"state/pos": POS, "goal": GOAL},
    ),
    ({"state": {"pos": POS, "vel": POS}}, ONE, None, {"state/pos": POS}),
    (POS, TWO, {"goal": GOAL}, {"state/pos": POS, "goal": GOAL}),
    (
      {"state": {"pos": POS}, "goal": -GOAL},
      TWO,
      {"goal": GOAL},
      {"state/pos": POS, "goal": GOAL},
    ),
  ],
  ids=["array", "path", "nested", "more", "array and context", "context wins"],
)
def test_pack_observation(observation, spec, context, want):
  packed = pack_observation(observation, spec, context)
  assert list(packed) == list(want)
  for path, value in want.items():
    np.testing.assert_array_equal(packed[path], value)


CONVERSIONS = {
  "list of floats": ([1.0, 2.0, 3.0], tf.float32, True),
  "list of integers": ([1, 2, 3], tf.float32, True),
  "list of lists": ([[1, 2], [3, 4]], tf.int32, True),
  "number": (1.5, tf.float32, True),
  "float64": (np.ones(3, np.float64), tf.float32, True),
  "float16": (np.ones(3, np.float16), tf.float32, True),
  "int64": (np.ones(3, np.int64), tf.int32, True),
  "int64 to floats": (np.ones(3, np.int64), tf.float32, True),
  "uint8 to int32": (np.ones(3, np.uint8), tf.int32, True),
  "bool": ([True, False], tf.float32, True),
  "the same": (np.ones(3, np.float32), tf.float32, True),
  "floats to uint8": (np.ones(3, np.float64), tf.uint8, False),
  "floats to int64": (np.ones(3, np.float32), tf.int64, False),
  "list of floats to uint8": ([1.0, 2.0], tf.uint8, False),
  "int64 to uint8": (np.ones(3, np.int64), tf.uint8, False),
  "pixels to floats": (np.ones(3, np.uint8), tf.float32, False),
  "complex to floats": (np.ones(3, np.complex64), tf.float32, False),
  "numbers to bool": (np.ones(3, np.int64), tf.bool, False),
  "text": (np.array(["a"]), tf.float32, False),
}


@pytest.mark.parametrize("case", CONVERSIONS)
def test_dtypes_of_the_same_kind_are_converted(case):
  value, dtype, is_converted = CONVERSIONS[case]
  given = np.asarray(value)
  spec = {"x": specs.ExtendedTensorSpec(given.shape, dtype)}
  got = pack_observation({"x": value}, spec)["x"]
  assert got.dtype == (dtype.as_numpy_dtype if is_converted else given.dtype)
  np.testing.assert_array_equal(got, given)


def test_ragged_list_is_named():
  want = (
    r"pack observation: state/pos: expected \(3,\) float32, got a list that is not an"
  )
  with pytest.raises(errors.SpecError, match=want):
    pack_observation([[1.0], [1.0, 2.0]], ONE)


def test_one_array_for_two_features():
  with pytest.raises(
    errors.SpecError, match=r"dictionary with \[goal, state/pos\], got"
  ):
    pack_observation(POS, TWO)


def test_missing_features_are_named():
  want = r"goal: .*\(1,\) float32, got nothing\. The observation has \[state/poss\]\."
  with pytest.raises(errors.SpecError, match=want) as info:
    pack_observation({"state": {"poss": POS}}, TWO)
  info.match(
    r"state/pos: expected \(3,\) float32, got nothing. Did you mean 'state/poss'"
  )
