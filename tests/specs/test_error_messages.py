"""The one builder of messages, and what the classes of errors promise."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import (
  ExtendedTensorSpec,
  ModeKeys,
  TensorSpecStruct,
  is_encoded_image_spec,
)


def test_one_mismatch():
  mismatch = errors.Mismatch("a/b", "(2,) float32", "nothing", " Add it.")
  error = errors.mismatch_error("parse", [mismatch])
  assert type(error) is errors.SpecError
  assert str(error) == "parse: a/b: expected (2,) float32, got nothing. Add it."


def test_mismatches_are_sorted_by_path():
  found = (errors.Mismatch(path, "x", "y") for path in ("b", "a/z", "a/b"))
  error = errors.mismatch_error("check", found, errors.RecordError)
  assert type(error) is errors.RecordError
  assert str(error).splitlines() == [
    "check: 3 mismatches:",
    "  a/b: expected x, got y.",
    "  a/z: expected x, got y.",
    "  b: expected x, got y.",
  ]


NEAREST = {
  "typo": ("imgae", ["pose", "image"], " Did you mean 'image'?"),
  "case": ("IMAGE", ["pose", "image"], " Did you mean 'image'?"),
  "nothing near": ("image", ["pose", "xyz"], ""),
  "nothing": ("image", [], ""),
  "branch": (
    "train/imag",
    ["train/image", "val/image"],
    " Did you mean 'train/image'?",
  ),
}


@pytest.mark.parametrize("name", NEAREST)
def test_nearest(name):
  asked, candidates, want = NEAREST[name]
  assert errors.nearest(asked, candidates) == want
  assert errors.nearest(asked, iter(candidates)) == want


DESCRIBED = {
  "array": (np.zeros((4, 2), np.float32), "(4, 2) float32"),
  "scalar": (np.int8(3), "() int8"),
  "tensor": (tf.zeros((1,)), "(1,) float32"),
  "spec": (ExtendedTensorSpec((None, 3), tf.bfloat16), "(None, 3) bfloat16"),
  "unknown rank": (tf.TensorSpec(None, tf.string), "(unknown shape) string"),
  "none": (None, "nothing"),
  "int": (3, "int 3"),
  "text": ("abc", "str 'abc'"),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_describe(name):
  value, want = DESCRIBED[name]
  assert errors.describe(value) == want


def test_describe_cuts_what_is_long():
  assert len(errors.describe("x" * 1000)) == 80


def test_describe_variables():
  assert errors.describe(tf.Variable([1.0])) == "(1,) float32"


def test_listing():
  assert errors.listing(["b", "a"]) == "[a, b]"
  assert errors.listing([]) == "[]"
  names = [f"n{i:02}" for i in range(25)]
  assert errors.listing(names).endswith("n18, n19, ... 5 more]")
  assert errors.listing(names, limit=1) == "[n00, ... 24 more]"


def test_classes():
  assert issubclass(errors.SpecError, ValueError)
  assert issubclass(errors.RecordError, errors.SpecError)
  for parent in (errors.SpecError, AttributeError, KeyError):
    assert issubclass(errors.UnknownPathError, parent)
  # A KeyError's text is the repr of its argument; this one's is not.
  assert str(errors.UnknownPathError("no 'x'")) == "no 'x'"
  restored = pickle.loads(pickle.dumps(errors.UnknownPathError("no 'x'")))
  assert str(restored) == "no 'x'"


@pytest.mark.parametrize("in_a_dataset", [False, True])
def test_classes_survive_autograph(in_a_dataset):
  def look_up(struct):
    return struct.nope

  struct = TensorSpecStruct(note=tf.zeros(3))
  with pytest.raises(errors.UnknownPathError, match=r"nope: .* Did you mean 'note'"):
    if in_a_dataset:
      tf.data.Dataset.from_tensors(struct).map(look_up)
    else:
      tf.function(look_up)(struct)


def test_modes():
  assert (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.INFER) == ("train", "eval", "infer")
  assert ModeKeys.PREDICT == ModeKeys.INFER
  assert ModeKeys.ALL == ("train", "eval", "infer")


IMAGE_FORMATS = {
  "jpeg": True,
  "JPEG": True,
  "Png": True,
  "bmp": True,
  "gif": True,
  "raw": False,
  None: False,
  "": False,
}


@pytest.mark.parametrize("data_format", IMAGE_FORMATS)
def test_is_encoded_image_spec(data_format):
  spec = ExtendedTensorSpec((8, 8, 3), tf.uint8, "image", data_format=data_format)
  assert is_encoded_image_spec(spec) is IMAGE_FORMATS[data_format]
  assert not is_encoded_image_spec(tf.TensorSpec((8, 8, 3), tf.uint8, "image"))
