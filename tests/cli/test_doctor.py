"""`t2r_seq doctor` of a store: what it says, and how it exits."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, specs, store

Spec = specs.ExtendedTensorSpec
SPEC = {
  "x": Spec((250,), tf.float32, is_sequence=True),
  "task": Spec((), tf.string),
}
SOURCE = (
  "import tensorflow as tf\nfrom t2r_seq.specs import ExtendedTensorSpec as Spec\n"
  "SPEC = {'x': Spec((2, 250), tf.float32, time_offsets=(-1, 0)),\n"
  "  'task': Spec((), tf.string)}\n"
)


def in_main(name):
  return os.path.join("s", "segments", "main", name)


def flip(name, position):
  with open(name, "r+b") as file:
    file.seek(position)
    byte = file.read(1)
    file.seek(position)
    file.write(bytes([byte[0] ^ 1]))


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
  """A store `s` of 20 episodes in the current folder, which has specs, too."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "doctor_specs.py").write_text(SOURCE)
  with store.EpisodeStore.create("s", SPEC, commit_every=99) as writer:
    for index in range(20):
      x = np.full((10, 250), index, np.float32)
      writer.append_episode({"x": x, "task": f"task {index}"})


def paragraphs(out):
  return out.rstrip("\n").split("\n\n")


def test_whole_store(run_main):
  status, out, err = run_main("doctor", "s")
  assert (status, err) == (0, "")
  assert paragraphs(out) == [
    f"{os.path.abspath('s')}: 20 episodes, 0 bad; 200,290 bytes compared with "
    "checksums",
    "path  spec            bad  absent  NaN\n"
    "────  ──────────────  ───  ──────  ───\n"
    "x     (250,) float32    0       0    0\n"
    "task  () string         0       0    0",
    "No problems in 20 episodes.",
  ]


def test_damage(run_main):
  for episode in (3, 4, 5, 9):
    flip(in_main("x.data"), 10_000 * episode)
  os.truncate(in_main("task.data"), 129)
  status, out, err = run_main("doctor", "s")
  assert (status, err) == (1, "")
  _, problems, verdict = paragraphs(out)
  assert problems.splitlines()[0] == "2 problems (damaged bytes):"
  text = " ".join(problems.split())
  for part in (
    "main/task.data: expected 130 committed bytes, got 129 bytes. Restore the file ",
    "OUT. damaged episodes: 19 main/x.data: expected the checksums",
    "main/x.data: expected the checksums of every episode, got others for 4 of 20: ",
    "episode 3 (rows 30 to 39, bytes 30,000 to 39,999: CRC-32 ",
    "episode 9 (rows 90 to 99, bytes 90,000 to 99,999: CRC-32 ",
    "damaged episodes: 3 to 5, 9",
  ):
    assert part in text
  assert verdict == "  main: 5 of 20 episodes bad (3 to 5, 9, 19)"


def test_salvage(run_main):
  flip(in_main("x.data"), 40_000)
  status, out, err = run_main("doctor", "s", "--salvage", "saved")
  assert (status, err) == (1, "")
  assert paragraphs(out)[-1] == (
    f"Salvaged 19 of 20 episodes to {os.path.abspath('saved')}\n"
    "  left out episode 4 of main: damaged in x.data"
  )
  saved = store.EpisodeStore("saved")
  want = [index for index in range(20) if index != 4]
  assert [episode["x"][0, 0] for episode in map(saved.episode, range(19))] == want
  assert run_main("doctor", "saved")[0] == 0
  status, _, err = run_main("doctor", "s", "--salvage", "saved")
  assert status == 1
  assert "saved: expected nothing there, got a folder. Name a new folder." in err


def test_salvage_of_a_whole_store(run_main):
  assert run_main("doctor", "s", "--salvage", "saved")[0] == 0
  assert len(store.EpisodeStore("saved")) == 20


def test_lenient(run_main):
  os.remove(in_main("checksums.index"))
  _, out, _ = run_main("doctor", "s", "--salvage", "a")
  assert "  main: episodes 0 to 19 not compared with a checksum" in out
  assert "Salvaged 0 of 20 episodes" in out
  assert "left out episodes 0 to 19 of main: no valid checksum" in out
  _, out, _ = run_main("doctor", "s", "--salvage", "b", "--lenient")
  assert "Salvaged 20 of 20 episodes" in out


def test_damaged_manifest(run_main):
  os.truncate("s/store.json", 50)
  status, out, _ = run_main("doctor", "s")
  assert status == 1
  text = " ".join(out.split())
  assert "1 problem (damaged bytes): store.json: expected JSON, got " in text
  assert "main: episodes 0 to 19 not compared with a checksum" in text
  status, _, err = run_main("doctor", "s", "--salvage", "saved")
  assert status == 1
  assert "Give the flat specs that the store was created with: spec=..., or --sp" in err
  argv = ("doctor", "s", "--salvage", "saved", "--spec", "doctor_specs:SPEC")
  status, out, err = run_main(*argv)
  assert (status, err) == (1, "")
  assert "Salvaged 20 of 20 episodes" in out


def test_everything_fits_100_columns(run_main):
  for episode in range(0, 20, 2):
    flip(in_main("x.data"), 10_000 * episode)
  flip(in_main("checksums.index"), 4)
  _, out, _ = run_main("doctor", "s", "--salvage", "saved")
  lines = [line for line in out.splitlines() if os.getcwd() not in line]
  assert max(map(len, lines)) <= 100


ERRORS = {
  "no store": ([os.curdir], "expected a store (with a store.json), a LeRobot folder"),
  "nothing": (["gone"], "TFRecord files, got nothing there"),
  "wrong specs": (
    ["s", "--spec", "doctor_specs:WRONG"],
    "doctor_specs has no 'WRONG'",
  ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name, run_main):
  argv, want = ERRORS[name]
  status, _, err = run_main("doctor", *argv)
  assert status == 1
  assert err.startswith("t2r_seq doctor: ") and want in err


BACK = [0, 1, 1, 3, 2]
BACKWARDS = (
  "expected time stamps that do not run backwards, got 2.0 at step 4, after 3.0."
)
# name: (path, what it is converted to, arguments, status, the message)
TIMES = {
  "called so": (
    "obs/timestamp",
    "",
    (),
    1,
    f"episode 1 of t: obs/timestamp: {BACKWARDS}",
  ),
  "named": (
    "clock",
    "",
    ("--time_key", "clock"),
    1,
    f"episode 1 of t: clock: {BACKWARDS}",
  ),
  "not named": ("clock", "", (), 0, "No problems in"),
  "mistyped": ("clock", "", ("--time_key", "clok"), 1, "Did you mean 'clock'?"),
  "no number": ("clock", "", ("--time_key", "task"), 1, "a number for each step, got"),
  "a topic of MCAP": (
    "clocks/cam",
    "",
    (),
    1,
    "episode 0 of t: clocks/cam: expected time stamps that rise, got 1.0 at step 2,",
  ),
  "a topic of MCAP in zarr": (
    "clocks/cam",
    "t.zarr",
    (),
    1,
    "of t.zarr: clocks/cam: expected time stamps that rise, got 1.0 at step 2",
  ),
  "of HDF5": (
    "timestamp",
    "t.hdf5",
    (),
    1,
    f"demo_1 of t.hdf5: timestamp: {BACKWARDS}",
  ),
}


@pytest.mark.parametrize("name", TIMES)
def test_time_stamps_that_run_backwards(name, run_main):
  path, other, argv, want, message = TIMES[name]
  spec = {path: Spec((), tf.float32, is_sequence=True), "task": SPEC["task"]}
  with store.EpisodeStore.create("t", spec) as writer:
    for times in (sorted(BACK), BACK, sorted(BACK)):
      writer.append_episode({path: np.asarray(times, np.float32), "task": "a"})
  if other:
    convert.convert("t", other, drop=("task",))
  status, out, err = run_main("doctor", other or "t", *argv)
  assert status == want
  assert message in " ".join((out + err).split())


CLOCKS = {"clocks/arm": [0, 0, 0, 3, 3], "clocks/cam": [0, 1, 2, 3, 4]}
# Another path's times, and what is reported; messages of the arm are held.
CLOCK_TIMES = {
  "good": ({}, 0, "No problems in"),
  "equal": (
    {"clocks/cam": [0, 1, 1, 3, 4]},
    1,
    "0 of t: clocks/cam: expected time stamps that rise, got 1 at step 2, after 1.",
  ),
  "all zero": ({"clocks/cam": [0] * 5}, 1, "that rise, got 0 at step 1, after 0."),
  "falling": (
    {"clocks/arm": [0, 3, 3, 1, 1]},
    1,
    "episode 0 of t: clocks/arm: expected time stamps that do not run backwards, got 1 "
    "at step 3, after 3.",
  ),
}


@pytest.mark.parametrize("name", CLOCK_TIMES)
def test_times_of_mcap_topics(name, run_main):
  """Only the topic that gives the steps has a new message in each."""
  changes, want, text = CLOCK_TIMES[name]
  spec = {path: Spec((), tf.int64, is_sequence=True) for path in CLOCKS}
  metadata = {"mcap": {"layout": {"clock": "/cam"}}}
  with store.EpisodeStore.create("t", spec, metadata) as writer:
    values = {**CLOCKS, **changes}
    writer.append_episode({p: np.asarray(v, np.int64) for p, v in values.items()})
  status, out, _ = run_main("doctor", "t")
  assert status == want
  assert text in " ".join(out.split())
