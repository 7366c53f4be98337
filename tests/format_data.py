"""The same three short episodes in every format; skips what needs a missing extra."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import records, specs, store
from t2r_seq.cli import main

Spec = specs.ExtendedTensorSpec
# The last is shorter than a window.
LENGTHS = (4, 5, 1)
_RNG = np.random.default_rng(0)
EPISODES = [
  {
    "state": _RNG.normal(size=(length, 3)).astype(np.float32),
    "action": _RNG.normal(size=(length, 2)).astype(np.float32),
  }
  for length in LENGTHS
]
_STORED = {
  "state": Spec((3,), tf.float32, "state", is_sequence=True),
  "action": Spec((2,), tf.float32, "action", is_sequence=True),
}


def make_store(path: str, spec: Any = None) -> str:
  """Writes a store, perhaps under other names."""
  names = dict(zip(spec or _STORED, ("state", "action"), strict=True))
  with store.EpisodeStore.create(
    path, spec or _STORED, {"fps": 10}, allow_nan=True
  ) as writer:
    for episode in EPISODES:
      writer.append_episode({name: episode[own] for name, own in names.items()})
  return path


def _named(state: str, action: str) -> dict[str, Any]:
  specs_of = zip((state, action), _STORED.values(), strict=True)
  return {name: Spec.from_spec(spec, name=name) for name, spec in specs_of}


def _converted(path: str, state: str, action: str, *options: str) -> str:
  make_store("source", _named(state, action))
  assert main(["convert", "source", path, *options]) == 0
  return path


def make_records() -> str:
  """Writes SequenceExamples, an episode each."""
  records.write_records("a.tfrecord", specs.TensorSpecStruct(_STORED), EPISODES)
  return "a.tfrecord"


def make_steps() -> str:
  """Writes Examples, a step each, with the number of the episode."""
  spec = {name: Spec.from_spec(s, is_sequence=False) for name, s in _STORED.items()}
  spec["episode"] = Spec((), tf.int64, "episode")
  steps = [
    {**{name: value[t] for name, value in episode.items()}, "episode": np.int64(number)}
    for number, episode in enumerate(EPISODES)
    for t in range(len(episode["state"]))
  ]
  records.write_records("steps.tfrecord", specs.TensorSpecStruct(spec), steps)
  return "steps.tfrecord"


def make_rlds() -> str:
  """Writes RLDS episodes as TFDS does: the steps of a feature in one list."""
  spec = {
    f"steps/{name}": Spec.from_spec(
      leaf, name=f"steps/{name}", is_concatenated=True, is_sequence=True
    )
    for name, leaf in {
      "observation/state": _STORED["state"],
      "action": _STORED["action"],
      "is_first": Spec((), tf.bool),
      "is_last": Spec((), tf.bool),
    }.items()
  }
  episodes = []
  for episode in EPISODES:
    steps = np.arange(len(episode["state"]))
    values = {
      "observation/state": episode["state"],
      "action": episode["action"],
      "is_first": steps == 0,
      "is_last": steps == steps[-1],
    }
    episodes.append({f"steps/{name}": value for name, value in values.items()})
  name = "rlds-train.tfrecord-00000-of-00001"
  records.write_records(name, specs.TensorSpecStruct(spec), episodes)
  return name


def make_array_records() -> str:
  """Writes the SequenceExamples to ArrayRecord."""
  module = pytest.importorskip("array_record.python.array_record_module")
  writer = module.ArrayRecordWriter("a.array_record", "group_size:1")
  for record in tf.data.TFRecordDataset(make_records()).as_numpy_iterator():
    writer.write(record)
  writer.close()
  return "a.array_record"


def make_lerobot() -> str:
  """Writes a LeRobot folder, v3."""
  pytest.importorskip("pyarrow")
  options = ("--fps", "10", "--task", "push")
  return _converted("a.lerobot", "observation.state", "action", *options)


def make_lerobot_21() -> str:
  """Writes a LeRobot folder, v2.1: a file an episode."""
  pa = pytest.importorskip("pyarrow")
  parquet = pytest.importorskip("pyarrow.parquet")
  folder = pathlib.Path("b.lerobot")
  (folder / "data/chunk-000").mkdir(parents=True)
  (folder / "meta").mkdir()
  first = 0
  for number, episode in enumerate(EPISODES):
    steps = np.arange(len(episode["state"]))
    columns: dict[str, Any] = {
      "observation.state": pa.array([*episode["state"]], pa.list_(pa.float32(), 3)),
      "action": pa.array([*episode["action"]], pa.list_(pa.float32(), 2)),
      "timestamp": (steps / 10).astype(np.float32),
      "frame_index": steps,
      "episode_index": np.full(len(steps), number),
      "index": first + steps,
      "task_index": 0 * steps,
    }
    first += len(steps)
    name = folder / f"data/chunk-000/episode_{number:06d}.parquet"
    parquet.write_table(pa.table(columns), name)
  features = {
    name: {"dtype": dtype, "shape": [size], "names": None}
    for name, dtype, size in (
      ("observation.state", "float32", 3),
      ("action", "float32", 2),
      ("timestamp", "float32", 1),
      ("frame_index", "int64", 1),
      ("episode_index", "int64", 1),
      ("index", "int64", 1),
      ("task_index", "int64", 1),
    )
  }
  info = {
    "codebase_version": "v2.1",
    "robot_type": "arm",
    "total_episodes": len(LENGTHS),
    "total_frames": sum(LENGTHS),
    "total_tasks": 1,
    "total_videos": 0,
    "total_chunks": 1,
    "chunks_size": 1000,
    "fps": 10,
    "splits": {"train": f"0:{len(LENGTHS)}"},
    "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "video_path": None,
    "features": features,
  }
  (folder / "meta/info.json").write_text(json.dumps(info))
  lines = [
    json.dumps({"episode_index": number, "tasks": ["push"], "length": length})
    for number, length in enumerate(LENGTHS)
  ]
  (folder / "meta/episodes.jsonl").write_text("\n".join(lines))
  (folder / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "push"}\n')
  return str(folder)


def make_robomimic() -> str:
  """Writes robomimic's HDF5."""
  pytest.importorskip("h5py")
  return _converted("a.hdf5", "obs/state", "actions")


def _with_last(values: np.ndarray) -> np.ndarray:
  return np.concatenate([values, values[-1:]])


def make_minari() -> str:
  """Writes Minari's HDF5, with an observation more than there are steps."""
  h5py = pytest.importorskip("h5py")
  os.makedirs("minari/data")
  with h5py.File("minari/data/main_data.hdf5", "w") as file:
    for number, episode in enumerate(EPISODES):
      group = file.create_group(f"episode_{number}")
      length = len(episode["state"])
      group.attrs["total_steps"] = length
      group["observations"] = _with_last(episode["state"])
      group["actions"] = episode["action"]
      group["rewards"] = np.zeros(length)
      group["terminations"] = np.arange(length) == length - 1
      group["truncations"] = np.zeros(length, bool)
  return "minari"


def make_minari_arrow() -> str:
  """Writes Minari's Arrow files, with a row more than there are steps."""
  pa = pytest.importorskip("pyarrow")
  folder = pathlib.Path("arrow/data")
  for number, episode in enumerate(EPISODES):
    (folder / str(number)).mkdir(parents=True)
    about = {"id": number, "total_steps": len(episode["state"])}
    (folder / str(number) / "metadata.json").write_text(json.dumps(about))
    state, action = _with_last(episode["state"]), _with_last(episode["action"])
    table = pa.table(
      {
        "observations": pa.array([*state], pa.list_(pa.float32(), 3)),
        "actions": pa.array([*action], pa.list_(pa.float32(), 2)),
      }
    )
    name = str(folder / str(number) / "part-0.arrow")
    with pa.ipc.new_file(name, table.schema) as file:
      file.write(table)
  about = {"data_format": "arrow", "total_episodes": len(LENGTHS)}
  (folder / "metadata.json").write_text(json.dumps(about))
  return "arrow"


def make_aloha() -> str:
  """Writes ALOHA's HDF5, a file an episode."""
  h5py = pytest.importorskip("h5py")
  os.mkdir("aloha")
  for number, episode in enumerate(EPISODES):
    with h5py.File(f"aloha/episode_{number}.hdf5", "w") as file:
      file.attrs["sim"] = True
      file["action"] = episode["action"]
      file["observations/qpos"] = episode["state"]
  return "aloha"


def make_d4rl() -> str:
  """Writes D4RL's HDF5, whose episodes end at flags."""
  h5py = pytest.importorskip("h5py")
  ends = np.cumsum(LENGTHS) - 1
  with h5py.File("d4rl.hdf5", "w") as file:
    for name, own in (("observations", "state"), ("actions", "action")):
      file[name] = np.concatenate([episode[own] for episode in EPISODES])
    file["rewards"] = np.zeros(sum(LENGTHS))
    file["terminals"] = np.isin(np.arange(sum(LENGTHS)), ends)
    file["timeouts"] = np.zeros(sum(LENGTHS), bool)
  return "d4rl.hdf5"


def make_zarr() -> str:
  """Writes a zarr group."""
  pytest.importorskip("zarr")
  return _converted("a.zarr", "state", "action")


def make_mcap() -> str:
  """Writes recordings of ROS 2, and their layout."""
  mcap = pytest.importorskip("mcap_ros2.writer")
  os.mkdir("bags")
  for number, episode in enumerate(EPISODES):
    with (
      open(f"bags/{number}.mcap", "wb") as file,
      mcap.Writer(file) as bag,
    ):
      kind = bag.register_msgdef("lab/msg/Step", "float32[3] state\nfloat32[2] action")
      for step, (state, action) in enumerate(
        zip(episode["state"], episode["action"], strict=True)
      ):
        message = {"state": state.tolist(), "action": action.tolist()}
        time = (step + 1) * 10**8
        bag.write_message("/arm", kind, message, time, time)
  paths = {"state": "/arm:state", "action": "/arm:action"}
  layout = {"clock": "/arm", "paths": paths}
  pathlib.Path("layout.json").write_text(json.dumps(layout))
  return "bags"


@dataclasses.dataclass(frozen=True)
class Format:
  """A data set of one format.

  Attributes:
    make: writes the episodes into the current folder, and returns the path.
    name: of the format, as the registry has it.
    state: the path that the states have.
    action: the path that the actions have.
    options: of `open_episodes`.
  """

  make: Callable[[], str]
  name: str
  state: str = "state"
  action: str = "action"
  options: tuple[tuple[str, str], ...] = ()


_HDF5_NAMES = ("observations", "actions")
FORMATS = {
  "a store": Format(lambda: make_store("s"), "store"),
  "SequenceExamples": Format(make_records, "tfrecord"),
  "steps with a key": Format(
    make_steps, "tfrecord", options=(("episode_key", "episode"),)
  ),
  "RLDS": Format(make_rlds, "tfrecord", "observation/state"),
  "ArrayRecord": Format(make_array_records, "tfrecord"),
  "LeRobot v3": Format(make_lerobot, "lerobot", "observation.state"),
  "LeRobot v2.1": Format(make_lerobot_21, "lerobot", "observation.state"),
  "robomimic": Format(make_robomimic, "hdf5", "obs/state", "actions"),
  "Minari": Format(make_minari, "hdf5", *_HDF5_NAMES),
  "Minari in Arrow": Format(make_minari_arrow, "minari", *_HDF5_NAMES),
  "ALOHA": Format(make_aloha, "hdf5", "observations/qpos"),
  "D4RL": Format(make_d4rl, "hdf5", *_HDF5_NAMES),
  "zarr": Format(make_zarr, "zarr"),
  "MCAP": Format(make_mcap, "mcap", options=(("layout", "layout.json"),)),
}
