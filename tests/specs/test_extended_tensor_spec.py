"""ExtendedTensorSpec: fields, equality, derivation, pickling, repr."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import ExtendedTensorSpec

FULL = ExtendedTensorSpec(
  (4, 64, 64, 3),
  tf.uint8,
  "state/image",
  is_optional=True,
  is_sequence=True,
  data_format="jpeg",
  dataset_key="robot",
  time_offsets=(-3, -2, -1, 0),
)

SPECS = {
  "scalar": ExtendedTensorSpec((), tf.float32),
  "full": FULL,
  "unknown dimension": ExtendedTensorSpec((None, 3), tf.bfloat16, "a"),
  "unknown rank": ExtendedTensorSpec(None, tf.string, "a"),
  "varlen int": ExtendedTensorSpec((3,), tf.int64, "v", varlen_default_value=0),
  "varlen float": ExtendedTensorSpec((3,), tf.float32, "v", varlen_default_value=0.1),
  "varlen bool": ExtendedTensorSpec((3,), tf.bool, "v", varlen_default_value=True),
  "varlen text": ExtendedTensorSpec((3,), tf.string, "v", varlen_default_value="-"),
  "varlen bytes": ExtendedTensorSpec((3,), tf.string, "v", varlen_default_value=b"\0"),
  "varlen images": ExtendedTensorSpec(
    (2, 8, 8, 1), tf.uint8, "v", data_format="png", varlen_default_value=3.0
  ),
  "stack of varlen": ExtendedTensorSpec(
    (2, 3), tf.int64, "v", varlen_default_value=-1, time_offsets=(-1, 0)
  ),
  "extracted": ExtendedTensorSpec((1,), tf.int8, "Const", is_extracted=True),
  "next step": ExtendedTensorSpec((5,), tf.float64, "obs", time_offsets=1),
  "one-step stack": ExtendedTensorSpec((1, 5), tf.float16, "obs", time_offsets=(0,)),
  "quoted name": ExtendedTensorSpec((2,), tf.complex64, 'it\'s "x"\n'),
  "cast": ExtendedTensorSpec((2,), tf.float32, "x", stored_dtype=tf.int64),
  "empty name": ExtendedTensorSpec((2,), tf.uint16, ""),
}


def test_defaults():
  spec = ExtendedTensorSpec((8, 128), tf.float32)
  assert spec.fields() == {
    "shape": tf.TensorShape((8, 128)),
    "dtype": tf.float32,
    "name": None,
    "is_optional": False,
    "is_sequence": False,
    "is_extracted": False,
    "data_format": None,
    "dataset_key": "",
    "varlen_default_value": None,
    "time_offsets": None,
    "is_concatenated": False,
    "stored_dtype": None,
  }


@pytest.mark.parametrize(
  ("field", "value"),
  [
    ("is_optional", True),
    ("is_sequence", True),
    ("is_extracted", True),
    ("data_format", "PNG"),
    ("dataset_key", "d1"),
    ("varlen_default_value", 2),
    ("time_offsets", (-1, 0, 5)),
    ("is_concatenated", True),
    ("stored_dtype", tf.float64),
    ("name", "n"),
  ],
)
def test_every_field_is_kept_copied_and_compared(field, value):
  shape = (3, 2, 2, 1) if field == "data_format" else (3,)
  spec = ExtendedTensorSpec(shape, tf.float32, **{field: value})
  plain = ExtendedTensorSpec(shape, tf.float32)
  assert getattr(spec, field) == value
  assert getattr(ExtendedTensorSpec.from_spec(spec), field) == value
  assert getattr(ExtendedTensorSpec.from_spec(plain, **{field: value}), field) == value
  assert spec == plain
  assert not spec.is_identical_to(plain)
  assert spec.is_identical_to(ExtendedTensorSpec(shape, tf.float32, **{field: value}))


def test_accepts_what_tensorflow_accepts():
  assert ExtendedTensorSpec([1], np.float32).dtype == tf.float32
  assert ExtendedTensorSpec(8, "float32").shape == (8,)
  assert ExtendedTensorSpec(tf.TensorShape([1]), tf.float32).shape == (1,)
  assert ExtendedTensorSpec(None, tf.float32).shape.rank is None
  assert ExtendedTensorSpec((np.int64(2), None), tf.int8).shape.as_list() == [2, None]


def test_refuses_what_tensorflow_refuses():
  with pytest.raises(TypeError, match="not-a-dtype"):
    ExtendedTensorSpec((), "not-a-dtype")
  with pytest.raises((TypeError, ValueError), match=r"Dimension|shape"):
    ExtendedTensorSpec("two", tf.float32)


def test_equality_with_a_plain_tensor_spec_both_ways():
  spec = ExtendedTensorSpec((2, None), tf.float32, "a", is_sequence=True)
  plain = tf.TensorSpec((2, None), tf.float32, "b")
  assert spec == plain
  assert plain == spec
  assert (spec != plain) is False
  assert (plain != spec) is False
  assert hash(spec) == hash(plain)
  assert {spec: 1}[plain] == 1
  assert {plain: 1}[spec] == 1
  assert not spec.is_identical_to(plain)


@pytest.mark.parametrize(
  "other",
  [
    tf.TensorSpec((3, None), tf.float32),
    tf.TensorSpec((2, None), tf.int32),
    tf.TensorSpec((2,), tf.float32),
    ExtendedTensorSpec((2, 3), tf.float32),
    None,
    "spec",
    (2, None),
  ],
)
def test_inequality_both_ways(other):
  spec = ExtendedTensorSpec((2, None), tf.float32)
  assert spec != other
  assert other != spec
  assert (spec == other) is False


def test_identity_tells_types_of_default_values_apart():
  def spec(value):
    return ExtendedTensorSpec((3,), tf.float32, varlen_default_value=value)

  assert spec(1).is_identical_to(spec(1))
  assert not spec(1).is_identical_to(spec(1.0))
  assert not spec(1).is_identical_to(spec(True))


@pytest.mark.parametrize("name", SPECS)
def test_pickle_and_copy_keep_every_field(name):
  spec = SPECS[name]
  for clone in (
    pickle.loads(pickle.dumps(spec)),
    copy.copy(spec),
    copy.deepcopy(spec),
    ExtendedTensorSpec.from_spec(spec),
  ):
    assert type(clone) is ExtendedTensorSpec
    assert clone.is_identical_to(spec)


@pytest.mark.parametrize("name", SPECS)
def test_repr_can_be_pasted_back(name):
  spec = SPECS[name]
  pasted = eval(repr(spec), {"tf": tf, "ExtendedTensorSpec": ExtendedTensorSpec})
  assert pasted.is_identical_to(spec)
  assert repr(pasted) == repr(spec)


def test_repr_leaves_out_defaults():
  spec = ExtendedTensorSpec((4, None), tf.float32, "x", time_offsets=range(-3, 1))
  assert repr(spec) == (
    "ExtendedTensorSpec(shape=(4, None), dtype=tf.float32, name='x', "
    "time_offsets=(-3, -2, -1, 0))"
  )


def test_repr_shows_falsy_values_that_are_no_defaults():
  spec = ExtendedTensorSpec((3,), tf.bool, varlen_default_value=False, time_offsets=0)
  assert "varlen_default_value=False" in repr(spec)
  assert "time_offsets=0" in repr(spec)


OFFSETS = {
  "none": ((4,), None, None, (4,)),
  "int": ((4,), 1, 1, (4,)),
  "zero": ((4,), 0, 0, (4,)),
  "numpy int": ((4,), np.int64(-2), -2, (4,)),
  "tuple": ((2, 4), (-1, 0), (-1, 0), (4,)),
  "list": ((2, 4), [-1, 0], (-1, 0), (4,)),
  "range": ((3,), range(3), (0, 1, 2), ()),
  "array": ((2, 4), np.array([-1, 0]), (-1, 0), (4,)),
  "tuple of one": ((1, 4), (0,), (0,), (4,)),
  "gaps, any order": ((3, None), (0, -9, -4), (0, -9, -4), (None,)),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_time_offsets(name):
  shape, given, want, want_frame = OFFSETS[name]
  spec = ExtendedTensorSpec(shape, tf.float32, "x", time_offsets=given)
  assert spec.time_offsets == want
  assert type(spec.time_offsets) is type(want)
  assert spec.frame_shape.as_list() == list(want_frame)
  assert spec.shape.as_list() == list(shape)


BAD_OFFSETS = {
  "too many": ((4, 2), (-1, 0), r"x: expected shape\[0\] = 2 .*got shape \(4, 2\)"),
  "no stack axis": ((), (0,), r"x: expected shape\[0\] = 1 .*Put the stack axis first"),
  "unknown rank": (None, (0, 1), r"x: expected shape\[0\] = 2 .*got shape <unknown>"),
  "unknown stack": ((None, 2), (-1, 0), r"expected shape\[0\] = 2"),
  "empty": ((0,), (), r"x: expected at least one time offset, got \(\)"),
  "float": ((1,), 0.5, r"x: expected time_offsets to be None, an int or a tuple"),
  "floats": ((2,), (0.0, 1.0), r"an int or a tuple of ints, got \(0.0, 1.0\)"),
  "bool": ((1,), True, r"an int or a tuple of ints, got True"),
  "text": ((2,), "01", r"an int or a tuple of ints, got '01'"),
  "nested": ((1,), ((0,),), r"an int or a tuple of ints, got \(\(0,\),\)"),
}


@pytest.mark.parametrize("name", BAD_OFFSETS)
def test_bad_time_offsets(name):
  shape, offsets, match = BAD_OFFSETS[name]
  with pytest.raises(errors.SpecError, match=match):
    ExtendedTensorSpec(shape, tf.float32, "x", time_offsets=offsets)


BAD_VARLEN = {
  "matrix": ((3, 2), None, r"v: expected rank 1 .*list of values.*got shape \(3, 2\)"),
  "scalar": ((), None, r"v: expected rank 1"),
  "one image": ((8, 8, 3), "png", r"v: expected rank 4 .*list of images"),
  "flat images": ((3,), "png", r"v: expected rank 4"),
  "raw": ((3,), "raw", r"v: expected rank 4"),
}


@pytest.mark.parametrize("name", BAD_VARLEN)
def test_bad_varlen(name):
  shape, data_format, match = BAD_VARLEN[name]
  with pytest.raises(errors.SpecError, match=match):
    ExtendedTensorSpec(
      shape, tf.uint8, "v", data_format=data_format, varlen_default_value=0
    )
