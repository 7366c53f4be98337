"""`t2r_seq doctor` of TFRecord files: what it says, and how it exits."""

from __future__ import annotations

import os
import tarfile
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import records, specs

Spec = specs.ExtendedTensorSpec
SPEC = {
  "state/pose": Spec((3,), tf.float32, "pose", is_sequence=True),
  "state/image": Spec(
    (8, 8, 3), tf.uint8, "image", is_sequence=True, data_format="png"
  ),
  "task": Spec((), tf.string, "task"),
  "count": Spec((), tf.uint8, "count"),
}
SOURCE = """
import tensorflow as tf
from t2r_seq.specs import ExtendedTensorSpec as Spec
WINDOWS = {
  "state/pose": Spec((2, 3), tf.float32, "pose", time_offsets=(-1, 0)),
  "state/image": Spec((8, 8, 3), tf.uint8, "image", time_offsets=0, data_format="png"),
  "task": Spec((), tf.string, "task"),
  "count": Spec((), tf.uint8, "count"),
}
"""


def episode(index, spec=SPEC, **changes):
  values = {
    "state/pose": np.asarray([[index, 0.5, t] for t in range(4)], np.float32),
    "state/image": np.full((4, 8, 8, 3), index, np.uint8),
    "task": f"task {index}",
    "count": 7,
  }
  return records.encode_example(spec, {**values, **changes})


def write(name, serialized):
  with tf.io.TFRecordWriter(name) as writer:
    for data in serialized:
      writer.write(data)


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
  """Two files in the current folder; the second has four bad records."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "record_specs.py").write_text(SOURCE)
  write("good.tfrecord", [episode(index) for index in range(10)])
  serialized = [episode(index) for index in range(10)]
  pose = np.zeros((4, 3), np.float32)
  pose[2, 1] = np.nan
  serialized[1] = episode(1, **{"state/pose": pose})
  wrong = {**SPEC, "count": Spec((), tf.int64, "count")}
  serialized[3] = episode(3, wrong, count=300)
  write("bad.tfrecord", serialized)
  starts = np.cumsum([0, *(len(data) + 16 for data in serialized)])
  with open("bad.tfrecord", "r+b") as file:
    file.seek(int(starts[6]) + 100)
    file.write(b"\xff\xfe\xfd")
  os.truncate("bad.tfrecord", int(starts[10]) - 2)


def test_good_files(run_main):
  argv = ("doctor", "good.tfrecord", "--spec", "record_specs:WINDOWS")
  status, out, err = run_main(*argv)
  assert (status, err) == (0, "")
  assert out.split("\n\n") == [
    "good.tfrecord: 10 records, 0 bad",
    "path         spec                 bad  absent  NaN\n"
    "───────────  ───────────────────  ───  ──────  ───\n"
    "count        () uint8               0       0    0\n"
    "state/image  (8, 8, 3) uint8 png    0       0    0\n"
    "state/pose   (3,) float32           0       0    0\n"
    "task         () string              0       0    0",
    "No problems in 10 records.\n",
  ]


def test_bad_files(run_main):
  argv = ("doctor", "*.tfrecord", "--spec", "record_specs:WINDOWS")
  status, out, err = run_main(*argv)
  assert (status, err) == (1, "")
  assert "2 files: 20 records, 4 bad" in out
  assert "No problems" not in out
  text = " ".join(out.split())
  for part in (
    "2 problems (damaged bytes): record 6 of ./bad.tfrecord (byte ",
    "state/pose (feature 'pose'): expected numbers, got NaN at step 2, value 1, 1 of "
    "12.",
    "count (feature 'count'): expected values from 0 to 255 for uint8, got 300.",
    "record 1 of ./bad.tfrecord (byte ",
    "frame: expected data with a fitting checksum, got flipped bits in its ",
    "record 9 of ./bad.tfrecord (byte ",
    "then the end: the file is truncated.",
  ):
    assert part in text, part
  assert max(map(len, out.splitlines())) <= 100


def test_doctor_reports_empty_files_and_episodes(run_main):
  none = {
    "state/pose": np.zeros((0, 3), np.float32),
    "state/image": np.zeros((0, 8, 8, 3), np.uint8),
  }
  write("none.tfrecord", [])
  write("short.tfrecord", [episode(0), episode(1, **none), episode(2)])
  argv = ("doctor", "none.tfrecord", "short.tfrecord")
  status, out, _ = run_main(*argv, "--spec", "record_specs:WINDOWS")
  assert status == 0
  assert (
    "Worth a look:\n"
    "  Files without a record: [none.tfrecord]\n"
    "  Episodes without a step, which give no data: 1\n"
  ) in out


def test_options(run_main):
  argv = ("doctor", "bad.tfrecord", "--spec", "record_specs:WINDOWS")
  _, out, _ = run_main(*argv, "--allow_nan", "--max_shown", 1)
  assert "10 records, 3 bad" in out
  assert "2 problems (damaged bytes):\n  record 6 of" in out
  assert "  and 1 more; --max_shown shows them" in out
  assert "record 9 of" not in out


def test_without_specs(run_main):
  status, out, _ = run_main("doctor", "good.tfrecord")
  assert status == 0
  assert "path   spec" in out
  assert out.endswith("No problems in 10 records.\n")
  status, out, _ = run_main("doctor", "bad.tfrecord")
  assert status == 1
  # Nobody knows that 300 is too much.
  assert "10 records, 3 bad" in out


def test_damage_comes_before_schemas(run_main):
  other = {**SPEC, "count": Spec((2,), tf.uint8, "count")}
  for shard in range(40):
    spec, count = (other, [7, 7]) if shard % 4 == 3 else (SPEC, 7)
    serialized = [episode(index, spec, count=count) for index in range(2)]
    write(f"shard-{shard:02}.tfrecord", serialized)
    if shard % 8 == 1:
      with open(f"shard-{shard:02}.tfrecord", "r+b") as file:
        file.seek(100)
        file.write(b"\xff\xfe\xfd")
  status, out, _ = run_main("doctor", "shard*.tfrecord")
  assert status == 1
  parts = out.split("\n\n")
  assert parts[0] == "40 files: 80 records, 25 bad"
  titles = [part.splitlines()[0] for part in parts[1:4]]
  assert titles == [
    "5 problems (damaged bytes):",
    "20 problems (other content):",
    "1 problem (schemas):",
  ]
  assert [line for line in parts[1].splitlines() if " of ./shard" in line] == [
    f"  record 0 of ./shard-{shard:02}.tfrecord (byte 0):"
    for shard in (1, 9, 17, 25, 33)
  ]
  assert "shard-03.tfrecord: 2 of 2 records bad (0, 1)" in parts[4]
  assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("name", ["zip", "tar"])
def test_no_records_of_an_archive_are_salvaged(name, run_main):
  if name == "zip":
    with zipfile.ZipFile("all.tfrecord.zip", "w") as archive:
      archive.write("good.tfrecord")
  else:
    with tarfile.open("all.tfrecord.tar", "w") as archive:
      archive.add("good.tfrecord")
  status, out, _ = run_main("doctor", "good*", "all*", "--salvage", "saved")
  assert status == 1 and "2 files: 11 records, 1 bad" in out
  assert f"looks like a {name}" in " ".join(out.split())
  assert "Salvaged 10 of 11 records to " in out


def test_records_of_several_schemas(run_main):
  other = {**SPEC, "state/pose": Spec((4,), tf.float32, "pose", is_sequence=True)}
  pose = np.zeros((4, 4), np.float32)
  serialized = [episode(index, other, **{"state/pose": pose}) for index in range(2)]
  write("other.tfrecord", serialized)
  argv = ("doctor", "good.tfrecord", "other.tfrecord")
  status, out, _ = run_main(*argv, "--salvage", "saved")
  assert status == 1 and "No problems" not in out
  assert out.startswith(
    "2 files: 12 records, 2 bad\n\n"
    "2 problems (other content):\n  record 0 of other.tfrecord (byte 0):\n"
  )
  assert (
    "\n    2 schemas: 1, 1 files:\n"
    "    1: 10 records, first record 0 of good.tfrecord (byte 0)\n"
    "    2: 2 records, first record 0 of other.tfrecord (byte 0): 'pose': 4 x float, "
    "not 3 x float\n    Which is right is unknown: name the --spec, or judge by "
    "--schema N.\n"
  ) in out
  assert "Salvaged 10 of 12 records" in out
  status, out, _ = run_main(*argv, "--schema", 2, "--salvage", "others")
  assert status == 1 and "12 records, 10 bad" in out and "Salvaged 2 of 12" in out
  assert run_main("doctor", "others/other.tfrecord")[0] == 0


def test_salvage(run_main):
  argv = ("--spec", "record_specs:WINDOWS")
  with open("bad.tfrecord", "rb") as file:
    before = file.read()
  status, out, err = run_main("doctor", "*.tfrecord", *argv, "--salvage", "saved")
  assert (status, err) == (1, "")
  assert f"\n\nSalvaged 16 of 20 records to {os.path.abspath('saved')}\n" in out
  assert "\n  left out records 6, 9 of ./bad.tfrecord: damaged bytes\n" in out
  with open("bad.tfrecord", "rb") as file:
    assert file.read() == before
  kept = [*tf.data.TFRecordDataset("saved/bad.tfrecord").as_numpy_iterator()]
  assert kept == [episode(index) for index in (0, 2, 4, 5, 7, 8)]
  assert run_main("doctor", "saved/*.tfrecord", *argv)[0] == 0
  os.remove("bad.tfrecord")  # Nothing is read before it is refused.
  status, _, err = run_main("doctor", "bad.tfrecord", *argv, "--salvage", "saved")
  assert status == 1
  assert "--salvage: saved: expected nothing there, got a folder. Name a new" in err


ERRORS = {
  "no match": (["no*"], "no*: expected at least one file, got none"),
  "lenient": (["good.tfrecord", "--lenient"], "--lenient is for a store; this is no"),
  "a store and a file": (
    [".", "good.tfrecord"],
    "expected one store, or TFRecord files, got . good.tfrecord; . is a folder.",
  ),
  "salvage to nowhere": (["good.tfrecord", "--salvage", ""], "--salvage: expected a"),
  "schema": (["good.tfrecord", "--schema", "2"], "schema: expected 1 to 1, got 2."),
  "schema and spec": (
    ["good.tfrecord", "--schema", "2", "--spec", "x:y"],
    "--schema is for TFRecord files without --spec.",
  ),
  "max_shown": (["good.tfrecord", "--max_shown", "-1"], "--max_shown must be >= 0"),
  "empty": (["empty.tfrecord"], "there are no records in empty.tfrecord."),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name, run_main):
  write("empty.tfrecord", [])
  argv, want = ERRORS[name]
  status, _, err = run_main("doctor", *argv)
  assert status == 1
  assert err.startswith("t2r_seq doctor: ") and want in err


SPEC_FILES = {
  "empty": (b"", "expected JSON"),
  "no text": (b"\xff\xfe\x00", "can't decode byte 0xff"),
  "no specs": (b"{}", "expected specs, got none."),
}


@pytest.mark.parametrize("name", SPEC_FILES)
def test_bad_spec_file_is_named(name, run_main):
  content, want = SPEC_FILES[name]
  with open("my_spec.json", "wb") as file:
    file.write(content)
  status, _, err = run_main("doctor", "good.tfrecord", "--spec", "my_spec.json")
  assert status == 1
  assert err.startswith("t2r_seq doctor: --spec: my_spec.json: ") and want in err
