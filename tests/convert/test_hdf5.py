"""HDF5 files as robomimic writes them, and what is refused."""

from __future__ import annotations

import gzip
import json
import pathlib
import signal
import subprocess

import h5py
import numpy as np
import pytest

from t2r_seq import convert, errors, store
from t2r_seq.formats import hdf5_probe

DATA = pathlib.Path(__file__).parent / "data"
ENV_ARGS = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {}})
LENGTHS = {"demo_0": 4, "demo_1": 1, "demo_2": 3, "demo_10": 2}


def make_demo(name):
  """Returns the datasets of a demo; next_obs is the next obs."""
  rng = np.random.default_rng(int(name[5:]))
  steps = LENGTHS[name]
  image = rng.integers(0, 255, (steps + 1, 4, 5, 3)).astype(np.uint8)
  pos = rng.normal(size=(steps + 1, 3))
  return {
    "actions": rng.normal(size=(steps, 7)),
    "rewards": rng.normal(size=steps),
    "dones": (np.arange(steps) == steps - 1).astype(np.int64),
    "states": rng.normal(size=(steps, 32)),
    "obs/agentview_image": image[:-1],
    "obs/eef_pos": pos[:-1],
    "next_obs/agentview_image": image[1:],
    "next_obs/eef_pos": pos[1:],
  }


def make_file(path="x.hdf5", changes=None):
  """Writes a file; `changes` maps a demo's name to datasets that it has otherwise."""
  with h5py.File(path, "w") as file:
    data = file.create_group("data")
    data.attrs["env_args"] = ENV_ARGS
    data.attrs["total"] = sum(LENGTHS.values())
    for name, steps in LENGTHS.items():
      demo = data.create_group(name)
      demo.attrs["num_samples"] = steps
      demo.attrs["model_file"] = f"<mujoco model='{name}'/>"
      for key, value in {**make_demo(name), **(changes or {}).get(name, {})}.items():
        if value is not None:
          demo.create_dataset(key, data=value)
    file.create_dataset("mask/train", data=np.asarray([b"demo_0", b"demo_10"]))
    file.create_dataset("mask/valid", data=np.asarray([b"demo_1"]))


def want_episode(name, kept=()):
  want = make_demo(name)
  for key in ("agentview_image", "eef_pos"):
    if key not in kept:
      want[f"final_obs/{key}"] = want.pop(f"next_obs/{key}")[-1]
  want["model_file"] = np.empty((), object)
  want["model_file"][()] = f"<mujoco model='{name}'/>".encode()
  return want


def content(path):
  """Reads all datasets and attributes of a file, but for what conversions add."""
  found = {}

  def visit(name, item):
    if isinstance(item, h5py.Dataset):
      found[name] = (item.dtype, item[()].tolist())
    for key, value in item.attrs.items():
      if not key.startswith("t2r_seq"):
        found[f"{name}:{key}"] = np.asarray(value).tolist()

  with h5py.File(path, "r") as file:
    file.visititems(visit)
  return found


def test_into_a_store_and_out_again(data):
  """Every dataset, attribute and filter key comes back; next_obs is stored once."""
  make_file()
  report = convert.convert("x.hdf5", "back")
  assert (report.num_episodes, report.num_steps) == (4, 10)
  assert report.notes[0] == "Read in the layout of robomimic."
  assert report.notes[1].startswith("2 next_obs are the next obs")
  data.assert_episodes("back", [want_episode(name) for name in LENGTHS])
  assert store.EpisodeStore("back").metadata == {
    "robomimic": {"attrs": {"env_args": ENV_ARGS}, "demos": list(LENGTHS)}
  }
  assert store.EpisodeStore("back").splits == {"train": [0, 3], "valid": [1]}
  convert.convert("back", "y.hdf5")
  assert content("y.hdf5") == content("x.hdf5")


def test_next_obs_that_are_not_the_next(data):
  """Where one differs, in one step of one demo, the real ones are kept, and named."""
  other = make_demo("demo_2")["next_obs/eef_pos"].copy()
  other[1, 2] += 1e-9
  make_file(changes={"demo_2": {"next_obs/eef_pos": other}})
  report = convert.convert("x.hdf5", "back")
  assert report.notes[1] == (
    "next_obs/eef_pos is kept as a column: some of its rows are not the next "
    "obs/eef_pos."
  )
  want = [want_episode(name, ("eef_pos",)) for name in LENGTHS]
  want[2]["next_obs/eef_pos"] = other
  data.assert_episodes("back", want)
  convert.convert("back", "y.hdf5")
  assert content("y.hdf5") == content("x.hdf5")


def test_large_observations(data, monkeypatch):
  """next_obs is compared in pieces: a difference in any of them is found."""
  from t2r_seq.formats import robomimic

  monkeypatch.setattr(robomimic, "_COMPARED_BYTES", 1)
  other = make_demo("demo_0")["next_obs/agentview_image"].copy()
  other[2, 3, 4, 2] ^= 1
  make_file(changes={"demo_0": {"next_obs/agentview_image": other}})
  report = convert.convert("x.hdf5", "back")
  assert "next_obs/agentview_image is kept" in report.notes[1]


def test_paths_that_some_demos_lack(data):
  make_file(changes={"demo_1": {"states": None}})
  convert.convert("x.hdf5", "back")
  want = [want_episode(name) for name in LENGTHS]
  del want[1]["states"]
  data.assert_episodes("back", want)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_out_and_back(compression, data):
  spec = {**data.NUMBERS, "task": data.ALL["task"], "force": data.ALL["force"]}
  data.make_store("source", 12, spec, {"robot": "arm"})
  convert.convert("source", "x.hdf5", compression=compression)
  with h5py.File("x.hdf5", "r") as file:
    demo = file["data/demo_11"]
    assert demo.attrs["num_samples"] == 2 and demo.attrs["task"] == "episode 11"
    assert demo["obs/image"].compression == compression
    assert demo["actions"].compression is None
    assert file["data"].attrs["total"] == sum(i % 5 + 1 for i in range(12))
  convert.convert("x.hdf5", "back")
  want = [data.only(data.make_episode(index), spec) for index in range(12)]
  data.assert_episodes("back", want)
  back = store.EpisodeStore("back")
  assert back.metadata == {"robot": "arm"}
  assert dict(back.spec) == dict(store.EpisodeStore("source").spec)


def test_bytes_that_are_no_text(data):
  spec = {"dones": data.NUMBERS["dones"], "task": data.ALL["task"]}
  with store.EpisodeStore.create("source", spec) as writer:
    for task in (b"\xff\0\xfe\0", b"", b"a\0", "ü".encode()):
      writer.append_episode({"dones": [True], "task": task})
  convert.convert("source", "x.hdf5")
  convert.convert("x.hdf5", "back")
  tasks = [
    episode["task"][()] for episode in map(store.EpisodeStore("back").episode, range(4))
  ]
  assert tasks == [b"\xff\0\xfe\0", b"", b"a\0", "ü".encode()]


BAD_FILES = {
  "rows": (
    {"demo_1": {"actions": np.zeros((2, 7)), "states": np.zeros((3, 32))}},
    [
      "actions: expected 1 rows, got (2, 7) float64 in data/demo_1",
      "states: expected 1",
    ],
  ),
  "another shape": (
    {"demo_2": {"actions": np.zeros((3, 6))}},
    ["actions: expected (7,) float64 a step, as before, got (6,) float64 a step"],
  ),
  "no numbers": (
    {name: {"pairs": np.zeros(n, [("a", "f4")])} for name, n in LENGTHS.items()},
    ["pairs: expected numbers, got [('a', '<f4')]. Leave it out: --drop pairs."],
  ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(name):
  changes, wants = BAD_FILES[name]
  make_file(changes=changes)
  with pytest.raises(ValueError) as caught:
    convert.convert("x.hdf5", "back")
  for want in wants:
    assert want in str(caught.value)
  assert not pathlib.Path("back").exists()


def test_dropped_datasets_are_not_checked(data):
  changes, _ = BAD_FILES["no numbers"]
  make_file(changes=changes)
  convert.convert("x.hdf5", "back", drop=("pairs", "states"))
  want = [want_episode(name) for name in LENGTHS]
  for episode in want:
    del episode["states"]
  data.assert_episodes("back", want)


def test_no_demos():
  with h5py.File("x.hdf5", "w") as file:
    file["observations"] = np.zeros(3)
  with pytest.raises(ValueError, match=r"the layout of .*\n  observations  \(3,"):
    convert.convert("x.hdf5", "back")


def add_external_storage(file):
  place = [("other.bin", 0, 4 * 8)]
  file["data/demo_0"].create_dataset("obs/far", (4,), "f8", external=place)


def add_virtual(file):
  layout = h5py.VirtualLayout((4,), "f8")
  layout[:] = h5py.VirtualSource("other.hdf5", "data/demo_0/rewards", (4,))
  file["data/demo_0"].create_virtual_dataset("obs/far", layout)


def link(place):
  def add(file):
    file[place] = h5py.ExternalLink("other.hdf5", "/data/demo_0/rewards")

  return add


def add_soft_link(file):
  """Within the file; it had been left out without a word."""
  file["data/demo_0/obs/far"] = h5py.SoftLink("/data/demo_0/rewards")


# name: (what is added, what the error says, what may be left out)
FOREIGN = {
  "storage": (add_external_storage, "obs/far: .*data in other files at", "obs/far"),
  "virtual": (add_virtual, "obs/far: .*a virtual dataset at /data/demo_0", "obs/far"),
  "a dataset": (link("data/demo_0/obs/far"), "obs/far: .*a link to other", "obs"),
  "a group": (link("data/demo_0/far"), "far: .*a link to other.hdf5 at", "far"),
  "within the file": (add_soft_link, "obs/far: .*a link within the file", "obs/far"),
  "a demo": (link("data/demo_11"), "/data/demo_11: .*a link to other.hdf5 at", None),
  "a mask": (link("mask/more"), "/mask/more: .*a link to other.hdf5 at", None),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_references_to_other_files_are_refused(name):
  add, want, to_drop = FOREIGN[name]
  make_file()
  make_file("other.hdf5")
  pathlib.Path("other.bin").write_bytes(bytes(32))
  with h5py.File("x.hdf5", "a") as file:
    add(file)
  with pytest.raises(ValueError, match=f"x.hdf5: .*{want}") as caught:
    convert.convert("x.hdf5", "back")
  is_within = name == "within the file"
  assert ("data in this file" in str(caught.value)) is not is_within
  assert not pathlib.Path("back").exists()
  if to_drop:
    options = dict(drop=(to_drop,))
    assert convert.convert("x.hdf5", "back", **options).num_episodes == 4
    # Of what it was told to leave out, nothing is in the way of going on either.
    assert convert.convert("x.hdf5", "back", **options).num_episodes == 4


def test_all_data_from_another_file():
  make_file("other.hdf5")
  with h5py.File("x.hdf5", "w") as file:
    file["data"] = h5py.ExternalLink("other.hdf5", "/data")
  with pytest.raises(ValueError, match=r"/data: .*a link to other\.hdf5 at /data"):
    convert.convert("x.hdf5", "back")


# Files of which a byte or two were changed; see data/README.md.
@pytest.mark.parametrize("name", ["endless", "crash"])
def test_files_that_crash_libhdf5_are_an_error(name, monkeypatch):
  packed = (DATA / f"{name}.hdf5.gz").read_bytes()
  pathlib.Path("x.hdf5").write_bytes(gzip.decompress(packed))
  probe = pathlib.Path(hdf5_probe.__file__).read_text()
  quick = pathlib.Path("probe.py")
  quick.write_text(probe.replace("MAX_SECONDS = 30", "MAX_SECONDS = 1"))
  monkeypatch.setattr(hdf5_probe, "__file__", str(quick))
  with pytest.raises(errors.ConversionError, match=r"x.hdf5: expected an HDF5 file"):
    convert.convert("x.hdf5", "back")


@pytest.mark.parametrize(
  ("status", "want"),
  [
    (-signal.SIGXCPU, "one that keeps libhdf5 busy for more than 30 s"),
    (-signal.SIGSEGV, r"one that libhdf5 crashes on \(SIGSEGV\)"),
  ],
)
def test_error_names_how_the_probe_ended(status, want, monkeypatch):
  make_file()
  done = subprocess.CompletedProcess([], status, "", "")
  monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
  with pytest.raises(errors.ConversionError, match=f"walked through, got {want}. The"):
    convert.convert("x.hdf5", "back")


def test_group_that_is_in_itself():
  make_file()
  with h5py.File("x.hdf5", "a") as file:
    file["data/demo_0/obs/again"] = file["data/demo_0"]
  assert convert.convert("x.hdf5", "back").num_episodes == 4
