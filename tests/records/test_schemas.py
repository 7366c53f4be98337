"""What has no spec is judged by what most records hold; the odd ones are named."""

from __future__ import annotations

import math
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.records.check import examine_records, find_bad_record
from t2r_seq.specs.packing import encode_image
from t2r_seq.store.summary import summarize_store

Spec = specs.ExtendedTensorSpec
FLOATS, BYTES = "float_list", "bytes_list"


def record(**features):
  proto = tf.train.Example()
  for name, value in features.items():
    if value is None:
      proto.features.feature[name].SetInParent()
    elif isinstance(value[0] if value else 0.0, float):
      proto.features.feature[name].float_list.value.extend(value)
    elif isinstance(value[0], int):
      proto.features.feature[name].int64_list.value.extend(value)
    else:
      proto.features.feature[name].bytes_list.value.extend(value)
    if value == []:
      proto.features.feature[name].float_list.SetInParent()
  return proto.SerializeToString()


def episode(num_steps, **sizes):
  proto = tf.train.SequenceExample()
  for name, size in sizes.items():
    steps = proto.feature_lists.feature_list[name]
    for _ in range(num_steps):
      steps.feature.add().float_list.value.extend([0.5] * size)
  return proto.SerializeToString()


def png(height):
  return tf.io.encode_png(np.zeros((height, 4, 3), np.uint8)).numpy()


X = record(x=[0.0, 1.0, 2.0])
# name: (records by file, schemas as (records, files), bad records, the message)
CASES = {
  "alike": ([[X] * 10], [(10, 1)], 0, ""),
  "one has a value more": (
    [[X] * 9 + [record(x=[0.0] * 4)]],
    [(9, 1), (1, 1)],
    1,
    r"x \(feature 'x'\): expected 3 values for shape \(3,\), got 4 values",
  ),
  "one has integers": (
    [[X] * 9 + [record(x=[1, 2, 3])]],
    [(9, 1), (1, 1)],
    1,
    "expected a float list for dtype float32, got an int64 list of 3 values",
  ),
  "one has another name": (
    [[record(gripper=[1.0])] * 9 + [record(gripper_pos=[1.0])]],
    [(9, 1), (1, 1)],
    1,
    "'gripper' in a tf.train.Example, got .* without it. Did you mean 'gripper_pos'",
  ),
  "one has an image of another size": (
    [[record(i=[png(4)])] * 9 + [record(i=[png(5)])]],
    [(9, 1), (1, 1)],
    1,
    r"expected an image of size \(4, 4, 3\), got an image of size \(5, 4, 3\)",
  ),
  "one has a list without values": (
    [[record(lat=[41.0])] * 9 + [record(lat=[])]],
    [(9, 1), (1, 1)],
    1,
    "expected 1 value for shape",
  ),
  "one has a feature without a list": (
    [[record(lat=[41.0])] * 9 + [record(lat=None)]],
    [(9, 1), (1, 1)],
    1,
    "'lat' in a tf.train.Example, got one that holds no list of values",
  ),
  "one has more": (
    [[X] * 9 + [record(x=[0.0, 1.0, 2.0], y=[1.0])]],
    [(9, 1), (1, 1)],
    0,
    "",
  ),
  "a list is missing in a shard": (
    [[episode(2, x=3, y=1)] * 3] * 3 + [[episode(2, x=3)] * 3],
    [(9, 3), (3, 1)],
    3,
    "a sequence feature 'y' in a tf.train.SequenceExample, got .* without it",
  ),
  "shards of three kinds": (
    [[X] * 2] * 14 + [[record(x=[0.0])] * 2] * 3 + [[record(x=[0.0] * 2)] * 2] * 3,
    [(28, 14), (6, 3), (6, 3)],
    12,
    "expected 3 values",
  ),
  "episodes of all lengths": (
    [[episode(count, x=2) for count in range(9)]],
    [(9, 1)],
    0,
    "",
  ),
  "a few lists of all lengths": (
    [[record(x=[0.5] * size) for size in (3, 1, 3, 2)]],
    [(4, 1)],
    0,
    "",
  ),
  "ragged features of TFDS": (
    [
      [
        record(
          **{
            "steps/is_first": [1, 0],
            "steps/f/ragged_flat_values": [0.5] * size,
            "steps/f/ragged_row_lengths_0": [1] * (1 + size % 2),
          }
        )
        for size in (1, 1, 1, 1, 2, 1)
      ]
    ],
    [(6, 1)],
    0,
    "",
  ),
  "lists of all lengths": (
    [[record(x=[0.5] * (1 + i % 6)) for i in range(18)]],
    [(18, 1)],
    0,
    "",
  ),
}


@pytest.mark.parametrize("name", CASES)
def test_schemas(name, tmp_path):
  files, schemas, num_bad, message = CASES[name]
  for number, serialized in enumerate(files):
    with tf.io.TFRecordWriter(str(tmp_path / f"{number:02}.tfrecord")) as writer:
      for each in serialized:
        writer.write(each)
  report = examine_records(str(tmp_path / "*.tfrecord"))
  assert report.num_bad == num_bad
  assert report.is_good == (len(schemas) == 1)
  found = [p.text for p in report.problems if p.kind != "schemas"]
  assert all(re.search(message, text) for text in found)
  lines = [p.text.splitlines() for p in report.problems if p.kind == "schemas"]
  assert len(lines) == (len(schemas) > 1)
  for line, (num_records, _) in zip(
    lines[0][1:] if lines else [], schemas, strict=False
  ):
    assert re.match(rf"\d: {num_records} record", line)
  counts = ", ".join(str(num_files) for _, num_files in schemas)
  assert not lines or lines[0][0] == f"{len(schemas)} schemas: {counts} files:"


def test_absent_and_unchecked_features_of_schemas(tmp_path):
  path = str(tmp_path / "a.tfrecord")
  with tf.io.TFRecordWriter(path) as writer:
    for i in range(6):
      more = {"y": [1.0]} if i < 2 else {}
      writer.write(record(x=[0.0], z=[1], **more))
  spec = {
    "x": Spec((1,), tf.float32, "x"),
    "y": Spec((1,), tf.float32, "y", is_optional=True),
  }
  report = examine_records(path, spec)
  assert report.is_good and report.notes[0].endswith("no spec reads them: [z]")
  assert [(each.path, each.num_absent) for each in report.paths] == [("x", 0), ("y", 4)]


def test_last_step_of_rlds_may_be_undefined(tmp_path):
  path = str(tmp_path / "a.tfrecord")
  with tf.io.TFRecordWriter(path) as writer:
    for last, second in ((math.nan, 2.0), (math.inf, math.nan)):
      flags = [1, 0, 0]
      writer.write(
        record(**{"steps/is_first": flags, "steps/action": [1.0, second, last]})
      )
  report = examine_records(path)
  (problem,) = report.problems
  assert (problem.record, problem.kind) == (1, "nan")
  assert "at step 1, 1 of 2. To accept it: allow_nan=True, --allow_nan." in str(problem)
  (action,) = [each for each in report.paths if each.path == "action"]
  assert action.num_nan == 1


def test_inspect_continues_after_damage(tmp_path):
  with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
    for each in (X, b"\xff\xffgarbage", X):
      writer.write(each)
  (tmp_path / "b").write_bytes(b"PK\x03\x04" + bytes(60))
  with tf.io.TFRecordWriter(str(tmp_path / "c")) as writer:
    writer.write(X)
  summary = records.inspect_records(str(tmp_path / "*"), allow_damage=True)
  assert summary.num_records == 3
  want = {
    "a": r"record 1 of \S*a .* neither",
    "b": "a wrong file type: it looks like a zip",
  }
  for name, message in want.items():
    assert re.search(message, str(summary.damages[str(tmp_path / name)])), name


def test_files_that_convert_reads_are_not_reported_as_damaged(tmp_path):
  (tmp_path / "a.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(60))
  with pytest.raises(errors.RecordError, match="`t2r_seq convert` reads it into a st"):
    records.inspect_records(str(tmp_path / "a.hdf5"))
  (tmp_path / "b.zarr").mkdir()
  (tmp_path / "b.zarr" / ".zgroup").write_text("{}")
  with pytest.raises(errors.StoreError, match="a zarr group: `t2r_seq convert` makes"):
    summarize_store(tmp_path / "b.zarr")


JPEG = encode_image(tf.zeros((4, 4, 3), tf.uint8).numpy(), "jpeg")


def write_odd(path: pathlib.Path, good: bytes, odd: bytes, num_odd: int = 1) -> str:
  """Writes 60 records, of which a few are odd."""
  with tf.io.TFRecordWriter(str(path)) as writer:
    for number in range(60):
      writer.write(odd if 30 <= number < 30 + num_odd else good)
  return str(path)


ROW = [0.5, 1.0, 1.5]
# name: (a good feature, an odd one, how many are, what is proposed, the message)
ODD = {
  "no image": ([JPEG], [b"\xff\xd8damaged"], 1, (4, 4, 3), "1 x bytes, not 1 x jpeg"),
  "a short row": (ROW, ROW[:2], 1, (3,), "2 x float, not 3 x float"),
  "integers": (ROW, [1, 2, 3], 1, (3,), "3 x int64, not 3 x float"),
  "nothing": (ROW, [], 2, (3,), "0 x no kind, not 3 x float"),
  "no byte is black": ([JPEG], [b""], 1, (4, 4, 3), ""),
  "too many": (ROW, ROW[:2], 3, "varlen", ""),
  "most have none": ([], ROW, 1, "varlen", ""),
}


@pytest.mark.parametrize("name", ODD)
def test_proposed_specs_of_mixed_schemas(name: str, tmp_path: pathlib.Path) -> None:
  good, odd, num_odd, want, message = ODD[name]
  path = write_odd(tmp_path / "a", record(x=good), record(x=odd), num_odd)
  summary = records.inspect_records(path)
  proposed = records.propose_spec(summary)["x"]
  is_varlen = proposed.varlen_default_value is not None
  assert ("varlen" if is_varlen else tuple(proposed.shape)) == want
  lines = summary.describe_odd_values()
  if not message:
    assert not lines
    return
  (line,) = lines
  assert line.startswith(f"'x': {num_odd} of 60 records ha") and message in line
  assert f"record 30 of {path} (byte " in line
  # Nothing odd is parsed into a value that nobody has written.
  error = find_bad_record(path, {"x": proposed})
  assert isinstance(error, errors.RecordError) and "record 30 of" in str(error)


def test_lists_of_many_lengths_are_ragged(tmp_path: pathlib.Path) -> None:
  path = str(tmp_path / "a")
  with tf.io.TFRecordWriter(path) as writer:
    for number in range(200):
      writer.write(record(x=[0.5] * max(1, number - 193)))
  summary = records.inspect_records(path)
  assert not summary.describe_odd_values()
  assert records.propose_spec(summary)["x"].varlen_default_value == 0.0


def test_steps(tmp_path: pathlib.Path) -> None:
  proto = tf.train.SequenceExample()
  for _ in range(5):
    image = proto.feature_lists.feature_list["cam"].feature.add()
    image.bytes_list.value.append(JPEG)
  good = proto.SerializeToString()
  proto.feature_lists.feature_list["cam"].feature[3].bytes_list.value[:] = [b"bad"]
  path = write_odd(tmp_path / "a", good, proto.SerializeToString())
  (line,) = records.inspect_records(path).describe_odd_values()
  assert line.startswith(
    "'cam': 1 of 300 steps has 1 x bytes, not 1 x jpeg 4x4x3: record"
  )
  assert line.endswith(", step 3")
  # Without a spec it is found, too.
  report = examine_records(path)
  assert [problem.record for problem in report.problems] == [30]
