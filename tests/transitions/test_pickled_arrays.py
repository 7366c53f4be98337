"""Pickles of arrays: what numpy's arrays are made of, and nothing else."""

from __future__ import annotations

import collections
import decimal
import io
import pickle

import numpy as np
import pytest

from t2r_seq.transitions.saving import read_pickled_arrays


def read(value, protocol=4):
  return read_pickled_arrays(io.BytesIO(pickle.dumps(value, protocol)))


def enumerate_names(*values):
  return ((str(index), value) for index, value in enumerate(values))


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
  "plain values": dict(enumerate_names(1, -7, 2**40, 1.5, None, True, b"x", "y")),
  "an array": np.arange(3),
  "a number": 3,
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
  "a set": ({1, 2}, "a value of type set"),
  "a list": ([1, 2], "a value of type list"),
  "a dict": ({"b": np.arange(2)}, "a value of type dict"),
  "objects": (np.array([b"a", 3], dtype=object), "an array of several objects"),
  "a record": (np.zeros(2, "i4,f4"), "a dtype 'V8'"),
  "a date": (np.zeros(2, "M8[s]"), "a dtype 'M8'"),
  "a scalar": (np.float32(1), "scalar, which is code"),
  "numpy's own function": (np.load, "the name numpy.load, which is code"),
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_other_values(name):
  value, want = BAD[name]
  with pytest.raises(ValueError, match=want):
    read({"a": value})


def nested_lists(depth, width):
  value = [0] * width
  for _ in range(depth - 1):
    value = [value] * width
  return value


def list_of_itself():
  value = []
  value.append(value)
  return value


def array_of_itself():
  value = np.zeros((), object)
  value[()] = [value]
  return value


# What unfolds to more than is in the file, or never ends.
BOMBS = {
  "lists of references": ({"a": nested_lists(14, 10)}, "a value of type list"),
  "lists alone": (nested_lists(14, 10), "a value of type list"),
  "a list of itself": ({"a": list_of_itself()}, "a value of type list"),
  "an array of itself": (array_of_itself(), "a value of type list"),
  "names": ({(1, 2): 3}, "a tuple as a name"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_rejects_expanding_pickles(name):
  value, want = BOMBS[name]
  with pytest.raises(ValueError, match=want):
    read(value)


# Bytes that ask `pickle` for memory, or for a deep stack.
HOSTILE = {
  "the number of a value": (
    b"\x80\x04]r\xff\xff\xff\xff.",
    "a value numbered 4294967295",
  ),
  "bytes": (b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b".", "damaged bytes"),
  "text": (b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b".", "damaged bytes"),
  "a frame": (b"\x80\x04\x95" + (2**40).to_bytes(8, "little") + b"N.", "damaged bytes"),
  "deep": (
    b"\x80\x04}" + b")" + b"\x85" * 10**6 + b"Ns.",
    "more than 20000 operations",
  ),
  "many": (b"\x80\x04" + b"N0" * 10**5 + b"N.", "more than 20000 operations"),
  "attributes of what stands for numpy": (
    b"\x80\x04cnumpy\ndtype\n}X\x01\x00\x00\x00aK\x01sb.",
    "damaged bytes",
  ),
  "an array of no shape": (
    b"\x80\x04cnumpy\nndarray\n)R(K\x01J\xff\xff\xff\xff\x85cnumpy\ndtype\nC\x00tb.",
    "damaged bytes",
  ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name):
  data, want = HOSTILE[name]
  with pytest.raises(ValueError, match=want):
    read_pickled_arrays(io.BytesIO(data))


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
  whole = pickle.dumps(GOOD["plain values"], 4)
  for length in range(len(whole)):
    with pytest.raises(ValueError, match=r"\w"):
      read_pickled_arrays(io.BytesIO(whole[:length]))
