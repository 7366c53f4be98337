"""Copies, filters, casts and padding by spec structures."""

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
NAMELESS = Spec((1,), tf.float32)

Sample = collections.namedtuple("Sample", ["image", "action"])

COLLECTIONS = {
  "dict": {"a": IMAGE, "b": STATE},
  "namedtuple": Sample(IMAGE, ACTION),
  "list": [IMAGE, STATE],
  "tuple": (IMAGE, STATE),
  "struct": TensorSpecStruct(a=IMAGE, b=STATE),
  "nested": {"t": [Sample(IMAGE, DEBUG)], "none": None},
  "plain specs": [tf.TensorSpec((2,), tf.float32, "p"), IMAGE],
}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_copy_keeps_all_but_the_names(name):
  structure = COLLECTIONS[name]
  copied = specs.copy_tensorspec(structure, prefix="pre")
  assert type(copied) is type(structure)
  tensorspec_utils.assert_equal(structure, copied)
  before = specs.flatten_spec_structure(structure)
  after = specs.flatten_spec_structure(copied)
  for path, spec in before.items():
    want = Spec.from_spec(spec, name=f"pre/{spec.name}")
    assert after[path].is_identical_to(want)


def test_copy_without_a_prefix():
  copied = specs.copy_tensorspec([IMAGE, NAMELESS])
  assert copied[0].is_identical_to(IMAGE)
  assert copied[1].is_identical_to(NAMELESS)


def test_copy_turns_a_missing_name_into_the_prefix():
  struct = TensorSpecStruct(none_name=NAMELESS, with_name=ACTION)
  copied = specs.copy_tensorspec(struct, prefix="test")
  assert copied.none_name.name == "test/"
  assert copied.with_name.name == "test/action"
  assert struct.none_name.name is None


@pytest.mark.parametrize(("batch_size", "want"), [(4, 4), (-1, None)])
def test_copy_with_a_batch_axis(batch_size, want):
  copied = specs.copy_tensorspec({"a": IMAGE, "s": STATE}, batch_size=batch_size)
  assert copied["a"].shape.as_list() == [want, 8, 8, 3]
  assert copied["a"].name == "image"
  assert copied["s"].is_sequence
  tensorspec_utils.assert_equal({"a": IMAGE, "s": STATE}, copied, ignore_batch=True)


def test_copy_keeps_time_offsets():
  stack = Spec((2, 3), tf.float32, "s", time_offsets=(-1, 0))
  after = Spec((3,), tf.float32, "s", time_offsets=1)
  copied = specs.copy_tensorspec([stack, after], prefix="p")
  assert [spec.time_offsets for spec in copied] == [(-1, 0), 1]
  batched = specs.copy_tensorspec([stack, after], batch_size=5)
  assert [spec.shape.as_list() for spec in batched] == [[5, 2, 3], [5, 3]]


def test_copy_refuses_tensors_and_other_leaves():
  with pytest.raises(errors.SpecError, match="copy_tensorspec: a: expected a spec"):
    specs.copy_tensorspec({"a": tf.zeros(2)})
  with pytest.raises(errors.SpecError, match=r"a: expected a dict.*got int 1"):
    specs.copy_tensorspec({"a": 1})


def test_filter_required():
  flat = TensorSpecStruct({"t/image": IMAGE, "t/debug": DEBUG, "n": None})
  kept = tensorspec_utils.filter_required_flat_tensor_spec(flat)
  assert type(kept) is TensorSpecStruct
  assert list(kept) == ["t/image", "n"]
  plain = {"p": tf.TensorSpec((2,)), "debug": DEBUG}
  assert list(tensorspec_utils.filter_required_flat_tensor_spec(plain)) == ["p"]


@pytest.mark.parametrize("structure", [[IMAGE], {"t": {"a": IMAGE}}, Sample(1, 2)])
def test_filter_required_wants_a_flat_structure(structure):
  match = "filter_required_flat_tensor_spec: expected a flat mapping"
  with pytest.raises(errors.SpecError, match=match):
    tensorspec_utils.filter_required_flat_tensor_spec(structure)


def test_filter_by_dataset():
  d1 = Spec((2,), tf.float32, "x", dataset_key="d1")
  d2 = Spec((2,), tf.float32, "x", dataset_key="d2")
  structure = {"t": {"one": d1, "two": d2}, "three": d1}

  def paths(key):
    return list(tensorspec_utils.filter_spec_structure_by_dataset(structure, key))

  assert paths("d1") == ["t/one", "three"]
  assert paths("d2") == ["t/two"]
  assert paths("") == ["t/one", "t/two", "three"]
  assert paths("d3") == []


def test_add_sequence_length_specs():
  state = Spec((3,), tf.float32, "s", is_sequence=True, dataset_key="d")
  structure = {"image": IMAGE, "t": {"state": state}}
  augmented = specs.add_sequence_length_specs(structure)
  assert list(augmented) == ["image", "t/state", "t/state_length"]
  want = Spec((), tf.int64, "s_length", dataset_key="d")
  assert augmented.t.state_length.is_identical_to(want)
  assert list(structure["t"]) == ["state"]


def test_add_sequence_length_specs_of_nameless_and_plain_specs():
  nameless = Spec((3,), tf.float32, is_sequence=True)
  augmented = specs.add_sequence_length_specs([nameless, tf.TensorSpec((2,))])
  assert list(augmented) == ["0", "1", "0_length"]
  assert augmented["0_length"].is_identical_to(Spec((), tf.int64))


def test_replace_dtype_in_place():
  struct = TensorSpecStruct({"image": IMAGE, "a/b": ACTION, "a/c": DEBUG, "n": None})
  result = tensorspec_utils.replace_dtype(struct, tf.float32, tf.bfloat16)
  assert result is struct
  assert struct.a.b.is_identical_to(Spec((2,), tf.bfloat16, "action"))
  assert struct.a.c.is_optional
  assert struct.a.c.dtype == tf.bfloat16
  assert struct.image is IMAGE
  view = tensorspec_utils.replace_dtype(struct.a, tf.bfloat16, tf.float64)
  assert view.b.dtype == struct.a.b.dtype == tf.float64


def test_bfloat16_casts_are_inverse():
  output_spec = TensorSpecStruct(
    a=Spec((2,), tf.bfloat16),
    b=Spec((2,), tf.float32),
    absent=Spec((2,), tf.bfloat16, is_optional=True),
    n=None,
  )
  struct = TensorSpecStruct(a=tf.constant([0.5, 2.0]), b=tf.zeros(2), c=tf.ones(1))
  assert tensorspec_utils.cast_float32_to_bfloat16(struct, output_spec) is struct
  assert [leaf.dtype for leaf in struct.values()] == [
    tf.bfloat16,
    tf.float32,
    tf.float32,
  ]
  assert tensorspec_utils.cast_bfloat16_to_float32(struct) is struct
  assert {leaf.dtype for leaf in struct.values()} == {tf.float32}
  np.testing.assert_array_equal(struct.a, [0.5, 2.0])


def test_cast_to_bfloat16_names_every_tensor_of_another_dtype():
  spec = Spec((2,), tf.bfloat16)
  struct = TensorSpecStruct(
    a=tf.zeros(2, tf.float64), b=tf.zeros(2), c=tf.zeros(2, tf.int32)
  )
  with pytest.raises(errors.SpecError, match="2 mismatches") as error:
    tensorspec_utils.cast_float32_to_bfloat16(struct, {"a": spec, "b": spec, "c": spec})
  assert str(error.value).splitlines() == [
    "cast_float32_to_bfloat16: 2 mismatches:",
    "  a: expected float32, got (2,) float64.",
    "  c: expected float32, got (2,) int32.",
  ]
  assert struct.b.dtype == tf.float32


@pytest.mark.parametrize("form", ["dict", "list", "struct"])
def test_tensorspec_from_tensors(form):
  tensors = {
    "dict": {"a": tf.zeros((2, 3)), "b": np.ones(2, np.int64)},
    "list": [tf.zeros((2, 3)), np.ones(2, np.int64)],
    "struct": TensorSpecStruct({"a": tf.zeros((2, 3)), "b": np.ones(2, np.int64)}),
  }[form]
  described = tensorspec_utils.tensorspec_from_tensors(tensors)
  assert type(described) is type(tensors)
  flat = list(specs.flatten_spec_structure(described).values())
  assert [spec.shape.as_list() for spec in flat] == [[2, 3], [2]]
  assert [spec.dtype for spec in flat] == [tf.float32, tf.int64]
  assert all(spec.is_extracted for spec in flat)
  assert len({spec.name for spec in flat}) == 2


def test_tensorspec_from_graph_tensors_takes_their_names():
  with tf.Graph().as_default():
    placeholders = specs.make_placeholders({"i": IMAGE, "a": [ACTION, None]})
    described = tensorspec_utils.tensorspec_from_tensors(placeholders)
  assert described["i"].name == "image/0"
  assert described["a"][0].name == "action/1"
  assert described["a"][1] is None


LISTS = {
  "pads": (tf.int64, 3.0, [[1, 3], [1, 2]], [[1, 3, 3], [1, 2, 3]]),
  "clips": (tf.int64, 3, [[1, 2, 3, 4]], [[1, 2, 3]]),
  "leaves as is": (tf.int64, 3, [[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]),
  "empty lists": (tf.float32, -1, [[], []], [[-1, -1, -1], [-1, -1, -1]]),
  "bool": (tf.bool, True, [[False]], [[False, True, True]]),
  "bfloat16": (tf.bfloat16, 0.5, [[1]], [[1, 0.5, 0.5]]),
  "string": (tf.string, b"-", [[b"a"]], [[b"a", b"-", b"-"]]),
  "text": (tf.string, "-", [[b"a"]], [[b"a", b"-", b"-"]]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_values(name):
  dtype, default, values, want = LISTS[name]
  spec = Spec((3,), dtype, "v", varlen_default_value=default)
  tensor = tf.constant(values, dtype)
  padded = tensorspec_utils.pad_or_clip_tensor_to_spec_shape(tensor, spec)
  assert padded.dtype == dtype
  assert padded.numpy().tolist() == want


def test_lists_of_images():
  spec = Spec((3, 2, 2, 1), tf.uint8, "v", data_format="png", varlen_default_value=3.0)
  images = np.arange(1, 3, dtype=np.uint8).reshape(1, 2, 1, 1, 1) * np.ones((2, 2, 1))
  padded = tensorspec_utils.pad_or_clip_tensor_to_spec_shape(
    tf.cast(images, tf.uint8), spec
  )
  assert padded.shape == (1, 3, 2, 2, 1)
  np.testing.assert_array_equal(padded[0, :, 0, 0, 0], [1, 2, 3])


def test_unknown_sizes():
  spec = Spec((3,), tf.int32, "v", varlen_default_value=0)

  @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)])
  def pad(tensor):
    padded = tensorspec_utils.pad_or_clip_tensor_to_spec_shape(tensor, spec)
    assert padded.shape.as_list() == [None, 3]
    return padded

  assert pad(tf.ones((1, 5), tf.int32)).numpy().tolist() == [[1, 1, 1]]
  assert pad(tf.ones((1, 1), tf.int32)).numpy().tolist() == [[1, 0, 0]]


def test_errors():
  fixed = Spec((3,), tf.int32, "v")
  with pytest.raises(errors.SpecError, match="v: expected a spec with a varlen"):
    tensorspec_utils.pad_or_clip_tensor_to_spec_shape(tf.ones((1, 3), tf.int32), fixed)
  varlen = Spec((3,), tf.int32, "v", varlen_default_value=0)
  with pytest.raises(errors.SpecError, match=r"v: expected shape \(None, None\), got"):
    tensorspec_utils.pad_or_clip_tensor_to_spec_shape(tf.ones((3,), tf.int32), varlen)
