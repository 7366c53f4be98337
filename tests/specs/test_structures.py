"""Flattening, packing, and which structures are valid."""

from __future__ import annotations

import collections
import types

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, tensorspec_utils
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.specs import TensorSpecStruct
from t2r_seq.specs.structures import map_leaves_with_path, signature_key

A = Spec((8, 8, 3), tf.uint8, "image", data_format="jpeg")
B = Spec((2,), tf.float32, "action")
C = Spec((2,), tf.float32, "debug", is_optional=True)

Sample = collections.namedtuple("Sample", ["image", "action"])
Split = collections.namedtuple("Split", ["train", "test"])
WithDebug = collections.namedtuple("WithDebug", ["train", "debug"])

STRUCTURES = {
  "dict": ({"b": B, "a": A}, ["b", "a"]),
  "nested dict": ({"t": {"b": B}, "a": A}, ["t/b", "a"]),
  "path dict": ({"t/b": B, "t": {"a": A}}, ["t/b", "t/a"]),
  "ordered dict": (collections.OrderedDict(z=A, y=B), ["z", "y"]),
  "default dict": (collections.defaultdict(list, z=A, y=B), ["z", "y"]),
  "list": ([A, B], ["0", "1"]),
  "tuple": ((A, B), ["0", "1"]),
  "namedtuple": (Sample(A, B), ["image", "action"]),
  "struct": (TensorSpecStruct({"t/b": B, "a": A}), ["t/b", "a"]),
  "view": (TensorSpecStruct({"t/b": B, "a": A}).t, ["b"]),
  "deep": (
    Split(train=Sample(A, {"x": [B, (B,)]}), test=TensorSpecStruct({"q/r": A})),
    ["train/image", "train/action/x/0", "train/action/x/1/0", "test/q/r"],
  ),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_flatten(name):
  structure, paths = STRUCTURES[name]
  flat = specs.flatten_spec_structure(structure)
  assert type(flat) is TensorSpecStruct
  assert list(flat) == paths
  assert tensorspec_utils.is_flat_spec_or_tensors_structure(flat)
  again = specs.flatten_spec_structure(flat)
  assert list(again) == paths
  assert all(again[path] is flat[path] for path in paths)
  again["more"] = A
  assert "more" not in flat


@pytest.mark.parametrize("name", STRUCTURES)
def test_pack_is_the_inverse_of_flatten(name):
  structure, paths = STRUCTURES[name]
  values = {path: np.float32(i) for i, path in enumerate(paths)}
  packed = specs.pack_flat_sequence_to_spec_structure(structure, values)
  assert type(packed) is type(structure)
  flat = specs.flatten_spec_structure(packed)
  assert flat.to_dict() == values


def test_pack_does_not_touch_a_default_dict_factory():
  structure = collections.defaultdict(list, y=B)
  packed = specs.pack_flat_sequence_to_spec_structure(structure, {"y": B})
  assert packed.default_factory is list


def test_flatten_drops_none_on_request():
  structure = {"a": A, "none": None, "t": [None, B]}
  assert list(specs.flatten_spec_structure(structure)) == ["a", "t/1"]
  flat = specs.flatten_spec_structure(structure, filter_none=False)
  assert list(flat) == ["a", "none", "t/0", "t/1"]
  assert flat.none is None


def test_flatten_tensors_and_arrays():
  structure = {"t": tf.zeros(2), "n": [np.zeros(2), np.int64(3)], "v": tf.Variable(1)}
  assert list(specs.flatten_spec_structure(structure)) == ["t", "n/0", "n/1", "v"]


def test_struct_packs_with_sorted_keys():
  structure = TensorSpecStruct([("b", B), ("a/z", A), ("a/c", B)])
  values = TensorSpecStruct([("a/z", 1), ("extra", 2), ("b", 3), ("a/c", 4)])
  values = tf.nest.map_structure(np.int64, values)
  packed = specs.pack_flat_sequence_to_spec_structure(structure, values)
  assert type(packed) is TensorSpecStruct
  assert list(packed.items()) == [("a/c", 4), ("a/z", 1), ("b", 3)]


def test_pack_fills_absent_optionals_with_none():
  spec = WithDebug(train=Sample(A, B), debug={"c": C})
  flat = {"train/image": np.zeros(1), "train/action": np.ones(1), "other": np.ones(1)}
  packed = specs.pack_flat_sequence_to_spec_structure(spec, flat)
  assert packed.debug == {"c": None}
  assert packed.train.action is flat["train/action"]
  struct = specs.pack_flat_sequence_to_spec_structure(
    TensorSpecStruct(a=A, c=C, n=None), {"a": np.zeros(1)}
  )
  assert struct.to_dict() == {"a": struct.a, "c": None, "n": None}


def test_pack_keeps_present_optionals():
  packed = specs.pack_flat_sequence_to_spec_structure({"c": C}, {"c": np.ones(1)})
  assert packed["c"] == 1.0


def test_pack_names_all_that_is_missing():
  spec = Split(train=Sample(A, B), test=Sample(A, C))
  flat = {"train/imge": np.zeros(1), "test/action": np.zeros(1)}
  with pytest.raises(errors.SpecError, match="3 mismatches") as error:
    specs.pack_flat_sequence_to_spec_structure(spec, flat)
  assert str(error.value).splitlines() == [
    "pack_flat_sequence_to_spec_structure: 3 mismatches:",
    "  test/image: expected (8, 8, 3) uint8, got nothing. Did you mean 'train/imge'?",
    "  train/action: expected (2,) float32, got nothing. Did you mean 'train/imge'?",
    "  train/image: expected (8, 8, 3) uint8, got nothing. Did you mean 'train/imge'?",
  ]


@pytest.mark.parametrize("flat", [[A, B], (A,), {"a": {"b": A}}, {"a": 3}, A, None])
def test_pack_wants_a_flat_mapping(flat):
  with pytest.raises(errors.SpecError, match=r"expected a flat mapping .*Use flatten"):
    specs.pack_flat_sequence_to_spec_structure({"a": A}, flat)


FLAT = {
  "dict": ({"a": A, "b": B}, True),
  "path dict": ({"t/a": A}, True),
  "tensors": ({"a": tf.zeros(1), "b": np.zeros(1)}, True),
  "struct": (TensorSpecStruct({"t/a": A}), True),
  "list": ([A, B], False),
  "tuple": ((A, B), False),
  "namedtuple": (Sample(A, B), False),
  "nested dict": ({"t": {"a": A}}, False),
  "dict of lists": ({"t": [A]}, False),
  "dict of ints": ({"a": 1}, False),
  "spec": (A, False),
}


@pytest.mark.parametrize("name", FLAT)
def test_is_flat(name):
  structure, want = FLAT[name]
  assert tensorspec_utils.is_flat_spec_or_tensors_structure(structure) is want


@pytest.mark.parametrize("name", STRUCTURES)
def test_valid_structures(name):
  tensorspec_utils.assert_valid_spec_structure(STRUCTURES[name][0])


INVALID = {
  "int leaf": ({"t": {"x": 10}}, "spec structure: t/x: expected .*got int 10"),
  "text leaf": (Sample(A, "action"), "spec structure: action: .*got str 'action'"),
  "float in a list": ({"a": [A, 1.5]}, "spec structure: a/1: .*got float 1.5"),
  "spec as the root": (A, "the root: expected a dict, .*got"),
  "none as the root": (None, "the root: expected a dict, .*got nothing"),
  "set": ({"a": {A}}, "spec structure: a: expected .*got set"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_structures(name):
  structure, match = INVALID[name]
  with pytest.raises(errors.SpecError, match=match):
    tensorspec_utils.assert_valid_spec_structure(structure)
  with pytest.raises(errors.SpecError, match=match):
    specs.flatten_spec_structure(structure)


def spec(shape, dtype=tf.float32, name="x", **kwargs):
  return Spec(shape, dtype, name, **kwargs)


SAME_NAME = {
  "equal": (spec((2,)), spec((2,)), None),
  "equal to a plain spec": (spec((2,)), tf.TensorSpec((2,), tf.float32, "x"), None),
  "another shape": (spec((3, 2, 3)), spec((3, 2)), "shape"),
  "another size": (spec((3,)), spec((2,)), "shape"),
  "another dtype": (spec((3,)), spec((3,), tf.float64), "dtype"),
  "a plain spec": (spec((3,)), tf.TensorSpec((3,), tf.int64, "x"), "dtype"),
  "no names": (spec((3,), name=None), spec((2,), name=None), None),
  "other names": (spec((3,)), spec((2,), name="y"), None),
  "other datasets": (spec((3,), dataset_key="a"), spec((2,), dataset_key="b"), None),
  "one dataset": (spec((3,), dataset_key="a"), spec((2,), dataset_key="a"), "shape"),
  "stack and next step": (
    spec((2, 3), time_offsets=(-1, 0)),
    spec((3,), time_offsets=1),
    None,
  ),
  "stacks of other lengths": (
    spec((2, 3), time_offsets=(-1, 0)),
    spec((4, 3), time_offsets=range(4)),
    None,
  ),
  "stacks of other frames": (
    spec((2, 3), time_offsets=(-1, 0)),
    spec((2, 4), time_offsets=(-1, 0)),
    "shape",
  ),
}


@pytest.mark.parametrize("name", SAME_NAME)
def test_specs_of_one_name_agree(name):
  one, other, problem = SAME_NAME[name]
  structure = {"deep": [one], "flat": other}
  if problem is None:
    tensorspec_utils.assert_valid_spec_structure(structure)
    return
  match = r"flat: expected the shape and dtype of deep/0, .* both are named 'x', got"
  with pytest.raises(errors.SpecError, match=match):
    tensorspec_utils.assert_valid_spec_structure(structure)
  with pytest.raises(errors.SpecError, match=match):
    specs.validate_and_flatten(structure, {})


# name: (specs by path, the two paths that disagree)
SEVERAL_OF_ONE_NAME = {
  "both fit the first": (
    {"x": spec((None,)), "y": spec((2,)), "z": spec((3,))},
    ("z", "y"),
  ),
  "all fit": (
    {"x": spec((None, None)), "y": spec((2, None)), "z": spec((None, 3))},
    None,
  ),
  "each of two tells one dimension": (
    {"x": spec((2, None)), "y": spec((None, 3)), "z": spec((2, 4))},
    ("z", "y"),
  ),
  "a rank after any": (
    {"x": spec(None), "y": spec((2,)), "z": spec((2, 2))},
    ("z", "y"),
  ),
  "any, in the end": ({"x": spec((2,)), "y": spec((2,)), "z": spec(None)}, None),
  "the general one last": (
    {"x": spec((2,)), "y": spec((None,)), "z": spec((3,))},
    ("z", "x"),
  ),
  "frames of stacks": (
    {
      "x": spec((2, None), time_offsets=(-1, 0)),
      "y": spec((4,), time_offsets=1),
      "z": spec((3, 5), time_offsets=range(3)),
    },
    ("z", "y"),
  ),
  "another dataset in between": (
    {"x": spec((None,)), "y": spec((2,), dataset_key="b"), "z": spec((3,))},
    None,
  ),
}


@pytest.mark.parametrize("name", SEVERAL_OF_ONE_NAME)
def test_any_two_specs_of_one_name_agree(name):
  structure, want = SEVERAL_OF_ONE_NAME[name]
  if want is None:
    tensorspec_utils.assert_valid_spec_structure(structure)
    return
  match = "{}: expected the shape and dtype of {}, .*both are named 'x', got".format(
    *want
  )
  with pytest.raises(errors.SpecError, match=match):
    tensorspec_utils.assert_valid_spec_structure(structure)


def test_map_leaves_keeps_the_form():
  structure, paths = STRUCTURES["deep"]
  seen = []
  mapped = map_leaves_with_path(lambda path, _: seen.append(path), structure)
  assert seen == paths
  assert type(mapped) is Split
  assert mapped.train.action == {"x": [None, (None,)]}
  doubled = specs.map_leaves(lambda x: x * 2, {"a": np.ones(1), "b": [None]})
  assert doubled == {"a": 2.0, "b": [None]}


def test_map_leaves_of_any_mapping():
  flat = specs.flatten_spec_structure(types.MappingProxyType({"a": A}))
  assert list(flat) == ["a"]


SIGNATURE_KEYS = {
  "pose": "pose",
  "state/image": "state_image",
  "a-b c.d": "a_b_c_d",
  "0": "_0",
  "0/a": "_0_a",
}


@pytest.mark.parametrize("path", SIGNATURE_KEYS)
def test_signature_key(path):
  assert signature_key(path) == SIGNATURE_KEYS[path]
  assert signature_key(path).isidentifier()
