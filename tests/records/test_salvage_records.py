"""Good records are copied out of damaged files byte for byte, and nothing else is."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import types
import zipfile
import zlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.records import framing
from t2r_seq.records.check import examine_records, salvage_records

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
  report = examine_records(str(path), SPEC)
  salvaged = salvage_records(report, tmp_path / "out")
  assert path.read_bytes() == before
  assert salvaged.num_kept == {f"a{suffix}": 7}
  assert len(salvaged.left_out) == 3
  kept = [good[i * FRAME : (i + 1) * FRAME] for i in (0, 1, 3, 4, 6, 7, 8)]
  written = (tmp_path / "out" / f"a{suffix}").read_bytes()
  assert DECOMPRESS[suffix](written) == b"".join(kept)
  assert examine_records(str(tmp_path / "out" / f"a{suffix}"), SPEC).is_good


def frames(*indices):
  """Returns the bytes of a TFRecord file."""
  parts = []
  for data in map(example, indices):
    length = len(data).to_bytes(8, "little")
    ends = (
      framing.masked_crc32c(each).to_bytes(4, "little") for each in (length, data)
    )
    parts += [length, next(ends), data, next(ends)]
  return b"".join(parts)


def zipped(*files, method=zipfile.ZIP_STORED, is_stream=False, behind=b""):
  file = io.BytesIO(behind)
  # A pipe has no `tell`: the sizes follow the data.
  pipe = types.SimpleNamespace(write=file.write, flush=file.flush)
  mode = "a" if behind else "w"
  with zipfile.ZipFile(pipe if is_stream else file, mode, method) as archive:
    for number, data in enumerate(files):
      archive.writestr(f"{number}.tfrecord", data)
  return file.getvalue()


def tarred(*files):
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode="w") as archive:
    for number, data in enumerate(files):
      info = tarfile.TarInfo(f"{number}.tfrecord")
      info.size = len(data)
      archive.addfile(info, io.BytesIO(data))
  return file.getvalue()


def framed(data):
  """Returns a frame with other data, whose length is damaged."""
  length = len(data).to_bytes(8, "little")
  return length + b"\0\0\0\0" + data + bytes(4)


OWN, MORE = frames(0, 1, 2, 3, 4), frames(5, 6)
ZIP, TAR = zipped(OWN), tarred(OWN)
NAMED = f"a zip archive (or an npz file) of {len(ZIP):,} bytes"
# name: (the file, the records that are kept, what the report says)
ARCHIVES = {
  "a zip behind": (OWN + ZIP, OWN, NAMED),
  "of two files": (OWN + zipped(OWN, MORE), OWN, "a zip archive"),
  "deflated": (OWN + zipped(OWN, method=zipfile.ZIP_DEFLATED), OWN, "a zip archive"),
  "with sizes behind the data": (
    OWN + zipped(OWN, MORE, is_stream=True) + MORE,
    OWN + MORE,
    "a zip archive",
  ),
  "a zip that was added to the file": (zipped(OWN, behind=OWN), OWN, NAMED),
  "a zip in a zip": (OWN + zipped(OWN, ZIP, MORE) + MORE, OWN + MORE, "a zip archive"),
  "a zip in the middle": (OWN + ZIP + MORE, OWN + MORE, NAMED),
  "two zips": (OWN + ZIP + ZIP + MORE, OWN + MORE, "a zip archive"),
  "a zip ahead": (ZIP + MORE, MORE, "it looks like a zip archive"),
  "a cut zip": (OWN + zipped(MORE, OWN)[: -len(OWN) // 2], OWN, "a zip archive"),
  "a cut zip in the middle": (
    OWN + zipped(MORE, OWN)[: -len(OWN) // 2] + MORE,
    OWN + MORE,
    "a zip archive",
  ),
  "a cut zip with sizes behind the data": (
    OWN + zipped(OWN, is_stream=True)[: -len(OWN) // 2] + MORE,
    OWN + MORE,
    "a zip archive",
  ),
  "a zip behind a damaged record": (
    OWN + framed(b"x" * 40) + ZIP + MORE,
    OWN + MORE,
    f"flipped bits in the length; {len(ZIP):,} bytes of archives are left out",
  ),
  "a zip in a damaged record": (
    OWN + framed(b"x" * 40 + ZIP + b"x" * 40) + MORE,
    OWN + MORE,
    f"flipped bits in the length; {len(ZIP):,} bytes of archives are left out",
  ),
  "a tar behind": (OWN + TAR, OWN, f"a tar archive of {len(TAR):,} bytes"),
  "a tar in the middle": (
    OWN + tarred(OWN, MORE) + MORE,
    OWN + MORE,
    "a tar archive of ",
  ),
  "a tar behind a damaged record": (
    OWN + framed(b"x" * 40) + TAR + MORE,
    OWN + MORE,
    f"{len(TAR):,} bytes of archives are left out",
  ),
  "a cut tar": (OWN + tarred(OWN)[:700], OWN, "a tar archive"),
  "a cut tar in the middle": (
    OWN + tarred(MORE, OWN)[:2400] + MORE,
    OWN + MORE,
    "a tar archive",
  ),
  "a gzip's signature by chance": (
    OWN + framed(b"")[:12].replace(bytes(2), b"\x1f\x8b", 1) + MORE,
    OWN + MORE,
    "flipped bits in the length",
  ),
  "a zip's signature by chance": (
    OWN + b"PK\x03\x04" + bytes(8) + b"x" * 90 + MORE,
    OWN + MORE,
    "",
  ),
  "the word ustar": (OWN + framed(b"x" * 300 + b"ustar") + MORE, OWN + MORE, ""),
}


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("name", ARCHIVES)
def test_records_in_archives_are_left_out(name, suffix, tmp_path):
  data, want, named = ARCHIVES[name]
  path = tmp_path / f"a{suffix}"
  path.write_bytes(COMPRESS[suffix](data))
  report = examine_records(str(path), SPEC)
  salvaged = salvage_records(report, tmp_path / "out")
  written = (tmp_path / "out" / path.name).read_bytes()
  assert DECOMPRESS[suffix](written) == want
  assert salvaged.num_kept == {path.name: len(want) // FRAME}
  assert any(named in str(problem) for problem in report.problems)


@pytest.mark.parametrize("name", ["a zip", "a TFRecord file"])
def test_payloads_that_hold_records_are_kept(name, tmp_path):
  spec = {"x": specs.ExtendedTensorSpec((), tf.string, "x")}
  payload = {"a zip": ZIP, "a TFRecord file": OWN}[name]
  with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
    for _ in range(2):
      writer.write(records.encode_example(spec, {"x": payload}))
  report = examine_records(str(tmp_path / "a"), spec)
  assert report.is_good
  salvaged = salvage_records(report, tmp_path / "out")
  assert salvaged.num_kept == {"a": 2}
  assert (tmp_path / "out/a").read_bytes() == (tmp_path / "a").read_bytes()


def test_files_keep_their_places(tmp_path):
  for name in ("one/a", "two/a", "two/b"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    write(tmp_path / name, 2)
  (tmp_path / "two/b").write_bytes(b"nothing good")
  patterns = [str(tmp_path / "one/a"), str(tmp_path / "two/*")]
  report = examine_records(patterns, SPEC)
  salvaged = salvage_records(report, tmp_path / "out")
  assert salvaged.num_kept == {"one/a": 2, "two/a": 2, "two/b": 0}
  for name in ("one/a", "two/a"):
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / name).read_bytes()
  assert (tmp_path / "out/two/b").read_bytes() == b""


def test_no_folder_to_write_to(tmp_path):
  write(tmp_path / "a", 1)
  report = examine_records(str(tmp_path / "a"), SPEC)
  (tmp_path / "missing").write_text("a file")
  with pytest.raises(
    OSError, match=r"salvage: .*missing/out: File exists\. Nothing was salvaged"
  ):
    salvage_records(report, tmp_path / "missing" / "out")


def test_relative_names_stay_below(tmp_path, monkeypatch):
  (tmp_path / "here").mkdir()
  write(tmp_path / "a", 1)
  write(tmp_path / "here" / "b", 1)
  monkeypatch.chdir(tmp_path / "here")
  report = examine_records(["../a", "b"], SPEC)
  salvaged = salvage_records(report, "out")
  assert salvaged.num_kept == {"a": 1, "here/b": 1}
  assert sorted(os.listdir("out")) == ["a", "here"]


def test_salvage_refuses_existing_targets(tmp_path):
  write(tmp_path / "a", 1)
  report = examine_records(str(tmp_path / "a"), SPEC)
  (tmp_path / "out").mkdir()
  with pytest.raises(
    errors.RecordError, match=r"out: expected nothing there, got a fold"
  ):
    salvage_records(report, tmp_path / "out")
  assert os.listdir(tmp_path / "out") == []


def test_file_that_changed_is_not_copied(tmp_path):
  write(tmp_path / "a", 3)
  report = examine_records(str(tmp_path / "a"), SPEC)
  write(tmp_path / "a", 4)
  want = r"a: expected the 3 records that were examined, got 4\. Examine the file again"
  with pytest.raises(errors.RecordError, match=want):
    salvage_records(report, tmp_path / "out")
  assert os.listdir(tmp_path) == ["a"]
