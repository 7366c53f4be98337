"""Placeholders in a graph, Keras inputs outside, and feeding them."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, tensorspec_utils
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.specs import TensorSpecStruct

Sample = collections.namedtuple("Sample", ["image", "action"])

IMAGE = Spec((8, 8, 3), tf.uint8, "image", data_format="jpeg")
ACTION = Spec((2,), tf.float32, "train/action")
STATE = Spec((4, 3), tf.float32, "state", is_sequence=True)
STACK = Spec((2, 3), tf.float32, "s", time_offsets=(-1, 0))

COLLECTIONS = {
  "dict": {"i": IMAGE, "a": ACTION},
  "list": [IMAGE, ACTION, STATE],
  "tuple": (IMAGE, ACTION),
  "namedtuple": Sample(IMAGE, Sample(IMAGE, ACTION)),
  "struct": TensorSpecStruct({"t/image": IMAGE, "t/action": ACTION}),
  "plain": {"a": tf.TensorSpec((2,), tf.float32, "a"), "n": None},
}

SHAPES = {
  "unknown batch": (None, [None, 2], [None, None, 4, 3], [None, 2, 3]),
  "fixed batch": (5, [5, 2], [5, None, 4, 3], [5, 2, 3]),
  "no batch": (-1, [2], [None, 4, 3], [2, 3]),
  "no batch by zero": (0, [2], [None, 4, 3], [2, 3]),
}


def in_graph(make):
  with tf.Graph().as_default():
    return make()


def outside(make):
  return make()


WHERE = pytest.mark.parametrize("where", [in_graph, outside])


@WHERE
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(where, name):
  batch_size, *want = SHAPES[name]
  structure = [ACTION, STATE, STACK]
  made = where(lambda: specs.make_placeholders(structure, batch_size))
  assert [list(leaf.shape) for leaf in made] == want
  assert {tf.as_dtype(leaf.dtype) for leaf in made} == {tf.float32}


@WHERE
@pytest.mark.parametrize("name", COLLECTIONS)
def test_form_is_kept_and_the_result_fits(where, name):
  structure = COLLECTIONS[name]
  made = where(lambda: specs.make_placeholders(structure))
  assert type(made) is type(structure)
  tensorspec_utils.assert_equal(structure, made, ignore_batch=True)
  with pytest.raises(errors.SpecError, match="assert_equal: "):
    tensorspec_utils.assert_equal(structure, made)


@WHERE
def test_scalars_without_a_batch_axis(where):
  structure = {"reward": Spec((), tf.float32, "reward")}
  made = where(lambda: specs.make_placeholders(structure, -1))
  assert list(made["reward"].shape) == []


@WHERE
@pytest.mark.parametrize(
  "dtype",
  ["bool", "string", "bfloat16", "uint8", "uint16", "uint64", "int8", "float64"],
)
def test_dtypes(where, dtype):
  spec = Spec((2,), dtype, "x")
  made = where(lambda: specs.make_placeholders({"x": spec}, 3))
  assert tf.as_dtype(made["x"].dtype) == tf.as_dtype(dtype)


def test_kind():
  assert tf.is_tensor(in_graph(lambda: specs.make_placeholders([ACTION]))[0])
  [made] = specs.make_placeholders([ACTION])
  assert type(made) is type(tf.keras.Input((2,)))


def test_names_in_a_graph():
  spec = Spec((1,), tf.float32)
  structure = {
    "named": ACTION,
    "again": ACTION,
    "nameless": {"path": spec},
    "prefixed": specs.copy_tensorspec([spec, spec], prefix="test"),
    "odd": Spec((1,), tf.float32, "_a b:é"),
  }
  made = in_graph(lambda: specs.make_placeholders(structure))
  flat = specs.flatten_spec_structure(made)
  assert {path: leaf.op.name for path, leaf in flat.items()} == {
    "named": "train/action",
    "again": "train/action_1",
    "nameless/path": "nameless/path",
    "prefixed/0": "test",
    "prefixed/1": "test_1",
    "odd": "input_a_b__",
  }


def test_names_of_keras_inputs():
  structure = {
    "named": ACTION,
    "again": ACTION,
    "nameless": {"path": Spec((1,), tf.float32)},
  }
  made = specs.make_placeholders(structure)
  flat = specs.flatten_spec_structure(made)
  assert {path: leaf.name for path, leaf in flat.items()} == {
    "named": "train_action",
    "again": "train_action_1",
    "nameless/path": "nameless_path",
  }


def test_keras_inputs_make_a_model():
  structure = TensorSpecStruct({"state/pose": ACTION, "goal": ACTION})
  inputs = specs.make_placeholders(structure)
  output = tf.keras.layers.Add()([inputs.state.pose, inputs.goal])
  model = tf.keras.Model(list(inputs.values()), output)
  np.testing.assert_array_equal(model([tf.ones((4, 2)), tf.ones((4, 2))])[0], [2, 2])


def test_unknown_rank():
  structure = {"x": Spec(None, tf.float32, "x")}
  made = in_graph(lambda: specs.make_placeholders(structure))
  assert made["x"].shape.rank is None
  match = "make_placeholders: x: expected a known rank, got .*inside a tf.Graph"
  with pytest.raises(errors.SpecError, match=match):
    specs.make_placeholders(structure)


@WHERE
def test_refuses_what_is_no_spec(where):
  match = r"make_placeholders: 2 mismatches:\n  a: expected a spec, got .*\(2,\) float"
  with pytest.raises(errors.SpecError, match=match):
    structure = {"a": np.zeros(2), "b": [np.zeros(3)]}
    where(lambda: specs.make_placeholders(structure))


def feed(structure, arrays, **kwargs):
  """Feeds placeholders through a session; returns what they held, by path."""
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    placeholders = specs.make_placeholders(structure)
    feed_dict = tensorspec_utils.map_feed_dict(placeholders, arrays, **kwargs)
    flat = specs.flatten_spec_structure(placeholders)
    return {path: session.run(leaf, feed_dict) for path, leaf in flat.items()}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_map_feed_dict_feeds_every_placeholder(name):
  structure = COLLECTIONS[name]
  arrays = specs.make_random_numpy(structure, batch_size=3)
  fed = feed(structure, arrays)
  flat = specs.flatten_spec_structure(arrays)
  assert set(fed) == set(flat)
  for path, array in flat.items():
    np.testing.assert_array_equal(fed[path], array)


def test_map_feed_dict_extends_a_feed_dict_and_refuses_to_overwrite():
  with tf.Graph().as_default():
    features = specs.make_placeholders({"a": ACTION, "i": IMAGE})
    labels = specs.make_placeholders({"a": ACTION})
  arrays = specs.make_random_numpy({"a": ACTION, "i": IMAGE})
  feed_dict = tensorspec_utils.map_feed_dict(features, arrays)
  result = tensorspec_utils.map_feed_dict(labels, {"a": arrays["a"]}, feed_dict)
  assert result is feed_dict
  assert len(feed_dict) == 3
  match = r"map_feed_dict: 2 mismatches:\n  a: expected a free placeholder, got one"
  with pytest.raises(errors.SpecError, match=match):
    tensorspec_utils.map_feed_dict(features, arrays, feed_dict)


FEED_ERRORS = {
  "missing": ({}, "assert_required: a: expected .*got nothing"),
  "shape": ({"a": np.zeros((2, 3), np.float32)}, r"a: expected \(None, 2\) float32, g"),
  "dtype": ({"a": np.zeros((2, 2))}, r"a: expected .* float32, got \(2, 2\) float64"),
  "unknown": (
    {"a": np.zeros((2, 2), np.float32), "aa": np.zeros(1)},
    "map_feed_dict: aa: expected nothing, got .* Did you mean 'a'",
  ),
}


@pytest.mark.parametrize("name", FEED_ERRORS)
def test_map_feed_dict_errors(name):
  arrays, match = FEED_ERRORS[name]
  with pytest.raises(errors.SpecError, match=match):
    feed({"a": ACTION}, arrays)


def test_map_feed_dict_ignore_batch():
  with tf.Graph().as_default():
    placeholders = specs.make_placeholders({"a": ACTION}, batch_size=4)
  arrays = {"a": np.zeros((3, 2), np.float32)}
  with pytest.raises(errors.SpecError, match=r"expected \(4, 2\) float32, got \(3, 2"):
    tensorspec_utils.map_feed_dict(placeholders, arrays)
  feed_dict = tensorspec_utils.map_feed_dict(placeholders, arrays, ignore_batch=True)
  assert feed_dict[placeholders["a"]] is arrays["a"]
  with pytest.raises(errors.SpecError, match=r"a: expected \(2,\) float32, got \(3,\)"):
    tensorspec_utils.map_feed_dict(
      placeholders, {"a": np.zeros((3, 3), np.float32)}, None, True
    )


@pytest.mark.parametrize(
  "mapper", [tensorspec_utils.map_feed_dict, tensorspec_utils.map_feed_dict_unsafe]
)
def test_keras_inputs_are_not_fed(mapper):
  placeholders = specs.make_placeholders({"a": ACTION})
  with pytest.raises(errors.SpecError, match=r"got a Keras input.*\n.*map_predict_fn"):
    mapper(placeholders, specs.make_random_numpy({"a": ACTION}))


def test_map_predict_fn_dict():
  structure = {"t": {"a": ACTION}}
  arrays = specs.make_random_numpy({"t": {"a": ACTION}, "extra": IMAGE})
  feed_dict = tensorspec_utils.map_predict_fn_dict(structure, arrays, ignore_batch=True)
  assert list(feed_dict) == ["t/a"]
  assert feed_dict["t/a"] is arrays["t"]["a"]
  result = tensorspec_utils.map_predict_fn_dict(
    {"extra": IMAGE}, arrays, feed_dict, True
  )
  assert result is feed_dict
  assert list(feed_dict) == ["t/a", "extra"]
  with pytest.raises(errors.SpecError, match="map_predict_fn_dict: extra: expected a"):
    tensorspec_utils.map_predict_fn_dict({"extra": IMAGE}, arrays, feed_dict, True)
  with pytest.raises(errors.SpecError, match=r"t/a: expected \(2,\) float32, got \(2,"):
    tensorspec_utils.map_predict_fn_dict(structure, arrays)
  with pytest.raises(errors.SpecError, match=r"t/a: expected .*got nothing"):
    tensorspec_utils.map_predict_fn_dict(structure, {})


def test_map_feed_dict_unsafe_checks_nothing_but_what_is_missing():
  with tf.Graph().as_default():
    placeholders = specs.make_placeholders({"a": ACTION})
  arrays = {"a": np.zeros(7), "extra": np.zeros(1)}
  feed_dict = tensorspec_utils.map_feed_dict_unsafe(placeholders, arrays)
  assert list(feed_dict.values()) == [arrays["a"]]
  assert feed_dict[placeholders["a"]] is arrays["a"]
  with pytest.raises(errors.SpecError, match=r"map_feed_dict_unsafe: a: .*got nothing"):
    tensorspec_utils.map_feed_dict_unsafe(placeholders, {})
