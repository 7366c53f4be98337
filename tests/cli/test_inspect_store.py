"""`t2r_seq inspect` of a store's folder: numbers in place, on 100 columns."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import specs, store, windows
from t2r_seq.specs.assets import create_t2r_assets, write_t2r_assets_to_file

Spec = specs.ExtendedTensorSpec
LONG = "observation/" + "camera_on_the_left_wrist/" * 3 + "image"
WINDOWS = {
  "image": Spec((4, 8, 8, 3), tf.uint8, time_offsets=(-3, -2, -1, 0)),
  "action": Spec((2, 7), tf.float32, time_offsets=(0, 1)),
  "task": Spec((), tf.string),
  "rating": Spec((), tf.int64, is_optional=True),
}


@pytest.fixture(name="make_store")
def fixture_make_store(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)

  def make(lengths, **options):
    spec = windows.flat_specs(WINDOWS)
    with store.EpisodeStore.create("s", spec, commit_every=999, **options) as writer:
      for index, length in enumerate(lengths):
        writer.append_episode(
          {
            "image": np.zeros((length, 8, 8, 3), np.uint8),
            "action": np.zeros((length, 7), np.float32),
            "task": "wave",
            "rating": index if index % 2 else None,
          }
        )

  return make


def test_table(make_store, run_main):
  make_store([10] * 99 + [1000], metadata={"robot": "arm", "tags": ["a", 1]})
  status, out, err = run_main("inspect", "s")
  assert (status, err) == (0, "")
  paragraphs = out.split("\n\n")
  assert paragraphs[0].endswith("/s:\n100 episodes, 1,990 steps, 1 segment")
  assert paragraphs[1].splitlines() == [
    "column  dtype    row      rows  per        bytes  bytes/step  optional",
    "──────  ───────  ──────  ─────  ───────  ───────  ──────────  ──────────────",
    "image   uint8    8x8x3   1,990  step     382,080       192.0",
    "action  float32  7       1,990  step      55,720        28.0",
    "task    string   scalar    100  episode    1,208         0.6",
    "rating  int64    scalar    100  episode      900         0.5  in 50 episodes",
  ]
  assert paragraphs[2] == "lengths: min 10, median 10, mean 19.9, max 1,000"
  bars = paragraphs[3].splitlines()[2:]
  assert bars[0] == f"   10 to 133        99  {'█' * 40}"
  assert bars[1:-1] == [
    f"  {first} to {first + 123}         0" for first in range(134, 878, 124)
  ]
  assert bars[-1] == "878 to 1,000         1  █"
  assert paragraphs[4].endswith(" times the 438,600 bytes of the values themselves")
  # Images and actions four times, and the context features with every stack.
  context = 1990 * (400 + 50 * 8) // 100
  assert paragraphs[5] == (
    f"A stack of 4 frames at every step would take {4 * 437_800 + context:,} bytes, "
    "4.03 times as much."
  )
  assert paragraphs[6] == 'metadata:\n  robot: "arm"\n  tags: ["a", 1]\n'


def test_with_specs(make_store, run_main, tmp_path, monkeypatch):
  make_store([3, 10, 20])
  (tmp_path / "my_specs.py").write_text(
    "import tensorflow as tf\nfrom t2r_seq import specs\n"
    "WINDOWS = {'image': specs.ExtendedTensorSpec((4, 8, 8, 3), tf.uint8,\n"
    "  time_offsets=(-3, -2, -1, 0))}\n"
    "WRONG = {'image': specs.ExtendedTensorSpec((2, 8, 9, 3), tf.uint8,\n"
    "  time_offsets=(-1, 0)), 'depth': specs.ExtendedTensorSpec((), tf.uint8)}\n"
  )
  status, out, err = run_main("inspect", "s", "--spec", "my_specs:WINDOWS")
  assert (status, err) == (0, "")
  assert (
    "The store fits my_specs:WINDOWS: windows from step -3 to +0 of paths that take "
    "6,336 bytes\n\n"
    "padding  windows  episodes without  bytes if stacked  to flat\n"
    "───────  ───────  ────────────────  ────────────────  ───────\n"
    "drop          24                 1            18,432   2.91 x\n"
    "repeat        33                 0            25,344   4.00 x\n"
    "zero          33                 0            25,344   4.00 x\n"
  ) in out
  # As an export declares what it reads: by names, too.
  by_name = specs.TensorSpecStruct(
    camera=Spec((4, 8, 8, 3), tf.uint8, name="image", time_offsets=(-3, -2, -1, 0))
  )
  action = Spec((2, 7), tf.float32, name="action", time_offsets=(0, 1))
  assets = create_t2r_assets(by_name, {"action": action})
  write_t2r_assets_to_file(assets, "t2r_assets.pbtxt")
  status, out, err = run_main("inspect", "s", "--spec", "t2r_assets.pbtxt")
  assert (status, err) == (0, "")
  assert "The store fits t2r_assets.pbtxt: windows from step -3 to +1" in out
  status, out, err = run_main("inspect", "s", "--spec", "my_specs:WRONG")
  assert (status, out) == (1, "")
  assert err.startswith("t2r_seq inspect: EpisodeStore: ")
  assert "2 mismatches:\n  depth: expected" in err
  assert "image: expected (8, 9, 3) uint8, per step, got (8, 8, 3) uint8" in err


def test_everything_fits_100_columns(tmp_path, run_main):
  spec = {
    LONG: Spec((1080, 1920, 3), tf.uint8, is_sequence=True, data_format="jpeg"),
    "short": Spec((), tf.bool, is_sequence=True, is_optional=True),
  }
  metadata = {"about": "words " * 50, "k" * 150: 1}
  image = tf.io.encode_png(tf.zeros((1080, 1920, 3), tf.uint8)).numpy()
  for segment in ("main", "w" * 90):
    opened = (
      store.EpisodeStore.create(tmp_path / "s", spec, metadata)
      if segment == "main"
      else store.EpisodeStore.append(tmp_path / "s", segment)
    )
    with opened as writer:
      for length in (3, 4000):
        writer.append_episode({LONG: [image] * length})
  status, out, _ = run_main("inspect", tmp_path / "s")
  assert status == 0
  lines = [line for line in out.splitlines() if not line.startswith(str(tmp_path))]
  assert max(map(len, lines)) <= 100
  assert any(line.startswith("obs") and "…" in line for line in lines)
  assert any(line.split()[:3] == ["main", "2", "4,003"] for line in lines)


def test_no_episodes(make_store, run_main):
  make_store([])
  status, out, _ = run_main("inspect", "s")
  assert status == 0
  assert "0 episodes, 0 steps, 0 segments" in out
  assert "lengths" not in out


def test_spec_of_a_store(make_store, run_main):
  make_store([3])
  status, out, err = run_main("inspect", "s", "--format", "json")
  assert (status, err) == (0, "")
  want = store.EpisodeStore("s").spec
  got = specs.TensorSpecStruct.from_json(out)
  assert list(got) == list(want)
  assert all(got[path].is_identical_to(spec) for path, spec in want.items())
  status, printed, _ = run_main("inspect", "s", "--output", "spec.json")
  assert "1 episode, 3 steps" in printed
  assert printed.endswith(
    "\n\nWrote the store's spec to spec.json; use it with --spec spec.json\n"
  )
  assert pathlib.Path("spec.json").read_text() == out
  assert run_main("inspect", "s", "--spec", "spec.json")[0] == 0


ERRORS = {
  "no store": (["."], "expected a store (with a store.json), a LeRobot folder"),
  "no manifest": (["m"], "without its store.json: t2r_seq doctor m --spec SPEC --sal"),
  "max_records": (["s", "--max_records", "3"], "--max_records is for TFRecord files"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name, tmp_path, monkeypatch, run_main):
  argv, want = ERRORS[name]
  monkeypatch.chdir(tmp_path)
  (tmp_path / "m" / "segments").mkdir(parents=True)
  spec = {"x": specs.ExtendedTensorSpec((), tf.float32, "x", is_sequence=True)}
  store.EpisodeStore.create("s", spec).close()
  status, _, err = run_main("inspect", *argv)
  assert status == 1
  assert err.startswith("t2r_seq inspect: ") and want in err
