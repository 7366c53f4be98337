"""Damaged files are examined to the end: every bad record is named, no good one."""

from __future__ import annotations

import gzip
import os
import pathlib
import re
import struct
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.records import framing
from t2r_seq.records.check import examine_records, find_bad_record
from t2r_seq.records.index_file import index_path

Spec = specs.ExtendedTensorSpec
F32 = tf.float32
EXAMPLE = {
  "state/pose": Spec((3,), F32, "pose"),
  "image": Spec((4, 6, 3), tf.uint8, "image", data_format="png"),
  "count": Spec((), tf.uint8, "count"),
  "task": Spec((), tf.string, "task"),
}
EPISODE = {
  "pose": Spec((2,), F32, "pose", is_sequence=True),
  "exact": Spec((2,), tf.float64, "exact", is_sequence=True),
  "reward": Spec((), F32, "reward", is_sequence=True),
  "task": Spec((), tf.string, "task"),
}


def example(index, **changes):
  values = {
    "state/pose": [index, 1.0, -index],
    "image": np.full((4, 6, 3), index % 256, np.uint8),
    "count": index % 200,
    "task": f"task {index}",
  }
  return records.encode_example(EXAMPLE, {**values, **changes})


def episode(index, num_steps=3, **changes):
  values = {
    "pose": np.full((num_steps, 2), index, np.float32),
    "exact": np.full((num_steps, 2), index, np.float64),
    "reward": np.arange(num_steps, dtype=np.float32),
    "task": f"task {index}",
  }
  return records.encode_example(EPISODE, {**values, **changes})


def frames_of(serialized):
  """Returns where each frame starts, and the end."""
  return np.cumsum([0, *(len(data) + 16 for data in serialized)]).tolist()


def write(path, serialized):
  with tf.io.TFRecordWriter(str(path)) as writer:
    for data in serialized:
      writer.write(data)
  return frames_of(serialized)


def flip(path, position):
  data = bytearray(path.read_bytes())
  data[position] ^= 16
  path.write_bytes(data)


def places(report):
  return [(problem.record, problem.offset, problem.kind) for problem in report.problems]


WRONG = {"state/pose": Spec((2,), F32, "pose"), "count": Spec((), tf.int64, "count")}


def other_example(path, value, spec=None):
  """An example with another spec for one path."""
  spec = {**EXAMPLE, path: spec or WRONG[path]}
  values = {
    "state/pose": [0.0, 1.0, 2.0],
    "image": np.zeros((4, 6, 3), np.uint8),
    "count": 1,
    "task": "x",
    path: value,
  }
  return records.encode_example(spec, values)


BIG = Spec((8, 6, 3), tf.uint8, "image", data_format="png")
# name: (record, kind, feature, message)
BAD = {
  "shape": (
    other_example("state/pose", [1.0, 2.0]),
    "content",
    "state/pose",
    "3 values",
  ),
  "range": (
    other_example("count", 300),
    "content",
    "count",
    "expected values from 0 to",
  ),
  "image size": (
    other_example("image", np.zeros((8, 6, 3), np.uint8), BIG),
    "content",
    "image",
    r"expected an image of size \(4, 6, 3\), got an image of size \(8, 6, 3\)",
  ),
  "no proto": (b"\xff\xffno proto", "content", "", "proto: expected a serialized tf"),
  "NaN": (
    example(1, **{"state/pose": [0.0, np.nan, np.nan]}),
    "nan",
    "state/pose",
    r"state/pose \(feature 'pose'\): expected numbers, got NaN at value 1",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_example_among_many(name, tmp_path):
  bad, kind, feature, message = BAD[name]
  # More than are looked at one by one, and more than a batch.
  serialized = [example(index % 250) for index in range(600)]
  serialized[555] = bad
  starts = write(tmp_path / "a", serialized)
  report = examine_records(str(tmp_path / "a"), EXAMPLE)
  (problem,) = report.problems
  assert (problem.source, problem.record) == (str(tmp_path / "a"), 555)
  assert (problem.offset, problem.kind) == (starts[555], kind)
  assert problem.path == feature
  assert re.search(rf"^record 555 of .*: {message}|{message}", str(problem))
  assert report.counts == {str(tmp_path / "a"): 600}
  assert (report.is_good, report.num_bad) == (False, 1)


def test_several_kinds_in_several_files(tmp_path):
  good = example(3)
  write(tmp_path / "a", [BAD["shape"][0], good, BAD["NaN"][0], good, BAD["range"][0]])
  write(tmp_path / "b", [good])
  write(tmp_path / "c", [good, BAD["no proto"][0]])
  report = examine_records([str(tmp_path / name) for name in "abc"], EXAMPLE)
  got = [(os.path.basename(p.source), p.record, p.kind) for p in report.problems]
  assert got == [
    ("a", 0, "content"),
    ("a", 2, "nan"),
    ("a", 4, "content"),
    ("c", 1, "content"),
  ]
  assert report.bad(str(tmp_path / "a")) == [0, 2, 4]
  allowed = examine_records(str(tmp_path / "a"), EXAMPLE, allow_nan=True)
  assert allowed.bad(str(tmp_path / "a")) == [0, 4]


@pytest.mark.parametrize("count", [3, 40])
def test_episodes(tmp_path, count):
  serialized = [episode(index, 1 + index % 4) for index in range(count)]
  uneven = tf.train.SequenceExample.FromString(episode(0, 3))
  uneven.feature_lists.feature_list["reward"].feature.pop()
  serialized[1] = uneven.SerializeToString()
  exact = np.zeros((3, 2))
  exact[2, 1] = np.nan
  serialized[2] = episode(0, 3, exact=exact)
  write(tmp_path / "a", serialized)
  report = examine_records(str(tmp_path / "a"), EPISODE)
  assert [(p.record, p.kind, p.path) for p in report.problems] == [
    (1, "lengths", "reward"),
    (2, "nan", "exact"),
  ]
  assert "expected 3 steps, as exact has, got 2 steps" in str(report.problems[0])
  assert "expected numbers, got NaN at step 2, value 1" in str(report.problems[1])


def test_names_that_are_no_text_hide_nothing(tmp_path):
  """TensorFlow parses records with such names, Python's protos do not."""
  uneven = tf.train.SequenceExample.FromString(episode(0, 3))
  uneven.feature_lists.feature_list["reward"].feature.pop()
  protos = [
    tf.train.SequenceExample.FromString(episode(1)),
    uneven,
    tf.train.SequenceExample.FromString(episode(1, exact=np.full((3, 2), np.nan))),
  ]
  for proto in protos:
    proto.context.feature["~~"].int64_list.value.append(1)
  serialized = [p.SerializeToString().replace(b"~~", b"\xff\xfe") for p in protos]
  write(tmp_path / "a", [*serialized, b"\xff"])
  report = examine_records(str(tmp_path / "a"), EPISODE)
  assert [(p.record, p.kind) for p in report.problems] == [
    (1, "lengths"),
    (2, "nan"),
    (3, "content"),
  ]
  for problem in report.problems:
    assert "expected a serialized tf.train.Example or tf.train." in str(problem)


def test_every_record_is_bad(tmp_path):
  write(tmp_path / "a", [episode(index) for index in range(30)])
  wrong = {"pose": Spec((3,), F32, "pose", is_sequence=True)}
  report = examine_records(str(tmp_path / "a"), wrong)
  assert [p.record for p in report.problems] == [*range(30)]
  assert {p.path for p in report.problems} == {"pose"}


def test_features(tmp_path):
  serialized = [example(index) for index in range(20)]
  serialized[3] = BAD["NaN"][0]
  serialized[4] = BAD["shape"][0]
  write(tmp_path / "a", serialized)
  report = examine_records(str(tmp_path / "a"), EXAMPLE)
  by_path = {each.path: each for each in report.paths}
  pose = by_path["state/pose"]
  assert (pose.num_problems, pose.num_nan, pose.num_absent) == (1, 1, 0)
  assert by_path["image"].described == "(4, 6, 3) uint8 png"


def test_cut_gzip_file(tmp_path):
  # Bytes that do not compress, so that half of the file is half of the records.
  rng = np.random.default_rng(0)
  spec = {"x": Spec((), tf.string, "x")}
  serialized = [records.encode_example(spec, {"x": rng.bytes(1000)}) for _ in range(20)]
  write(tmp_path / "plain", serialized)
  data = gzip.compress((tmp_path / "plain").read_bytes())
  (tmp_path / "a.gz").write_bytes(data[: len(data) // 2])
  report = examine_records(str(tmp_path / "a.gz"), spec)
  (problem,) = report.problems
  assert problem.kind == "frame" and 8 <= problem.record <= 10
  assert "expected GZIP data, got the compressed data ends too early" in str(problem)
  assert str(problem) in str(find_bad_record(str(tmp_path / "a.gz"), spec))


def test_gzip_file_that_unfolds_is_not_unpacked_to_disk(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
  path = tmp_path / "x.tfrecord.gz"
  with gzip.open(path, "wb", 1) as file:
    file.write(bytes(2 << 20))
  result = examine_records(str(path))
  assert result.num_bad == 1
  assert "expected a length with a fitting checksum" in str(result.problems[0])


def test_bytes_that_are_no_records(tmp_path):
  (tmp_path / "a").write_bytes(b'{"a": 1}\n' * 200)
  (problem,) = examine_records(str(tmp_path / "a"), EXAMPLE).problems
  assert problem.record == 0
  assert "wrong file type: it looks like" in str(problem)


def test_without_specs(tmp_path):
  serialized = [example(index) for index in range(20)]
  serialized[2] = b"\xff\xffno proto"
  # Its header is fine, its pixels are not.
  image = tf.train.Example.FromString(serialized[5])
  value = image.features.feature["image"].bytes_list.value
  value[0] = value[0][:-20]
  serialized[5] = image.SerializeToString()
  starts = write(tmp_path / "a", serialized)
  flip(tmp_path / "a", starts[9] + 30)
  report = examine_records(str(tmp_path / "a"))
  kinds = [(problem.record, problem.kind) for problem in report.problems]
  assert kinds == [(2, "content"), (5, "content"), (9, "frame")]
  assert [f.path for f in report.paths] == ["count", "image", "pose", "task"]


def test_records_without_features(tmp_path):
  write(tmp_path / "a", [b"", b"", b"\xff\xffno proto"])
  report = examine_records(str(tmp_path / "a"))
  assert report.paths == ()
  assert [(p.record, p.kind) for p in report.problems] == [(2, "content")]


FOREIGN = b"\x9a\x03\x06abcdef"  # A proto of another kind, which parses to nothing.


def test_proto_of_another_kind_is_no_example(tmp_path):
  write(tmp_path / "x.tfrecord", [example(index) for index in range(6)])
  write(tmp_path / "x.tfrecord.spec", [FOREIGN])
  with pytest.raises(
    errors.RecordError, match=r"record 0 of .*spec .*9 bytes that are"
  ):
    records.inspect_records(str(tmp_path / "x*"))
  report = examine_records(str(tmp_path / "x*"))
  (problem,) = report.problems
  assert (problem.source, problem.kind) == (
    str(tmp_path / "x.tfrecord.spec"),
    "content",
  )
  assert "expected a serialized tf.train.Example" in str(problem)


def _field(number, value):
  """A field of a message: bytes, a varint or a double, each below 128 bytes."""
  if isinstance(value, float):
    return bytes([number << 3 | 1]) + struct.pack("<d", value)
  if isinstance(value, int):
    return bytes([number << 3, value])
  return bytes([number << 3 | 2, len(value)]) + value


STATE = _field(2, 1.0) + _field(3, 2.0) + _field(11, 1)
TRACK = _field(1, 7) + _field(2, 1) + _field(3, STATE) + _field(3, STATE)
# Messages whose first fields are where those of a tf.train.SequenceExample are.
OTHER_PROTOS = {
  "a Scenario of Waymo's": b"".join(
    [*(_field(1, t / 10) for t in range(3)), _field(2, TRACK), _field(5, b"id"), b"P\1"]
  ),
  "a Frame of Waymo's": _field(1, _field(1, b"\x30\x01") + _field(9, b"x"))
  + b"\x10\x05",
  "a message of a message": _field(1, _field(3, b"abc")),
}


@pytest.mark.parametrize("name", OTHER_PROTOS)
def test_files_of_other_protos(name, tmp_path):
  write(tmp_path / "x.tfrecord", [OTHER_PROTOS[name]] * 3)
  report = examine_records(str(tmp_path / "x.tfrecord"))
  assert [p.record for p in report.problems] == [0, 1, 2]
  assert "expected a serialized tf.train.Example" in str(report.problems[0])
  assert not report.is_good
  with pytest.raises(errors.RecordError, match="bytes that are neither"):
    records.inspect_records(str(tmp_path / "x.tfrecord"))


def test_example_without_features_is_one(tmp_path):
  write(tmp_path / "x.tfrecord", [b"\n\x00"])
  assert not examine_records(str(tmp_path / "x.tfrecord")).problems


# name: (record, the findings)
WITHOUT_ANY = {
  "another kind": (FOREIGN, "expected a serialized tf.train.Example"),
  "empty": (b"", r"record: expected one of the features \[image, pose\], got a tf"),
  "others": (
    records.encode_example({"z": Spec((), F32, "z")}, {"z": 1.0}),
    r"expected one of the features \[image, pose\], got a tf.train.Example with \[z\]",
  ),
}


@pytest.mark.parametrize("name", WITHOUT_ANY)
def test_record_with_none_of_the_features(name, tmp_path):
  """All may be absent, so each record can be parsed: to nothing but fillings."""
  data, want = WITHOUT_ANY[name]
  flat = specs.flatten_spec_structure(EXAMPLE)
  spec = {
    path: Spec.from_spec(flat[path], is_optional=True)
    for path in ("state/pose", "image")
  }
  write(tmp_path / "a", [example(0), data, example(1)])
  (problem,) = examine_records(str(tmp_path / "a"), spec).problems
  assert problem.record == 1
  assert re.search(want, str(problem))
  path = str(tmp_path / "a")
  dataset = records.serialized_to_parsed(records.record_dataset([path]), spec)
  raises = pytest.raises(errors.RecordError, match=want)
  with raises, records.explain_failures(path, spec):
    list(dataset)


def test_stale_index_is_a_problem_of_the_file(tmp_path):
  path = str(tmp_path / "a")
  write(path, [example(1)])
  records.write_index(path)
  assert examine_records(path, EXAMPLE).is_good
  write(path, [example(1), example(2)])
  report = examine_records(path, EXAMPLE)
  assert places(report) == [(None, None, "index")]
  assert "the stale index: expected the" in str(report.problems[0])
  assert report.num_bad == 0
  damaged = pathlib.Path(index_path(path))
  damaged.write_bytes(damaged.read_bytes()[:-1])
  (problem,) = examine_records(path, EXAMPLE).problems
  assert "the damaged index: expected " in str(problem)
  assert str(problem).count("Run: t2r_seq index ") == 1


def test_find_bad_record_is_the_first_of_them(tmp_path):
  serialized = [example(index) for index in range(300)]
  serialized[200], serialized[250] = BAD["range"][0], BAD["shape"][0]
  starts = write(tmp_path / "a", serialized)
  flip(tmp_path / "a", starts[299] + 20)
  error = find_bad_record(str(tmp_path / "a"), EXAMPLE)
  assert f"record 200 of {tmp_path / 'a'} (byte {starts[200]}): count" in str(error)


@pytest.mark.parametrize("chunk", [20, 64, 1 << 20])
def test_headers_are_found_across_chunks(chunk, tmp_path, monkeypatch):
  monkeypatch.setattr(framing, "_SEARCHED_SIZE", chunk)
  starts = write(tmp_path / "a", [example(index) for index in range(6)])
  for index in (1, 2, 4):
    flip(tmp_path / "a", starts[index] + 2)
  frames = [*framing.read_frames(str(tmp_path / "a"))]
  # What follows a damaged length up to the next good one is one gap.
  assert [(f.number, f.start, f.stop, f.data) for f in frames] == [
    (0, starts[0], starts[1], example(0)),
    (1, starts[1], starts[3], None),
    (2, starts[3], starts[4], example(3)),
    (3, starts[4], starts[5], None),
    (4, starts[5], starts[6], example(5)),
  ]


def examine_times(path, name, times, dtype=tf.float32, shape=(), **options):
  spec = {"t": Spec(shape, dtype, name, is_sequence=True)}
  rows = np.reshape(np.asarray(times, dtype.as_numpy_dtype), (len(times), *shape))
  records.write_records(path, spec, [{"t": np.sort(rows, 0)}, {"t": rows}])
  return examine_records(path, **options).problems


BACKWARDS = [0, 1, 1, 3, 2]
# name: (feature, times, options of the feature and the look, what is told; '' for good)
TIMES = {
  "timestamp": ("timestamp", BACKWARDS, {}, "got 2.0 at step 4, after 3.0"),
  "time": ("time", BACKWARDS, {}, "got 2.0 at step 4, after 3.0"),
  "below a branch": ("obs/robot_timestamp_ns", BACKWARDS, {}, "got 2.0 at step 4"),
  "integers": ("time_ms", BACKWARDS, {"dtype": tf.int64}, "got 2 at step 4, after 3"),
  "a column of one": ("timestamps", BACKWARDS, {"shape": (1,)}, "got 2.0 at step 4"),
  "named": (
    "clock",
    BACKWARDS,
    {"time_keys": ["clock"]},
    "got 2.0 at step 4, after 3.0",
  ),
  "not named": ("clock", BACKWARDS, {}, ""),
  "another word": ("reaction_time", BACKWARDS, {}, ""),
  "as they should be": ("timestamp", [0, 1, 1, 2], {}, ""),
}


@pytest.mark.parametrize("name", TIMES)
def test_time_stamps_that_run_backwards(name, tmp_path):
  feature, times, options, want = TIMES[name]
  found = examine_times(str(tmp_path / "r"), feature, times, **options)
  assert [(p.record, p.kind) for p in found] == ([(1, "times")] if want else [])
  for problem in found:
    assert "expected time stamps that do not run backwards" in str(problem)
    assert want in str(problem)


def test_examine_records_rejects_labels_without_features(tmp_path):
  with pytest.raises(errors.SpecError, match="feature_spec: expected specs, got none"):
    examine_records(str(tmp_path / "r"), label_spec=EXAMPLE)


def test_time_stamps_of_doubles(tmp_path):
  """Doubles are bytes in a record, and need specs to be read."""
  path = str(tmp_path / "r")
  spec = {"time": Spec((), tf.float64, "time", is_sequence=True)}
  records.write_records(path, spec, [{"time": np.asarray([1.0, 0.5])}])
  (problem,) = examine_records(path, spec).problems
  assert "got 0.5 at step 1, after 1.0" in str(problem)


def test_time_keys_that_no_record_has(tmp_path):
  want = "time_keys: expected features that specs read, got \\[clok\\]. Did you mean"
  with pytest.raises(errors.SpecError, match=want):
    examine_times(str(tmp_path / "r"), "clock", BACKWARDS, time_keys=["clok"])
