"""Specs from other specs, tensors and arrays."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import ExtendedTensorSpec


def test_from_spec_of_a_plain_tensor_spec():
  spec = ExtendedTensorSpec.from_spec(tf.TensorSpec([1], tf.float32, "n"))
  assert spec.is_identical_to(ExtendedTensorSpec([1], tf.float32, "n"))


def test_from_spec_overrides_and_keeps_the_original():
  old = ExtendedTensorSpec((1, 2), tf.int32, "old", is_optional=True)
  new = ExtendedTensorSpec.from_spec(
    old, shape=(5,), dtype=tf.int64, name="new", is_optional=False
  )
  assert new.is_identical_to(ExtendedTensorSpec((5,), tf.int64, "new"))
  assert old.is_identical_to(
    ExtendedTensorSpec((1, 2), tf.int32, "old", is_optional=True)
  )


def test_from_spec_time_offsets_none_means_not_windowed():
  spec = ExtendedTensorSpec((2, 3), tf.float32, "x", time_offsets=(-1, 0))
  assert ExtendedTensorSpec.from_spec(spec).time_offsets == (-1, 0)
  flat = ExtendedTensorSpec.from_spec(spec, shape=(3,), time_offsets=None)
  assert flat.is_identical_to(ExtendedTensorSpec((3,), tf.float32, "x"))


BATCHES = {
  "fixed": (16, [16, 1, 2]),
  "unknown": (-1, [None, 1, 2]),
  "none": (None, [1, 2]),
  "zero": (0, [1, 2]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_from_spec_batch_size(name):
  batch_size, want = BATCHES[name]
  spec = ExtendedTensorSpec((1, 2), tf.int32, "s", is_sequence=True)
  batched = ExtendedTensorSpec.from_spec(spec, batch_size=batch_size)
  assert batched.shape.as_list() == want
  assert batched.is_sequence
  assert batched.name == "s"


def test_from_spec_batch_size_of_a_stack_and_of_a_varlen():
  stack = ExtendedTensorSpec((2, 3), tf.float32, "x", time_offsets=(-1, 0))
  assert ExtendedTensorSpec.from_spec(stack, batch_size=-1).shape[1:] == (2, 3)
  assert ExtendedTensorSpec.from_spec(stack, batch_size=8).time_offsets is None
  varlen = ExtendedTensorSpec((3,), tf.int64, "v", varlen_default_value=0)
  assert ExtendedTensorSpec.from_spec(varlen, batch_size=8).shape == (8, 3)


@pytest.mark.parametrize("batch_size", [1.5, "2", True])
def test_from_spec_refuses_a_batch_size(batch_size):
  spec = ExtendedTensorSpec((1,), tf.int32)
  with pytest.raises(errors.SpecError, match="expected an integer batch_size, got"):
    ExtendedTensorSpec.from_spec(spec, batch_size=batch_size)


@pytest.mark.parametrize("value", [None, 3, "spec", np.ones(3), ((1,), tf.int32)])
def test_from_spec_refuses_what_is_no_spec(value):
  with pytest.raises(errors.SpecError, match="from_spec: expected a TensorSpec, got"):
    ExtendedTensorSpec.from_spec(value)


def test_from_tensor_eager_and_variable():
  spec = ExtendedTensorSpec.from_tensor(tf.zeros((2, 3), tf.int64))
  assert spec.is_identical_to(ExtendedTensorSpec((2, 3), tf.int64, is_extracted=True))
  named = ExtendedTensorSpec.from_tensor(tf.Variable([1.0]), "v")
  assert named.is_identical_to(
    ExtendedTensorSpec((1,), tf.float32, "v", is_extracted=True)
  )


def test_from_tensor_in_a_graph_takes_the_name_of_the_op():
  with tf.Graph().as_default():
    unknown = tf.compat.v1.placeholder(tf.int64, name="unknown")
    partial = tf.compat.v1.placeholder(tf.float32, [None, 1], name="scope/partial")
    zero = ExtendedTensorSpec.from_tensor(tf.constant(0))
  assert zero.name == "Const"
  spec = ExtendedTensorSpec.from_tensor(unknown)
  assert (spec.shape.rank, spec.dtype, spec.name) == (None, tf.int64, "unknown")
  spec = ExtendedTensorSpec.from_tensor(partial)
  assert (spec.shape.as_list(), spec.name) == ([None, 1], "scope/partial")
  assert ExtendedTensorSpec.from_tensor(partial, "mine").name == "mine"


def test_from_tensor_of_a_keras_input():
  spec = ExtendedTensorSpec.from_tensor(tf.keras.Input((3,), name="pose"))
  want = ExtendedTensorSpec((None, 3), tf.float32, "pose", is_extracted=True)
  assert spec.is_identical_to(want)


@pytest.mark.parametrize("value", [np.zeros(3), 1.0, tf.TensorSpec(()), None])
def test_from_tensor_refuses_what_is_no_tensor(value):
  with pytest.raises(errors.SpecError, match="from_tensor: expected a tensor, got"):
    ExtendedTensorSpec.from_tensor(value)


TO_SPEC = {
  "array": (np.zeros((2, 3), np.uint8), ((2, 3), tf.uint8, True)),
  "numpy scalar": (np.float64(1), ((), tf.float64, True)),
  "bytes array": (np.array([b"a", b"bc"]), ((2,), tf.string, True)),
  "object array": (np.array([b"a"], dtype=object), ((1,), tf.string, True)),
  "text array": (np.array(["a"]), ((1,), tf.string, True)),
  "tensor": (tf.zeros((2,), tf.bfloat16), ((2,), tf.bfloat16, True)),
  "plain spec": (tf.TensorSpec((4,), tf.bool), ((4,), tf.bool, False)),
  "spec": (ExtendedTensorSpec((4,), tf.bool), ((4,), tf.bool, False)),
}


@pytest.mark.parametrize("name", TO_SPEC)
def test_to_spec(name):
  instance, (shape, dtype, is_extracted) = TO_SPEC[name]
  spec = ExtendedTensorSpec.to_spec(instance)
  assert isinstance(spec, ExtendedTensorSpec)
  assert (spec.shape, spec.dtype, spec.is_extracted) == (shape, dtype, is_extracted)


@pytest.mark.parametrize("value", [None, 3, "text", [1, 2], {"a": 1}])
def test_to_spec_refuses_the_rest(value):
  match = "to_spec: expected a spec, tensor or array, got"
  with pytest.raises(errors.SpecError, match=match):
    ExtendedTensorSpec.to_spec(value)


COMPATIBLE = {
  "unknown": (None, [True, True, True]),
  "partial": ([2, None], [True, True, False]),
  "full": ([2, 3], [False, True, False]),
  "rank 3": ([4, 5, 6], [False, False, True]),
}


@pytest.mark.parametrize("name", COMPATIBLE)
def test_is_compatible_with_tensors(name):
  shape, want = COMPATIBLE[name]
  spec = ExtendedTensorSpec(shape, tf.int64)
  tensors = [tf.zeros(s, tf.int64) for s in ([2, 1], [2, 3], [4, 5, 6])]
  assert [bool(spec.is_compatible_with(tensor)) for tensor in tensors] == want
  assert not spec.is_compatible_with(tf.zeros([2, 3], tf.int32))
