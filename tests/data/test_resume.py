"""What of a damaged file can be read on, and where bad records are found."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.data import skipping
from t2r_seq.records import explain

ROWS = [bytes([65 + i]) * (3 + i) for i in range(12)]
STARTS = np.cumsum([0] + [16 + len(row) for row in ROWS])


@pytest.fixture(name="path")
def fixture_path(tmp_path):
  path = str(tmp_path / "a.tfrecord")
  with tf.io.TFRecordWriter(path) as writer:
    for row in ROWS:
      writer.write(row)
  return path


def flip(path, place):
  with open(path, "rb+") as file:
    file.seek(place)
    byte = file.read(1)[0]
    file.seek(place)
    file.write(bytes([byte ^ 4]))


def read(path, stretches):
  dataset = tf.data.Dataset.from_tensor_slices(stretches).flat_map(
    lambda pair: skipping.read_stretch(tf.constant(path), pair[0], pair[1])
  )
  return list(dataset.as_numpy_iterator())


# name: (bytes to flip, damaged records, those that can be read after the first)
DAMAGES = {
  "none": ([], [], []),
  "data": ([STARTS[4] + 12], [4], [5, 6, 7, 8, 9, 10, 11]),
  "checksum": ([STARTS[5] - 1], [4], [5, 6, 7, 8, 9, 10, 11]),
  "length": ([STARTS[4]], [4], [5, 6, 7, 8, 9, 10, 11]),
  "first": ([STARTS[0] + 3], [0], [*range(1, 12)]),
  "last": ([STARTS[11] + 12], [11], []),
  "two": ([STARTS[2] + 12, STARTS[9]], [2, 9], [3, 4, 5, 6, 7, 8, 10, 11]),
  "neighbours": ([STARTS[2] + 12, STARTS[3] + 12], [2, 3], [*range(4, 12)]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_the_rest_is_what_follows_the_first_damage(path, name):
  flips, damaged, want = DAMAGES[name]
  for place in flips:
    flip(path, int(place))
  rest = skipping.find_rest(path)
  assert [problem.record for problem in rest.problems] == damaged
  assert [problem.offset for problem in rest.problems] == [STARTS[i] for i in damaged]
  assert all(problem.kind == explain.FRAME for problem in rest.problems)
  if want:
    assert read(path, rest.stretches) == [ROWS[i] for i in want]
  else:
    assert rest.stretches.shape == (0, 2)


@pytest.mark.parametrize("cut", [1, 5, 15])
def test_a_cut_file_has_no_rest(path, cut):
  with open(path, "rb+") as file:
    file.truncate(int(STARTS[11]) + cut)
  rest = skipping.find_rest(path)
  assert [problem.record for problem in rest.problems] == [11]
  assert rest.stretches.shape == (0, 2)


def test_a_file_that_is_not_there(tmp_path):
  with pytest.raises((OSError, tf.errors.NotFoundError), match="nothing"):
    skipping.find_rest(str(tmp_path / "nothing"))


def test_records_are_located_by_their_bytes(path, tmp_path):
  other = str(tmp_path / "b.tfrecord.gz")
  with tf.io.TFRecordWriter(other, "GZIP") as writer:
    for row in (b"none", ROWS[3]):
      writer.write(row)
  want = [(path, 3, STARTS[3]), (other, 1, 20)]
  found = skipping.locate_records([ROWS[0], ROWS[3], b"nowhere"], [path, other])
  assert found == {ROWS[0]: [(path, 0, STARTS[0])], ROWS[3]: want, b"nowhere": []}


def problem(record, expected="a number"):
  mismatch = errors.Mismatch("x", expected, "a word")
  return explain.RecordProblem("a", record, 10 * record, explain.CONTENT, mismatch)


def test_the_log_counts_each_record_once_and_has_a_limit():
  log = skipping.BadRecordLog(2)
  for record in (3, 5, 3):
    log.add([problem(record)])
  assert len(log) == 2
  assert [found.record for found in log.problems] == [3, 5]
  assert log.failure is None
  want = r"max_bad_records: expected at most 2, got one more: record 7 of a \(byte 70\)"
  with pytest.raises(errors.RecordError, match=want) as raised:
    log.add([problem(7)])
  assert log.failure is raised.value
  for record in (9, 5):  # As other threads find them: the first one is named.
    with pytest.raises(errors.RecordError, match=want):
      log.add([problem(record)])
  assert len(log) == 3


def test_records_that_are_bad_for_one_cause_are_told_of_once(caplog):
  """As where the spec is wrong: a hundred lines would say two things."""
  log = skipping.BadRecordLog(100)
  with caplog.at_level(logging.WARNING, logger="absl"):
    for record in range(100):
      log.add([problem(record, "a number" if record % 4 else "an image")])
  assert [line.partition(": record")[0] for line in caplog.messages] == [
    "Left out bad record 1",
    "Left out bad record 2",
  ]
  want = (
    "All of them:\n  76 x x: expected a number\n  25 x x: expected an image\n"
    "t2r_seq doctor tells of each."
  )
  with pytest.raises(errors.RecordError, match=want):
    log.add([problem(100)])
