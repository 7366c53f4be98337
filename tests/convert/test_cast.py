"""`--cast`: numbers of other dtypes, and what is lost on the way."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, errors, specs, store
from t2r_seq.convert.conversion import verify_conversion

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
  options = dict(cast=casts)
  convert.convert("s", "d", **options, format="store")


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
  verify_conversion("s", "d")
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
    r"n: expected numbers that fit uint8, got 300",
  ),
  "another sign": (
    {"n": -1},
    ["n=uint64"],
    "n: expected numbers that fit uint64, got -1",
  ),
  "infinite": ({"x": 1e300}, ["a=float32"], r"episode 0 of s: a/\w: .* got 1e\+300"),
  "a part": ({"x": 0.5}, ["a=int32"], "expected numbers that fit int32, got 0.5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
  values, casts, match = REFUSED[name]
  make(**values)
  with pytest.raises(errors.SpecError, match=match):
    to_store(casts)


UNIX = 1.7e9 + np.arange(6) * 0.05
RNG = np.random.default_rng(0)
STILL = 0.5 + RNG.normal(0, 1e-12, 50)
# Path, its values, the cast, and whether it is refused.
MERGED = {
  "Unix times": ("obs/stamp", UNIX, "float64=float32", True),
  "Unix times, under another name": ("obs/t", UNIX, "float64=float32", True),
  "Unix times of a folder": ("obs/stamp", UNIX, "obs=float32", True),
  "Unix times, named": ("obs/stamp", UNIX, "obs/stamp=float32", False),
  "Unix times of an hour": (
    "obs/t",
    1.7e9 + np.arange(3600) * 1.0,
    "float64=float32",
    True,
  ),
  "a position on a map, to and fro": (
    "obs/utm",
    5.4e6 + 0.3 * np.sin(np.arange(50) / 5),
    "float64=float32",
    True,
  ),
  "a Unix time of one step": ("obs/stamp", UNIX[:1] + 9, "float64=float32", True),
  "a second of one step": ("obs/stamp", UNIX[1:2] - 1.7e9, "float64=float32", False),
  "Unix times in ns": ("obs/t", UNIX * 1e9, "float64=float32", True),
  "Unix times as bfloat16": ("obs/t", UNIX, "float64=bfloat16", True),
  "held times": ("obs/t", np.repeat(UNIX, 3), "float64=float32", True),
  "time stamps that fall": ("timestamp", UNIX[::-1], "float64=float32", True),
  "times in a vector": (
    "obs/v",
    np.stack([UNIX * 0, UNIX], axis=1),
    "float64=float32",
    True,
  ),
  "seconds as float16": ("time", np.arange(3000) / 30, "float64=float16", True),
  "seconds as float32": ("time", np.arange(3000) / 30, "float64=float32", False),
  "a position on a map": ("obs/x", 5e6 + np.arange(50) * 0.02, "float64=float32", True),
  "an arm that stands still": ("obs/x", STILL, "float64=float32", False),
  "noise that rises": ("obs/x", np.sort(STILL)[:3], "float64=float32", False),
  "an arm that comes to rest": (
    "obs/x",
    1 - np.exp(-np.arange(300) / 10),
    "float64=float32",
    False,
  ),
  "a slow reach": ("obs/x", np.linspace(0.1, 0.9, 2000), "float64=bfloat16", False),
  "a slow reach as float16": (
    "obs/x",
    np.linspace(0.1, 0.9, 20000),
    "float64=float16",
    False,
  ),
  "pressures": ("obs/x", 101325 + RNG.normal(0, 1e-3, 50), "float64=float32", False),
  "counts that begin at 0": (
    "obs/x",
    np.append(0, 1e8 + np.arange(50)),
    "float64=float32",
    False,
  ),
  "tiny values": ("obs/x", np.geomspace(1e-60, 1e-50, 9), "float64=float32", False),
}


@pytest.mark.parametrize("name", MERGED)
def test_values_that_become_equal(name):
  path, values, cast, is_refused = MERGED[name]
  spec = {path: Spec(values.shape[1:], tf.float64, is_sequence=True)}
  with store.EpisodeStore.create("s", spec) as target:
    target.append_episode({path: values})
  if not is_refused:
    to_store([cast])
    verify_conversion("s", "d")
    return
  match = (
    rf"episode 0 of s: {path}: expected values that b?float\d+ distinguishes, got "
  )
  with pytest.raises(errors.ConversionError, match=match) as found:
    to_store([cast])
  assert f"which become equal. Keep them, --cast {path}=float64, or" in str(found.value)


def test_equal_times_of_a_dtype_can_be_kept():
  spec = {p: Spec((), tf.float64, is_sequence=True) for p in ("obs/stamp", "obs/x")}
  with store.EpisodeStore.create("s", spec) as target:
    target.append_episode({"obs/stamp": UNIX, "obs/x": UNIX * 0})
  to_store(["float64=float32", "obs/stamp=float64"])
  np.testing.assert_array_equal(store.EpisodeStore("d").episode(0)["obs/stamp"], UNIX)
