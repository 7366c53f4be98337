"""Mutated files of every small kind: read, or one of the library's own errors."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import random
import struct
import warnings
import zlib

import h5py
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  convert,
  errors,
  lite,
  policies,
  records,
  specs,
  statistics,
  store,
  training,
)
from t2r_seq.episodes import open_episodes
from t2r_seq.formats.robomimic import METADATA_ATTRIBUTE, SPEC_ATTRIBUTE
from t2r_seq.lite import lite_policy
from t2r_seq.records import index as record_index
from t2r_seq.records import rlds
from t2r_seq.store import videos as videos_lib
from t2r_seq.training import evaluation as continuous
from tests.convert import lerobot_sets as sets

Spec = specs.ExtendedTensorSpec
SPEC = specs.TensorSpecStruct(
  pose=Spec((2,), tf.float32, "pose", time_offsets=(-1, 0)),
  task=Spec((), tf.string, "task", varlen_default_value=None),
  image=Spec((8, 8, 3), tf.uint8, "image", is_sequence=True, data_format="png"),
)
FLAT = {"pose": Spec((2,), tf.float32, "pose", is_sequence=True)}
EPISODES = [{"pose": np.full((3 + n, 2), n, np.float32)} for n in range(3)]
_COUNT = 60
_COUNTS = {"layout": 6, "HDF5 specs": 6, "HDF5 metadata": 6}  # Opened in a process.
# By kind, a seed whose mutations raised an error of another library once; otherwise 0.
_SEEDS = {
  "specs as a proto": 7,
  "lite": 26,
  "Arrow": 47,
  "statistics": 19,
  "features.json": 9,
  "layout": 5,
  "LeRobot": 6,
}
_VALUES = (
  *(None, True, "x", "", [], {}, [[1, [2]]], {"a": {"b": 1}}, -1, 0, 1.5),
  *(2**70, -(2**70), 1e300, float("inf"), float("nan"), ["a", 1, None], "\udc80"),
)


def flip(data: bytes, rng: random.Random) -> bytes:
  """Changes bytes: flips, cuts, deletes, repeats or inserts some."""
  at, size = rng.randrange(len(data)), rng.choice((1, 4, 64))
  flipped = bytes([data[at] ^ 1 << rng.randrange(8)])
  return rng.choice(
    (
      data[:at] + flipped + data[at + 1 :],
      data[:at],
      data[:at] + data[at + size :],
      data[: at + size] + data[at:],
      data[:at] + rng.randbytes(size) + data[at:],
      data[:at] + bytes(size) + data[at + size :],
    )
  )


def places(value, place=()):
  """Yields the keys that lead to each value within JSON."""
  yield place
  items = value.items() if isinstance(value, dict) else ()
  items = enumerate(value) if isinstance(value, list) else items
  for key, inner in items:
    yield from places(inner, (*place, key))


def retype(values, rng: random.Random):
  """Replaces or deletes a value somewhere within JSON."""
  place = rng.choice(list(places(values)))
  new = rng.choice(_VALUES)
  if not place:
    return new
  changed = copy.deepcopy(values)
  parent = changed
  for key in place[:-1]:
    parent = parent[key]
  if rng.random() < 0.2:
    del parent[place[-1]]
  else:
    parent[place[-1]] = new
  return changed


def of_json(data: bytes, rng: random.Random) -> bytes:
  if rng.random() < 0.3:
    return flip(data, rng)
  return json.dumps(retype(json.loads(data), rng)).encode()


def of_lines(data: bytes, rng: random.Random) -> bytes:
  return b"\n".join(of_json(line, rng) for line in data.splitlines())


def of_index(data: bytes, rng: random.Random) -> bytes:
  """Mutates the header or the arrays of an index; its checksum is right."""
  if rng.random() < 0.2:
    return flip(data, rng)
  (size,) = struct.unpack_from("<Q", data, 8)
  header, arrays = data[16 : 16 + size], data[16 + size : -4]
  if rng.random() < 0.7:
    header = of_json(header, rng)
  else:
    arrays = flip(arrays, rng)
  content = data[:8] + struct.pack("<Q", len(header)) + header + arrays
  return content + struct.pack("<I", zlib.crc32(content))


def make_index():
  records.write_records("a.tfrecord", FLAT, EPISODES)
  records.write_index("a.tfrecord", FLAT)
  return "a.tfrecord.t2ri"


def read_index(path):
  del path
  record_index.check_index("a.tfrecord")
  index = record_index.read_index("a.tfrecord")
  index.num_steps(FLAT)
  for number in range(index.num_records):
    index.read(number)


def make_proto():
  pathlib.Path("spec.pb").write_bytes(SPEC.to_proto().SerializeToString())
  return "spec.pb"


def make_store():
  with store.EpisodeStore.create("s", FLAT) as writer:
    for episode in EPISODES:
      writer.append_episode(episode)
  return "s/store.json"


def make_statistics():
  make_store()
  statistics.compute_statistics("s", "s/statistics.json")
  return "s/statistics.json"


def read_statistics(path):
  found = statistics.load_statistics(path)
  statistics.statistics.table_rows(found, True)
  list(statistics.statistics.describe_problems(found))
  if found.lengths is not None:
    statistics.statistics.describe_lengths(found.lengths)
  assert found.to_json()


def make_lite():
  leaf = lite_policy.Leaf("obs", (2,), np.dtype(np.float32))
  window = lite_policy.Window("history", [-1, 0], "mask")
  record = {"control_period": 0.1, "padding": "repeat"}
  names = ["inference_output"]
  layout = lite_policy.Layout(
    *("m", 1, "float32", 4, {"pose": leaf}, {"history": leaf}, names),
    *({"pose": window}, record, "export"),
  )
  os.makedirs("policy")
  text = layout.to_json()
  np.savez("policy/initial_state.npz", history=np.zeros(2, np.float32))
  pathlib.Path("policy/step.tflite").write_bytes(b"none")
  pathlib.Path("policy/policy.json").write_text(text)
  return "policy/policy.json"


def make_lite_state():
  make_lite()
  return "policy/initial_state.npz"


def read_lite(path):
  del path
  lite_policy.Layout.read("policy").to_json()
  lite.LitePolicy("policy")


def make_record():
  os.makedirs("export/assets.extra")
  execution = policies.ChunkExecution(2)
  record = policies.policy_model.PolicyRecord(
    "repeat", 0.1, execution, {"pose": {"mean": [1.0]}}
  )
  pathlib.Path("export/assets.extra/policy.json").write_text(record.to_json())
  return "export/assets.extra/policy.json"


def make_minari():
  arrow = pytest.importorskip("pyarrow")
  os.makedirs("m/data")
  described = {"data_format": "arrow", "total_episodes": 2, "env_spec": '{"id": "a"}'}
  pathlib.Path("m/data/metadata.json").write_text(json.dumps(described))
  for number in range(2):
    os.makedirs(f"m/data/{number}")
    about = json.dumps({"total_steps": 3, "seed": 1})
    pathlib.Path(f"m/data/{number}/metadata.json").write_text(about)
    table = arrow.table({"actions": np.arange(4.0), "rewards": np.arange(4.0)})
    with (
      arrow.OSFile(f"m/data/{number}/part-0.arrow", "wb") as file,
      arrow.ipc.new_file(file, table.schema) as writer,
    ):
      writer.write_table(table)
  return "m/data/metadata.json"


def make_minari_episode(name="metadata.json"):
  make_minari()
  return f"m/data/1/{name}"


def read_all(path, **options):
  options |= {"split": options.pop("filter", None)}
  source = open_episodes(path, **options)
  list(source)
  assert source.notes is not None


def make_video(kinds=("video",)):
  av = pytest.importorskip("av")
  with av.open("v.mp4", "w") as container:
    if "video" in kinds:
      stream = container.add_stream("mpeg4", rate=10)
      stream.width, stream.height = 32, 16
      for value in range(6):
        pixels = np.full((16, 32, 3), 40 * value, np.uint8)
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        container.mux(stream.encode(frame))
      container.mux(stream.encode())
    else:
      stream = container.add_stream("aac", rate=16000)
      frame = av.AudioFrame.from_ndarray(
        np.zeros((1, 1024), np.float32), "fltp", "mono"
      )
      frame.sample_rate = 16000
      container.mux(stream.encode(frame))
      container.mux(stream.encode())
  return "v.mp4"


def read_video(path):
  info = videos_lib.VideoInfo.read(path)
  videos_lib.read_frames(path, info.times[:4])


def read_video_frames(path):
  videos_lib.read_frames(path, [0.0, 0.1])


def make_features():
  image = {"shape": {"dimensions": ["8", "8", "3"]}, "dtype": "uint8"}
  step = {
    "image": {"image": {**image, "encodingFormat": "png"}},
    "reward": {"tensor": {"shape": {}, "dtype": "float32", "encoding": "none"}},
    "text": {"text": {}},
  }
  steps = {"sequence": {"feature": {"featuresDict": {"features": step}}}}
  values = {"featuresDict": {"features": {"steps": steps}}}
  pathlib.Path("features.json").write_text(json.dumps(values))
  return "features.json"


def make_best():
  os.makedirs("run/export/best")
  pathlib.Path("run/export/best/best.json").write_text('{"loss": 1.5}')
  return "run/export/best/best.json"


def make_evaluated():
  about = {"checkpoint": "a", "metrics": {"loss": 1.0}}
  text = json.dumps({"10": about, "20": {**about, "metrics": None}})
  pathlib.Path("evaluated.json").write_text(text)
  return "evaluated.json"


def read_evaluated(path):
  found = continuous._EvaluationLog(path)
  assert found.step in (0, *found._steps) and dict(found.metrics) is not None


def make_layout():
  with h5py.File("x.hdf5", "w") as file:
    for number in range(2):
      file[f"runs/{number}/q"] = np.zeros((4, 2))
  values = {"episodes": "runs/*", "paths": {"q": "q"}}
  pathlib.Path("layout.json").write_text(json.dumps(values))
  return "layout.json"


def make_attribute(name):
  def make():
    with store.EpisodeStore.create("s", FLAT, metadata={"robot": "arm"}) as writer:
      for episode in EPISODES:
        writer.append_episode(episode)
    convert.convert("s", "own.hdf5")
    with h5py.File("own.hdf5") as file:
      pathlib.Path(name).write_text(file["data"].attrs[name])
    return name

  return make


def read_attribute(name):
  with h5py.File("own.hdf5", "r+") as file:
    text = pathlib.Path(name).read_bytes().replace(b"\0", b" ")
    file["data"].attrs[name] = text.decode("utf-8", "replace")
  read_all("own.hdf5")


def make_lerobot(name):
  def make():
    sets.make_folder("own.lerobot")
    return os.path.join("own.lerobot", name)

  return make


def make_conversion():
  make_store()
  convert.convert("s", "out.tfrecord")
  return "out.tfrecord.conversion/conversion.json"


KINDS = {
  "index": (make_index, of_index, read_index),
  "specs as a proto": (
    make_proto,
    flip,
    lambda path: specs.TensorSpecStruct.from_serialized_proto(
      pathlib.Path(path).read_bytes()
    ),
  ),
  "statistics": (make_statistics, of_json, read_statistics),
  "lite": (make_lite, of_json, read_lite),
  "lite state": (make_lite_state, flip, read_lite),
  "policy record": (
    make_record, of_json, lambda _: policies.policy_model.PolicyRecord.load("export"),
  ),
  "Minari": (make_minari, of_json, lambda _: read_all("m")),
  "Minari's episode": (make_minari_episode, of_json, lambda _: read_all("m")),
  "Arrow": (
    lambda: make_minari_episode("part-0.arrow"),
    flip,
    lambda _: read_all("m"),
  ),
  "video": (make_video, flip, read_video),
  "frames": (make_video, flip, read_video_frames),
  "sound": (lambda: make_video(("audio",)), flip, read_video),
  "frames of sound": (lambda: make_video(("audio",)), flip, read_video_frames),
  "features.json": (make_features, of_json, rlds.read_features),
  "best metrics": (
    make_best, of_json, lambda _: training.BestExporter().is_due("run", {"loss": 1.0}),
  ),
  "evaluated steps": (make_evaluated, of_json, read_evaluated),
  "layout": (make_layout, of_json, lambda path: read_all("x.hdf5", layout=path)),
  "HDF5 specs": (make_attribute(SPEC_ATTRIBUTE), of_json, read_attribute),
  "HDF5 metadata": (make_attribute(METADATA_ATTRIBUTE), of_json, read_attribute),
  "LeRobot": (
    make_lerobot("meta/info.json"), of_json, lambda _: read_all("own.lerobot"),
  ),
  "LeRobot's own": (
    make_lerobot("meta/t2r_seq.json"), of_json, lambda _: read_all("own.lerobot"),
  ),
  "conversion": (
    make_conversion, of_json, lambda _: convert.convert("s", "out.tfrecord"),
  ),
}  # fmt: skip


def mutate(name: str) -> list[str]:
  """Reads mutations of a file; returns the errors that are not the library's."""
  make, change, read = KINDS[name]
  path = pathlib.Path(make())
  try:
    read(str(path))
  except errors.SpecError:
    assert name in ("lite", "lite state", "sound", "frames of sound")
  good, stat = path.read_bytes(), os.stat(path)
  rng, found = random.Random(_SEEDS.get(name, 0)), []
  for _ in range(_COUNTS.get(name, _COUNT)):
    path.write_bytes(change(good, rng))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    try:
      with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read(str(path))
    except (errors.SpecError, FileNotFoundError):
      pass
    except Exception as error:
      found.append(f"{error!r:.300} of {path.read_bytes()[:2000]!r}")
  return found


@pytest.mark.parametrize("name", KINDS)
def test_mutations_are_read_or_refused(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert mutate(name) == []
