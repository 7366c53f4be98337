"""`t2r_seq convert` as a user calls it."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import records, specs, store
from t2r_seq.cli import sources
from t2r_seq.episodes.registry import formats

Spec = specs.ExtendedTensorSpec
SPEC = {
  "state": Spec((2,), tf.float32, "state", is_sequence=True),
  "task": Spec((), tf.string, "task"),
}
LENGTHS = (2, 1, 3)


def episodes():
  for index, length in enumerate(LENGTHS):
    state = np.full((length, 2), index, np.float32)
    yield {"state": state, "task": f"task {index}"}


@pytest.fixture(autouse=True)
def fixture_files(tmp_path, monkeypatch):
  """Records of three episodes, a module with their specs, and the current folder."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr("sys.dont_write_bytecode", True)
  records.write_records("x.tfrecord", SPEC, episodes())
  pathlib.Path("spec.json").write_text(specs.TensorSpecStruct(SPEC).to_json())


CONVERTED = "Converted 3 episodes (6 steps), 0.0 MB, from {} to {}. To compare them"


def test_round_trip(run_main):
  status, out, err = run_main(
    "convert", "x*.tfrecord", "a_store", "--spec", "spec.json"
  )
  assert (status, err) == (0, "")
  assert out.startswith(CONVERTED.format("tfrecord", "store"))
  assert out.endswith("\nWrote a_store\n")
  assert store.EpisodeStore("a_store").episode_lengths.tolist() == list(LENGTHS)
  status, out, _ = run_main("convert", "a_store", "y.tfrecord", "--num_shards", 3)
  assert status == 0 and out.startswith(CONVERTED.format("store", "tfrecord"))
  assert len(list(pathlib.Path().glob("y-*-of-00003.tfrecord"))) == 3
  want = "Wrote y-00000-of-00003.tfrecord .. y-00002-of-00003.tfrecord (3 files)\n"
  assert out.endswith(want)
  status, out, _ = run_main("convert", "a_store", "y.tfrecord", "--num_shards", 3)
  assert (status, out) == (
    0,
    "3 episodes (6 steps) were converted before; --verify compares them.\n",
  )


def test_convert_reads_a_keep_list(run_main):
  run_main("convert", "x*.tfrecord", "a_store", "--spec", "spec.json")
  pathlib.Path("keep.txt").write_text("# left out: 1\n0\n2\n")
  argv = ("convert", "a_store", "b_store", "--to", "store", "--episodes", "keep.txt")
  status, out, _ = run_main(*argv)
  assert status == 0 and out.startswith("Converted 2 episodes")
  lengths = store.EpisodeStore("b_store").episode_lengths.tolist()
  assert lengths == [LENGTHS[0], LENGTHS[2]]
  assert "were converted before" in run_main(*argv)[1]
  status, out, _ = run_main("stats", "a_store", "--episodes", "0,2")
  assert out.startswith("2 episodes") and "a_store/episodes.statistics.json" in out


def test_convert_prints_proposed_specs(run_main):
  status, out, _ = run_main("convert", "x.tfrecord", "a_store")
  assert status == 0
  assert out.startswith("The specs were proposed from the files: look at them.\n")


def test_steps(run_main):
  step = {"x": Spec((), tf.float32, "x"), "id": Spec((), tf.int64, "id")}
  rows = [{"x": 1.0, "id": index} for index in (4, 4, 5)]
  records.write_records("steps.tfrecord", step, rows)
  status, out, _ = run_main(
    "convert", "steps.tfrecord", "a_store", "--episode_key", "id"
  )
  assert status == 0 and "Converted 2 episodes (3 steps)" in out
  assert store.EpisodeStore("a_store").episode_lengths.tolist() == [2, 1]


@pytest.mark.parametrize(("name", "kind"), [("y.zarr", "zarr"), ("y.hdf5", "hdf5")])
def test_other_formats(name, kind, run_main):
  run_main("convert", "x.tfrecord", "a_store", "--spec", "spec.json")
  options = ["--drop", "task"] if kind == "zarr" else []
  status, out, err = run_main("convert", "a_store", name, *options)
  assert (status, err) == (0, "")
  assert CONVERTED.format("store", kind) in out
  status, out, _ = run_main("convert", name, "back", "--to", "store")
  assert status == 0 and CONVERTED.format(kind, "store") in out


def test_verify(run_main):
  run_main("convert", "x.tfrecord", "a_store", "--spec", "spec.json")
  status, out, err = run_main("convert", "--verify", "x.tfrecord", "a_store")
  assert (status, err) == (0, "")
  assert out == "3 episodes (6 steps): both sides have the same values.\n"
  with open("a_store/segments/main/task.data", "r+b") as file:
    file.write(b"T")
  status, out, err = run_main("convert", "--verify", "x.tfrecord", "a_store")
  assert (status, out) == (1, "")
  assert "x.tfrecord and a_store: episode 0: task: expected the values of" in err


def test_convert_resumes(run_main):
  """A record that cannot be read stops it; once it is mended, it goes on."""
  good = pathlib.Path("x.tfrecord").read_bytes()
  stat = os.stat("x.tfrecord")
  broken = bytearray(good)
  broken[-20] ^= 1
  arguments = ("convert", "x.tfrecord", "a_store", "--spec", "spec.json")
  for data in (bytes(broken), good):
    pathlib.Path("x.tfrecord").write_bytes(data)
    os.utime("x.tfrecord", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    status, out, err = run_main(*arguments)
    if data != good:
      assert status == 1
      assert err.startswith("t2r_seq convert: record 2 of x.tfrecord (byte ")
      status, out, err = run_main("doctor", "a_store")
      told = "A conversion into it stopped after 2 episodes, before it was complete."
      assert (status, err) == (1, "") and told in out
      assert told in run_main("view", "a_store", "-o", "page.html")[1]
      assert told in (shown := run_main("inspect", "a_store")[1])
      again = f"\n  t2r_seq convert {os.path.abspath('x.tfrecord')} a_store\n"
      assert again in shown
      pathlib.Path("saved.tfrecord").write_bytes(good)
      status, _, err = run_main("convert", "saved.tfrecord", "a_store", *arguments[3:])
      assert status == 1 and "started from, " in err and "/saved.tfrecord. Name" in err
  assert status == 0
  assert out.startswith("Resumed after 2 episodes of an earlier run.\n")
  status, out, _ = run_main("doctor", "a_store")
  assert status == 0 and "A conversion" not in out


FAILURES = {
  "nothing there": (
    ("y.tfrecord", "a_store"),
    "got nothing there. Did you mean 'x.tfre",
  ),
  "no spec": (
    ("x.tfrecord", "a_store", "--spec", "nothing"),
    "--spec takes MODULE:NAME",
  ),
  "shards": (
    ("x.tfrecord", "a_store", "--num_shards", "0"),
    "--num_shards must be >= 1",
  ),
  "taken": (("x.tfrecord", "."), "got [.]. Delete it, or choose another destination."),
  "a FIFO": (("x.tfrecord", "fifo"), "got [fifo]. Choose another destination."),
  "not verified": (("--verify", "x.tfrecord", "a_store"), "expected a complete conver"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures(name, run_main):
  arguments, want = FAILURES[name]
  os.mkfifo("fifo")
  status, out, err = run_main("convert", *arguments)
  assert (status, out) == (1, "")
  assert err.startswith("t2r_seq convert: ") and want in err


def test_formats_are_those_of_conversions():
  own = {n: f for n, f in formats().items() if f.open.__module__.startswith("t2r_seq.")}
  assert {*sources.SOURCE_KINDS} == {*own}
  assert {*sources.KINDS} == {name for name, known in own.items() if known.writer}
