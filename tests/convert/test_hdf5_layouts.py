"""HDF5 as Minari, ALOHA and D4RL write it, folders, and layouts of one's own."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess

import h5py
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, errors, specs, store
from t2r_seq.cli.main import main
from t2r_seq.episodes import open_episodes
from t2r_seq.episodes import splits as store_splits
from t2r_seq.specs.packing import encode_image
from tests.convert.lerobot_sets import REAL_DATA


def values_of(episodes):
  return [episode.values for episode in episodes]


RNG = np.random.default_rng(0)
OBS = RNG.normal(size=(9, 3)).astype(np.float32)
IMAGES = RNG.integers(0, 255, (9, 8, 6, 3)).astype(np.uint8)
JPEGS = [encode_image(image, "jpeg", 90) for image in IMAGES]
LENGTHS = (5, 4)


def spans():
  return [(0, 5), (5, 9)]


def make_d4rl(path="d4rl.hdf5"):
  """One long file; the second episode ran into its time limit, the last was cut off."""
  with h5py.File(path, "w") as file:
    file["observations"], file["actions"] = OBS, OBS[:, :2]
    file["rewards"] = np.arange(9.0)
    file["terminals"] = np.arange(9) == 4
    file["timeouts"] = np.zeros(9, bool)
    file["infos/qpos"] = OBS[:, :1]
    file["metadata/algorithm"] = b"SAC"
  return path


def make_aloha(path="aloha"):
  """A folder with a file an episode: JPEGs padded to one size, and as vlen rows."""
  os.mkdir(path)
  for number, (start, stop) in enumerate(spans()):
    with h5py.File(f"{path}/episode_{number}.hdf5", "w") as file:
      file.attrs["sim"] = True
      file["action"] = OBS[start:stop, :2]
      file["observations/qpos"] = OBS[start:stop]
      size = max(map(len, JPEGS))
      padded = [np.frombuffer(j.ljust(size, b"\0"), np.uint8) for j in JPEGS]
      file["observations/images/top"] = np.stack(padded[start:stop])
      rows = file.create_dataset(
        "observations/images/side", (stop - start,), h5py.vlen_dtype(np.uint8)
      )
      for row in range(stop - start):
        rows[row] = np.frombuffer(JPEGS[start + row], np.uint8)
      file["compress_len"] = [[len(j) for j in JPEGS[start:stop]]]
      file.create_dataset(
        "words", data=["go"] * (stop - start), dtype=h5py.string_dtype()
      )
  return path


def make_own(path="own.h5"):
  """Runs in groups, with names of its own; and what belongs to no run."""
  with h5py.File(path, "w") as file:
    for number, (start, stop) in enumerate(spans()):
      file[f"runs/r{number}/state/pos"] = OBS[start:stop]
      file[f"runs/r{number}/act"] = OBS[start:stop, :2]
    file["calibration"] = np.eye(3)
  return path


def check(opened, path, values=OBS):
  assert opened.episode_lengths.tolist() == list(LENGTHS)
  for number, (start, stop) in enumerate(spans()):
    np.testing.assert_array_equal(opened.episode(number)[path], values[start:stop])


@pytest.fixture(autouse=True)
def fixture_here(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


ALL_ENDS = np.arange(9) == 8
# name: (what is changed in the file, what is noted)
ENDS = {
  "cut off": (
    lambda file: None,
    "the last episode, of 4 steps, has no end flag: the recording",
  ),
  "never set": (
    lambda file: file["terminals"].write_direct(np.zeros(9, bool)),
    "no flag of [terminals, timeouts] is set: all 9 steps are read as one episode",
  ),
  "no timeouts": (
    lambda file: file.pop("timeouts"),
    "there are no timeouts: an episode that ran into its time limit is joined",
  ),
  "all there": (lambda file: file["timeouts"].write_direct(ALL_ENDS), None),
}


@pytest.mark.parametrize("name", ENDS)
def test_d4rl_without_ends_is_noted(name):
  change, want = ENDS[name]
  with h5py.File(make_d4rl(), "r+") as file:
    change(file)
  notes = open_episodes("d4rl.hdf5").notes
  assert want in str(notes) if want else len(notes) == 2


# name: (episodes by filter key, whether a note is expected)
MASKS = {
  "apart": ({"train": [0, 1], "valid": [2]}, False),
  "overlap": ({"train": [0, 1], "valid": [1, 2]}, True),
  "parts": ({"20_percent_train": [0, 1], "20_percent_valid": [1]}, True),
  "a part of train": ({"train": [0, 1], "20_percent_train": [0], "latest": [1]}, False),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_overlap_are_noted(name):
  masks, is_noted = MASKS[name]
  with h5py.File("x.hdf5", "w") as file:
    for number in range(3):
      file[f"data/demo_{number}/actions"] = np.zeros((4, 2))
    for key, numbers in masks.items():
      file[f"mask/{key}"] = [f"demo_{number}".encode() for number in numbers]
  notes = open_episodes("x.hdf5").notes
  assert any("share episodes, 1 in all" in note for note in notes) == is_noted
  convert.convert("x.hdf5", "s")
  assert (
    bool(store_splits.describe_overlaps(store.EpisodeStore("s").splits)) == is_noted
  )


def test_d4rl_ends_at_flags_and_the_next_row_is_the_next_observation():
  report = convert.convert(make_d4rl(), "s")
  assert "layout of D4RL" in report.notes[0]
  assert "metadata/algorithm" in report.notes[2]
  opened = store.EpisodeStore("s")
  check(opened, "observations")
  check(opened, "infos/qpos", OBS[:, :1])
  spec = specs.ExtendedTensorSpec
  window = opened.windows(
    {
      "obs": spec((3,), tf.float32, "observations", time_offsets=0),
      "next": spec((3,), tf.float32, "observations", time_offsets=1),
    },
    padding="drop",
  )
  assert len(window) == sum(LENGTHS) - 2  # None crosses an episode.
  np.testing.assert_array_equal(window[4]["next"], OBS[6])


def lose_rows(make, *names, stop=4):
  """Makes files whose datasets were allocated, and written up to a row or not at all.

  A stop of 0 leaves contiguous datasets without any space.
  """

  def change():
    path = make()
    files = [path] if os.path.isfile(path) else sorted(pathlib.Path(path).iterdir())
    for each in files[-1:]:
      with h5py.File(each, "r+") as file:
        for name in names:
          values = file[name][()]
          del file[name]
          chunks = (2, *values.shape[1:]) if stop else None
          file.create_dataset(name, values.shape, values.dtype, chunks=chunks)
          if stop:
            file[name][:stop] = values[:stop]
    return path

  return change


def make_minari(path="minari.hdf5"):
  """A group for each episode, with a camera and one observation more than actions."""
  with h5py.File(path, "w") as file:
    for number in range(2):
      group = file.create_group(f"episode_{number}")
      group["observations/image"] = IMAGES[:7]
      group["observations/pos"] = OBS[:7]
      group["actions"], group["rewards"] = OBS[:6, :2], np.ones(6)
      group["terminations"] = group["truncations"] = np.arange(6) == 5
  return path


def make_demos(path="demos.hdf5"):
  """Robomimic's layout."""
  with h5py.File(path, "w") as file:
    for number in range(2):
      group = file.create_group(f"data/demo_{number}")
      group["obs/image"], group["obs/pos"] = IMAGES[:6], OBS[:6]
      group["actions"], group["rewards"] = OBS[:6, :2], np.ones(6)
      group.attrs["num_samples"] = 6
  return path


# name: (the files, what is reported of which dataset, whether `doctor` takes it for
# damage)
UNWRITTEN = {
  "nothing of D4RL": (make_d4rl, "", False),
  "nothing of ALOHA": (make_aloha, "", False),
  "nothing of Minari": (make_minari, "", False),
  "nothing of robomimic": (make_demos, "", False),
  "rows of D4RL": (
    lose_rows(make_d4rl, "observations"),
    "observations: 3 of 5 chunks were never written, and are read as 0.0, first in "
    "d4rl.hdf5, from row 4. They are lost, unless",
    False,
  ),
  "a contiguous dataset of D4RL": (
    lose_rows(make_d4rl, "rewards", stop=0),
    "rewards: 1 of 1 chunks were never written, and are read as 0.0, first in d4rl",
    False,
  ),
  "a contiguous dataset of ALOHA": (
    lose_rows(make_aloha, "observations/qpos", stop=0),
    "observations/qpos: 1 of 2 chunks were never written, and are read as 0.0, first "
    "in steps 0 to 3 of aloha/episode_1.hdf5, from row 0.",
    False,
  ),
  "images of Minari": (
    lose_rows(make_minari, "episode_1/observations/image"),
    "observations/image: 2 of 5 chunks were never written, and are read as 0, first in "
    "episode_1 of minari.hdf5, from row 4.",
    True,
  ),
  "actions of robomimic": (
    lose_rows(make_demos, "data/demo_1/actions"),
    "actions: 1 of 4 chunks were never written",
    False,
  ),
  "images of robomimic": (
    lose_rows(make_demos, "data/demo_0/obs/image", stop=0),
    "obs/image: 1 of 2 chunks were never written",
    True,
  ),
}


@pytest.mark.parametrize("name", UNWRITTEN)
def test_chunks_that_were_never_written_are_reported(name, capsys):
  make, match, is_damage = UNWRITTEN[name]
  path = make()
  found = [n for n in convert.convert(path, "back").notes if "never written" in n]
  assert len(found) == bool(match) and match in "".join(found)
  assert main(["doctor", path]) == int(is_damage)
  assert match in " ".join(capsys.readouterr().out.split())


def test_aloha_is_a_folder_of_files_with_jpegs():
  convert.convert(make_aloha(), "s")
  opened = store.EpisodeStore("s")
  check(opened, "observations/qpos")
  for camera in ("top", "side"):
    path = f"observations/images/{camera}"
    assert opened.spec[path].data_format == "jpeg"
    assert opened.spec[path].shape == (8, 6, 3)
    check(opened, path, np.array(JPEGS, object))
  check(opened, "words", np.array([b"go"] * 9, object))
  assert "compress_len" not in opened.spec
  assert bool(opened.episode(0)["sim"])


def test_files_are_walked_through_in_one_process(monkeypatch):
  """A folder has thousands; the one that libhdf5 crashes on is named all the same."""
  path = make_aloha()
  run, runs = subprocess.run, []

  def watched(*args, **options):
    runs.append(args)
    return run(*args, **options)

  monkeypatch.setattr(subprocess, "run", watched)
  for _ in range(2):  # Once, as long as it does not change.
    assert open_episodes(path).num_episodes == 2
  assert len(runs) == 1
  crashed = subprocess.CompletedProcess([], -signal.SIGSEGV, "[]\n", "")
  monkeypatch.setattr(subprocess, "run", lambda *_, **__: crashed)
  with pytest.raises(errors.ConversionError, match=r"episode_1.hdf5: .*crashes on"):
    open_episodes(make_aloha("other"))


def test_unknown_layout_is_listed_in_the_error():
  make_own()
  with pytest.raises(errors.ConversionError) as error:
    convert.convert("own.h5", "s")
  assert "runs/" in str(error.value) and "pos  (5, 3) float32" in str(error.value)
  assert "--layout" in str(error.value)

  def layout(values):
    pathlib.Path("layout.json").write_text(json.dumps(values))
    return dict(layout="layout.json")

  paths = {"obs": "state/pos", "actions": "act"}
  convert.convert("own.h5", "s", **layout({"episodes": "runs/*", "paths": paths}))
  opened = store.EpisodeStore("s")
  assert sorted(opened.spec) == ["actions", "obs"]
  check(opened, "obs")
  for command in ("inspect", "doctor"):
    assert main([command, "own.h5", "--layout", "layout.json"]) == 0
  make_d4rl()
  convert.convert("d4rl.hdf5", "t", **layout({"ends": ["terminals"]}))
  check(store.EpisodeStore("t"), "rewards", np.arange(9.0))
  for values, message in (
    ({"episode": "x"}, r"'episode'\. Did you mean 'episodes'"),
    ({"episodes": "runs/*", "ends": ["x"]}, "a pattern of groups such as"),
    ({"episodes": "run/*"}, r"expected episodes at 'run/\*', got"),
    ({"episodes": "runs/*", "paths": {"a": "state/pas"}}, "Did you mean 'state/pos'"),
    ({"ends": ["done"]}, r"own.h5: expected the flags \[done\]"),
  ):
    with pytest.raises(errors.ConversionError, match=message):
      open_episodes("own.h5", **layout(values))


def test_folder_of_robomimics_files_has_their_filter_keys():
  os.mkdir("demos")
  for part in range(2):
    with h5py.File(f"demos/part_{part}.hdf5", "w") as file:
      for demo in range(2):
        file[f"data/demo_{demo}/actions"] = np.full((3, 2), 2 * part + demo)
        file[f"data/demo_{demo}/obs/pos"] = OBS[:3]
        file[f"data/demo_{demo}/next_obs/pos"] = OBS[1:4]
      file["mask/train"] = [f"demo_{part}".encode()]
  convert.convert("demos", "s", filter="train")
  opened = store.EpisodeStore("s")
  assert [opened.episode(n)["actions"][0, 0] for n in range(len(opened))] == [0, 3]
  assert sorted(opened.spec) == ["actions", "final_obs/pos", "obs/pos"]


def damage_image(name):
  with h5py.File(name, "r+") as file:
    file["observations/images/side"][2] = np.zeros(80, np.uint8)


def other_shape(name):
  with h5py.File(name, "r+") as file:
    del file["observations/qpos"]
    file["observations/qpos"] = np.zeros((4, 5), np.float32)


def test_damaged_image_is_named_by_file_key_and_step():
  damage_image(f"{make_aloha()}/episode_1.hdf5")
  match = "episode_1.hdf5: observations/images/side: step 2: expected an image, jpeg"
  with pytest.raises(errors.ConversionError, match=match):
    values_of(open_episodes("aloha"))


def test_aloha_leaves_out_datasets_without_rows():
  with h5py.File(f"{make_aloha()}/episode_0.hdf5", "r+") as file:
    file["observations/nothing"] = h5py.Empty("f4")
    file["observations/far"] = h5py.SoftLink("/observations/qpos")
  report = convert.convert("aloha", "s", drop=("observations/far",))
  assert "[observations/nothing] have no row for each step" in report.notes[1]
  check(store.EpisodeStore("s"), "observations/qpos")


def test_link_to_an_episode_is_named():
  with h5py.File(make_own(), "r+") as file:
    file["runs/r2"] = h5py.SoftLink("/runs/r0")
  pathlib.Path("layout.json").write_text('{"episodes": "runs/*"}')
  want = "/runs/r2: expected data, got a link within the file to /runs/r0"
  with pytest.raises(errors.ConversionError, match=want):
    open_episodes("own.h5", layout="layout.json")


@pytest.mark.parametrize("name", ["minari_hdf5", "minari_arrow", "minari_hdf5_images"])
def test_minari_gives_what_its_own_reader_gives(name):
  manifest = json.loads((REAL_DATA / name / "MANIFEST.json").read_text())
  source = REAL_DATA / name / manifest["dataset_id"]
  convert.convert(source, "s")
  opened = store.EpisodeStore("s")
  assert opened.episode_lengths.tolist() == manifest["lengths"]
  assert opened.metadata["minari"]["dataset_id"] == manifest["dataset_id"]
  path = "observations/state" if name.endswith("images") else "observations"
  if name.endswith("images"):
    assert opened.spec["observations/camera"].data_format == "jpeg"
  for sample in manifest["samples"]:
    episode, t = opened.episode(sample["episode"]), sample["step"]
    want = sample["minari_reader"]
    rows = np.concatenate([episode[path], episode[f"final_{path}"][None]])
    state = [want[k] for k in ("observation", "next_observation")]
    state = [v["state"] if isinstance(v, dict) else v for v in state]
    np.testing.assert_allclose(rows[t : t + 2], state, rtol=1e-6)
    assert episode["actions"][t] == want["action"]
    assert episode["rewards"][t] == want["reward"]


def make_rates(path="rates.h5"):
  """Runs with an arm at 10 Hz, a force at 100 Hz and JPEGs at 30 Hz."""
  values = []
  with h5py.File(path, "w") as file:
    for number, steps in enumerate(LENGTHS):
      counts = {"arm": steps, "force": 10 * steps + number, "camera": 3 * steps}
      run = {f"{name}_time": np.arange(n) / n for name, n in counts.items()}
      run |= {name: RNG.normal(size=(n, 2)) for name, n in counts.items()}
      run["camera"] = [JPEGS[k % 9] for k in range(counts["camera"])]
      group = file.create_group(f"runs/{number}")
      for name, value in run.items():
        if name != "camera":
          group[name] = value
          continue
        rows = group.create_dataset(name, (len(value),), h5py.vlen_dtype(np.uint8))
        for row, data in enumerate(value):
          rows[row] = np.frombuffer(data, np.uint8)
      values.append(run)
  return values


RATES = {"force": "force_time", "camera": "camera_time"}


def test_arrays_of_other_rates_keep_their_clocks():
  values = make_rates()
  layout = {"episodes": "runs/*", "clocks": RATES}
  pathlib.Path("layout.json").write_text(json.dumps(layout))
  convert.convert("rates.h5", "own", layout="layout.json")
  opened = open_episodes("rates.h5", layout="layout.json")
  for episodes in (opened, open_episodes("own")):
    assert dict(episodes.clocks) == {**RATES, **{c: c for c in RATES.values()}}
    assert episodes.lengths.tolist() == [*LENGTHS]
    for want, found in zip(values, values_of(episodes), strict=True):
      for path, value in want.items():
        assert np.array_equal(found[path], value), path
  assert opened.spec["force"].shape.as_list() == [None, 2]


BAD_LAYOUTS = {
  "an unknown clock": (
    {"force": "force_times"},
    "force_times: .*Did you mean 'force_time'",
  ),
  "no mapping": (["force"], '"clocks": {"force": "force_time"}'),
}


@pytest.mark.parametrize("name", BAD_LAYOUTS)
def test_bad_clocks_of_a_layout(name):
  make_rates()
  clocks, want = BAD_LAYOUTS[name]
  layout = {"episodes": "runs/*", "clocks": clocks}
  pathlib.Path("layout.json").write_text(json.dumps(layout))
  with pytest.raises(errors.ConversionError, match=want):
    open_episodes("rates.h5", layout="layout.json")
