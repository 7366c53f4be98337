"""What Tensor2Robot's README shows about hierarchical specs holds here too."""

from __future__ import annotations

import collections

import pytest
import tensorflow as tf

from t2r_seq import tensorspec_utils
from t2r_seq.tensorspec_utils import ExtendedTensorSpec, TensorSpecStruct


def make_simple():
  simple = TensorSpecStruct()
  simple["state"] = ExtendedTensorSpec(shape=(8, 128), dtype=tf.float32, name="s")
  simple["action"] = ExtendedTensorSpec(shape=(8), dtype=tf.float32, name="a")
  return simple


def make_hierarchical():
  """Three copies: two by copy_tensorspec, the last one path by path."""
  simple, hierarchical = make_simple(), TensorSpecStruct()
  hierarchical.train = tensorspec_utils.copy_tensorspec(simple, prefix="train")
  hierarchical.val = tensorspec_utils.copy_tensorspec(simple, prefix="val")
  for path, spec in simple.items():
    hierarchical["test/" + path] = ExtendedTensorSpec.from_spec(
      spec, name="something_random/" + spec.name
    )
  return hierarchical


ITEMS = [
  ("train/state", (8, 128), "train/s"),
  ("train/action", (8,), "train/a"),
  ("val/state", (8, 128), "val/s"),
  ("val/action", (8,), "val/a"),
  ("test/state", (8, 128), "something_random/s"),
  ("test/action", (8,), "something_random/a"),
]


def describe(struct):
  return [(path, tuple(spec.shape), spec.name) for path, spec in struct.items()]


def test_one_copy():
  simple, hierarchical = make_simple(), TensorSpecStruct()
  hierarchical.train = tensorspec_utils.copy_tensorspec(simple, prefix="train")
  assert hierarchical.train.state == simple.state
  assert hierarchical.train.action == simple.action
  assert list(hierarchical.keys()) == ["train/state", "train/action"]
  assert list(hierarchical.train.keys()) == ["state", "action"]


def test_three_copies():
  hierarchical = make_hierarchical()
  assert describe(hierarchical) == ITEMS
  for branch in ("train", "val", "test"):
    assert list(hierarchical[branch].keys()) == ["state", "action"]
  assert hierarchical.train.state.name == "train/s"
  assert hierarchical.val.state.name == "val/s"
  assert hierarchical.test.state.name == "something_random/s"


def test_the_forbidden_pattern_and_what_to_do_instead():
  hierarchical = make_hierarchical()
  with pytest.raises(ValueError, match=r"got an empty TensorSpecStruct. Fill it first"):
    hierarchical.new = TensorSpecStruct()
  new = TensorSpecStruct()
  new.stuff = ExtendedTensorSpec((1,), tf.float32)
  hierarchical.new = new
  hierarchical["new/more"] = ExtendedTensorSpec((2,), tf.float32)
  assert list(hierarchical.new.keys()) == ["stuff", "more"]


def test_from_spec_alters_a_spec_in_the_hierarchy():
  hierarchical = make_hierarchical()
  hierarchical.train.state = ExtendedTensorSpec.from_spec(
    hierarchical.train.state, dtype=tf.bfloat16
  )
  assert hierarchical["train/state"].dtype == tf.bfloat16
  assert hierarchical["train/state"].name == "train/s"
  assert hierarchical["val/state"].dtype == tf.float32


def test_flattening_and_path_versus_name():
  flat = tensorspec_utils.flatten_spec_structure(make_hierarchical())
  assert describe(flat) == ITEMS
  # Below a branch the paths are shorter, the names are those of the whole hierarchy.
  assert describe(flat.train) == [
    ("state", (8, 128), "train/s"),
    ("action", (8,), "train/a"),
  ]


def test_namedtuples():
  hierarchy_type = collections.namedtuple("Hierarchy", ["train", "val"])
  sample_type = collections.namedtuple("Sample", ["state", "action"])

  def sample(prefix):
    return sample_type(
      state=ExtendedTensorSpec((8, 128), tf.float32, f"{prefix}/s"),
      action=ExtendedTensorSpec((8), tf.float32, f"{prefix}/a"),
    )

  hierarchy = hierarchy_type(train=sample("train"), val=sample("val"))
  flat = tensorspec_utils.flatten_spec_structure(hierarchy)
  assert describe(flat) == ITEMS[:4]
  with pytest.raises(AttributeError, match="can't set attribute"):
    hierarchy.train = None
  flat.train.state = ExtendedTensorSpec((1,), tf.float32)
  assert flat["train/state"].shape == (1,)
  assert hierarchy.train.state.shape == (8, 128)


def test_sequences_get_an_unknown_time_axis_behind_the_batch():
  spec = TensorSpecStruct()
  spec["state"] = ExtendedTensorSpec((8, 128), tf.float32, "s", is_sequence=True)
  inputs = tensorspec_utils.make_placeholders(spec)
  assert list(inputs.state.shape) == [None, None, 8, 128]
