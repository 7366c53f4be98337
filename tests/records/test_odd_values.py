"""A few damaged values among many neither shape what is proposed nor go unsaid."""

from __future__ import annotations

import pathlib

import pytest
import tensorflow as tf

from t2r_seq import errors, records
from t2r_seq.specs.packing import encode_image
from tests.records.test_schemas import record

_IMAGE = encode_image(tf.zeros((4, 4, 3), tf.uint8).numpy(), "jpeg")


def write(path: pathlib.Path, good: bytes, odd: bytes, num_odd: int = 1) -> str:
  """Writes 60 records, of which a few are odd."""
  with tf.io.TFRecordWriter(str(path)) as writer:
    for number in range(60):
      writer.write(odd if 30 <= number < 30 + num_odd else good)
  return str(path)


ROW = [0.5, 1.0, 1.5]
# name: (a good feature, an odd one, how many are, what is proposed, what is said)
CASES = {
  "no image": ([_IMAGE], [b"\xff\xd8damaged"], 1, (4, 4, 3), "1 x bytes, not 1 x jpeg"),
  "a short row": (ROW, ROW[:2], 1, (3,), "2 x float, not 3 x float"),
  "integers": (ROW, [1, 2, 3], 1, (3,), "3 x int64, not 3 x float"),
  "nothing": (ROW, [], 2, (3,), "0 x no kind, not 3 x float"),
  "no byte is black": ([_IMAGE], [b""], 1, (4, 4, 3), ""),
  "too many": (ROW, ROW[:2], 3, "varlen", ""),
  "most have none": ([], ROW, 1, "varlen", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_proposed(name: str, tmp_path: pathlib.Path) -> None:
  good, odd, num_odd, want, said = CASES[name]
  path = write(tmp_path / "a", record(x=good), record(x=odd), num_odd)
  summary = records.inspect_records(path)
  proposed = records.propose_spec(summary)["x"]
  is_varlen = proposed.varlen_default_value is not None
  assert ("varlen" if is_varlen else tuple(proposed.shape)) == want
  lines = records.describe_odd_values(summary)
  if not said:
    assert not lines
    return
  (line,) = lines
  assert line.startswith(f"'x': {num_odd} of 60 records ha") and said in line
  assert f"record 30 of {path} (byte " in line
  # Nothing odd is parsed into a value that nobody has written.
  error = records.find_bad_record(path, {"x": proposed})
  assert isinstance(error, errors.RecordError) and "record 30 of" in str(error)


def test_lists_of_many_lengths_are_ragged(tmp_path: pathlib.Path) -> None:
  path = str(tmp_path / "a")
  with tf.io.TFRecordWriter(path) as writer:
    for number in range(200):
      writer.write(record(x=[0.5] * max(1, number - 193)))
  summary = records.inspect_records(path)
  assert not records.describe_odd_values(summary)
  assert records.propose_spec(summary)["x"].varlen_default_value == 0.0


def test_steps(tmp_path: pathlib.Path) -> None:
  proto = tf.train.SequenceExample()
  for _ in range(5):
    image = proto.feature_lists.feature_list["cam"].feature.add()
    image.bytes_list.value.append(_IMAGE)
  good = proto.SerializeToString()
  proto.feature_lists.feature_list["cam"].feature[3].bytes_list.value[:] = [b"bad"]
  path = write(tmp_path / "a", good, proto.SerializeToString())
  (line,) = records.describe_odd_values(records.inspect_records(path))
  assert line.startswith(
    "'cam': 1 of 300 steps has 1 x bytes, not 1 x jpeg 4x4x3: record"
  )
  assert line.endswith(", step 3")
  # Without a spec it is found, too.
  report = records.examine_records(path)
  assert [problem.record for problem in report.problems] == [30]
