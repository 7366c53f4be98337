"""Time offsets in seconds, by every road from a data set to batches."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  convert,
  data,
  errors,
  preprocessors,
  records,
  replay,
  specs,
  statistics,
  store,
  windows,
)
from t2r_seq.episodes import open_episodes
from t2r_seq.specs import Seconds

Spec = specs.ExtendedTensorSpec
LENGTHS = (40, 1, 25, 90)
OFFSETS = (-0.13, -0.05, 0.0, 0.12)
STORED = {
  "x": Spec((2,), tf.float32, "x", is_sequence=True),
  "stamp": Spec((), tf.float64, "stamp", is_sequence=True),
}
SPEC = {
  "x": Spec((4, 2), tf.float32, "x", time_offsets=Seconds(*OFFSETS)),
  "now": Spec((2,), tf.float32, "x", time_offsets=0),
  # Record files have what specs declare.
  "stamp": Spec((), tf.float64, "stamp", time_offsets=0),
}
REAL = pathlib.Path(__file__).parent / "real"


def episode(number):
  rng, length = np.random.default_rng(number), LENGTHS[number]
  x = 1000 * number + np.arange(2.0 * length, dtype=np.float32).reshape(length, 2)
  stamps = np.sort(np.arange(length) / 30 + rng.normal(0, 0.01, length))
  return {"x": x, "stamp": stamps + 100 * number}


def expected():
  """Returns the windows of all episodes and their masks, in order."""
  shown, masks = [], []
  for number in range(len(LENGTHS)):
    values = episode(number)
    times = values["stamp"][:, None] + np.array(OFFSETS)
    rows = np.searchsorted(values["stamp"], times, "right") - 1
    masks.append((rows >= 0) & (times <= values["stamp"][-1]))
    shown.append(values["x"][rows.clip(0)])
  return np.concatenate(shown), np.concatenate(masks)


def make_store():
  with store.EpisodeStore.create("own", STORED, {"fps": 10}) as writer:
    for number in range(len(LENGTHS)):
      writer.append_episode(episode(number))
  return "own"


def converted(name):
  convert.convert(make_store(), name)
  return name


def make_indexed():
  records.write_index(converted("indexed.tfrecord"))
  return "indexed.tfrecord"


def make_umi():
  """Writes UMI's zarr, with the time of each step beside the poses."""
  zarr = pytest.importorskip("zarr")
  root = zarr.open_group("umi.zarr", mode="w", zarr_format=2)
  for path in STORED:
    joined = np.concatenate([episode(number)[path] for number in range(len(LENGTHS))])
    root.create_array(f"data/{path}", data=joined)
  root.create_array("meta/episode_ends", data=np.cumsum(LENGTHS).astype(np.int64))
  return "umi.zarr"


def make_layout():
  """Writes an HDF5 file of a lab, with arrays of times in each group."""
  h5py = pytest.importorskip("h5py")
  with h5py.File("lab.h5", "w") as file:
    for number in range(len(LENGTHS)):
      for path, array in episode(number).items():
        file[f"runs/{number}/{path}"] = array
  pathlib.Path("layout.json").write_text('{"episodes": "runs/*"}')
  return "lab.h5"


def make_robomimic():
  """Writes robomimic's HDF5 with times among the observations."""
  h5py = pytest.importorskip("h5py")
  with h5py.File("robomimic.hdf5", "w") as file:
    for number, length in enumerate(LENGTHS):
      group = file.create_group(f"data/demo_{number}")
      group.attrs["num_samples"] = length
      group["actions"] = np.zeros((length, 2), np.float32)
      for path, array in episode(number).items():
        group[f"obs/{path}"] = array
  return "robomimic.hdf5"


def renamed(episodes, branch):
  return episodes.rename({f"{branch}/{path}": path for path in STORED})


ROADS = {
  "store": lambda: data.StoreInputGenerator(make_store(), 7, seed=1),
  "store, by pools": lambda: data.StoreInputGenerator(
    make_store(), 7, seed=1, order="quasi_random", memory_budget=10**4
  ),
  "store in place": lambda: data.EpisodesInputGenerator(
    make_store(), 7, seed=1, memory_budget=10**4
  ),
  "HDF5": lambda: data.EpisodesInputGenerator(converted("a.hdf5"), 7, seed=1),
  "zarr": lambda: data.EpisodesInputGenerator(converted("a.zarr"), 7, seed=1),
  "LeRobot": lambda: data.EpisodesInputGenerator(converted("a.lerobot"), 7, seed=1),
  "records": lambda: data.DefaultRecordInputGenerator(
    converted("a.tfrecord"), 7, seed=1
  ),
  "UMI": lambda: data.EpisodesInputGenerator(make_umi(), 7, seed=1),
  "HDF5 of a layout": lambda: data.EpisodesInputGenerator(
    make_layout(), 7, seed=1, open_options={"layout": "layout.json"}
  ),
  "robomimic": lambda: data.EpisodesInputGenerator(
    renamed(open_episodes(make_robomimic()), "obs"), 7, seed=1
  ),
  "records, opened": lambda: data.EpisodesInputGenerator(
    converted("a.tfrecord"), 7, seed=1, clock="stamp"
  ),
  "records by an index": lambda: data.EpisodesInputGenerator(
    make_indexed(), 7, seed=1, open_options={"index": "require"}
  ),
}


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def batches(generator, mode, spec=SPEC, take=None):
  generator.set_feature_specifications(windows.add_mask_specs(spec, ["x"]))
  generator.set_label_specifications({})
  with generator.explain_failures():
    dataset = generator.create_dataset(mode)
    found = [features for features, _ in (dataset.take(take) if take else dataset)]
  return {p: np.concatenate([each[p].numpy() for each in found]) for p in found[0]}


@pytest.mark.parametrize("road", ROADS)
def test_generators_cut_windows_by_time_stamps(road):
  generator, (shown, masks) = ROADS[road](), expected()
  found = batches(generator, "eval")
  np.testing.assert_array_equal(found["x"], shown)
  np.testing.assert_array_equal(found["x_mask"], masks)
  assert generator.num_examples in (None, len(shown))
  # Shuffled, each once: the newest step tells which window it is.
  found = batches(generator, "train", take=len(shown) // 7)
  assert len({*found["now"][:, 0].tolist()}) == len(found["now"])
  now = np.concatenate([episode(number)["x"] for number in range(len(LENGTHS))])[:, 0]
  rows = np.searchsorted(now, found["now"][:, 0])
  np.testing.assert_array_equal(found["x"], shown[rows])
  np.testing.assert_array_equal(found["x_mask"], masks[rows])


def test_rlds_with_a_time_of_each_step():
  """TFDS keeps the steps of a feature in one list; times are whole nanoseconds."""
  flag, stamp = (
    Spec((), tf.bool, is_sequence=True),
    Spec((), tf.int64, is_sequence=True),
  )
  leaves = {"observation/x": STORED["x"], "observation/stamp_ns": stamp}
  spec = {
    f"steps/{path}": Spec.from_spec(leaf, name=f"steps/{path}", is_concatenated=True)
    for path, leaf in {**leaves, "is_first": flag, "is_last": flag}.items()
  }
  values = []
  for number, length in enumerate(LENGTHS):
    steps, given = np.arange(length), episode(number)
    found = {
      "observation/x": given["x"],
      "observation/stamp_ns": np.rint(1e9 * given["stamp"]).astype(np.int64),
      "is_first": steps == 0,
      "is_last": steps == length - 1,
    }
    values.append({f"steps/{path}": array for path, array in found.items()})
  name = "rlds-train.tfrecord-00000-of-00001"
  records.write_records(name, specs.TensorSpecStruct(spec), values)
  episodes = open_episodes(name, "rlds").rename({"observation/x": "x"})
  wanted = {path: SPEC[path] for path in ("x", "now")}
  wanted["stamp"] = Spec((), tf.int64, "observation/stamp_ns", time_offsets=0)
  generator = data.EpisodesInputGenerator(episodes, 7, clock="observation/stamp_ns")
  found = batches(generator, "eval", wanted)
  np.testing.assert_array_equal(found["x"], expected()[0])
  np.testing.assert_array_equal(found["x_mask"], expected()[1])


LEROBOT_SETS = sorted(
  path.name for path in REAL.glob("lerobot*") if "unfinalized" not in path.name
)
# Of 15 fps, as LeRobot's policies have them.
DELTAS = (-4 / 15, -2 / 15, -1 / 15, 0.0, 1 / 15, 0.2)


@pytest.mark.parametrize("tolerance", [None, 0.5 / 15])
@pytest.mark.parametrize("clock", [None, "timestamp"])
@pytest.mark.parametrize("name", LEROBOT_SETS)
def test_windows_are_those_of_delta_timestamps(name, clock, tolerance):
  """LeRobot: rows round(delta * fps) from the anchor, clamped; beyond, `is_pad`."""
  episodes = open_episodes(str(REAL / name))
  seconds = Seconds(*DELTAS, select="nearest", tolerance=tolerance)
  path = "observation.state"
  leaf = episodes.spec[path]
  shape = (len(DELTAS), *leaf.shape)
  spec = {"x": Spec(shape, leaf.dtype, path, time_offsets=seconds)}
  generator = data.EpisodesInputGenerator(episodes, 5, clock=clock)
  found = batches(generator, "eval", spec)
  shown, is_pad = [], []
  for number, length in enumerate(episodes.lengths):
    rows = np.arange(length)[:, None] + np.rint(15 * np.array(DELTAS)).astype(int)
    shown.append(episodes.read(number, [path])[path][rows.clip(0, length - 1)])
    is_pad.append((rows < 0) | (rows >= length))
  np.testing.assert_array_equal(found["x"], np.concatenate(shown))
  np.testing.assert_array_equal(found["x_mask"], ~np.concatenate(is_pad))


def test_batches_resume_and_shards_are_disjoint():
  generator = data.EpisodesInputGenerator(make_store(), 7, seed=3, memory_budget=10**4)
  whole = batches(generator, "train", take=20)
  resumed = generator.create_dataset("train", start_step=12).take(8)
  found = np.concatenate([features["x"].numpy() for features, _ in resumed])
  np.testing.assert_array_equal(found, whole["x"][12 * 7 :])


def test_data_of_another_rate_shows_the_same_times():
  """A model of 0.1 s steps gets the values at these times from data at 25 Hz."""
  with store.EpisodeStore.create("fast", {"x": STORED["x"]}, {"fps": 25}) as writer:
    times = np.arange(100) / 25
    writer.append_episode({"x": np.stack([times, -times], 1).astype(np.float32)})
  spec = {"x": Spec((2, 2), tf.float32, "x", time_offsets=Seconds(-0.1, 0.0))}
  held = batches(data.StoreInputGenerator("fast", 10), "eval", spec)["x"]
  assert held[50, :, 0].tolist() == np.float32([1.88, 2.0]).tolist()
  spec["x"] = Spec.from_spec(
    spec["x"], time_offsets=Seconds(-0.1, 0.0, select="linear")
  )
  mixed = batches(data.StoreInputGenerator("fast", 10), "eval", spec)["x"]
  np.testing.assert_allclose(mixed[50, :, 0], [1.9, 2.0], rtol=1e-6)


def test_falling_stamps_name_their_episode():
  bad = episode(2)
  bad["stamp"][3] = 0.0
  with store.EpisodeStore.create("bad", STORED) as writer:
    writer.append_episode(episode(0))
    writer.append_episode(bad)
  for generator in (
    data.StoreInputGenerator("bad", 2),
    data.EpisodesInputGenerator("bad", 2),
  ):
    with pytest.raises(
      errors.SpecError, match=r"episode 1.*stamp: expected time stamps that never fall"
    ):
      batches(generator, "eval")


STREAMS = {
  "records": lambda path: data.DefaultRecordInputGenerator(path, 2),
  "records, opened": lambda path: data.EpisodesInputGenerator(path, 2, clock="stamp"),
}
BAD_STREAMS = {
  "fall": (0.0, None, "stamp: expected finite time stamps that never fall. Repair"),
  "NaN": (np.nan, None, "stamp: expected finite time stamps that never fall. Repair"),
  "a small tolerance": (None, 0.004, "stamp: expected a tolerance of at least half a"),
  "a tolerance": (None, 0.1, None),
}


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("name", BAD_STREAMS)
def test_bad_stamps_of_streams_are_one_error(stream, name):
  stamp, tolerance, want = BAD_STREAMS[name]
  values = episode(2)
  values["stamp"][3] = values["stamp"][3] if stamp is None else stamp
  records.write_records(
    "a.tfrecord", specs.TensorSpecStruct(STORED), [episode(0), values]
  )
  seconds = Seconds(*OFFSETS, tolerance=tolerance)
  spec = {**SPEC, "x": Spec.from_spec(SPEC["x"], time_offsets=seconds)}
  generator = STREAMS[stream]("a.tfrecord")
  if want is None:
    assert len(batches(generator, "eval", spec)["x"]) == 65
    return
  with pytest.raises(errors.SpecError, match=f"^windows: (features/)?{want}"):
    batches(generator, "eval", spec)


def test_data_without_a_clock_is_an_error():
  with store.EpisodeStore.create("plain", {"x": STORED["x"]}) as writer:
    writer.append_episode({"x": episode(0)["x"]})
  spec = {"x": SPEC["x"]}
  with pytest.raises(errors.SpecError, match="expected a clock for Seconds"):
    batches(data.StoreInputGenerator("plain", 2), "eval", spec)
  generator = data.StoreInputGenerator("plain", 2, clock=1 / 30)
  assert batches(generator, "eval", spec)["x"].shape == (40, 4, 2)


def test_replays_take_the_period_of_a_clock_and_no_stamps():
  spec = {
    "x": Spec((2, 2), tf.float32, "x", time_offsets=Seconds(-0.1, 0.0)),
    "stamp": SPEC["stamp"],
  }
  buffer = replay.ReplayBuffer(spec, capacity_steps=100, clock=0.05)
  with buffer.writer() as writer:
    for step in range(20):
      writer.append({"x": np.full(2, step, np.float32), "stamp": 0.05 * step})
    writer.end_episode()
  batch = buffer.sample(8)
  now = np.rint(batch["stamp"] / 0.05)
  want = np.stack([np.maximum(now - 2, 0), now], 1)
  np.testing.assert_array_equal(batch["x"][..., 0], want)
  want = "expected steps that are known before the episodes, got Seconds.*max_rate=60"
  with pytest.raises(errors.SpecError, match=want):
    replay.ReplayBuffer(spec, capacity_steps=100, clock="stamp")


def make_buffer(num_writers=1):
  spec = windows.add_mask_specs(specs.TensorSpecStruct(SPEC), ["x"])
  return replay.ReplayBuffer(
    spec, capacity_steps=400, num_writers=num_writers, clock="stamp", max_rate=70
  )


def append(writer, values):
  for x, stamp in zip(values["x"], values["stamp"], strict=True):
    writer.append({"x": x, "stamp": stamp})
  writer.end_episode()


@pytest.mark.parametrize("road", ["written", "of a store"])
def test_replays_give_the_windows_of_the_stamps(road):
  if road == "written":
    buffer = make_buffer(2)
    with buffer.writer() as one, buffer.writer() as other:
      for number in range(len(LENGTHS)):
        append([one, other][number % 2], episode(number))
  else:
    buffer = replay.ReplayBuffer.from_store(
      make_store(),
      windows.add_mask_specs(specs.TensorSpecStruct(SPEC), ["x"]),
      capacity_steps=400,
      clock="stamp",
      max_rate=70,
    )
  assert buffer.counters.num_items == sum(LENGTHS)
  batch, (shown, masks) = buffer.sample(500), expected()
  stamps = np.concatenate([episode(n)["stamp"] for n in range(len(LENGTHS))])
  rows = np.searchsorted(stamps, batch["stamp"])
  np.testing.assert_array_equal(batch["x"], shown[rows])
  np.testing.assert_array_equal(batch["x_mask"], masks[rows])


BAD_STEPS = {
  "fall": (
    [0.1, 0.0],
    "append: stamp: expected a finite time stamp, not before that of",
  ),
  "too fast": (
    np.arange(30) / 200,
    r"stamp: expected at most 70 steps per second, got \d+",
  ),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_bad_stamps_are_not_appended(name):
  stamps, want = BAD_STEPS[name]
  buffer, x = make_buffer(), np.zeros(2, np.float32)
  with buffer.writer() as writer:
    with pytest.raises(errors.SpecError, match=want):
      for stamp in stamps:
        writer.append({"x": x, "stamp": stamp})
    before = buffer.counters.num_steps
    writer.append({"x": x, "stamp": 9.0})
    writer.end_episode()
    assert buffer.counters.num_steps == before + 1
    append(writer, episode(0))


def test_statistics_are_of_the_same_windows():
  spec = {"x": Spec.from_spec(SPEC["x"], dtype=tf.float32)}
  preprocessor = preprocessors.NoOpPreprocessor(lambda mode: spec, lambda mode: {})
  paths = statistics.compute_statistics(make_store(), transform=preprocessor).paths
  shown, masks = expected()
  assert paths["x"].count.tolist() == [masks.sum()] * 2
  np.testing.assert_allclose(paths["x"].measure("mean"), shown[masks].mean(0, float))
