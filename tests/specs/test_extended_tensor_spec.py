"""ExtendedTensorSpec: fields, equality, derivation from others, pickling, repr."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.specs import ExtendedTensorSpec as Spec

FULL = Spec(
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
  "scalar": Spec((), tf.float32),
  "full": FULL,
  "unknown dimension": Spec((None, 3), tf.bfloat16, "a"),
  "unknown rank": Spec(None, tf.string, "a"),
  "varlen int": Spec((3,), tf.int64, "v", varlen_default_value=0),
  "varlen float": Spec((3,), tf.float32, "v", varlen_default_value=0.1),
  "varlen bool": Spec((3,), tf.bool, "v", varlen_default_value=True),
  "varlen text": Spec((3,), tf.string, "v", varlen_default_value="-"),
  "varlen bytes": Spec((3,), tf.string, "v", varlen_default_value=b"\0"),
  "varlen images": Spec(
    (2, 8, 8, 1), tf.uint8, "v", data_format="png", varlen_default_value=3.0
  ),
  "stack of varlen": Spec(
    (2, 3), tf.int64, "v", varlen_default_value=-1, time_offsets=(-1, 0)
  ),
  "extracted": Spec((1,), tf.int8, "Const", is_extracted=True),
  "next step": Spec((5,), tf.float64, "obs", time_offsets=1),
  "seconds": Spec(
    (2, 5), tf.float16, time_offsets=specs.Seconds(-0.1, 0, tolerance=0.2)
  ),
  "one time": Spec(
    (5,), tf.float64, time_offsets=specs.Seconds(-0.1, select="linear", clock="a/b")
  ),
  "one-time stack": Spec((1, 4), tf.float32, time_offsets=specs.Seconds((0.5,))),
  "one-step stack": Spec((1, 5), tf.float16, "obs", time_offsets=(0,)),
  "quoted name": Spec((2,), tf.complex64, 'it\'s "x"\n'),
  "cast": Spec((2,), tf.float32, "x", stored_dtype=tf.int64),
  "empty name": Spec((2,), tf.uint16, ""),
}


def test_defaults():
  spec = Spec((8, 128), tf.float32)
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
    "convention": None,
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
  spec = Spec(shape, tf.float32, **{field: value})
  plain = Spec(shape, tf.float32)
  assert getattr(spec, field) == value
  assert getattr(Spec.from_spec(spec), field) == value
  assert getattr(Spec.from_spec(plain, **{field: value}), field) == value
  assert spec == plain
  assert not spec.is_identical_to(plain)
  assert spec.is_identical_to(Spec(shape, tf.float32, **{field: value}))


def test_accepts_what_tensorflow_accepts():
  assert Spec([1], np.float32).dtype == tf.float32
  assert Spec(8, "float32").shape == (8,)
  assert Spec(tf.TensorShape([1]), tf.float32).shape == (1,)
  assert Spec(None, tf.float32).shape.rank is None
  assert Spec((np.int64(2), None), tf.int8).shape.as_list() == [2, None]


def test_refuses_what_tensorflow_refuses():
  with pytest.raises(TypeError, match="not-a-dtype"):
    Spec((), "not-a-dtype")
  with pytest.raises((TypeError, ValueError), match=r"Dimension|shape"):
    Spec("two", tf.float32)


def test_equality_with_a_plain_tensor_spec_both_ways():
  spec = Spec((2, None), tf.float32, "a", is_sequence=True)
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
    Spec((2, 3), tf.float32),
    None,
    "spec",
    (2, None),
  ],
)
def test_inequality_both_ways(other):
  spec = Spec((2, None), tf.float32)
  assert spec != other
  assert other != spec
  assert (spec == other) is False


def test_identity_tells_types_of_default_values_apart():
  def spec(value):
    return Spec((3,), tf.float32, varlen_default_value=value)

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
    Spec.from_spec(spec),
  ):
    assert type(clone) is Spec
    assert clone.is_identical_to(spec)


@pytest.mark.parametrize("name", SPECS)
def test_repr_can_be_pasted_back(name):
  spec = SPECS[name]
  pasted = eval(
    repr(spec), {"tf": tf, "ExtendedTensorSpec": Spec, "Seconds": specs.Seconds}
  )
  assert pasted.is_identical_to(spec)
  assert repr(pasted) == repr(spec)


def test_repr_leaves_out_defaults():
  spec = Spec((4, None), tf.float32, "x", time_offsets=range(-3, 1))
  assert repr(spec) == (
    "ExtendedTensorSpec(shape=(4, None), dtype=tf.float32, name='x', "
    "time_offsets=(-3, -2, -1, 0))"
  )


def test_repr_shows_falsy_values_that_are_no_defaults():
  spec = Spec((3,), tf.bool, varlen_default_value=False, time_offsets=0)
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
  spec = Spec(shape, tf.float32, "x", time_offsets=given)
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
    Spec(shape, tf.float32, "x", time_offsets=offsets)


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
    Spec(shape, tf.uint8, "v", data_format=data_format, varlen_default_value=0)


def test_from_spec_of_a_plain_tensor_spec():
  spec = Spec.from_spec(tf.TensorSpec([1], tf.float32, "n"))
  assert spec.is_identical_to(Spec([1], tf.float32, "n"))


def test_from_spec_overrides_and_keeps_the_original():
  old = Spec((1, 2), tf.int32, "old", is_optional=True)
  new = Spec.from_spec(old, shape=(5,), dtype=tf.int64, name="new", is_optional=False)
  assert new.is_identical_to(Spec((5,), tf.int64, "new"))
  assert old.is_identical_to(Spec((1, 2), tf.int32, "old", is_optional=True))


def test_from_spec_time_offsets_none_means_not_windowed():
  spec = Spec((2, 3), tf.float32, "x", time_offsets=(-1, 0))
  assert Spec.from_spec(spec).time_offsets == (-1, 0)
  flat = Spec.from_spec(spec, shape=(3,), time_offsets=None)
  assert flat.is_identical_to(Spec((3,), tf.float32, "x"))


BATCHES = {
  "fixed": (16, [16, 1, 2]),
  "unknown": (-1, [None, 1, 2]),
  "none": (None, [1, 2]),
  "zero": (0, [1, 2]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_from_spec_batch_size(name):
  batch_size, want = BATCHES[name]
  spec = Spec((1, 2), tf.int32, "s", is_sequence=True)
  batched = Spec.from_spec(spec, batch_size=batch_size)
  assert batched.shape.as_list() == want
  assert batched.is_sequence
  assert batched.name == "s"


def test_from_spec_batch_size_of_a_stack_and_of_a_varlen():
  stack = Spec((2, 3), tf.float32, "x", time_offsets=(-1, 0))
  assert Spec.from_spec(stack, batch_size=-1).shape[1:] == (2, 3)
  assert Spec.from_spec(stack, batch_size=8).time_offsets is None
  timed = Spec((2, 3), tf.float32, "x", time_offsets=specs.Seconds(-0.1, 0.0))
  batched = Spec.from_spec(timed, batch_size=8)
  assert batched.shape == (8, 2, 3) and batched.time_offsets is None
  varlen = Spec((3,), tf.int64, "v", varlen_default_value=0)
  assert Spec.from_spec(varlen, batch_size=8).shape == (8, 3)


@pytest.mark.parametrize("batch_size", [1.5, "2", True])
def test_from_spec_refuses_a_batch_size(batch_size):
  spec = Spec((1,), tf.int32)
  with pytest.raises(errors.SpecError, match="expected an integer batch_size, got"):
    Spec.from_spec(spec, batch_size=batch_size)


@pytest.mark.parametrize("value", [None, 3, "spec", np.ones(3), ((1,), tf.int32)])
def test_from_spec_refuses_what_is_no_spec(value):
  with pytest.raises(errors.SpecError, match="from_spec: expected a TensorSpec, got"):
    Spec.from_spec(value)


def test_from_tensor_eager_and_variable():
  spec = Spec.from_tensor(tf.zeros((2, 3), tf.int64))
  assert spec.is_identical_to(Spec((2, 3), tf.int64, is_extracted=True))
  named = Spec.from_tensor(tf.Variable([1.0]), "v")
  assert named.is_identical_to(Spec((1,), tf.float32, "v", is_extracted=True))


def test_from_tensor_in_a_graph_takes_the_name_of_the_op():
  with tf.Graph().as_default():
    unknown = tf.compat.v1.placeholder(tf.int64, name="unknown")
    partial = tf.compat.v1.placeholder(tf.float32, [None, 1], name="scope/partial")
    zero = Spec.from_tensor(tf.constant(0))
  assert zero.name == "Const"
  spec = Spec.from_tensor(unknown)
  assert (spec.shape.rank, spec.dtype, spec.name) == (None, tf.int64, "unknown")
  spec = Spec.from_tensor(partial)
  assert (spec.shape.as_list(), spec.name) == ([None, 1], "scope/partial")
  assert Spec.from_tensor(partial, "mine").name == "mine"


def test_from_tensor_of_a_keras_input():
  spec = Spec.from_tensor(tf.keras.Input((3,), name="pose"))
  want = Spec((None, 3), tf.float32, "pose", is_extracted=True)
  assert spec.is_identical_to(want)


@pytest.mark.parametrize("value", [np.zeros(3), 1.0, tf.TensorSpec(()), None])
def test_from_tensor_refuses_what_is_no_tensor(value):
  with pytest.raises(errors.SpecError, match="from_tensor: expected a tensor, got"):
    Spec.from_tensor(value)


TO_SPEC = {
  "array": (np.zeros((2, 3), np.uint8), ((2, 3), tf.uint8, True)),
  "numpy scalar": (np.float64(1), ((), tf.float64, True)),
  "bytes array": (np.array([b"a", b"bc"]), ((2,), tf.string, True)),
  "object array": (np.array([b"a"], dtype=object), ((1,), tf.string, True)),
  "text array": (np.array(["a"]), ((1,), tf.string, True)),
  "tensor": (tf.zeros((2,), tf.bfloat16), ((2,), tf.bfloat16, True)),
  "plain spec": (tf.TensorSpec((4,), tf.bool), ((4,), tf.bool, False)),
  "spec": (Spec((4,), tf.bool), ((4,), tf.bool, False)),
}


@pytest.mark.parametrize("name", TO_SPEC)
def test_to_spec(name):
  instance, (shape, dtype, is_extracted) = TO_SPEC[name]
  spec = Spec.to_spec(instance)
  assert isinstance(spec, Spec)
  assert (spec.shape, spec.dtype, spec.is_extracted) == (shape, dtype, is_extracted)


@pytest.mark.parametrize("value", [None, 3, "text", [1, 2], {"a": 1}])
def test_to_spec_refuses_the_rest(value):
  match = "to_spec: expected a spec, tensor or array, got"
  with pytest.raises(errors.SpecError, match=match):
    Spec.to_spec(value)


COMPATIBLE = {
  "unknown": (None, [True, True, True]),
  "partial": ([2, None], [True, True, False]),
  "full": ([2, 3], [False, True, False]),
  "rank 3": ([4, 5, 6], [False, False, True]),
}


@pytest.mark.parametrize("name", COMPATIBLE)
def test_is_compatible_with_tensors(name):
  shape, want = COMPATIBLE[name]
  spec = Spec(shape, tf.int64)
  tensors = [tf.zeros(s, tf.int64) for s in ([2, 1], [2, 3], [4, 5, 6])]
  assert [bool(spec.is_compatible_with(tensor)) for tensor in tensors] == want
  assert not spec.is_compatible_with(tf.zeros([2, 3], tf.int32))


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
  spec = Spec((8, 8, 3), tf.uint8, "image", data_format=data_format)
  assert specs.is_encoded_image_spec(spec) is IMAGE_FORMATS[data_format]
  assert not specs.is_encoded_image_spec(tf.TensorSpec((8, 8, 3), tf.uint8, "image"))


def test_modes():
  assert (specs.ModeKeys.TRAIN, specs.ModeKeys.EVAL, specs.ModeKeys.INFER) == (
    "train",
    "eval",
    "infer",
  )
  assert specs.ModeKeys.PREDICT == specs.ModeKeys.INFER
  assert specs.ModeKeys.ALL == ("train", "eval", "infer")
