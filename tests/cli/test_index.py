"""`t2r_seq index`: writes what is needed, checks, names what fails."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import records, specs
from t2r_seq.records.index_file import read_file_index

SPEC = specs.TensorSpecStruct(
  [
    ("a", specs.ExtendedTensorSpec((2,), tf.float32, "a", is_sequence=True)),
    ("task", specs.ExtendedTensorSpec((), tf.string, "task")),
  ]
)


@pytest.fixture(name="folder")
def fixture_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for number, lengths in enumerate([[3, 1], [4]]):
    episodes = [{"a": np.zeros((n, 2), np.float32), "task": "t"} for n in lengths]
    records.write_records(f"{number}.tfrecord", SPEC, episodes)
  return tmp_path


def test_writes_what_is_needed(folder, run_main):
  status, out, err = run_main("index", "*.tfrecord")
  assert (status, err) == (0, ""), err
  assert out == "2 files: 2 indexed, 0 fresh.\n3 records; 8 steps of a.\n"
  assert sorted(path.name for path in folder.glob("*.t2ri")) == [
    "0.tfrecord.t2ri",
    "1.tfrecord.t2ri",
  ]
  os.remove("1.tfrecord.t2ri")
  assert run_main("index", "*.tfrecord")[1].startswith("2 files: 1 indexed, 1 fresh.")
  again = run_main("index", "0.tfrecord", "1.tfrecord", "--force", "--num_parallel", 1)
  assert again[1].startswith("2 files: 2 indexed, 0 fresh.")


def test_index_that_cannot_be_read_is_in_nobodys_way(folder, run_main):
  os.mkdir("1.tfrecord.t2ri")
  status, out, err = run_main("index", "*.tfrecord")
  assert status == 1 and out.startswith("2 files: 1 indexed, 0 fresh, 1 failed.\n")
  assert "1.tfrecord.t2ri: expected an index, got a folder. Move it" in err
  assert run_main("index", "*.tfrecord", "--check")[1].startswith("2 files: 1 fresh, 1")


def test_check(folder, run_main):
  status, out, err = run_main("index", "*.tfrecord", "--check")
  assert status == 1 and not list(folder.glob("*.t2ri"))
  assert out == "2 files: 2 missing.\nRun: t2r_seq index '*.tfrecord'\n"
  assert "0.tfrecord: expected an index at ./0.tfrecord.t2ri, got none." in err
  run_main("index", "*.tfrecord")
  assert run_main("index", "*.tfrecord", "--check") == (
    0,
    "2 files: 2 fresh.\n3 records; 8 steps of a.\n",
    "",
  )
  with open("1.tfrecord", "ab") as file:
    file.write(b"more")
  status, out, err = run_main("index", "*.tfrecord", "--check")
  assert status == 1 and out.startswith("2 files: 1 fresh, 1 stale.\n")
  assert "stale: ./1.tfrecord: expected the " in err


def test_spec_is_kept(folder, run_main):
  (folder / "spec.json").write_text(SPEC.to_json())
  status, out, err = run_main("index", "*.tfrecord", "--spec", "spec.json")
  assert (status, err) == (0, ""), err
  assert read_file_index("0.tfrecord").spec == SPEC
  assert run_main("index", "*.tfrecord", "--check", "--spec", "spec.json")[0] == 0
  values = json.loads(SPEC.to_json())
  values["a"]["shape"] = [3]
  (folder / "other.json").write_text(json.dumps(values))
  status, _, err = run_main("index", "*.tfrecord", "--check", "--spec", "other.json")
  assert status == 1 and "expected the index to be made with the given spec" in err
  status, out, err = run_main("index", "*.tfrecord", "--spec", "other.json")
  assert status == 1 and out.startswith("2 files: 0 indexed, 0 fresh, 2 failed.\n")
  assert "a (feature 'a'): expected 3 values for shape (3,), got 2 values" in err


def test_one_bad_file_does_not_stop_the_others(folder, run_main):
  with open("0.tfrecord", "r+b") as file:
    file.truncate(60)
  records.write_records(
    "z.tfrecord.gz", SPEC, [{"a": np.zeros((2, 2), np.float32), "task": "t"}]
  )
  status, out, err = run_main("index", "*.tfrecord*")
  assert status == 1 and "the file is truncated" in err
  assert out == (
    "3 files: 2 indexed, 0 fresh, 1 failed.\n2 records; 6 steps of a. 1 compressed "
    "files: counted, but their records cannot be read in any order.\n"
  )


def test_wrong_use(folder, run_main):
  assert run_main("index", "*.tfrecord", "--check", "--force")[2] == (
    "t2r_seq index: --force: no effect with --check, which only reads.\n"
  )
  assert (
    "--num_parallel must be >= 1, got 0"
    in run_main("index", "*.tfrecord", "--num_parallel", 0)[2]
  )
  assert "expected at least one file, got none" in run_main("index", "no*")[2]
