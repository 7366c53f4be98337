"""Random and constant arrays: valid for every dtype, seeded, of the right shape."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, tensorspec_utils
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.specs import TensorSpecStruct
from t2r_seq.specs.samples import make_constant_numpy

Sample = collections.namedtuple("Sample", ["image", "action"])

DTYPES = [
  *(tf.bool, tf.string, tf.int8, tf.int16, tf.int32, tf.int64),
  *(tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.float16, tf.bfloat16),
  *(tf.float32, tf.float64, tf.complex64, tf.complex128),
]

SHAPES = {
  "defaults": ((4, 5), {}, {}, (2, 4, 5)),
  "sequence": ((4,), {"is_sequence": True}, {}, (2, 3, 4)),
  "lengths": (
    (4,),
    {"is_sequence": True},
    {"batch_size": 7, "sequence_length": 9},
    (7, 9, 4),
  ),
  "no batch by none": ((4,), {}, {"batch_size": None}, (4,)),
  "no batch by -1": ((4,), {}, {"batch_size": -1}, (4,)),
  "no batch by 0": ((4,), {}, {"batch_size": 0}, (4,)),
  "no time axis": ((4,), {"is_sequence": True}, {"sequence_length": None}, (2, 4)),
  "no axis": (
    (),
    {"is_sequence": True},
    {"batch_size": None, "sequence_length": None},
    (),
  ),
  "empty sequence": ((4,), {"is_sequence": True}, {"sequence_length": 0}, (2, 0, 4)),
  "unknown size": ((None, 3, None), {}, {}, (2, 1, 3, 1)),
  "chosen unknown size": ((None, 3), {}, {"unknown_size": 6}, (2, 6, 3)),
  "unknown rank": (None, {}, {}, (2,)),
  "stack": ((2, 4), {"time_offsets": (-1, 0)}, {}, (2, 2, 4)),
  "next step": ((4,), {"time_offsets": 1}, {}, (2, 4)),
  "sequence of stacks": (
    (2, 4),
    {"is_sequence": True, "time_offsets": (-1, 0)},
    {"sequence_length": 5},
    (2, 5, 2, 4),
  ),
  "varlen": ((6,), {"varlen_default_value": 0}, {}, (2, 6)),
}


@pytest.mark.parametrize("dtype", [tf.float32, tf.string, tf.bool, tf.bfloat16])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, dtype):
  shape, fields, arguments, want = SHAPES[name]
  structure = {"x": Spec(shape, dtype, **fields)}
  random = specs.make_random_numpy(structure, **arguments)["x"]
  constant = make_constant_numpy(structure, 1, **arguments)["x"]
  for array in (random, constant):
    assert isinstance(array, np.ndarray)
    assert array.shape == want
    assert tf.convert_to_tensor(array, dtype).shape == want


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_dtype(dtype):
  structure = {"x": Spec((50,), dtype)}
  made = {
    "random": specs.make_random_numpy(structure),
    "constant": make_constant_numpy(structure, 1),
    "tensors": tensorspec_utils.make_random_tensors(structure),
  }
  for leaves in made.values():
    tensorspec_utils.assert_equal(structure, leaves, ignore_batch=True)
    assert tf.convert_to_tensor(leaves["x"]).dtype == dtype
  np.testing.assert_array_equal(made["tensors"]["x"].numpy(), made["random"]["x"])
  if dtype != tf.string:
    assert len(np.unique(made["random"]["x"])) > 1
    assert (made["constant"]["x"] == 1).all()


def test_random_ranges():
  def sample(dtype):
    spec = Spec((2000,), dtype)
    return specs.make_random_numpy([spec], batch_size=None)[0]

  assert (sample(tf.uint8).min(), sample(tf.uint8).max()) == (0, 255)
  assert (sample(tf.int8).min(), sample(tf.int8).max()) == (0, 127)
  assert (sample(tf.int64).min(), sample(tf.int64).max()) == (0, 255)
  floats = sample(tf.float32)
  assert 0 <= floats.min() < 0.01
  assert 0.99 < floats.max() <= 1
  assert set(sample(tf.bool)) == {True, False}
  assert sample(tf.complex64).imag.max() > 0.9
  strings = sample(tf.string)
  assert all(isinstance(value, bytes) for value in strings)
  assert {len(value) for value in strings} == set(range(1, 9))


def test_random_is_seeded_by_path():
  a = Spec((3,), tf.float32)
  structure = TensorSpecStruct({"t/a": a, "t/b": a})
  first = specs.make_random_numpy(structure, seed=1)
  second = specs.make_random_numpy(structure, seed=1)
  np.testing.assert_array_equal(first.t.a, second.t.a)
  assert (first.t.a != first.t.b).any()
  assert (first.t.a != specs.make_random_numpy(structure, seed=2).t.a).any()
  more = specs.make_random_numpy({"before": a, "t": {"a": a}}, seed=1)
  np.testing.assert_array_equal(more["t"]["a"], first.t.a)
  state = np.random.get_state()[1].tolist()
  specs.make_random_numpy(structure)
  assert np.random.get_state()[1].tolist() == state


@pytest.mark.parametrize(
  "structure",
  [
    {"b": Spec((2,), tf.int32), "a": {"n": None}},
    [Spec((2,), tf.int32), (tf.TensorSpec((1,)),)],
    Sample(tf.TensorSpec((1,)), None),
    TensorSpecStruct({"z/y": tf.TensorSpec((1,)), "a": tf.TensorSpec((1,))}),
  ],
  ids=["dict", "list", "namedtuple", "struct"],
)
def test_form_is_kept(structure):
  for made in (
    specs.make_random_numpy(structure),
    make_constant_numpy(structure, 0),
    tensorspec_utils.make_random_tensors(structure),
  ):
    assert type(made) is type(structure)
    keep_none = {"filter_none": False}
    paths = list(specs.flatten_spec_structure(structure, **keep_none))
    flat = specs.flatten_spec_structure(made, **keep_none)
    assert list(flat) == paths
    tensorspec_utils.assert_equal(structure, made, ignore_batch=True)


CONSTANTS = {
  "float": (0.5, tf.float32, 0.5),
  "float in an int": (2.7, tf.int32, 2),
  "too big": (300, tf.uint8, 255),
  "too small": (-1, tf.uint16, 0),
  "negative": (-1, tf.int8, -1),
  "nan in an int": (float("nan"), tf.int64, 0),
  "inf in an int": (float("inf"), tf.int8, 127),
  "true": (5, tf.bool, True),
  "false": (0, tf.bool, False),
  "bool in a float": (True, tf.float16, 1.0),
  "number as text": (3, tf.string, b"3"),
  "text": ("abc", tf.string, b"abc"),
  "bytes": (b"\xff\x00", tf.string, b"\xff\x00"),
  "complex": (1 + 2j, tf.complex64, 1 + 2j),
  "complex in a float": (1 + 2j, tf.float32, 1.0),
  "numpy scalar": (np.float32(0.25), tf.bfloat16, 0.25),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name):
  value, dtype, want = CONSTANTS[name]
  structure = {"x": Spec((2,), dtype)}
  array = make_constant_numpy(structure, value, batch_size=None)["x"]
  assert array.tolist() == [want, want]
  assert tf.convert_to_tensor(array).dtype == dtype


def test_text_is_no_number():
  structure = {"t": {"x": Spec((2,), tf.float32)}}
  match = r"make_constant_numpy: t/x: expected \(2,\) float32, got the constant '1'"
  with pytest.raises(errors.SpecError, match=match):
    make_constant_numpy(structure, "1")


@pytest.mark.parametrize(
  "make", [specs.make_random_numpy, tensorspec_utils.make_random_tensors]
)
def test_refuses_what_is_no_spec(make):
  with pytest.raises(errors.SpecError, match="t/x: expected a spec, got ndarray"):
    make({"t": {"x": np.zeros(2)}})
  with pytest.raises(errors.SpecError, match=r"x: expected a dict.*got int 1"):
    make({"x": 1})


@pytest.mark.parametrize("dtype", [tf.qint8, tf.variant, tf.resource])
def test_refuses_dtypes_without_arrays(dtype):
  match = f"x: expected a dtype that an array can have, got .*{dtype.name}"
  with pytest.raises(errors.SpecError, match=match):
    specs.make_random_numpy({"x": Spec((2,), dtype)})


def test_random_tensors_in_a_graph_and_with_lengths():
  spec = Spec((2,), tf.float32, is_sequence=True)
  with tf.Graph().as_default():
    made = tensorspec_utils.make_random_tensors([spec], batch_size=4, sequence_length=5)
    assert made[0].shape == (4, 5, 2)
  made = tensorspec_utils.make_random_tensors([spec], 4, 3, sequence_length=None)
  assert made[0].shape == (4, 2)
