"""`--cast`: numbers of other dtypes, and what is lost on the way."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, errors, specs, store

Spec = specs.ExtendedTensorSpec
SPEC = {
  "a/x": Spec((2,), tf.float64, "x", is_sequence=True),
  "a/y": Spec((), tf.float64, "y"),
  "n": Spec((), tf.int64, "n", is_sequence=True),
  "text": Spec((), tf.string, "t"),
}


def make(path="s", x=0.1, n=3):
  values = {"a/x": np.full((2, 2), x), "a/y": np.float64(x), "n": np.full(2, n)}
  with store.EpisodeStore.create(path, SPEC) as writer:
    writer.append_episode({**values, "text": b"t"})


def to_store(casts):
  options = convert.ConversionOptions(cast=casts)
  convert.convert("s", "d", options=options, destination_kind="store")


CASTS = {
  "a dtype": (["float64=float32"], ["float32", "float32", "int64"]),
  "a path": (["a/x=float16"], ["float16", "float64", "int64"]),
  "below": (["a=float32", "n=uint8"], ["float32", "float32", "uint8"]),
  "a path first": (["a/y=float64", "float64=float32"], ["float32", "float64", "int64"]),
  "none of it": (["float16=float32"], ["float64", "float64", "int64"]),
}


@pytest.mark.parametrize("name", CASTS)
def test_casts(name):
  make()
  casts, want = CASTS[name]
  to_store(casts)
  convert.verify_conversion("s", "d")
  found = store.EpisodeStore("d")
  assert [found.spec[path].dtype.name for path in ("a/x", "a/y", "n")] == want
  episode = found.episode(0)
  np.testing.assert_array_equal(episode["a/x"], np.full((2, 2), 0.1).astype(want[0]))
  assert episode["n"].tolist() == [3, 3]


REFUSED = {
  "no dtype": (
    {},
    ["n=int31"],
    r"cast n=int31: expected a dtype.*Did you mean 'int32'",
  ),
  "no path": ({}, ["m=int32"], r"cast m=int32: expected a dtype, or a path of \[a/x"),
  "text": ({}, ["text=int8"], "text: expected numbers to cast, got string"),
  "too large": (
    {"n": 300},
    ["n=uint8"],
    r"n: expected numbers that uint8 has, got 300",
  ),
  "another sign": (
    {"n": -1},
    ["n=uint64"],
    "n: expected numbers that uint64 has, got -1",
  ),
  "infinite": ({"x": 1e300}, ["a=float32"], r"episode 0 of s: a/\w: .* got 1e\+300"),
  "a part": ({"x": 0.5}, ["a=int32"], "expected numbers that int32 has, got 0.5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
  values, casts, match = REFUSED[name]
  make(**values)
  with pytest.raises(errors.SpecError, match=match):
    to_store(casts)
