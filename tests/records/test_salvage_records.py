"""Good records are copied out of damaged files byte for byte, and nothing else is."""

from __future__ import annotations

import gzip
import os
import zlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs

SPEC = {"x": specs.ExtendedTensorSpec((50,), tf.float32, "x")}


def example(index):
  return records.encode_example(SPEC, {"x": np.full(50, index, np.float32)})


FRAME = len(example(0)) + 16


def write(path, count=10):
  with tf.io.TFRecordWriter(str(path)) as writer:
    for index in range(count):
      writer.write(example(index))
  return bytearray(path.read_bytes())


COMPRESS = {"": bytes, ".gz": gzip.compress, ".zz": zlib.compress}
DECOMPRESS = {"": bytes, ".gz": gzip.decompress, ".zz": zlib.decompress}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_good_frames_are_kept(suffix, tmp_path):
  path = tmp_path / f"a{suffix}"
  data = write(path)
  good = bytes(data)
  for position in (2 * FRAME + 30, 5 * FRAME + 3):
    data[position] ^= 1
  path.write_bytes(COMPRESS[suffix](bytes(data[:-1])))
  before = path.read_bytes()
  report = records.examine_records(str(path), SPEC)
  salvaged = records.salvage_records(report, tmp_path / "out")
  assert path.read_bytes() == before
  assert salvaged.num_kept == {f"a{suffix}": 7}
  assert salvaged.num_left_out == 3
  kept = [good[i * FRAME : (i + 1) * FRAME] for i in (0, 1, 3, 4, 6, 7, 8)]
  written = (tmp_path / "out" / f"a{suffix}").read_bytes()
  assert DECOMPRESS[suffix](written) == b"".join(kept)
  assert records.examine_records(str(tmp_path / "out" / f"a{suffix}"), SPEC).is_good


def test_files_keep_their_places(tmp_path):
  for name in ("one/a", "two/a", "two/b"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    write(tmp_path / name, 2)
  (tmp_path / "two/b").write_bytes(b"nothing good")
  patterns = [str(tmp_path / "one/a"), str(tmp_path / "two/*")]
  report = records.examine_records(patterns, SPEC)
  salvaged = records.salvage_records(report, tmp_path / "out")
  assert salvaged.num_kept == {"one/a": 2, "two/a": 2, "two/b": 0}
  for name in ("one/a", "two/a"):
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / name).read_bytes()
  assert (tmp_path / "out/two/b").read_bytes() == b""


def test_no_folder_to_write_to(tmp_path):
  write(tmp_path / "a", 1)
  report = records.examine_records(str(tmp_path / "a"), SPEC)
  (tmp_path / "missing").write_text("a file")
  with pytest.raises(
    OSError, match=r"salvage: .*missing/out: File exists\. Nothing was salvaged"
  ):
    records.salvage_records(report, tmp_path / "missing" / "out")


def test_relative_names_stay_below(tmp_path, monkeypatch):
  (tmp_path / "here").mkdir()
  write(tmp_path / "a", 1)
  write(tmp_path / "here" / "b", 1)
  monkeypatch.chdir(tmp_path / "here")
  report = records.examine_records(["../a", "b"], SPEC)
  salvaged = records.salvage_records(report, "out")
  assert salvaged.num_kept == {"a": 1, "here/b": 1}
  assert sorted(os.listdir("out")) == ["a", "here"]


def test_what_is_there_is_not_touched(tmp_path):
  write(tmp_path / "a", 1)
  report = records.examine_records(str(tmp_path / "a"), SPEC)
  (tmp_path / "out").mkdir()
  with pytest.raises(
    errors.RecordError, match=r"out: expected nothing there, got a fold"
  ):
    records.salvage_records(report, tmp_path / "out")
  assert os.listdir(tmp_path / "out") == []


def test_a_file_that_changed_is_not_copied(tmp_path):
  write(tmp_path / "a", 3)
  report = records.examine_records(str(tmp_path / "a"), SPEC)
  write(tmp_path / "a", 4)
  want = r"a: expected the 3 records that were examined, got 4\. Examine the file again"
  with pytest.raises(errors.RecordError, match=want):
    records.salvage_records(report, tmp_path / "out")
  assert os.listdir(tmp_path) == ["a"]
