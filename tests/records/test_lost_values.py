"""What a record has lost is never made up: short sequences, empty steps, cut files."""

from __future__ import annotations

import gzip
import re
import zlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.data import skipping
from t2r_seq.records import framing
from t2r_seq.records.check import examine_records, find_bad_record, salvage_records
from t2r_seq.records.framing import iterate_records
from t2r_seq.records.index import read_index

_Spec = specs.ExtendedTensorSpec
_STATE = _Spec((2,), tf.float32, "state", is_sequence=True)
_RAW = _Spec((2,), tf.float32, "raw", is_sequence=True, data_format="raw")
_FORCE = _Spec((), tf.float32, "force", is_sequence=True, is_optional=True)
_EXACT = _Spec((2,), tf.float64, "exact", is_sequence=True, varlen_default_value=0.5)


def sequence_example(**lists):
  """Serializes lists of tf.train.Features as they are."""
  steps = {name: tf.train.FeatureList(feature=f) for name, f in lists.items()}
  proto = tf.train.SequenceExample(
    feature_lists=tf.train.FeatureLists(feature_list=steps)
  )
  return proto.SerializeToString()


def floats(*values):
  return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def texts(*values):
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def parse(flat, data):
  return records.create_parse_tf_example_fn(specs.add_sequence_length_specs(flat))(data)


# name: (spec, an empty step)
EMPTY_STEPS = {"raw": (_RAW, texts(b"")), "varlen of float64": (_EXACT, texts(b""))}


@pytest.mark.parametrize("name", EMPTY_STEPS)
@pytest.mark.parametrize("batched", [False, True])
def test_empty_byte_string_is_no_step_of_zeros(name, batched):
  spec, step = EMPTY_STEPS[name]
  data = sequence_example(**{spec.name: [step, step]})
  with pytest.raises(tf.errors.InvalidArgumentError, match="expected 8 bytes"):
    parse({"x": spec}, tf.constant([data] if batched else data))


def test_batches_are_padded_with_zeros_as_before():
  rows = [texts(np.float32([1, 2]).tobytes())]
  data = [sequence_example(raw=rows), sequence_example(raw=rows * 3)]
  parsed = parse({"x": _RAW}, tf.constant(data))
  np.testing.assert_array_equal(parsed.x[0], [[1, 2], [0, 0], [0, 0]])
  np.testing.assert_array_equal(parsed.x_length, [1, 3])


def test_optional_sequence_that_is_too_short_is_not_filled():
  state = [floats(1, 2)] * 3
  flat = {"force": _FORCE, "state": _STATE}
  parsed = parse(flat, sequence_example(state=state, force=[floats(1)]))
  assert parsed.force.shape == [1] and parsed.force_length == 1
  parsed = parse(flat, sequence_example(state=state))
  assert parsed.force.shape == [3] and parsed.force_length == 3


@pytest.fixture(name="path")
def fixture_path(tmp_path):
  """A file with a good episode, and one whose state has no step."""
  path = str(tmp_path / "x.tfrecord")
  raw = [texts(np.float32([1, 2]).tobytes())] * 2
  with tf.io.TFRecordWriter(path) as writer:
    writer.write(sequence_example(raw=raw, state=[floats(1, 2)] * 2))
    writer.write(sequence_example(raw=raw, state=[]))
  return path


def test_empty_sequence_is_uneven(path):
  flat = {"raw": _RAW, "state": _STATE}
  want = r"record 1 of .*: state \(feature 'state'\): expected 2 steps, as raw has"
  assert re.match(want, str(find_bad_record(path, flat)))
  (problem,) = examine_records(path, flat).problems
  assert re.match(want, str(problem))
  records.write_index(path)
  with pytest.raises(
    errors.RecordError, match="expected 2 steps, as feature 'raw' has"
  ):
    read_index(path).num_steps(flat)


@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("size", [1 << 40, 1 << 63, (1 << 64) - 1])
def test_length_of_exabytes_is_damage(size, compression, tmp_path):
  path = tmp_path / f"x.tfrecord{'.gz' * bool(compression)}"
  head = size.to_bytes(8, "little")
  content = head + framing.masked_crc32c(head).to_bytes(4, "little") + b"abc"
  path.write_bytes(gzip.compress(content) if compression else content)
  (frame,) = framing.read_frames(str(path), compression)
  expected, got = frame.damage
  assert expected == f"{size} bytes of data and a checksum of 4"
  assert got == "3 bytes, then the end: the file is truncated"
  if compression or size > 1 << 62:
    assert len(skipping.readable_runs(str(path), compression)[1]) == 1


@pytest.fixture(name="compressed")
def fixture_compressed(tmp_path):
  """Three records, and the bytes of the file when it was flushed after each."""
  plain = str(tmp_path / "x.tfrecord")
  with tf.io.TFRecordWriter(plain) as writer:
    for i in range(3):
      proto = tf.train.Example()
      proto.features.feature["x"].int64_list.value.append(i)
      writer.write(proto.SerializeToString())
  with open(plain, "rb") as file:
    content = file.read()
  size = len(content) // 3
  deflater = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
  parts = [
    deflater.compress(content[i : i + size]) + deflater.flush(zlib.Z_SYNC_FLUSH)
    for i in (0, size, 2 * size)
  ]
  return str(tmp_path / "x.tfrecord.gz"), parts, deflater.flush()


def test_compressed_data_that_ends_between_records_is_cut(compressed):
  path, parts, end = compressed
  with open(path, "wb") as file:
    file.write(b"".join(parts[:2]))
  want = "record 2 of .*: frame: expected GZIP data, got the .* data ends too early"
  with pytest.raises(errors.RecordError, match=want):
    list(iterate_records(path, "GZIP"))
  assert len(skipping.readable_runs(path, "GZIP")[1]) == 1
  with open(path, "wb") as file:
    file.write(b"".join(parts) + end)
  assert len(list(iterate_records(path, "GZIP"))) == 3
  assert not skipping.readable_runs(path, "GZIP")[1]


def test_records_before_damaged_compressed_data_are_salvaged(compressed, tmp_path):
  path, parts, _ = compressed
  with open(path, "wb") as file:
    file.write(parts[0] + parts[1] + b"\xff" * 30)
  report = examine_records(path)
  assert not report.is_good
  salvaged = salvage_records(report, tmp_path / "out")
  assert salvaged.num_kept == {"x.tfrecord.gz": 2}
