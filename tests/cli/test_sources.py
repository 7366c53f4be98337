"""`inspect`, `doctor` and `stats` of what is neither a store nor TFRecord files."""

from __future__ import annotations

import os
import pathlib
import re
import shutil

import numpy as np
import pytest

from t2r_seq import statistics
from t2r_seq.episodes import open_episodes
from t2r_seq.statistics.compute import check_statistics
from tests.convert import lerobot_sets as sets


@pytest.fixture(scope="module", name="own")
def fixture_own(tmp_path_factory):
  here = os.getcwd()
  os.chdir(tmp_path_factory.mktemp("own"))
  folder = os.path.abspath(sets.make_folder())
  os.chdir(here)
  return folder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def test_inspect(own, run_main):
  status, out, err = run_main("inspect", own)
  assert (status, err) == (0, "")
  assert out.startswith(f"{own}: lerobot\n4 episodes, 14 steps\n\n")
  lines = [line.split() for line in out.splitlines()]
  assert [sets.CAMERA, "video", "uint8", "48x64x3", "step"] in lines
  assert ["action", "float64", "2", "step"] in lines
  assert "lengths: min 1, median 3.5, mean 3.5, max 6" in out
  for option, value, want in (
    ("--max_records", 3, "--max_records is for TFRecord files"),
    ("--spec", "m:s", "--spec: no effect: it is for TFRecord files and stores"),
  ):
    status, _, err = run_main("inspect", own, option, value)
    assert status != 0 and want in err
  status, _, err = run_main("view", own, "--max_mb", "inf")
  assert status != 0 and "--max_mb must be finite and > 0, got inf." in err


def make(*names):
  def make_files(folder):
    for name in names:
      place = folder / name
      place.parent.mkdir(parents=True, exist_ok=True)
      place.write_bytes(b"")

  return make_files


READ = r"expected a store \(with a store.json\), a LeRobot folder .* got "
# name: (what is in the folder, the error)
UNKNOWN = {
  "nothing": (make(), r"got a folder with \[\]. Name the files of the dataset"),
  "other files": (make("notes.txt"), r"got a folder with \[notes.txt\]"),
  "a training": (
    make("export/latest/1/x", "checkpoint"),
    r"like a policy, or a training with exports: t2r_seq inspect EXPORT",
  ),
  "records": (make("a-train.tfrecord-00000-of-00001"), r"Name .*: 'x/\*.tfrecord\*'"),
  "two datasets": (
    make("a/meta/info.json", "b/store.json", "README.md"),
    r"There are datasets in it: name one of \[x/a, x/b\]",
  ),
  "datasets two levels below": (
    make("lab/a/meta/info.json", "lab/b/store.json"),
    r"There are datasets in it: name one of \[x/lab/a, x/lab/b\]",
  ),
  "a set of TFDS": (
    make("1.0.0/features.json", "1.0.0/a-train.tfrecord-00000-of-00001"),
    r"There are datasets in it: name one of \[x/1.0.0\]",
  ),
  "a bag of SQLite": (
    make("metadata.yaml", "bag_0.db3"),
    r"got a bag of ROS 2 in SQLite. Make MCAP of it: mcap convert",
  ),
  "bags of ROS 1": (make("a.bag", "b.bag"), r"got a bag of ROS 1. Make MCAP of it: "),
  "CALVIN": (
    make("episode_0358482.npz", "ep_start_end_ids.npy"),
    r"got CALVIN's steps, an .npz file each. Read them with Python",
  ),
  "WebDataset": (make("a-0000.tar", "a-0001.tar"), r"got tar archives .* Unpack them"),
  "compressed tar": (make("a-0000.tar.gz"), r"got tar archives .* Unpack them"),
  "Parquet": (make("a.parquet"), r"got Parquet files. For a LeRobot dataset, name"),
  "pickles": (make("demo.pkl"), r"got Python pickles. Unpickling runs code, so"),
  "numpy files": (make("q.npy"), r"got numpy files. Read them with Python"),
}
COMMANDS = {
  "inspect": ("inspect", "x"),
  "doctor": ("doctor", "x"),
  "stats": ("stats", "x"),
  "view": ("view", "x"),
  "convert": ("convert", "x", "out"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_folder_lists_what_is_read(name, run_main, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  fill, want = UNKNOWN[name]
  (tmp_path / "x").mkdir()
  fill(tmp_path / "x")
  for command in COMMANDS.values():
    status, _, err = run_main(*command)
    assert status == 1 and re.search(READ, err) and re.search(want, err), err
    assert "EpisodeStore:" not in err


FILES = {
  "a.bag": (b"#ROSBAG V2.0\n", r"like a bag of ROS 1. Make MCAP of it: mcap conv"),
  "a.db3": (b"SQLite format 3\0" * 9, r"like an SQLite database. Make MCAP of it"),
  "a.tar": (b"a" * 257 + b"ustar" + bytes(300), r"like a tar archive. Unpack them"),
  "a.pkl": (b"\x80\x04\x95" * 9, r"like a Python pickle. Unpickling runs code"),
  "episode_01.npz": (b"PK\x03\x04" * 9, r"like a zip archive .* Read them with Python"),
  "a.parquet": (b"PAR1" * 9, r"like a Parquet file. For a LeRobot dataset, name"),
}


@pytest.mark.parametrize("name", FILES)
def test_unknown_file_gets_a_hint(name, run_main, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  content, want = FILES[name]
  (tmp_path / name).write_bytes(content)
  for command in ("inspect", "stats"):
    status, _, err = run_main(command, name)
    assert status == 1 and re.search(want, err), err


def test_doctor_names_what_is_wrong(own, run_main):
  shutil.copytree(own, "copy")
  video = pathlib.Path(f"copy/videos/{sets.CAMERA}/chunk-000/file-000.mp4")
  data = video.read_bytes()
  video.unlink()
  status, out, _ = run_main("doctor", "copy", "--max_shown", 2)
  assert status == 1
  words = " ".join(out.split())
  assert f"episode 1: {sets.CAMERA}: expected a video file, got none." in words
  assert "and 2 more; --max_shown shows them" in words
  video.write_bytes(data)
  stats = open_episodes("copy").folder.path + "/meta/stats.json"
  kept = pathlib.Path(stats).read_text()
  sets.edit_json(stats, reward={"min": [0.0], "max": [1.25], "mean": [0.9], "std": [1]})
  status, out, _ = run_main("doctor", "copy")
  assert status == 1
  want = "meta/stats.json: reward: mean is [0.9], but that of the values is [0."
  assert want in " ".join(out.split())
  sets.edit_json(stats, reward=[0.9])
  status, _, err = run_main("doctor", "copy")
  assert status == 1 and "meta/stats.json: reward: expected statistics that" in err
  pathlib.Path(stats).write_text(kept)


def test_stats(own, run_main):
  """They are those of the store; videos are counted only where that is asked for."""
  shutil.copytree(own, "copy")
  status, out, _ = run_main("stats", "copy")
  assert status == 0 and out.endswith("Written to copy/statistics.json\n")
  found = statistics.load_statistics("copy/statistics.json")
  want = statistics.compute_statistics(f"{own}.store")
  for path in ("action", "observation.state", "reward"):
    for name in ("mean", "std", "min"):
      np.testing.assert_array_equal(
        found.paths[path].measure(name), want.paths[path].measure(name)
      )
  assert sets.CAMERA not in found.paths
  assert found.lengths == want.lengths
  status, out, _ = run_main("stats", "copy", "--check")
  assert status == 0 and "is up to date" in out
  # From Python, too, by the folder as by its episodes.
  checked = check_statistics("copy/statistics.json", "copy")
  assert checked.to_json() == found.to_json()
  for source in ("copy", open_episodes("copy")):
    assert statistics.compute_statistics(source).to_json() == found.to_json()
  for source in ("copy", open_episodes("copy")):
    decoded = statistics.compute_statistics(source, images=True)
    assert decoded.paths[sets.CAMERA].measure("mean").shape[-1] == 3
