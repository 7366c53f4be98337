"""Tables and the arrays in them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq.cli import console


def test_format_table():
  table = console.format_table(["name", "n"], [["a", "12345"], ["longer", "1"]])
  assert table.split("\n") == [
    "name    n",
    "──────  ─────",
    "a       12345",
    "longer  1",
  ]


@pytest.mark.parametrize(
  ("value", "want"),
  [
    (np.float32(1 / 3), "0.3333"),
    (np.float32([[1, 0.12345], [-2e-7, 4]]), "[[1, 0.1235], [-2e-07, 4]]"),
    (np.array([True, False]), "[True, False]"),
    (np.int64([1, -2]), "[1, -2]"),
    (np.array([b"ab", b"\xff"], object), r"['ab', '\\xff']"),
    (np.arange(12, dtype=np.uint8).reshape(3, 4), "uint8 (3, 4) from 0 to 11"),
    (np.ones([1], tf.bfloat16.as_numpy_dtype), "[1]"),
  ],
)
def test_format_value(value, want):
  assert console.format_value(value) == want


@pytest.mark.parametrize(
  ("value", "want"),
  [
    (np.float32([0.1]), [float(np.float32(0.1))]),
    (np.array([[b"ab"]], object), [["ab"]]),
    (np.bool_(True), True),
    (np.ones([2], tf.bfloat16.as_numpy_dtype), [1.0, 1.0]),
  ],
)
def test_to_json(value, want):
  got = console.to_json(value)
  assert got == want
  assert json.loads(json.dumps(got)) == want
