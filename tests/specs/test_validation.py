"""Do tensors fit a structure? All mismatches at once, each with its path."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, tensorspec_utils
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.specs import TensorSpecStruct

IMAGE = Spec((8, 8, 3), tf.uint8, "image", data_format="jpeg")
ACTION = Spec((2,), tf.float32, "action")
DEBUG = Spec((2,), tf.float32, "debug", is_optional=True)
STATE = Spec((3,), tf.float32, "state", is_sequence=True)

Sample = collections.namedtuple("Sample", ["image", "action"])
Split = collections.namedtuple("Split", ["train", "test"])
Optional = collections.namedtuple("Optional", ["train", "test", "debug"])
Part = collections.namedtuple("Part", ["train"])

SAMPLE = Sample(IMAGE, ACTION)
SPLIT = Split(SAMPLE, SAMPLE)
OPTIONAL = Optional(SAMPLE, SAMPLE, {"debug": DEBUG})
PART = Part(SAMPLE)


def batched(structure, batch_size=4):
  return specs.make_random_numpy(structure, batch_size)


EQUAL = {
  "spec and itself": (ACTION, ACTION),
  "spec and a nameless one": (ACTION, Spec((2,), tf.float32)),
  "spec and a plain one": (ACTION, tf.TensorSpec((2,), tf.float32, "other")),
  "plain one and spec": (tf.TensorSpec((2,), tf.float32), ACTION),
  "spec and tensor": (ACTION, tf.zeros((2,))),
  "spec and array": (ACTION, np.zeros((2,), np.float32)),
  "tensor and array": (tf.zeros((2,)), np.zeros((2,), np.float32)),
  "string spec and objects": (Spec((1,), tf.string), np.array([b"a"], dtype=object)),
  "unknown size": (Spec((None, 2), tf.int32), np.zeros((7, 2), np.int32)),
  "unknown rank": (Spec(None, tf.int32), np.zeros((7, 2), np.int32)),
  "sequence and tensor": (STATE, tf.zeros((5, 3))),
  "sequence and sequence": (STATE, Spec((3,), tf.float32)),
  "stack": (Spec((4, 3), tf.float32, time_offsets=range(4)), tf.zeros((4, 3))),
  "sequence of stacks": (
    Spec((4, 3), tf.float32, is_sequence=True, time_offsets=range(4)),
    tf.zeros((9, 4, 3)),
  ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_leaves(name):
  expected, actual = EQUAL[name]
  tensorspec_utils.assert_equal_spec_or_tensor(expected, actual)
  tensorspec_utils.assert_equal({"x": expected}, {"x": actual})
  tensorspec_utils.assert_required([expected], [actual])


DIFFERENT = {
  "rank": (ACTION, IMAGE, r"expected \(2,\) float32, got \(8, 8, 3\) uint8"),
  "size": (ACTION, tf.zeros((3,)), r"expected \(2,\) float32, got \(3,\) float32"),
  "dtype": (ACTION, np.zeros((2,)), r"expected \(2,\) float32, got \(2,\) float64"),
  "actual size unknown": (
    ACTION,
    Spec((None,), tf.float32),
    r"expected \(2,\) float32, got \(None,\) float32",
  ),
  "actual rank unknown": (
    ACTION,
    Spec(None, tf.float32),
    r"expected \(2,\) float32, got \(unknown shape\) float32",
  ),
  "no time axis": (
    STATE,
    tf.zeros((3,)),
    r"expected \(time, 3\) float32, got \(3,\) float32",
  ),
  "scalar for a sequence": (
    STATE,
    np.float32(0),
    r"expected \(time, 3\) float32, got \(\) float32",
  ),
  "frame of a sequence": (
    STATE,
    tf.zeros((5, 4)),
    r"expected \(time, 3\) float32, got \(5, 4\) float32",
  ),
  "sequence of scalars": (
    Spec((), tf.int64, is_sequence=True),
    np.zeros((5, 1), np.int64),
    r"expected \(time\) int64, got \(5, 1\) int64",
  ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_leaves(name):
  expected, actual, match = DIFFERENT[name]
  with pytest.raises(errors.SpecError, match=f"assert_equal_spec_or_tensor: .*{match}"):
    tensorspec_utils.assert_equal_spec_or_tensor(expected, actual)
  for operation in (tensorspec_utils.assert_equal, tensorspec_utils.assert_required):
    with pytest.raises(errors.SpecError, match=rf"{operation.__name__}: x: {match}\."):
      operation({"x": expected}, {"x": actual})


@pytest.mark.parametrize("other", [[0], "text", None, 3])
def test_equal_leaves_must_be_leaves(other):
  with pytest.raises(errors.SpecError, match="to_spec: expected a spec, tensor or arr"):
    tensorspec_utils.assert_equal_spec_or_tensor(ACTION, other)


def test_assert_equal_wants_the_same_paths():
  tensorspec_utils.assert_equal(SPLIT, specs.flatten_spec_structure(SPLIT))
  tensorspec_utils.assert_equal(
    SPLIT, {"test": SAMPLE, "train": {"action": ACTION, "image": IMAGE}}
  )
  with pytest.raises(errors.SpecError, match="2 mismatches") as error:
    tensorspec_utils.assert_equal(SPLIT, PART)
  assert str(error.value).splitlines() == [
    "assert_equal: 2 mismatches:",
    "  test/action: expected (2,) float32, got nothing.",
    "  test/image: expected (8, 8, 3) uint8, got nothing.",
  ]
  with pytest.raises(errors.SpecError, match="test/action: expected nothing, got"):
    tensorspec_utils.assert_equal(PART, SPLIT)


def test_assert_equal_strips_the_batch_of_the_actual_side_only():
  tensorspec_utils.assert_equal(SPLIT, batched(SPLIT), ignore_batch=True)
  tensorspec_utils.assert_equal(
    SPLIT, specs.copy_tensorspec(SPLIT, batch_size=-1), ignore_batch=True
  )
  with pytest.raises(errors.SpecError, match=r"got \(4, 2\) float32"):
    tensorspec_utils.assert_equal(SPLIT, batched(SPLIT))
  with pytest.raises(errors.SpecError, match=r"expected \(batch, 2\) float32, got \(2"):
    tensorspec_utils.assert_equal(SPLIT, SPLIT, ignore_batch=True)
  with pytest.raises(errors.SpecError, match="mismatches"):
    tensorspec_utils.assert_equal(batched(SPLIT), batched(SPLIT), ignore_batch=True)


def test_assert_required_allows_extra_leaves_and_absent_optionals():
  tensorspec_utils.assert_required(PART, SPLIT)
  tensorspec_utils.assert_required(OPTIONAL, SPLIT)
  tensorspec_utils.assert_required(OPTIONAL, OPTIONAL)
  tensorspec_utils.assert_required({"a": None}, {})
  tensorspec_utils.assert_required({}, {"a": ACTION})
  with pytest.raises(errors.SpecError, match="assert_required: 2 mismatches"):
    tensorspec_utils.assert_required(SPLIT, PART)


def test_present_optionals_must_fit():
  with pytest.raises(errors.SpecError, match=r"debug: expected \(2,\) float32, got"):
    tensorspec_utils.assert_required(
      {"debug": DEBUG}, {"debug": np.zeros(3, np.float32)}
    )
  tensorspec_utils.assert_required({"debug": DEBUG}, {"debug": None})


def test_none_for_a_required_leaf_is_an_error():
  with pytest.raises(errors.SpecError, match=r"action: expected .*got nothing"):
    tensorspec_utils.assert_required({"action": ACTION}, {"action": None})


VALIDATORS = [
  tensorspec_utils.assert_required,
  specs.validate_and_flatten,
  specs.validate_and_pack,
]


@pytest.mark.parametrize("validate", VALIDATORS)
def test_all_mismatches_in_one_error(validate):
  actual = {
    "test/image": np.zeros((4, 8, 9, 3), np.uint8),
    "test/actoin": np.zeros((4, 2), np.float32),
    "train/image": np.zeros((4, 8, 8, 3), np.float32),
    "train/action": np.float32(0),
    "debug/debug": np.zeros((4, 1), np.float32),
  }
  with pytest.raises(errors.SpecError, match="5 mismatches") as error:
    validate(OPTIONAL, actual, ignore_batch=True)
  assert str(error.value).splitlines() == [
    f"{validate.__name__}: 5 mismatches:",
    "  debug/debug: expected (batch, 2) float32, got (4, 1) float32.",
    "  test/action: expected (batch, 2) float32, got nothing. "
    "Did you mean 'test/actoin'?",
    "  test/image: expected (batch, 8, 8, 3) uint8, got (4, 8, 9, 3) uint8.",
    "  train/action: expected (batch, 2) float32, got () float32.",
    "  train/image: expected (batch, 8, 8, 3) uint8, got (4, 8, 8, 3) float32.",
  ]


@pytest.mark.parametrize("validate", VALIDATORS)
def test_one_mismatch_is_one_line(validate):
  match = rf"^{validate.__name__}: action: expected \(2,\) float32, got \(2,\) int64\.$"
  with pytest.raises(errors.SpecError, match=match):
    validate({"action": ACTION}, {"action": np.zeros(2, np.int64)})


@pytest.mark.parametrize("validate", VALIDATORS)
def test_both_sides_must_be_structures(validate):
  with pytest.raises(errors.SpecError, match=r"x: expected a dict.*got int 3"):
    validate({"x": 3}, {"x": ACTION})
  with pytest.raises(errors.SpecError, match=r"x: expected a dict.*got str 'a'"):
    validate({"x": ACTION}, {"x": "a"})


def test_validate_and_flatten_gives_all_that_was_given():
  flat = specs.validate_and_flatten(PART, SPLIT)
  assert type(flat) is TensorSpecStruct
  assert list(flat) == ["train/image", "train/action", "test/image", "test/action"]
  flat = specs.validate_and_flatten(OPTIONAL, {"train": SAMPLE, "test": SAMPLE})
  assert flat.train.action is ACTION


def test_validate_and_pack_returns_the_requested_leaves():
  arrays = batched(SPLIT)
  packed = specs.validate_and_pack(PART, arrays, ignore_batch=True)
  assert type(packed) is Part
  assert packed.train.action is arrays.train.action
  flat = specs.flatten_spec_structure(arrays)
  packed = specs.validate_and_pack(OPTIONAL, flat, ignore_batch=True)
  assert type(packed) is Optional
  assert packed.debug == {"debug": None}
  assert packed.test.image is arrays.test.image


def test_pipeline_of_stages():
  arrays = batched(SPLIT)
  flat = specs.validate_and_flatten(OPTIONAL, arrays, ignore_batch=True)
  packed = specs.validate_and_pack(PART, flat, ignore_batch=True)
  tensorspec_utils.assert_required(PART, packed, ignore_batch=True)
  tensorspec_utils.assert_equal(PART, packed, ignore_batch=True)


def test_sequences_with_a_batch():
  arrays = specs.make_random_numpy({"s": STATE}, batch_size=2, sequence_length=5)
  tensorspec_utils.assert_required({"s": STATE}, arrays, ignore_batch=True)
  match = r"s: expected \(batch, time, 3\) float32, got \(5, 3\) float32"
  with pytest.raises(errors.SpecError, match=match):
    tensorspec_utils.assert_required(
      {"s": STATE}, {"s": arrays["s"][0]}, ignore_batch=True
    )


def test_validation_inside_a_graph_and_a_function():
  with tf.Graph().as_default():
    flat = specs.validate_and_flatten(SPLIT, specs.make_placeholders(SPLIT), True)
    assert flat.train.image.shape.as_list() == [None, 8, 8, 3]

  @tf.function
  def check(struct):
    return specs.validate_and_pack({"action": ACTION}, struct, ignore_batch=True)

  assert check(TensorSpecStruct(action=tf.ones((4, 2))))["action"].shape == (4, 2)
  with pytest.raises(errors.SpecError, match=r"got \(4, 3\) float32"):
    check(TensorSpecStruct(action=tf.ones((4, 3))))


def test_maybe_ignore_batch():
  structure = {"a": np.zeros((4, 2)), "b": [tf.zeros((4,)), None], "c": ACTION}
  assert tensorspec_utils.maybe_ignore_batch(structure) is structure
  stripped = tensorspec_utils.maybe_ignore_batch(structure, ignore_batch=True)
  assert stripped["a"] == tf.TensorSpec((2,), tf.float64)
  assert stripped["b"][0] == tf.TensorSpec((), tf.float32)
  assert stripped["b"][1] is None
  assert stripped["c"].is_identical_to(Spec((), tf.float32, "action"))
  unknown = {"a": Spec(None, tf.int8)}
  assert tensorspec_utils.maybe_ignore_batch(unknown, True)["a"].shape.rank is None


def test_maybe_ignore_batch_of_stacks_and_varlen():
  stack = Spec((2, 3), tf.float32, time_offsets=(-1, 0))
  varlen = Spec((3,), tf.float32, varlen_default_value=0)
  stripped = tensorspec_utils.maybe_ignore_batch([stack, varlen], ignore_batch=True)
  assert [spec.shape.as_list() for spec in stripped] == [[3], []]


def test_maybe_ignore_batch_of_a_scalar():
  match = r"maybe_ignore_batch: t/x: expected a batch axis, got \(\) float32"
  with pytest.raises(errors.SpecError, match=match):
    tensorspec_utils.maybe_ignore_batch(
      {"t": {"x": tf.constant(1.0)}}, ignore_batch=True
    )
