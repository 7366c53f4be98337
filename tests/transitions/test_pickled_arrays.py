"""Pickles read as data: what numpy's arrays are made of, and nothing else."""

from __future__ import annotations

import collections
import decimal
import io
import pickle

import numpy as np
import pytest

from t2r_seq.transitions.cpprb import read_pickled_arrays


def read(value, protocol=4):
  return read_pickled_arrays(io.BytesIO(pickle.dumps(value, protocol)))


GOOD = {
  "numbers": {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": np.float32([1.5])},
  "bool": {"a": np.array([True, False])},
  "fortran": {"a": np.asfortranarray(np.arange(6.0).reshape(2, 3))},
  "big-endian": {"a": np.arange(3, dtype=">i4")},
  "complex": {"a": np.ones(2, np.complex128)},
  "empty": {"a": np.zeros((0, 3))},
  "no axes": {"a": np.array(3.5)},
  "many": {str(i): np.full(2, i) for i in range(300)},
  "large": {"a": np.zeros(70000)},
  "long name": {"a" * 300: np.zeros(1)},
  "the same twice": dict.fromkeys("ab", np.arange(3)),
  "nested": {"a": {"b": [np.arange(2), (1, -7, 2**40, 1.5, None, True, b"x", "y")]}},
}


def assert_same(got, want):
  if isinstance(want, np.ndarray):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()
  elif isinstance(want, (dict, list, tuple)):
    assert type(got) is type(want)
    assert len(got) == len(want)
    keys = want if isinstance(want, dict) else range(len(want))
    for key in keys:
      assert_same(got[key], want[key])
  else:
    assert got == want


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("name", GOOD)
def test_data(name, protocol):
  if protocol == 5:
    boxed = pickle.dumps(GOOD[name], 5)
    if b"_frombuffer" in boxed:
      # numpy's files never have this form, because they are of protocol 4 at most.
      with pytest.raises(ValueError, match="_frombuffer, which is code"):
        read_pickled_arrays(io.BytesIO(boxed))
      return
  assert_same(read(GOOD[name], protocol), GOOD[name])


# name: (a value, what the error says)
BAD = {
  "a function": (print, "the name builtins.print, which is code"),
  "an object": (decimal.Decimal(3), "the name decimal.Decimal, which is code"),
  "a dict with an order": (collections.OrderedDict(a=1), "collections.OrderedDict"),
  "a set": ({1, 2}, "the operation EMPTY_SET"),
  "objects": (np.array([b"a", 3], dtype=object), "an array of several objects"),
  "a record": (np.zeros(2, "i4,f4"), "a call of numpy.dtype with .*V8"),
  "a date": (np.zeros(2, "M8[s]"), "a call of numpy.dtype with .*M8"),
  "a scalar": (np.float32(1), "scalar, which is code"),
  "numpy's own function": (np.load, "the name numpy.load, which is code"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_data(name):
  value, want = BAD[name]
  with pytest.raises(ValueError, match=want):
    read({"a": value})


DAMAGED = {
  "nothing": b"",
  "no pickle": b"hello",
  "an empty stack": b"\x80\x04.",
  "an unfinished array": pickle.dumps(np.ndarray, 4),
  "no such memo": b"\x80\x04h\x07.",
  "a call of data": b"\x80\x04K\x01)R.",
  "items for a number": b"\x80\x04K\x01(K\x02K\x03u.",
  "endless": b"\x80\x04]q\x00h\x00a",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged(name):
  with pytest.raises(ValueError, match=r"\w"):
    read_pickled_arrays(io.BytesIO(DAMAGED[name]))


def test_cut_anywhere():
  whole = pickle.dumps(GOOD["nested"], 4)
  for length in range(len(whole)):
    with pytest.raises(ValueError, match=r"\w"):
      read_pickled_arrays(io.BytesIO(whole[:length]))
