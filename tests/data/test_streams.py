"""Windows in pools of streamed episodes: which, in which order, in how much memory."""

import collections
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, records, specs, windows
from t2r_seq.data.pool import num_bytes_alive
from t2r_seq.data.streams import StreamReport, streamed_windows
from t2r_seq.windows.cut import WindowGrid
from tests.data.conftest import FakeModel, feature_spec, label_spec, make_episode

LENGTHS = (9, 3, 1, 14, 6, 11, 2, 20, 8)


def budget_of(num_bytes, batch_size=4, window_bytes=184):
  """Bytes for pools and episodes on their way; batches come on top."""
  beside = num_bytes + num_bytes // 7
  return beside + num_bytes_alive(0, 0, batch_size * window_bytes)


# Room for some of the episodes at a time.
SMALL = budget_of(30_000)


def streamed(episodes, spec, batch_size, budget, seed, num_epochs=1, **more):
  """The stream of a plan that these say."""
  plan = {"memory_budget": budget, "seed": seed, "num_epochs": num_epochs}
  return streamed_windows(episodes, spec, batch_size, **plan, **more)


def structure():
  found = specs.TensorSpecStruct(feature_spec())
  found["next"] = label_spec()["next"]
  return found


@pytest.fixture
def path(tmp_path):
  flat = windows.flat_specs(feature_spec())
  rows = [make_episode(i, length) for i, length in enumerate(LENGTHS)]
  records.write_records(str(tmp_path / "all.tfrecord"), flat, rows)
  return str(tmp_path / "all.tfrecord")


def episodes(path, decode_images=False, num_parallel_calls=None):
  flat = windows.flat_specs(feature_spec())
  parse_fn = records.create_parse_tf_example_fn(flat, decode_images=decode_images)
  return tf.data.TFRecordDataset(path).map(parse_fn, num_parallel_calls)


def comparable(window):
  """A window's values by path as one value."""
  return tuple((p, str(v.dtype), v.shape, v.tobytes()) for p, v in window)


def one_by_one(batches):
  """Every window as one comparable value, in order."""
  found = []
  for batch in batches:
    values = sorted((path, value.numpy()) for path, value in batch.items())
    found += [
      comparable((path, value[i]) for path, value in values)
      for i in range(len(batch["task"]))
    ]
  return found


def all_windows(num_stacks=None, stride=1, shift=1, padding="repeat", masks=False):
  """Every window, cut by hand; of a sequence, its states and what is at its end."""
  grid = WindowGrid((-2, 1), windows.Cut(num_stacks, stride, shift, padding))
  for e, length in enumerate(LENGTHS):
    episode = make_episode(e, length)
    for i in range(grid.num_windows(length)):
      anchors = grid.start(i) + stride * np.arange(num_stacks or 1)
      last = np.array(anchors[-1])
      stack = np.array([-2, -1, 0])
      every = last if num_stacks is None else anchors[:, np.newaxis]
      steps = {"state": every + stack, "image": last + stack, "next": last + 1}
      window = {"task": episode["task"]}
      for path, shown in steps.items():
        is_real = (shown >= 0) & (shown < length)
        frames = episode["image" if path == "image" else "state"]
        window[path] = frames[np.clip(shown, 0, length - 1)]
        if padding == "zero":
          axes = (..., *[np.newaxis] * (frames.ndim - 1))
          window[path] = window[path] * is_real[axes].astype(frames.dtype)
        if masks:
          window[f"{path}_mask"] = is_real
      yield comparable(sorted(window.items()))


CUTS = {
  "single windows": {"padding": "drop"},
  "stride and shift": {"stride": 2, "shift": 2, "padding": "drop"},
  "repeated edges, by default": {"masks": True},
  "zeros": {"padding": "zero", "masks": True},
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_every_window_comes_once_an_epoch(path, cut):
  # The frames of half of the cases come decoded.
  decode_images = "masks" in cut
  want = collections.Counter(2 * list(all_windows(**cut)))
  report = StreamReport()
  got = list(
    streamed(
      episodes(path, decode_images),
      *(structure(), 4, SMALL, 1, 2),
      **cut,
      report=report,
    )
  )
  assert collections.Counter(one_by_one(got)) == want
  sizes = [len(batch["task"]) for batch in got]
  assert set(sizes[:-1]) == {4}
  assert report.windows == sum(want.values())
  assert report.episodes == 2 * len(LENGTHS)


def test_pools_of_many_short_episodes():
  # By path: small steps, large ones, and a value of the episode.
  window = {
    "x": specs.ExtendedTensorSpec((2, 1), tf.int64, "x", time_offsets=(-1, 0)),
    "large": specs.ExtendedTensorSpec((1, 4096), tf.uint8, "large", time_offsets=(0,)),
    "id": specs.ExtendedTensorSpec((), tf.int64, "id"),
  }

  count = 150

  def make(number):
    steps = 10 * number + tf.range(2 + number % 3, dtype=tf.int64)[:, tf.newaxis]
    large = tf.broadcast_to(tf.cast(number, tf.uint8), [tf.shape(steps)[0], 4096])
    return {"x": steps, "large": large, "id": number}

  report = StreamReport()
  episodes = tf.data.Dataset.range(count).map(make)
  got = streamed(episodes, window, 8, 10**8, 1, report=report, padding="drop")
  shown = [
    (int(number), *map(int, x.ravel()), *np.unique(large))
    for batch in got.as_numpy_iterator()
    for number, x, large in zip(batch["id"], batch["x"], batch["large"], strict=True)
  ]
  want = [
    (e, 10 * e + t - 1, 10 * e + t, e)
    for e in range(count)
    for t in range(1, 2 + e % 3)
  ]
  assert sorted(shown) == want
  # The first ones are small.
  assert 1 < report.pools < 6


def test_windows_of_sequences(path):
  sequence = structure()
  sequence["state"] = specs.ExtendedTensorSpec.from_spec(
    sequence["state"], is_sequence=True
  )
  cut = {"sequence_length": 3, "padding": "repeat"}
  got = streamed(episodes(path), sequence, 4, 10**6, 1, **cut)
  assert sorted(one_by_one(got)) == sorted(all_windows(3, padding="repeat"))
  assert got.element_spec["state"].shape.as_list() == [None, 3, 3, 2]


def test_batches_span_pools_and_epochs(path):
  budget = budget_of(40_000, 8)
  cut = {"padding": "drop"}
  kept = streamed(episodes(path), structure(), 8, budget, 1, 3, **cut)
  dropped = streamed(
    episodes(path), structure(), 8, budget, 1, 3, drop_remainder=True, **cut
  )
  assert [len(b["task"]) for b in kept] == [8] * 18 + [6]
  assert one_by_one(dropped) == one_by_one(kept)[: 8 * 18]
  assert dropped.element_spec["next"].shape.as_list() == [8, 2]


def test_unknown_sizes_of_the_specs():
  def sized(number):
    steps = 10 * number + tf.range(6, dtype=tf.int64)
    return {"x": steps, "id": tf.fill([3 + 0 * number], number)}

  window = {
    "x": specs.ExtendedTensorSpec((2,), tf.int64, "x", time_offsets=(-1, 0)),
    "id": specs.ExtendedTensorSpec((None,), tf.int64, "id"),
  }
  flat = tf.data.Dataset.range(3).map(sized)
  # Pools of one episode.
  budget = budget_of(800, 4, 40)
  report = StreamReport()
  got = list(streamed(flat, window, 4, budget, 1, report=report, padding="drop"))
  assert report.pools == 3
  assert [batch["id"].shape for batch in got] == [(4, 3), (4, 3), (4, 3), (3, 3)]
  shown = [
    (number.tolist(), x.tolist())
    for batch in got
    for number, x in zip(batch["id"].numpy(), batch["x"].numpy(), strict=True)
  ]
  want = [
    ([e] * 3, [10 * e + t - 1, 10 * e + t]) for e in range(3) for t in range(1, 6)
  ]
  assert sorted(shown) == want


# Lengths of episodes; those of one step have no window.
SHORT = {"at the end": (30, 1), "several": (30, 1, 1, 9, 1), "at the start": (1, 30)}


@pytest.mark.parametrize("lengths", SHORT.values(), ids=SHORT)
def test_episodes_without_windows_lose_no_window_of_others(lengths):
  window = {"x": specs.ExtendedTensorSpec((2,), tf.int64, "x", time_offsets=(-1, 0))}
  flat = tf.data.Dataset.from_generator(
    lambda: ({"x": np.arange(length)} for length in lengths),
    output_signature={"x": tf.TensorSpec([None], tf.int64)},
  )
  # Each episode exceeds the budget, so that the next one closes its pool.
  got = list(streamed(flat, window, 4, 1, 1, padding="drop"))
  want = [[t - 1, t] for length in lengths for t in range(1, length)]
  assert sorted(row.tolist() for b in got for row in b["x"].numpy()) == sorted(want)
  assert {len(batch["x"]) for batch in got[:-1]} == {4}


def test_batches_larger_than_pools_and_epochs(path):
  budget = budget_of(40_000, 64)
  got = streamed(episodes(path), structure(), 64, budget, 1, 3, padding="drop")
  assert [len(batch["task"]) for batch in got] == [64, 64, 22]


def test_order_depends_on_the_seed_only(path):
  spec = {"next": structure()["next"]}

  def order(seed, num_parallel_calls=None):
    parsed = episodes(path, num_parallel_calls=num_parallel_calls)
    rows = parsed.map(lambda episode: {"next": episode["state"]})
    batches = streamed(rows, spec, 4, 10**6, seed, 2)
    return [tuple(row) for batch in batches for row in batch["next"].numpy()]

  first = order(1)
  assert order(1, 4) == first
  assert order(2) != first
  half = len(first) // 2
  assert first[:half] != first[half:]
  assert sorted(first[:half]) == sorted(first[half:])


def test_pools_keep_within_the_budget(path):
  report = StreamReport()
  list(streamed(episodes(path), structure(), 4, SMALL, 1, report=report))
  assert report.pools > 2
  # One that is larger than any before may exceed it, once.
  assert 0 < report.pool_bytes <= 1.25 * SMALL
  assert f"{report.pool_bytes:,} of {SMALL:,} bytes" in str(report)


def test_all_that_a_budget_is_for_is_counted():
  # 9 floats, and their copy when they become one tensor; 12
  # copies of what is parsed; batches.
  spec = specs.ExtendedTensorSpec((2, 1), tf.float32, "x", time_offsets=(-1, 0))
  episodes = tf.data.Dataset.from_tensors({"x": tf.range(9.0)[:, tf.newaxis]})
  report = StreamReport()
  list(streamed(episodes, {"x": spec}, 4, 2**20, 1, report=report, padding="drop"))
  pools = 2 * 54
  assert report.pool_bytes == budget_of(pools + 12 * 36, 4, 2 * 4)


def test_many_datasets_are_no_reason_for_a_warning(caplog):
  spec = specs.ExtendedTensorSpec((2, 1), tf.float32, "x", time_offsets=(-1, 0))
  flat = tf.data.Dataset.from_tensors({"x": tf.range(9.0)[:, tf.newaxis]})
  logger = tf.get_logger()
  logger.addHandler(caplog.handler)
  try:
    for _ in range(6):
      streamed(flat, {"x": spec}, 4, SMALL, 1)
  finally:
    logger.removeHandler(caplog.handler)
  assert "retracing" not in caplog.text


def generator_of(path, **arguments):
  made = data.DefaultRecordInputGenerator(path, 4, seed=1, **arguments)
  made.set_specification_from_model(FakeModel(), "train")
  return made


def test_episode_above_the_budget_is_used_with_a_warning(path, capfd):
  generator = generator_of(path, memory_budget=900)
  batches = generator.create_dataset("train").take(13)
  assert {len(labels["next"]) for _, labels in batches} == {4}
  warning = (
    r"memory_budget: expected at least \d+ bytes, for pools that hold an episode of "
    r"\d+ steps, got 900 bytes. It is used all the same; give more"
  )
  # Again only when another one needs more.
  assert 1 <= len(re.findall(warning, capfd.readouterr().err)) <= len(LENGTHS)


def test_generator_gives_every_window_once_an_epoch(path):
  made = generator_of(path, memory_budget=80_000)
  batches = list(made.create_dataset("train").take(25))
  pairs = [
    (float(row[0]), float(row[1])) for _, label in batches for row in label["next"]
  ]
  counts = collections.Counter(pairs)
  assert len(counts) == 50
  assert set(counts.values()) == {2}


def test_files_come_in_another_order_in_every_epoch(tmp_path):
  flat = windows.flat_specs(feature_spec())
  for i in range(6):
    path = str(tmp_path / f"{i}.tfrecord")
    records.write_records(path, flat, [make_episode(i, 7)])
  made = generator_of(
    str(tmp_path / "*.tfrecord"), memory_budget=budget_of(25_500), cycle_length=2
  )
  batches = made.create_dataset("train").take(12)
  seen = [int(i) for features, _ in batches for i in features["task"].numpy()]
  epochs = [seen[:24], seen[24:]]
  assert [sorted(set(epoch)) for epoch in epochs] == [list(range(6))] * 2
  orders = [list(dict.fromkeys(epoch)) for epoch in epochs]
  assert orders[0] != orders[1]


MEMORY = """
import os
import tensorflow as tf
from t2r_seq.data.streams import StreamReport, streamed_windows
from t2r_seq.specs import ExtendedTensorSpec

def private():
  with open("/proc/self/status") as status:
    (line,) = [line for line in status if line.startswith("RssAnon")]
  return int(line.split()[1]) / 1024

def read(num_episodes, budget, kind):
  image = ExtendedTensorSpec((2, 256, 256, 3), tf.uint8, "x", data_format="jpeg",
                             time_offsets=(-1, 0))
  frames = tf.zeros([16, 256, 256, 3], tf.uint8)
  encoded = tf.io.encode_jpeg(frames[0])
  def episode(i):
    if kind == "raw":
      return {"x": frames + tf.cast(i, tf.uint8)}
    return {"x": tf.repeat(encoded, tf.constant(16) + tf.cast(0 * i, tf.int32))}
  # In parallel, as records are parsed.
  episodes = tf.data.Dataset.range(num_episodes).map(episode, 4)
  report = StreamReport()
  peak, windows = 0, 0
  plan = {"memory_budget": budget, "seed": 1, "padding": "drop"}
  for batch in streamed_windows(episodes, {"x": image}, 4, **plan, report=report):
    windows += len(batch["x"])
    peak = max(peak, private())
  assert windows == 15 * num_episodes
  return peak, report

def measure(kind):
  read(2, 2**30, kind)  # What TensorFlow itself takes.
  before = private()
  # Not the first iterator only: the next one finds what that has left.
  for _ in range(2):
    peak, report = read(70, 120 * 2**20, kind)
    found = peak - before, report.pool_bytes / 2**20, report.pools
    print("MIB", kind, *found, flush=True)

# Each in a process that has imported TensorFlow and run none of it.
for kind in ("raw", "jpeg"):
  child = os.fork()
  if not child:
    measure(kind)
    os._exit(0)
  assert os.waitpid(child, 0)[1] == 0
"""


def test_measured_peak_keeps_within_the_budget():
  # With oneDNN, as users run it: without, TensorFlow's allocator holds on to more.
  run = subprocess.run(
    [sys.executable, "-c", MEMORY],
    env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"},
    capture_output=True,
    text=True,
    check=True,
  )
  lines = [line.split() for line in run.stdout.splitlines() if line.startswith("MIB")]
  assert [kind for _, kind, *_ in lines] == ["raw", "raw", "jpeg", "jpeg"]
  for _, kind, *numbers in lines:
    measured, counted, pools = map(float, numbers)
    assert pools > 3, kind
    # All 70 episodes take 210 MiB.
    assert counted <= 120, kind
    assert measured < 1.25 * 120, kind
