"""Large raw steps: where they are in a record, and what is wrong with others."""

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.records import framing, raw_steps

SIZES = {"front": 300, "wrist": 70_000}


def a_feature(value):
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def make_example(num_steps, sizes=SIZES, **other_steps):
  generator = np.random.default_rng(num_steps)
  steps = {
    name: [generator.bytes(size) for _ in range(num_steps)]
    for name, size in sizes.items()
  }
  steps["note"] = [f"step {t}".encode() for t in range(num_steps)]
  steps |= other_steps
  example = tf.train.SequenceExample()
  example.context.feature["task"].CopyFrom(a_feature(b"reach"))
  for name, values in steps.items():
    example.feature_lists.feature_list[name].feature.extend(map(a_feature, values))
  return example


def stored(example, name):
  found = example.feature_lists.feature_list[name].feature
  return [feature.bytes_list.value[0] for feature in found]


@pytest.fixture(name="write")
def fixture_write(tmp_path):
  """Writes records behind one another; returns the file, and where the last one's
  data starts."""

  def write(*serialized):
    path = str(tmp_path / "some.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
      for data in serialized:
        writer.write(data)
    before = sum(framing.FRAME_SIZE + len(data) for data in serialized[:-1])
    return path, before + framing.HEADER_SIZE, len(serialized[-1])

  return write


def read(place, stripped, num_steps):
  names = sorted(stripped.places)
  found = raw_steps.RawSteps({name: SIZES[name] for name in names})
  out = {name: np.zeros((num_steps, SIZES[name]), np.uint8) for name in names}
  starts = {name: stripped.places[name][0] for name in names}
  found.read(*place, stripped.checksum, starts, out)
  return {name: [row.tobytes() for row in rows] for name, rows in out.items()}


@pytest.mark.parametrize("num_steps", [1, 2, 31])
@pytest.mark.parametrize("names", [("front",), ("wrist",), ("front", "wrist")])
def test_steps_are_found_and_read(write, num_steps, names):
  example = make_example(num_steps)
  place = write(b"another", example.SerializeToString())
  steps = raw_steps.RawSteps({name: SIZES[name] for name in names})

  stripped = steps.strip(*place)

  without = tf.train.SequenceExample.FromString(stripped.serialized)
  want = tf.train.SequenceExample()
  want.CopyFrom(example)
  for name in names:
    del want.feature_lists.feature_list[name]
  assert without == want
  with open(place[0], "rb") as file:
    data = file.read()
  for name in names:
    starts = [place[1] + step for step in stripped.places[name]]
    got = [data[start : start + SIZES[name]] for start in starts]
    assert got == stored(example, name)
  assert read(place, stripped, num_steps) == {
    name: stored(example, name) for name in names
  }


def test_the_context_may_come_last(write):
  example = make_example(3)
  context, lists = tf.train.SequenceExample(), tf.train.SequenceExample()
  context.context.CopyFrom(example.context)
  lists.feature_lists.CopyFrom(example.feature_lists)
  place = write(lists.SerializeToString() + context.SerializeToString())

  stripped = raw_steps.RawSteps(SIZES).strip(*place)

  without = tf.train.SequenceExample.FromString(stripped.serialized)
  assert without.context == example.context
  want = {name: stored(example, name) for name in SIZES}
  assert read(place, stripped, 3) == want


def test_a_record_without_steps_has_no_places(write):
  place = write(make_example(0).SerializeToString())
  stripped = raw_steps.RawSteps(SIZES).strip(*place)
  assert {name: len(places) for name, places in stripped.places.items()} == {
    "front": 0,
    "wrist": 0,
  }


@pytest.mark.parametrize(
  ("data", "message"),
  [
    (make_example(2, {"front": 300}), r"expected the features \[wrist\], got none"),
    (
      make_example(2, {**SIZES, "front": 301}),
      "feature 'front': expected steps of 300 bytes, got others",
    ),
    # As many bytes as two steps of 300 have, and their headers.
    (
      make_example(2, front=[bytes(290), bytes(310)]),
      "feature 'front': expected steps of 300 bytes, got others",
    ),
    (b"\x0b\xff no proto", "wire type 3"),
    (
      make_example(1).SerializeToString() * 2,
      "feature '(front|wrist)': expected it once",
    ),
  ],
)
def test_records_of_another_kind_are_named(write, data, message):
  if not isinstance(data, bytes):
    data = data.SerializeToString()
  path, offset, length = write(b"another", data)
  place = rf"record of .*some\.tfrecord \(byte {offset - framing.HEADER_SIZE}\): "
  with pytest.raises(errors.RecordError, match=place + message):
    raw_steps.RawSteps(SIZES).strip(path, offset, length)


def flip(path, position):
  with open(path, "r+b") as file:
    file.seek(position)
    byte = file.read(1)[0]
    file.seek(position)
    file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("part", ["before", "step", "between", "last", "checksum"])
def test_flipped_bits_are_found(write, part):
  path, offset, length = write(make_example(12).SerializeToString())
  stripped = raw_steps.RawSteps(SIZES).strip(path, offset, length)
  places = stripped.places
  within = {
    "before": 1,
    "step": places["wrist"][7] + 1234,
    "between": min(int(own[-1]) + SIZES[name] for name, own in places.items()) + 9,
    "last": length - 1,
    "checksum": length + 2,
  }
  flip(path, offset + int(within[part]))
  message = "expected data with a fitting checksum"
  if part == "checksum":  # It was another when the record was stripped.
    message = f"expected the record that was there .*{raw_steps.REPLACED}"
  with pytest.raises(
    errors.RecordError, match=rf"some\.tfrecord \(byte 0\): {message}"
  ):
    read((path, offset, length), stripped, 12)


def test_a_step_of_another_size_in_the_middle_is_found(write):
  values = [bytes(300)] * 9
  # The list is as long as it would be, and starts as it would.
  values[4:6] = [bytes(299), bytes(301)]
  path, offset, length = write(make_example(9, front=values).SerializeToString())
  stripped = raw_steps.RawSteps(SIZES).strip(path, offset, length)
  with pytest.raises(errors.RecordError, match="expected steps of 300 bytes, got oth"):
    read((path, offset, length), stripped, 9)


def test_a_file_that_has_become_shorter_is_found(write):
  path, offset, length = write(make_example(5).SerializeToString())
  stripped = raw_steps.RawSteps(SIZES).strip(path, offset, length)
  with open(path, "r+b") as file:
    file.truncate(offset + length - 100)
  with pytest.raises(errors.RecordError, match=raw_steps.REPLACED):
    read((path, offset, length), stripped, 5)


def test_a_file_that_was_replaced_is_found(write):
  path, offset, length = write(make_example(5).SerializeToString())
  stripped = raw_steps.RawSteps(SIZES).strip(path, offset, length)
  other = make_example(5)
  other.feature_lists.feature_list["note"].feature[3].bytes_list.value[0] = b"STEP 3"
  assert write(other.SerializeToString()) == (path, offset, length)
  with pytest.raises(errors.RecordError, match=r"\(byte 0\): .* file was replaced or"):
    read((path, offset, length), stripped, 5)
