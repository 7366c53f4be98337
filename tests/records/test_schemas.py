"""What has no spec is judged by what most records hold; the odd ones are named."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs, store

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
# name: (records by file, schemas as (records, files), bad records, what is said of one)
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
          },
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
  report = records.examine_records(str(tmp_path / "*.tfrecord"))
  found = [(schema.num_records, len(schema.files)) for schema in report.summary.schemas]
  assert found == schemas
  assert report.num_bad == num_bad
  assert all(re.search(message, str(problem)) for problem in report.problems)
  assert report.is_good == (len(schemas) == 1)
  lines = records.describe_schemas(report.summary)
  assert len(lines) == (len(schemas) + 1 if len(schemas) > 1 else 0)


def test_what_is_absent_and_what_is_not_checked(tmp_path):
  path = str(tmp_path / "a.tfrecord")
  with tf.io.TFRecordWriter(path) as writer:
    for i in range(6):
      more = {"y": [1.0]} if i < 2 else {}
      writer.write(record(x=[0.0], z=[1], **more))
  spec = {
    "x": Spec((1,), tf.float32, "x"),
    "y": Spec((1,), tf.float32, "y", is_optional=True),
  }
  report = records.examine_records(path, spec)
  assert report.is_good and report.unchecked == ("z",)
  assert [(f.name, f.num_absent) for f in report.features] == [("x", 0), ("y", 4)]


def test_the_last_step_of_rlds_may_be_undefined(tmp_path):
  path = str(tmp_path / "a.tfrecord")
  with tf.io.TFRecordWriter(path) as writer:
    for last, second in ((math.nan, 2.0), (math.inf, math.nan)):
      flags = [1, 0, 0]
      writer.write(
        record(**{"steps/is_first": flags, "steps/action": [1.0, second, last]})
      )
  report = records.examine_records(path)
  (problem,) = report.problems
  assert (problem.record, problem.kind) == (1, "nan")
  assert "at step 1, value 0. If it is meant: --allow_nan" in str(problem)
  (action,) = [f for f in report.features if f.path == "action"]
  assert (action.low, action.high, action.num_nan) == (1.0, math.inf, 1)


def test_inspect_goes_on_past_what_is_no_record(tmp_path):
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


def test_a_proposal_of_nothing_says_why(tmp_path):
  with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
    writer.write(record(lat=None))
  with pytest.raises(errors.SpecError, match=r"got 1 records and \['lat': no values\]"):
    records.propose_spec(records.inspect_records(str(tmp_path / "a")))


def test_what_convert_reads_is_not_called_damaged(tmp_path):
  (tmp_path / "a.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(60))
  with pytest.raises(errors.RecordError, match="`t2r_seq convert` reads it into a st"):
    records.inspect_records(str(tmp_path / "a.hdf5"))
  (tmp_path / "b.zarr").mkdir()
  (tmp_path / "b.zarr" / ".zgroup").write_text("{}")
  with pytest.raises(errors.StoreError, match="a zarr group: `t2r_seq convert` makes"):
    store.summarize_store(tmp_path / "b.zarr")
