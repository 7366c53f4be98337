"""Writing: every kind of column comes back; what does not fit is named."""

from __future__ import annotations

import collections
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs, store
from t2r_seq.specs import packing

Spec = specs.ExtendedTensorSpec
F32 = tf.float32
SMALL = {
  "x": Spec((2,), F32, is_sequence=True),
  "n": Spec((), tf.int32, is_sequence=True),
  "task": Spec((), tf.string),
}
TWO = {"x": np.zeros((2, 2), np.float32), "n": [1, 2], "task": "go"}


def read(path):
  opened = store.EpisodeStore(path)
  return [opened.episode(i) for i in range(len(opened))]


def test_round_trip(path, episode, same):
  for index, (got, length) in enumerate(zip(read(path), (5, 1, 8), strict=True)):
    same(got, episode(index, length))


def test_steps_make_the_same_files_as_episodes(path, tmp_path, spec, episode, same):
  other = str(tmp_path / "steps")
  with store.EpisodeStore.create(other, spec, {"robot": "arm"}) as writer:
    for index, length in enumerate((5, 1, 8)):
      flat = episode(index, length)
      context = {p: flat.pop(p) for p in ("task", "goal", "rating") if p in flat}
      for t in range(length):
        writer.append_step({path: values[t] for path, values in flat.items()})
      writer.end_episode(context)
  for name in ["store.json", *(f"segments/main/{n}" for n in files(path))]:
    with open(f"{path}/{name}", "rb") as a, open(f"{other}/{name}", "rb") as b:
      assert a.read() == b.read(), name


def files(path):
  return sorted(set(os.listdir(f"{path}/segments/main")) - {"lock"})


def test_blocks_of_steps_make_the_same_files_as_episodes(tmp_path):
  rng = np.random.default_rng(0)
  x, n = rng.normal(size=(9, 2)).astype(np.float32), np.arange(9, dtype=np.int32)
  for name in ("blocks", "whole"):
    with store.EpisodeStore.create(tmp_path / name, SMALL) as writer:
      if name == "whole":
        writer.append_episode({"x": x, "n": n, "task": "go"})
        continue
      writer.append_steps({"x": x[:4], "n": n[:4]})
      writer.append_step({"x": x[4], "n": n[4]})
      writer.append_steps({"x": x[5:], "n": n[5:]})
      writer.end_episode({"task": "go"})
  for name in files(tmp_path / "whole"):
    blocks, whole = (tmp_path / s / "segments/main" / name for s in ("blocks", "whole"))
    assert blocks.read_bytes() == whole.read_bytes(), name


def test_rejected_block_leaves_the_episode_unchanged(tmp_path):
  with store.EpisodeStore.create(tmp_path / "s", SMALL) as writer:
    writer.append_steps({"x": np.zeros((2, 2), np.float32), "n": [1, 2]})
    with pytest.raises(errors.SpecError, match="append_steps: n: expected 2 steps"):
      writer.append_steps({"x": np.zeros((2, 2), np.float32), "n": [3]})
    with pytest.raises(errors.SpecError, match="at least one step, got none"):
      writer.append_steps({"x": np.zeros((0, 2), np.float32), "n": []})
    writer.end_episode({"task": "go"})
  assert read(tmp_path / "s")[0]["n"].tolist() == [1, 2]


A = collections.namedtuple("A", ["x", "l"])
STRUCTURES = {
  "nested": {"a": {"x": 1.5, "l": [2, 3]}, "b": b"s"},
  "flat": {"a/x": 1.5, "a/l/0": 2, "a/l/1": 3, "b": "s"},
  "struct": specs.TensorSpecStruct(
    {"a/x": np.float32(1.5), "a/l/0": np.int64(2), "a/l/1": np.int64(3), "b": b"s"}
  ),
  "namedtuple": {"a": A(1.5, (2, 3)), "b": np.str_("s")},
  "tensors": {
    "a": {"x": tf.constant(1.5), "l": [tf.constant(2, tf.int64), 3]},
    "b": tf.constant("s"),
  },
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_of_any_form(name, tmp_path):
  spec = {
    "a": {
      "x": Spec((), F32, is_sequence=True),
      "l": [Spec((), tf.int64, is_sequence=True)] * 2,
    },
    "b": Spec((), tf.string, is_sequence=True),
  }
  with store.EpisodeStore.create(tmp_path / "s", spec) as writer:
    writer.append_step(STRUCTURES[name])
    writer.end_episode()
  (got,) = read(tmp_path / "s")
  assert {path: values.tolist() for path, values in got.items()} == {
    "a/x": [1.5],
    "a/l/0": [2],
    "a/l/1": [3],
    "b": [b"s"],
  }


def test_big_endian_arrays_are_stored_little_endian(tmp_path):
  with store.EpisodeStore.create(tmp_path / "s", SMALL) as writer:
    writer.append_episode({**TWO, "n": np.array([1, 256], ">i4")})
  assert (tmp_path / "s/segments/main/n.data").read_bytes() == b"\1\0\0\0\0\1\0\0"


DTYPES = [
  *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
  *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "string"),
]


@pytest.mark.parametrize("shape", [(), (2, 3), (0,)], ids=str)
def test_every_dtype(shape, tmp_path):
  spec = {d: Spec(shape, d, is_sequence=True) for d in DTYPES}
  spec |= {f"{d}_context": Spec(shape, d) for d in DTYPES}
  want = [
    specs.make_random_numpy(spec, batch_size=None, sequence_length=length, seed=length)
    for length in (4, 1)
  ]
  with store.EpisodeStore.create(tmp_path / "s", spec) as writer:
    for one in want:
      writer.append_episode(one)
  for got, one in zip(read(tmp_path / "s"), want, strict=True):
    for path in spec:
      assert np.asarray(got[path]).dtype == np.asarray(one[path]).dtype, path
      np.testing.assert_array_equal(got[path], one[path], err_msg=path)
  assert store.verify_store(tmp_path / "s").is_good


# name: (what replaces entries of TWO, the error)
BAD = {
  "missing": ({"n": None}, r"n: expected \(T,\) int32, got nothing\. Optional paths"),
  "misspelled": ({"task": None, "tsk": "a"}, r"task: expected .*Did you mean 'tsk'"),
  "unknown": ({"zzz": 1.0}, r"zzz: expected one of \[n, task, x\], got float 1.0"),
  "dtype": ({"x": np.zeros((2, 2))}, r"x: expected \(T, 2\) float32, got \(2, 2\) flo"),
  "cast": ({"x": np.zeros((2, 2))}, r"float64\. Cast it\."),
  "shape": ({"x": np.zeros((2, 3), np.float32)}, r"x: .*got \(2, 3\) float32"),
  "no time axis": ({"n": 3}, r"n: expected \(T,\) int32, got \(\) "),
  "fraction": ({"n": [1.5, 2.0]}, r"n: expected \(T,\) int32, got \(2,\) float64"),
  "overflow": ({"n": [1, 2**40]}, r"n: expected \(T,\) int32, got \(2,\) int64"),
  "float overflow": (
    {"x": [[0.0, 1.0], [1e300, 2.0]]},
    r"x: expected \(T, 2\) float32, got \(2, 2\) with 1e\+300 in it, which is beyond",
  ),
  "ragged list": ({"x": [[1.0], [1.0, 2.0]]}, r"x: expected .*, got a ragged list"),
  "ragged columns": ({"n": [1, 2, 3]}, r"n: expected 2 steps, as x has, got 3 steps"),
  "text": ({"n": ["a", "b"]}, r"n: expected \(T,\) int32, got \(2,\) strings"),
  "number": ({"task": 3}, r"task: expected .* got \(\) with an item of type int"),
  "numbers": ({"task": np.zeros(2)}, r"task: expected \(\) string, got \(2,\) float64"),
  "NaN": (
    {"x": np.array([[0, 1], [np.nan, 2]], np.float32)},
    r"x: expected \(T, 2\) float32, got NaN at \(1, 0\)\. .*allow_nan=True",
  ),
  "infinity": (
    {"x": np.array([[0, 1], [2, np.inf]], np.float32)},
    r"x: expected \(T, 2\) float32, got inf at \(1, 1\)\. .*allow_nan=True",
  ),
  "no steps beside some": (
    {"x": np.zeros((0, 2), np.float32)},
    "n: expected 0 steps, as x has, got 2 steps",
  ),
  "misspelled list": (
    {"x": None, "xx": [[0.0, 1.0]] * 2},
    r"2 mismatches:\n  x: .*'xx'\?\n  xx: expected one of \[n, task, x\], got list \[",
  ),
  "all at once": (
    {"x": np.zeros((2, 2)), "n": None, "task": 3},
    r"append_episode: 3 mismatches:\n  n: .*\n  task: .*\n  x: ",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_episode(name, tmp_path):
  change, want = BAD[name]
  with store.EpisodeStore.create(tmp_path / "s", SMALL) as writer:
    writer.append_episode(TWO)
    with pytest.raises(errors.SpecError, match=want):
      writer.append_episode({**TWO, **change})
    writer.append_episode(TWO)
  assert len(read(tmp_path / "s")) == 2
  assert store.verify_store(tmp_path / "s").is_good


@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("how", ["array", "list", "bytes"])
def test_pixels_of_encoded_images_are_encoded_as_in_records(how, shape, tmp_path):
  spec = {
    "i": Spec((*shape, 4, 6, 3), tf.uint8, "i", is_sequence=True, data_format="png"),
    "c": Spec((4, 6, 1), tf.uint16, "c", data_format="PNG"),
  }
  rng = np.random.default_rng(0)
  pixels = {
    "i": rng.integers(0, 255, (3, *shape, 4, 6, 3), np.uint8),
    "c": rng.integers(0, 60_000, (4, 6, 1), np.uint16),
  }
  given = pixels
  if how == "list":
    given = {path: array.tolist() for path, array in pixels.items()}
  if how == "bytes":
    given = {path: packing.encode_pixels(pixels[path], spec[path]) for path in spec}
  with store.EpisodeStore.create(tmp_path / "s", spec) as writer:
    writer.append_episode(given)
  (got,) = read(tmp_path / "s")
  records.write_records(tmp_path / "r", spec, [given])
  (record,) = records.serialized_to_parsed(
    records.record_dataset([str(tmp_path / "r")]), spec
  )
  for path, want in pixels.items():
    images = np.ravel(got[path]).tolist()
    decoded = [tf.io.decode_png(image, dtype=want.dtype).numpy() for image in images]
    np.testing.assert_array_equal(np.reshape(decoded, want.shape), want)
    np.testing.assert_array_equal(record[path], want)


BAD_PIXELS = {
  "size": (np.zeros((2, 9, 8, 3), np.uint8), r"got \(2, 9, 8, 3\) uint8\. Or pixels"),
  "dtype": (
    np.zeros((2, 8, 8, 3), np.float32),
    r"got .*32\. Or pixels: \(T, 8, 8, 3\)",
  ),
  "rank": (np.zeros((8, 8, 3), np.uint8), r"got \(8, 8, 3\) uint8\. Or pixels"),
}


@pytest.mark.parametrize("name", BAD_PIXELS)
def test_pixels_that_do_not_fit(name, tmp_path):
  pixels, want = BAD_PIXELS[name]
  spec = {"i": Spec((8, 8, 3), tf.uint8, is_sequence=True, data_format="JPEG")}
  want = r"i: expected \(T,\) bytes, encoded as jpeg, " + want
  with (
    store.EpisodeStore.create(tmp_path / "s", spec) as writer,
    pytest.raises(errors.SpecError, match=want),
  ):
    writer.append_episode({"i": pixels})


OVERFLOWS = {"float16": 1e6, "bfloat16": 1e39, "float32": 1e300, "complex64": 1e39j}


@pytest.mark.parametrize("dtype", OVERFLOWS)
@pytest.mark.filterwarnings("error")
def test_numbers_out_of_range_are_refused(dtype, tmp_path):
  spec = {"x": Spec((), dtype, is_sequence=True)}
  number = OVERFLOWS[dtype]
  want = re.escape(f"x: expected (T,) {dtype}, got (2,) with {number:g} in it")
  with store.EpisodeStore.create(tmp_path / "s", spec, allow_nan=True) as writer:
    with pytest.raises(errors.SpecError, match=want):
      writer.append_episode({"x": [1.0, number]})
    writer.append_episode({"x": [1.0, float("inf")]})
  assert np.isinf(read(tmp_path / "s")[0]["x"]).tolist() == [False, True]


def encode(height, width, dtype=np.uint8):
  return tf.io.encode_png(np.zeros((height, width, 3), dtype)).numpy()


# name: (the image at step 2, the error)
BAD_IMAGES = {
  "no image": (b"garbage", r"got 7 bytes that are not an image at step 2\."),
  "size": (encode(8, 8), r"image of \(20, 30, 3\), got 8x8 PNG at step 2\."),
  "depth": (encode(20, 30, np.uint16), "got 20x30 PNG with 16 bits per channel at s"),
  "empty": (b"", "got an empty byte string at step 2. Only an optional spec has "),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_bad_encoded_image(name, tmp_path):
  image, want = BAD_IMAGES[name]
  good = encode(20, 30)
  spec = {
    "i": Spec((20, 30, 3), tf.uint8, is_sequence=True, data_format="jpeg"),
    "two": Spec((2, 20, 30, 3), tf.uint8, is_sequence=True, data_format="jpeg"),
    "goal": Spec((20, 30, 3), tf.uint8, data_format="jpeg"),
  }
  episode = {"i": [good] * 3, "two": [[good, good]] * 3, "goal": good}
  changes = {"i": [good, good, image], "two": [[good] * 2] * 2 + [[good, image]]}
  with store.EpisodeStore.create(tmp_path / "s", spec) as writer:
    for path, value in changes.items():
      with pytest.raises(errors.SpecError, match=f"append_episode: {path}: .*{want}"):
        writer.append_episode({**episode, path: value})
    with pytest.raises(errors.SpecError, match=r"append_episode: goal: expected an im"):
      writer.append_episode({**episode, "goal": image})
    writer.append_step({"i": good, "two": [good, good]})
    with pytest.raises(errors.SpecError, match=r"append_step: i: expected an image of"):
      writer.append_step({"i": image, "two": [good, good]})
    writer.end_episode({"goal": good})
    writer.append_episode(episode)
  assert read(tmp_path / "s")[1]["i"].tolist() == [good] * 3


def test_images_that_may_be_empty(tmp_path):
  image = Spec((2, 3, 3), tf.uint8, is_sequence=True, data_format="png")
  views = Spec((2, 2, 3, 3), tf.uint8, data_format="png", varlen_default_value=0)
  spec = {"i": Spec.from_spec(image, is_optional=True), "views": views}
  want = {"i": [encode(2, 3), b"", encode(2, 3)], "views": [encode(2, 3), b""]}
  with store.EpisodeStore.create(tmp_path / "s", spec) as writer:
    writer.append_episode(want)
  (got,) = read(tmp_path / "s")
  assert {path: got[path].tolist() for path in want} == want


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_nan_is_refused_or_allowed(dtype, tmp_path):
  spec = {"x": Spec((), dtype, is_sequence=True)}
  nan = {"x": np.asarray([1, np.nan], tf.as_dtype(dtype).as_numpy_dtype)}
  with (
    store.EpisodeStore.create(tmp_path / "s", spec) as writer,
    pytest.raises(errors.SpecError, match=r"x: expected .*, got NaN at \(1,\)"),
  ):
    writer.append_episode(nan)
  with store.EpisodeStore.append(tmp_path / "s", allow_nan=True) as writer:
    writer.append_episode(nan)
  (got,) = read(tmp_path / "s")
  assert np.isnan(got["x"][1])


BAD_STEPS = {
  "NaN": ({"x": np.array([0, np.nan], np.float32)}, r"x: .*got NaN at \(1,\)"),
  "infinity": ({"h": np.float16("inf")}, r"h: .*got inf at \(\)"),
  "Python NaN": ({"h": float("nan")}, r"h: .*got NaN at \(\)"),
  "overflow": ({"n": 2**31}, r"n: expected \(\) int32, got \(\) int64"),
  "bool": ({"n": True}, r"n: expected \(\) int32, got \(\) bool"),
  "image size": (
    {"i": encode(8, 8)},
    r"i: expected an image of \(20, 30, 3\), got 8x8",
  ),
  "unknown": ({"z": 1}, r"z: expected one of \[h, i, n, x\]"),
}


@pytest.mark.parametrize("name", BAD_STEPS)
@pytest.mark.filterwarnings("error")
def test_steps_are_checked_one_by_one(name, tmp_path):
  change, want = BAD_STEPS[name]
  spec = {
    "x": Spec((2,), F32, is_sequence=True),
    "h": Spec((), tf.float16, is_sequence=True),
    "n": Spec((), tf.int32, is_sequence=True),
    "i": Spec((20, 30, 3), tf.uint8, is_sequence=True, data_format="png"),
  }
  largest = np.full(2, np.finfo(np.float32).max)
  step = {"x": largest, "h": 65504.0, "n": 2**31 - 1, "i": encode(20, 30)}
  with store.EpisodeStore.create(tmp_path / "s", spec) as writer:
    writer.append_step(step)
    with pytest.raises(errors.SpecError, match="append_step: " + want):
      writer.append_step({**step, **change})
    writer.append_step(step)
    writer.end_episode()
  (got,) = read(tmp_path / "s")
  assert got["n"].tolist() == [2**31 - 1] * 2
  np.testing.assert_array_equal(got["x"][-1], largest)
  assert store.verify_store(tmp_path / "s").is_good


def test_bad_step_leaves_the_episode_as_it_was(tmp_path):
  with store.EpisodeStore.create(tmp_path / "s", SMALL) as writer:
    writer.append_step({"x": [1.0, 2.0], "n": 1})
    with pytest.raises(errors.SpecError, match=r"append_step: n: expected \(\) int32"):
      writer.append_step({"x": [1.0, 2.0], "n": "a"})
    with pytest.raises(errors.SpecError, match=r"task: expected one of \[n, x\]"):
      writer.append_step({"x": [1.0, 2.0], "n": 1, "task": "a"})
    with pytest.raises(errors.SpecError, match=r"end_episode: task: .* got nothing"):
      writer.end_episode()
    writer.append_step({"x": [3.0, 4.0], "n": 2})
    writer.end_episode({"task": "b"})
  (got,) = read(tmp_path / "s")
  assert got["n"].tolist() == [1, 2] and got["task"][()] == b"b"


def test_optional_paths_are_in_every_step_or_in_none(tmp_path):
  spec = {**SMALL, "o": Spec((), F32, is_sequence=True, is_optional=True)}
  step = {"x": [1.0, 2.0], "n": 1}
  want = "o: expected in every step of an episode or in none, got "
  with store.EpisodeStore.create(tmp_path / "s", spec) as writer:
    writer.append_step(step)
    with pytest.raises(errors.SpecError, match=want + "one at step 1"):
      writer.append_step({**step, "o": 1.0})
    writer.end_episode({"task": "absent"})
    writer.append_step({**step, "o": 1.0})
    with pytest.raises(errors.SpecError, match=want + "nothing at step 1"):
      writer.append_step(step)
    writer.end_episode({"task": "present"})
  opened = store.EpisodeStore(tmp_path / "s")
  assert "o" not in opened.episode(0) and opened.episode(1)["o"].tolist() == [1.0]
  assert opened.is_present("o").tolist() == [False, True]
  assert opened.column("o").tolist() == [0.0, 1.0]


def test_order_of_calls(tmp_path):
  writer = store.EpisodeStore.create(tmp_path / "s", SMALL)
  with pytest.raises(errors.SpecError, match="end_episode: expected steps, got none"):
    writer.end_episode({"task": "a"})
  writer.append_step({"x": [1.0, 2.0], "n": 1})
  with pytest.raises(errors.SpecError, match="expected no episode in progress, got"):
    writer.append_episode(TWO)
  writer.discard_episode()
  writer.append_episode(TWO)
  writer.append_step({"x": [1.0, 2.0], "n": 1})
  with pytest.raises(errors.SpecError, match="an episode of 1 steps in progress"):
    writer.close()
  writer.close()
  with pytest.raises(
    errors.SpecError, match=r"got a closed one\. EpisodeStore\.append op"
  ):
    writer.append_episode(TWO)
  assert len(read(tmp_path / "s")) == 1
  assert store.verify_store(tmp_path / "s").is_good


def test_exception_keeps_whole_episodes(tmp_path):
  with (
    pytest.raises(KeyboardInterrupt, match="stop"),
    store.EpisodeStore.create(tmp_path / "s", SMALL, commit_every=100) as writer,
  ):
    writer.append_episode(TWO)
    writer.append_step({"x": [1.0, 2.0], "n": 1})
    raise KeyboardInterrupt("stop")
  assert len(read(tmp_path / "s")) == 1


def test_commits(tmp_path):
  with store.EpisodeStore.create(tmp_path / "s", SMALL, commit_every=3) as writer:
    opened = store.EpisodeStore(tmp_path / "s")
    seen = []
    for _ in range(7):
      writer.append_episode(TWO)
      opened.refresh()
      seen.append(len(opened))
    assert seen == [0, 0, 3, 3, 3, 6, 6]
    writer.append_step({"x": [1.0, 2.0], "n": 1})
    writer.flush()  # In the middle of an episode: the whole ones count.
    assert opened.refresh() == 1 and writer.num_committed == 7
    writer.append_step({"x": [1.0, 2.0], "n": 1})
    writer.end_episode({"task": "a"})
    assert writer.num_episodes == 8 and writer.num_committed == 7
  assert opened.refresh() == 1
  assert store.verify_store(tmp_path / "s").is_good


# name: (spec, the error)
BAD_SPECS = {
  "offsets": (
    {"x": Spec((2,), F32, time_offsets=(-1, 0))},
    r"x: expected a spec without time offsets, .* store windows\.flat_specs\(specs\)",
  ),
  "no sequence": (
    {"x": Spec((2,), F32)},
    "expected at least one path with a time axis",
  ),
  "unknown size": (
    {"x": Spec((None,), F32, is_sequence=True)},
    "x: expected a fully defined shape",
  ),
  "dtype": (
    {"x": Spec((), tf.qint8, is_sequence=True)},
    "x: expected a dtype of .*qint",
  ),
  "image": (
    {"x": Spec((3,), tf.uint8, is_sequence=True, data_format="png")},
    r"x: expected a shape \[\.\.\., height, width, channels\]",
  ),
  "array": ({"x": np.zeros(3)}, r"x: expected a spec, got \(3,\) float64"),
  "escape": (
    {"../x": Spec((), F32, is_sequence=True)},
    r"\.\./x: expected a path that can name a file inside of the store",
  ),
  "escape below": (
    {"a": {"../../x": Spec((), F32, is_sequence=True)}},
    r"a/\.\./\.\./x: expected a path that can name a file inside",
  ),
  "backslash": ({"a\\b": Spec((), F32, is_sequence=True)}, "No '.' or '..', no backsl"),
  "control": (
    {"a\0": Spec((), F32, is_sequence=True)},
    r"a\\x00: expected a path that",
  ),
  "long": ({"a" * 300: Spec((), F32, is_sequence=True)}, "At most 200 characters"),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_bad_spec(name, tmp_path):
  spec, want = BAD_SPECS[name]
  with pytest.raises(errors.SpecError, match=want):
    store.EpisodeStore.create(tmp_path / "s", spec)
  assert not (tmp_path / "s").exists()


def test_odd_paths_stay_inside(tmp_path):
  paths = ["a/b", "a.b", "a%2Fb", "...", "/c"[1:] + " d", "ü", "x", "x.offsets"]
  spec = {path: Spec((), tf.string, is_sequence=True) for path in paths}
  with store.EpisodeStore.create(tmp_path / "s", spec) as writer:
    writer.append_episode({path: [path] for path in paths})
  (got,) = read(tmp_path / "s")
  assert {p: v[0].decode() for p, v in got.items()} == {p: p for p in paths}
  assert sorted(os.listdir(tmp_path)) == ["s"]


# name: (arguments of create, the error)
BAD_ARGUMENTS = {
  "commit_every": ({"commit_every": 0}, "commit_every: expected an integer of at leas"),
  "segment": (
    {"segment": "../x"},
    r"segment: expected a name of at most 100 ASCII .*, the first .*, got '\.\./x'\.",
  ),
  "hidden segment": ({"segment": ".x"}, "the first of them a letter or a digit, got '"),
  "long segment": ({"segment": "x" * 101}, "segment: expected a name of at most 100 "),
  "metadata": (
    {"metadata": {"ok": 1, "a": {"b": object()}}},
    r"EpisodeStore: metadata\['a'\]: expected a JSON value, got .*type object is not",
  ),
  "metadata NaN": ({"metadata": {"a": float("nan")}}, r"metadata\['a'\]: .*Out of ra"),
  "metadata key": ({"metadata": {1: 2}}, r"metadata\[1\]: expected a string as key"),
  "no mapping": ({"metadata": [1]}, r"metadata: expected a mapping .*, got list \[1\]"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_argument(name, tmp_path):
  kwargs, want = BAD_ARGUMENTS[name]
  with pytest.raises(errors.SpecError, match=want):
    store.EpisodeStore.create(tmp_path / "s", SMALL, **kwargs)
  assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("name", ["commit_every", "segment"])
def test_bad_argument_of_append(name, path):
  kwargs, want = BAD_ARGUMENTS[name]
  with pytest.raises(errors.SpecError, match=want):
    store.EpisodeStore.append(path, **kwargs)


def test_create_does_not_overwrite(path, tmp_path):
  for place in (path, str(tmp_path)):
    with pytest.raises(
      errors.StoreError, match=re.escape(f"create: {place}: expected n")
    ):
      store.EpisodeStore.create(place, SMALL)
  (tmp_path / "file").write_text("")
  with pytest.raises(errors.StoreError, match=r"got \[a file\]"):
    store.EpisodeStore.create(tmp_path / "file", SMALL)
  (tmp_path / "empty").mkdir()
  store.EpisodeStore.create(tmp_path / "empty", SMALL).close()


def test_second_writer_is_refused(path, episode):
  with store.EpisodeStore.append(path) as writer:
    want = f"expected no other writer, got process {os.getpid()} on .*segment='another"
    with pytest.raises(errors.StoreError, match=want):
      store.EpisodeStore.append(path)
    with store.EpisodeStore.append(path, segment="other") as other:
      other.append_episode(episode(4))
      writer.append_episode(episode(3))
  assert len(store.EpisodeStore(path)) == 5


def test_append_needs_a_name_where_there_are_several(path):
  store.EpisodeStore.append(path, "other").close()
  with pytest.raises(errors.StoreError, match=r"one segment .*got \[main, other\]"):
    store.EpisodeStore.append(path)


def test_append_continues_the_only_segment(tmp_path):
  store.EpisodeStore.create(tmp_path / "s", SMALL, segment="mine").close()
  with store.EpisodeStore.append(tmp_path / "s") as writer:
    writer.append_episode(TWO)
  (segment,) = store.EpisodeStore(tmp_path / "s").segments
  assert segment.name == "mine"
