"""Features that need no closer look, and all others."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.policies import loaded_export

SPEC = specs.TensorSpecStruct(
  [
    ("state/pos", specs.ExtendedTensorSpec((3,), tf.float32, "pos")),
    ("t", specs.ExtendedTensorSpec((), tf.int64, "t")),
  ]
)
POS, T = np.zeros([2, 3], np.float32), np.zeros([2], np.int64)

# name: (features, whether they are taken as they are)
CASES = {
  "by path": ({"state/pos": POS, "t": T}, True),
  "with others": ({"t": T, "more": 1, "state/pos": POS}, True),
  "a struct": (specs.TensorSpecStruct({"state/pos": POS, "t": T}), True),
  "nested": ({"state": {"pos": POS}, "t": T}, False),
  "missing": ({"t": T}, False),
  "another shape": ({"state/pos": POS[:, :2], "t": T}, False),
  "another number": ({"state/pos": POS[:1], "t": T}, False),
  "another dtype": ({"state/pos": POS.astype(np.float64), "t": T}, False),
  "another order of bytes": ({"state/pos": POS.astype(">f4"), "t": T}, False),
  "a list": ({"state/pos": POS.tolist(), "t": T}, False),
  "a tensor": ({"state/pos": tf.constant(POS), "t": T}, False),
  "a masked array": ({"state/pos": np.ma.masked_array(POS), "t": T}, False),
  "an array": (POS, False),
}


@pytest.mark.parametrize("name", CASES)
def test_take(name):
  features, is_exact = CASES[name]
  got = loaded_export._ExactFeatures(SPEC).take(features, num_envs=2)
  assert (got is not None) == is_exact
  if is_exact:
    assert list(got) == ["state/pos", "t"]
    assert got["state/pos"] is POS


@pytest.mark.parametrize(
  "spec",
  [
    specs.ExtendedTensorSpec((None,), tf.float32, "a"),
    specs.ExtendedTensorSpec((), tf.string, "a"),
  ],
  ids=["an open shape", "a string"],
)
def test_what_has_no_one_array_type_is_looked_at(spec):
  exact = loaded_export._ExactFeatures(specs.TensorSpecStruct({"a": spec}))
  assert exact.take({"a": np.zeros([1, 3], np.float32)}, 1) is None
  assert exact.take({"a": np.array([b"x"])}, 1) is None
