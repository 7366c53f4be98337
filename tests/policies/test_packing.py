"""From observations to features."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, policies, specs

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
  packed = policies.pack_observation(observation, spec, context)
  assert list(packed) == list(want)
  for path, value in want.items():
    np.testing.assert_array_equal(packed[path], value)


def test_one_array_for_two_features():
  with pytest.raises(
    errors.SpecError, match=r"dictionary with \[goal, state/pos\], got"
  ):
    policies.pack_observation(POS, TWO)


def test_missing_features_are_named():
  with pytest.raises(errors.SpecError) as info:
    policies.pack_observation({"state": {"poss": POS}}, TWO)
  message = str(info.value)
  assert "goal: expected (1,) float32, got nothing." in message
  assert (
    "state/pos: expected (3,) float32, got nothing. Did you mean 'state/poss'?"
    in (message)
  )
