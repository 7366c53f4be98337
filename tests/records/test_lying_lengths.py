"""Frames whose length is a lie with a fitting checksum: no process dies of one."""

from __future__ import annotations

import gzip
import pathlib
import struct

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.records import framing
from tests import warm_python

READER = pathlib.Path(__file__).parent / "read_lying_lengths.py"
SPEC = {"x": specs.ExtendedTensorSpec((2,), tf.float32, "x", is_sequence=True)}
EVERYBODY = (
  *("iterate", "dataset", "inspect", "index", "convert", "statistics", "doctor"),
  *("examples", "windows"),
)
# Bytes of data after the last header.
NUM_LEFT = 20


def make_file(path, num_good, length, suffix=""):
  """Writes good records, and a frame that says that it is longer than it is."""
  records.write_records(
    path, SPEC, [{"x": np.zeros((3, 2), np.float32)}] * num_good, compression=""
  )
  size = path.stat().st_size
  header = struct.pack("<Q", length)
  checksum = struct.pack("<I", framing.masked_crc32c(header))
  content = path.read_bytes() + header + checksum + b"x" * NUM_LEFT
  path.unlink()
  path = path.with_name(path.name + suffix)
  path.write_bytes(gzip.compress(content) if suffix else content)
  return path, size


# Of no memory, of a negative number, of a little more than there is.
@pytest.mark.parametrize(
  ("suffix", "lengths"), [("", (2**62, 2**63 - 1, 30)), (".gz", (2**62,))]
)
def test_everybody_names_file_and_byte(tmp_path, suffix, lengths):
  want = {}
  for number, length in enumerate(lengths):
    path, offset = make_file(tmp_path / f"{number}.tfrecord", 2, length, suffix)
    text = f"record 2 of {path} (byte {offset}): frame: expected {length} bytes of data"
    want[str(path)] = text
  done = warm_python.run(READER, *want)
  assert done.returncode == 0, done.stdout + done.stderr[-2000:]
  printed = [line.split("\t") for line in done.stdout.splitlines()]
  assert len(printed) == (len(EVERYBODY) + 1) * len(lengths)
  for path, name, text in printed:
    if name == "skip":
      assert text == "trained"
    else:
      assert want[path] in text, (name, text)
      is_error = text.startswith("RecordError: ")
      assert is_error or name in ("index", "doctor"), (name, text)


def test_very_first_frame(tmp_path):
  path, _ = make_file(tmp_path / "a.tfrecord", 0, 2**62)
  with pytest.raises(errors.RecordError, match=rf"record 0 of {path} \(byte 0\)"):
    records.record_dataset(str(path))


@pytest.mark.parametrize("size", [1, 2000, 3000, 70_000])
def test_every_frame_is_looked_at(tmp_path, size):
  path = tmp_path / "a.tfrecord"
  with tf.io.TFRecordWriter(str(path)) as writer:
    for _ in range(200):
      writer.write(b"x" * size)
  framing.check_lengths(str(path))
  assert framing.num_readable(str(path)) == -1
  content = path.read_bytes()
  header = struct.pack("<Q", 2**50)
  lie = header + struct.pack("<I", framing.masked_crc32c(header))
  path.write_bytes(content + lie)
  assert framing.num_readable(str(path)) == 200
  # Of a length with another checksum TensorFlow's reader asks for nothing.
  path.write_bytes(content + header + b"1234")
  assert framing.num_readable(str(path)) == -1
