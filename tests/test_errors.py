"""The errors: their form, their classes and what they suggest."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, imports
from t2r_seq.specs import ExtendedTensorSpec

# name: (mismatches, want)
MISMATCHES = {
  "one": (
    [errors.Mismatch("a/b", "(2,) int32", "nothing")],
    "stage: a/b: expected (2,) int32, got nothing.",
  ),
  "one with a hint": (
    [errors.Mismatch("a", "x", "y", " Did you mean 'b'?")],
    "stage: a: expected x, got y. Did you mean 'b'?",
  ),
  "several, sorted by path": (
    [
      errors.Mismatch("b", "x", "y"),
      errors.Mismatch("a/z", "1", "2", "Cast it."),
      errors.Mismatch("a", "3", "4"),
    ],
    "stage: 3 mismatches:\n"
    "  a: expected 3, got 4.\n"
    "  a/z: expected 1, got 2. Cast it.\n"
    "  b: expected x, got y.",
  ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch_error(name):
  mismatches, want = MISMATCHES[name]
  error = errors.mismatch_error("stage", iter(mismatches))
  assert type(error) is errors.SpecError
  assert str(error) == want


def test_mismatch_error_of_another_class():
  error = errors.mismatch_error(
    "parse", [errors.Mismatch("a", "x", "y")], errors.RecordError
  )
  assert type(error) is errors.RecordError


# name: (wanted, candidates, want)
NEAREST = {
  "a letter is missing": ("sate", ["state", "action"], " Did you mean 'state'?"),
  "other case": ("IMAGE", ["Image", "imagine"], " Did you mean 'Image'?"),
  "the nearest of several": (
    "state/imag",
    ["state/image", "state/images_raw"],
    " Did you mean 'state/image'?",
  ),
  "nothing near": ("state", ["action", "reward"], ""),
  "no candidates": ("state", [], ""),
  "an iterator": ("sate", iter(["state"]), " Did you mean 'state'?"),
}


@pytest.mark.parametrize("name", NEAREST)
def test_nearest(name):
  wanted, candidates, want = NEAREST[name]
  assert errors.nearest(wanted, candidates) == want


def test_listing():
  assert errors.listing([]) == "[]"
  assert errors.listing(["b", "a"]) == "[a, b]"
  assert errors.listing(map(str, range(5)), limit=3) == "[0, 1, 2, ... 2 more]"
  assert errors.listing("abc", limit=3) == "[a, b, c]"
  names = [f"n{i:02}" for i in range(25)]
  assert errors.listing(names).endswith("n18, n19, ... 5 more]")


# name: (value, want)
DESCRIBED = {
  "array": (np.zeros((4, 64), np.float32), "(4, 64) float32"),
  "numpy scalar": (np.int64(3), "() int64"),
  "tensor": (tf.zeros([2], tf.bfloat16), "(2,) bfloat16"),
  "variable": (tf.Variable([1.0]), "(1,) float32"),
  "strings": (tf.constant(["a"]), "(1,) string"),
  "spec": (ExtendedTensorSpec((None, 3), tf.uint8, "x"), "(None, 3) uint8"),
  "scalar spec": (tf.TensorSpec((), tf.bool), "() bool"),
  "unknown rank": (tf.TensorSpec(None, tf.int32), "(unknown shape) int32"),
  "None": (None, "nothing"),
  "int": (3, "int 3"),
  "text": ("hello", "str 'hello'"),
  "list": ([1, 2], "list [1, 2]"),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_describe(name):
  value, want = DESCRIBED[name]
  assert errors.describe(value) == want


def test_long_value_is_cut():
  assert len(errors.describe("x" * 1000)) == 80


def test_classes():
  assert issubclass(errors.SpecError, ValueError)
  assert issubclass(errors.RecordError, errors.SpecError)
  for base in (errors.SpecError, AttributeError, KeyError):
    assert issubclass(errors.UnknownPathError, base)


def test_unknown_path_is_shown_without_quotes():
  # The text of a KeyError is its repr.
  assert str(errors.UnknownPathError("a: no such path.")) == "a: no such path."
  assert str(errors.UnknownPathError()) == ""


@pytest.mark.parametrize(
  "error_cls", [errors.SpecError, errors.RecordError, errors.UnknownPathError]
)
def test_error_keeps_its_class(error_cls):
  def fail(x):
    if x.dtype == tf.float32:
      raise error_cls("stage: a: expected x, got y.")
    return x

  for run in (fail, tf.function(fail)):
    with pytest.raises(error_cls, match=r"stage: a: expected x, got y\."):
      run(tf.constant(1.0))
  copy = pickle.loads(pickle.dumps(error_cls("text")))
  assert type(copy) is error_cls and str(copy) == "text"


def test_missing_extra():
  error = imports.missing_extra("reverb", "replay")
  assert isinstance(error, ImportError)
  assert str(error) == (
    "reverb is not installed. It comes with an extra: pip install 't2r_seq[replay]'"
  )


_UNWRITTEN = {
  "the operating system's": (
    OSError(28, "No space left on device", "/a/b"),
    28,
    "save: a: expected room, got: No space left on device. Make some.",
  ),
  "TensorFlow's": (
    tf.errors.ResourceExhaustedError(None, None, "{{x}} /a.tmp; File too large\nat"),
    27,
    "save: a: expected room, got: File too large. Make some.",
  ),
  "of no kind that is known": (
    tf.errors.DataLossError(None, None, "Checksum does not match.\nStored: 1"),
    5,
    "save: a: expected room, got: Checksum does not match. Make some.",
  ),
}


@pytest.mark.parametrize("name", _UNWRITTEN)
def test_unwritten_keeps_number_and_text(name):
  error, number, want = _UNWRITTEN[name]
  got = errors.unwritten("save: a: expected room", error, "Make some.")
  assert (got.errno, got.strerror) == (number, want)
