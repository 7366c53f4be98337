"""Chains end where they must, found in blocks."""

from __future__ import annotations

import numpy as np
import pytest

from t2r_seq.transitions import saving
from t2r_seq.windows.n_step import TransitionFields

NAN = np.float32(np.nan)
OTHER_NAN = np.frombuffer(b"\x01\x00\xc0\x7f", np.float32)[0]

# name: (an observation, the other, whether they are the same)
PAIRS = {
  "equal": (1.5, 1.5, True),
  "another": (1.5, 1.25, False),
  "NaN": (NAN, NAN, True),
  "another NaN": (NAN, OTHER_NAN, False),
  "zeros": (0.0, -0.0, False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_bit_for_bit(name):
  left, right, want = PAIRS[name]
  pair = [np.array([[value, 1]], np.float32) for value in (left, right)]
  assert saving.same_rows(*pair).tolist() == [want]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (8,), (5, 3), (0,)])
@pytest.mark.parametrize("dtype", ["u1", "<i2", ">f4", "f8", "c16", "?"])
def test_rows_of_any_shape(shape, dtype):
  rng = np.random.default_rng(0)
  left = rng.integers(0, 2, (9, *shape)).astype(dtype)
  right = left.copy()
  assert saving.same_rows(left, right).all()
  if left.size:
    right[(4, *[-1] * len(shape))] = left[(4, *[-1] * len(shape))] == 0
    assert saving.same_rows(left, right).tolist() == [i != 4 for i in range(9)]


def test_views_and_byte_orders():
  left = np.arange(40, dtype="<f4").reshape(5, 8)[:, ::2]
  assert saving.same_rows(left, left.astype(">f4")).all()
  words = np.array([[b"a", b""], [b"b", b"c"]], dtype=object)
  others = np.array([[b"a", b""], [b"b", b"d"]], dtype=object)
  assert saving.same_rows(words, others).tolist() == [True, False]


@pytest.mark.parametrize("block_bytes", [1, 16, 1 << 20])
def test_ends(block_bytes, monkeypatch, make):
  monkeypatch.setattr(saving, "_BLOCK_BYTES", block_bytes)
  given = make([(3, "terminal"), (1, "truncated"), (2, "gap"), (4, "gap")])
  # The next observations go on over the ends that are only flags.
  flat = {
    "obs": np.arange(10.0),
    "next_obs": np.arange(1, 11.0),
    "rew": np.zeros(10),
    "done": given["done"],
    "truncated": given["truncated"],
  }
  flat["next_obs"][5] = -1
  of = TransitionFields.from_paths("test", flat)
  assert saving.chain_ends(flat, of).tolist() == [3, 4, 6, 10]
