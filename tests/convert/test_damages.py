"""Damages of every format that is read: one error each, with file, episode and key."""

from __future__ import annotations

import os
import pathlib
import shutil
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, errors, records, specs, store
from t2r_seq.episodes import open_episodes
from t2r_seq.records.framing import iterate_records
from tests.convert import lerobot_sets as sets
from tests.convert import test_hdf5_layouts as layouts
from tests.convert import test_mcap as bags
from tests.convert import test_zarr as groups

Spec = specs.ExtendedTensorSpec


def values_of(episodes):
  return [episode.values for episode in episodes]


SPEC = {
  "pose": Spec((2,), tf.float32, "pose", is_sequence=True),
  "goal": Spec((3,), tf.float32, "goal", is_sequence=True),
}
EPISODES = [
  {name: np.full((3 + n, *leaf.shape), n, np.float32) for name, leaf in SPEC.items()}
  for n in range(3)
]


def make_store(path="s"):
  with store.EpisodeStore.create(path, SPEC) as writer:
    for episode in EPISODES:
      writer.append_episode(episode)
  return path


def make_records(path="x.tfrecord"):
  records.write_records(path, SPEC, EPISODES)
  return path


def make_array_records(path="x.array_record"):
  module = pytest.importorskip("array_record.python.array_record_module")
  make_records()
  writer = module.ArrayRecordWriter(path, "group_size:1")
  for record in iterate_records("x.tfrecord"):
    writer.write(record.data)
  writer.close()
  return path


def make_zarr(path="x.zarr"):
  groups.make_group(path)
  return path


def make_zip(path="x.zarr.zip"):
  make_zarr()
  with zipfile.ZipFile(path, "w") as archive:
    for file in sorted(pathlib.Path("x.zarr").rglob("*")):
      if file.is_file():
        archive.write(file, file.relative_to("x.zarr"))
  return path


def make_robomimic(path="x.hdf5"):
  with h5py.File(path, "w") as file:
    for number in range(3):
      file[f"data/demo_{number}/actions"] = np.zeros((4, 2))
      file[f"data/demo_{number}/obs/pos"] = np.zeros((4, 3))
      file[f"data/demo_{number}"].attrs["num_samples"] = 4
  return path


def make_minari(name):
  def make():
    shutil.copytree(next((sets.REAL_DATA / name).rglob("data")), "m/data")
    return "m"

  return make


def make_lerobot():
  shutil.copytree(LEROBOT["own"], "own")
  return "own"


LEROBOT: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def fixture_lerobot(tmp_path_factory):
  here = os.getcwd()
  os.chdir(tmp_path_factory.mktemp("own"))
  LEROBOT["own"] = os.path.abspath(sets.make_folder("own.lerobot"))
  os.chdir(here)


def text(name="", content=b"hello, data"):
  return lambda path: pathlib.Path(path, name).write_bytes(content)


def cut(name=""):
  def cut_file(path):
    file = pathlib.Path(path, name)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

  return cut_file


def gone(name):
  return lambda path: pathlib.Path(path, name).unlink()


def edit(name, **changes):
  return lambda path: sets.edit_json(os.path.join(path, name), **changes)


def column(path):
  return next(pathlib.Path(path).rglob("pose.data"))


def in_file(change, name=""):
  def change_file(path):
    with h5py.File(pathlib.Path(path, name), "r+") as file:
      change(file)

  return change_file


def put(key, value):
  def replace(file):
    if key in file:
      del file[key]
    file[key] = value

  return in_file(replace)


def rows_of(dtype, name):
  return in_file(lambda file: file.create_dataset("more", (4,), dtype), name)


def column_of(items, name):
  """Adds a column, whose first rows are given, to an Arrow file."""

  def change_file(path):
    pyarrow = pytest.importorskip("pyarrow")
    place = os.path.join(path, name)
    with pyarrow.OSFile(place) as file:
      table = pyarrow.ipc.open_file(file).read_all()
    rows = items * len(table)
    table = table.append_column("more", pyarrow.array(rows[: len(table)]))
    with (
      pyarrow.OSFile(place, "wb") as file,
      pyarrow.ipc.new_file(file, table.schema) as out,
    ):
      out.write_table(table)

  return change_file


def soft(place):
  return h5py.SoftLink(place)


def shorten(path):
  """Takes a step of one feature from the second record."""
  with tf.io.TFRecordWriter(f"{path}.new") as writer:
    for record in iterate_records(path):
      example = tf.train.SequenceExample.FromString(record.data)
      if record.index == 1:
        del example.feature_lists.feature_list["goal"].feature[-1]
      writer.write(example.SerializeToString())
  os.replace(f"{path}.new", path)


FOREIGN, CUT, MISSING, ROWS, VERSION = (
  *("a foreign file", "cut short", "a part is missing"),
  *("rows that disagree", "an unknown version"),
)
LINK, LINKS, NUMBERS, REFERENCES, GAPS = (
  *("a link to a dataset", "a link to a group"),
  *("rows of any number", "references", "rows without a value"),
)
WIDTH, CHUNKS, SPLIT = (
  *("a name of gigabytes", "folders of no episodes"),
  "a split of others",
)
PARQUET = "data/chunk-000/file-000.parquet"
VIDEO = f"videos/{sets.CAMERA}/chunk-000/file-000.mp4"
FORMATS = {
  "a store": (
    make_store,
    {
      FOREIGN: (text("store.json"), r"s/store.json: expected JSON"),
      CUT: (cut("store.json"), r"s/store.json: expected JSON, got .*damaged"),
      MISSING: (
        lambda p: column(p).unlink(),
        r"pose.data: expected 96 committed bytes, got no such file",
      ),
      ROWS: (
        lambda p: cut()(column(p)),
        r"pose.data: expected 96 committed bytes, got 48 bytes",
      ),
      VERSION: (
        edit("store.json", version=99),
        r"s/store.json: expected format version 1, got 99",
      ),
    },
  ),
  "TFRecord": (
    make_records,
    {
      FOREIGN: (text(), r"x.tfrecord: expected a TFRecord file, .*looks like text"),
      CUT: (cut(), r"record 1 of x.tfrecord \(byte 136\): .*the file is truncated"),
      ROWS: (
        shorten,
        r"record 1 of x.tfrecord .*: pose: expected 3 steps, as goal has, got 4",
      ),
    },
  ),
  "ArrayRecord": (
    make_array_records,
    {
      FOREIGN: (text(), r"x.array_record: expected a TFRecord file, .*like text"),
      CUT: (cut(), r"x.array_record: expected an ArrayRecord file .*was cut"),
    },
  ),
  "zarr": (
    make_zarr,
    {
      FOREIGN: (text(".zgroup"), r"x.zarr: expected a zarr group, got JSONDecodeError"),
      CUT: (
        cut("data/state/1.0"),
        r"x.zarr/data/state/1.0: expected a chunk of 48 bytes, .*got 24",
      ),
      MISSING: (
        lambda p: shutil.rmtree(f"{p}/meta/episode_ends"),
        r"x.zarr: expected an array meta/episode_ends",
      ),
      ROWS: (
        edit("data/state/.zarray", shape=[8, 2]),
        r"x.zarr: state: expected 9 rows, .*got \(8, 2\) float32",
      ),
      VERSION: (
        edit(".zgroup", zarr_format=9),
        r"x.zarr: expected a zarr group, got .*[Ee]xpected one of 2 or 3",
      ),
    },
  ),
  "a zip of zarr": (
    make_zip,
    {
      FOREIGN: (text(), r"x.zarr.zip: expected a zarr group, got .*not a zip"),
      CUT: (cut(), r"x.zarr.zip: expected a zarr group, got .*not a zip"),
    },
  ),
  "robomimic": (
    make_robomimic,
    {
      FOREIGN: (text(), r"x.hdf5: expected an HDF5 file, got .*signature"),
      CUT: (cut(), r"x.hdf5: expected an HDF5 file, got .*truncated file"),
      MISSING: (
        in_file(lambda f: f.pop("data")),
        r"x.hdf5: expected the layout of robomimic, Minari",
      ),
      ROWS: (
        put("data/demo_1/obs/pos", np.zeros((3, 3))),
        r"x.hdf5: obs/pos: expected 4 rows, got \(3, 3\) .*data/demo_1",
      ),
    },
  ),
  "D4RL": (
    layouts.make_d4rl,
    {
      FOREIGN: (text(), r"d4rl.hdf5: expected an HDF5 file, got .*signature"),
      CUT: (cut(), r"d4rl.hdf5: expected an HDF5 file, got .*truncated file"),
      MISSING: (
        in_file(lambda f: f.pop("actions")),
        r"d4rl.hdf5: expected the layout of robomimic, Minari",
      ),
      ROWS: (
        put("timeouts", np.zeros(5, bool)),
        r"d4rl.hdf5: timeouts: expected a flag for each of 9 steps, got \(5,\)",
      ),
      LINK: (
        in_file(lambda f: [f.move("rewards", "x"), f.update(rewards=soft("/x"))]),
        r"rewards: expected data, got a link within the file to /x at /rewards of d4rl",
      ),
    },
  ),
  "ALOHA": (
    layouts.make_aloha,
    {
      FOREIGN: (
        text("episode_1.hdf5"),
        r"aloha/episode_1.hdf5: expected an HDF5 file, got .*signature",
      ),
      CUT: (
        cut("episode_1.hdf5"),
        r"aloha/episode_1.hdf5: expected an HDF5 file, got .*truncated",
      ),
      ROWS: (
        in_file(lambda f: layouts.other_shape(f.filename), "episode_1.hdf5"),
        r"qpos: expected \(3,\) float32 a step, .*\(5,\) .*aloha/episode_1.hdf5",
      ),
      LINKS: (
        in_file(lambda f: f.update({"more": soft("/observations")}), "episode_1.hdf5"),
        r"more: expected data, got a link .*aloha/episode_1.hdf5. .*: --drop more",
      ),
      NUMBERS: (
        rows_of(h5py.vlen_dtype(np.float32), "episode_1.hdf5"),
        r"more: expected numbers, got .* Leave it out: --drop more",
      ),
      REFERENCES: (
        rows_of(h5py.ref_dtype, "episode_1.hdf5"),
        r"more: expected numbers, got .* Leave it out: --drop more",
      ),
    },
  ),
  "Minari": (
    make_minari("minari_hdf5"),
    {
      FOREIGN: (
        text("data/main_data.hdf5"),
        r"main_data.hdf5: expected an HDF5 file, got .*signature",
      ),
      CUT: (
        cut("data/main_data.hdf5"),
        r"main_data.hdf5: expected an HDF5 file, got .*truncated",
      ),
      MISSING: (
        gone("data/main_data.hdf5"),
        r"m: expected a store .*got a folder with \[data\]",
      ),
    },
  ),
  "Minari in Arrow": (
    make_minari("minari_arrow"),
    {
      FOREIGN: (
        text("data/metadata.json"),
        r"m/data/metadata.json: expected a JSON object",
      ),
      CUT: (
        cut("data/1/part-0.arrow"),
        r"m/data/1/part-0.arrow: expected an Arrow file",
      ),
      MISSING: (
        lambda p: shutil.rmtree(f"{p}/data/2"),
        r"m/data: expected the folders of 4 .*got \[0, 1, 3\]",
      ),
      ROWS: (
        edit("data/1/metadata.json", total_steps=9),
        r"episode 1 of m/data: expected 10 rows, .*got 7",
      ),
      NUMBERS: (
        column_of([[1], [1, 2]], "data/0/part-0.arrow"),
        r"more: expected rows of one size, got list.* Leave it out: --drop more",
      ),
      GAPS: (
        column_of([True, None], "data/0/part-0.arrow"),
        r"more: expected a number in every row, got bool, \d of them missing. .*--drop",
      ),
    },
  ),
  "LeRobot": (
    make_lerobot,
    {
      FOREIGN: (
        text("meta/info.json", b"[1]"),
        r"own/meta/info.json: expected the JSON description.*got \[1\]",
      ),
      CUT: (
        cut(PARQUET),
        r"file-000.parquet: episode 0: expected a whole parquet file",
      ),
      MISSING: (
        gone(VIDEO),
        rf"file-000.mp4: episode 0: {sets.CAMERA}: expected a video file",
      ),
      ROWS: (
        edit("meta/info.json", total_frames=15),
        r"info.json: total_frames: expected 14.*got 15: the recording was not",
      ),
      WIDTH: (
        edit("meta/info.json", data_path="{chunk_index:>4000000000}"),
        r"info.json: episode 0: data_path: expected a template of .*4000000000",
      ),
      CHUNKS: (
        edit("meta/info.json", chunks_size=0),
        r"info.json: chunks_size: expected episodes of a folder, got 0",
      ),
      SPLIT: (
        edit("meta/info.json", splits={"train": "0:9999999999999"}),
        r"splits: train: expected a range of the 4 episodes.*got '0:9999999999999'",
      ),
      VERSION: (
        edit("meta/info.json", codebase_version="v9.1"),
        r"json: codebase_version: expected a version of .*got 'v9.1'",
      ),
    },
  ),
  "MCAP": (
    bags.make_bag,
    {
      FOREIGN: (text(), r"demo.mcap: expected an MCAP file of version 0, got b'hello"),
      CUT: (cut(), r"demo.mcap: expected a whole MCAP file.*`mcap recover`"),
      MISSING: (
        lambda _: bags.without("/camera"),
        r"demo.mcap: /camera: expected messages of it, got none",
      ),
      VERSION: (
        text(content=b"\x89MCAP7\r\n0"),
        r"demo.mcap: expected .* of version 0, got version b'7'",
      ),
    },
  ),
}
CASES = [(name, damage) for name, (_, found) in FORMATS.items() for damage in found]


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_damages(name, damage):
  make, damages = FORMATS[name]
  change, match = damages[damage]
  path = make()
  change(path)
  options = bags.layout() if name == "MCAP" else dict()
  with pytest.raises(errors.SpecError, match=match) as found:
    if name == "a store":  # It is what the others become.
      values_of(open_episodes(path, "store"))
    else:
      convert.convert(path, "out", **options)
  if "--drop more" in str(found.value):
    convert.convert(path, "out", drop=("more",))
