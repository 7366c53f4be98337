"""Windows of a store equal those that `gather_windows` takes from its episodes."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.data import StoreWindows, store_windows
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
F32 = tf.float32
LENGTHS = (5, 1, 2, 9, 3, 12)
STORED = {
  "x": Spec((2,), F32, is_sequence=True),
  "done": Spec((), tf.bool, is_sequence=True),
  "half": Spec((2,), tf.bfloat16, is_sequence=True),
  "word": Spec((), tf.string, is_sequence=True),
  "pair": Spec((2,), tf.string, is_sequence=True),
  "image": Spec((8, 8, 3), tf.uint8, is_sequence=True, data_format="jpeg"),
  "goal": Spec((3,), F32),
  "task": Spec((), tf.string),
  "flag": Spec((), tf.bool),
  "always": Spec((), F32, is_sequence=True, is_optional=True),
  "at times": Spec((), F32, is_sequence=True, is_optional=True),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  """A store of six short episodes whose values say where they stand."""
  path = tmp_path_factory.mktemp("stores") / "store"
  with EpisodeStore.create(path, STORED, commit_every=10) as writer:
    for index, length in enumerate(LENGTHS):
      steps = 100 * index + np.arange(length) + 1
      writer.append_episode(
        {
          "x": np.stack([steps, -steps], 1).astype(np.float32),
          "done": steps % 3 == 0,
          "half": np.stack([steps, -steps], 1).astype(tf.bfloat16.as_numpy_dtype),
          "word": [b"\0%d\0" % step for step in steps],
          "pair": [[b"a%d" % step, b""] for step in steps],
          "image": [tf.io.encode_jpeg(np.full((8, 8, 3), index)).numpy()] * length,
          "goal": np.full(3, index, np.float32),
          "task": f"task {index}",
          "flag": index % 2 == 0,
          "always": steps.astype(np.float32),
          "at times": None if index else steps.astype(np.float32),
        }
      )
  return EpisodeStore(path)


def x(offsets, **kwargs):
  stack = (len(offsets),) if isinstance(offsets, tuple) else ()
  return Spec((*stack, 2), F32, time_offsets=offsets, **kwargs)


# name: (the specs of a window, further arguments)
CASES = {
  "stack": ({"x": x((-3, -2, -1, 0))}, {}),
  "next": ({"x": x(1)}, {}),
  "own step": ({"x": Spec((2,), F32)}, {}),
  "everything": (
    {
      "x": x((-1, 0, 2)),
      "done": Spec((2,), tf.bool, time_offsets=(0, 1)),
      "half": Spec((2,), tf.bfloat16),
      "word": Spec((2,), tf.string, time_offsets=(-1, 0)),
      "pair": Spec((2,), tf.string, time_offsets=0),
      "image": Spec((2, 8, 8, 3), tf.uint8, data_format="jpeg", time_offsets=(-1, 0)),
      "goal": Spec((3,), F32),
      "task": Spec((), tf.string),
      "flag": Spec((), tf.bool),
      "always": Spec((), F32, time_offsets=-1),
    },
    {},
  ),
  "masks": ({"x": x((-1, 0)), "goal": Spec((3,), F32)}, {"masks": True}),
  "declared mask": (windows.add_mask_specs({"x": x((-1, 0))}), {}),
  "sequence of stacks": (
    {"x": x((-1, 0), is_sequence=True), "done": Spec((), tf.bool, time_offsets=1)},
    {"sequence_length": 3},
  ),
  "strides": (
    {"x": x((0, 1), is_sequence=True), "task": Spec((), tf.string)},
    {"sequence_length": 2, "stride": 2, "shift": 3},
  ),
}


def reference(store, spec, padding, kwargs):
  """Takes the windows one by one, each from its own episode."""
  found = []
  for index, length in enumerate(store.episode_lengths.tolist()):
    episode = store.episode(index)
    for path in ("at times",):
      episode.pop(path, None)
    grid = windows.WindowGrid(
      windows.time_span(spec),
      kwargs.get("sequence_length") or 1,
      kwargs.get("stride", 1),
      kwargs.get("shift", 1),
      padding,
    )
    gather = {k: v for k, v in kwargs.items() if k != "shift"}
    found += [
      windows.gather_windows(episode, grid.start(i), spec, padding=padding, **gather)
      for i in range(grid.num_windows(length))
    ]
  return found


def unbatched(dataset):
  return [element for batch in dataset for element in rows_of(batch)]


def rows_of(batch):
  size = len(next(iter(batch.values())))
  return [{path: value[i] for path, value in batch.items()} for i in range(size)]


def assert_same_windows(got, want):
  assert len(got) == len(want)
  for one, other in zip(got, want, strict=True):
    assert sorted(one) == sorted(other)
    for path in other:
      assert one[path].dtype == other[path].dtype, path
      np.testing.assert_array_equal(one[path], other[path], err_msg=path)


@pytest.mark.parametrize("padding", windows.PADDINGS)
@pytest.mark.parametrize("name", CASES)
def test_windows_are_those_of_the_episodes(name, padding, store):
  spec, kwargs = CASES[name]
  want = reference(store, spec, padding, kwargs)
  dataset = store_windows(
    store, spec, 4, "sequential", drop_remainder=False, padding=padding, **kwargs
  )
  assert_same_windows(unbatched(dataset), want)
  assert isinstance(next(iter(dataset)), specs.TensorSpecStruct)
  full = store_windows(store, spec, 4, "sequential", padding=padding, **kwargs)
  for path, element in full.element_spec.items():
    assert element.shape.is_fully_defined() and element.shape[0] == 4, path


def test_ids_in_any_order(store):
  spec, _ = CASES["everything"]
  reader = StoreWindows(store, spec, padding="repeat")
  want = reference(store, spec, "repeat", {})
  assert reader.num_windows == len(want) == sum(LENGTHS)
  ids = [31, 0, 4, 5, 5, 6, 30, 1]  # First and last windows, and one twice.
  got = rows_of(reader.read(tf.constant(ids, tf.int64)))
  assert_same_windows(got, [want[i] for i in ids])


def test_frames_before_and_after(store):
  """Two frames before and two after, as the issue of a loader had asked for."""
  spec = {
    "obs0": Spec((5, 2), F32, time_offsets=(-2, -1, 0, 1, 2)),
    "obs1": Spec((5, 2), F32, time_offsets=(-1, 0, 1, 2, 3)),
  }
  with pytest.raises(errors.SpecError, match=r"obs0: expected \[T\] steps"):
    store_windows(store, spec, 2)
  frames = {"x": x((-2, -1, 0, 1, 2))}
  rows = unbatched(store_windows(store, frames, 3, "sequential", drop_remainder=False))
  middles = [int(row["x"][2, 0]) for row in rows]
  want = [100 * e + t + 1 for e, n in enumerate(LENGTHS) for t in range(2, n - 2)]
  assert middles == want
  for row, middle in zip(rows, want, strict=True):
    assert row["x"][:, 0].numpy().tolist() == [middle + d for d in (-2, -1, 0, 1, 2)]


def anchors(dataset):
  return [batch["x"][:, 0].numpy().astype(int).tolist() for batch in dataset]


NOW = {"x": Spec((2,), F32)}
ALL = [100 * e + t + 1 for e, n in enumerate(LENGTHS) for t in range(n)]


def test_global_order_shows_every_window_once_an_epoch(store):
  kwargs = {"num_epochs": 2, "drop_remainder": False}
  shards = [
    anchors(store_windows(store, NOW, 5, seed=4, shard_index=i, num_shards=3, **kwargs))
    for i in range(3)
  ]
  epochs = [[], []]
  for shard in shards:
    half = len(shard) // 2
    for epoch, part in zip(epochs, (shard[:half], shard[half:]), strict=True):
      epoch += [anchor for batch in part for anchor in batch]
  assert sorted(epochs[0]) == sorted(epochs[1]) == ALL
  assert epochs[0] != epochs[1] and epochs[0] != ALL


def test_the_same_batches_again_and_from_any_batch_on(store):
  def make(start=0):
    return store_windows(store, NOW, 6, seed=1, num_epochs=3, start_batch=start)

  want = anchors(make())
  assert len(want) == 3 * (32 // 6) and anchors(make()) == want
  for start in (1, 4, 5, 14, 15, 20):
    assert anchors(make(start)) == want[start:]
  endless = store_windows(store, NOW, 6, seed=1, num_epochs=None, start_batch=12)
  assert anchors(endless.take(3)) == want[12:]


def test_a_checkpoint_resumes(store, tmp_path):
  def make():
    return iter(store_windows(store, NOW, 6, seed=1, num_epochs=2))

  want = anchors(make())
  iterator = make()
  for _ in range(4):
    next(iterator)
  saved = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "checkpoint"))
  other = make()
  tf.train.Checkpoint(iterator=other).restore(saved)
  assert anchors(other) == want[4:]


def test_a_dataset_outlives_what_it_was_made_from(store):
  def make():
    return store_windows(EpisodeStore(store.path), CASES["everything"][0], 2)

  iterator = iter(make())
  next(iterator)
  gc.collect()
  assert len(list(iterator)) > 0


def test_the_optional_path_that_some_episodes_lack(store):
  optional = {**NOW, "at times": Spec((), F32, is_optional=True)}
  assert list(store_windows(store, optional, 2).element_spec) == ["x"]
  needed = {**NOW, "at times": Spec((), F32, time_offsets=0)}
  with pytest.raises(errors.SpecError, match=r"at times: expected .* got nothing"):
    store_windows(store, needed, 2)


def test_what_cannot_be_read(store, tmp_path):
  with pytest.raises(errors.SpecError, match=r"x: expected \[T\] steps of \(3,\) flo"):
    store_windows(store, {"x": Spec((2, 3), F32, time_offsets=(0, 1))}, 2)
  with pytest.raises(errors.SpecError, match="long enough for a window, got 12 steps"):
    store_windows(store, {"x": x(50)}, 2)
  with pytest.raises(
    errors.SpecError, match="start_batch: expected at least 0, got -1"
  ):
    store_windows(store, NOW, 2, start_batch=-1)
  with pytest.raises(errors.SpecError, match="at most the 32 windows of a shard"):
    store_windows(store, NOW, 33)

  path = tmp_path / "store"
  spec = {"x": Spec((2,), F32, is_sequence=True)}
  EpisodeStore.create(path, spec).close()
  with pytest.raises(errors.StoreError, match="expected episodes, got none"):
    store_windows(EpisodeStore(path), NOW, 1)
  for segment in ("a", "b"):
    with EpisodeStore.append(path, segment) as writer:
      writer.append_episode({"x": [[1.0, 2.0]]})
  with pytest.raises(
    errors.StoreError, match=r"one segment .*\[a, b\]\. Run EpisodeSto"
  ):
    store_windows(EpisodeStore(path), NOW, 1)
  EpisodeStore.merge(path)
  assert anchors(store_windows(EpisodeStore(path), NOW, 2)) == [[1, 1]]


SCRIPT = """
import os, sys, time
import numpy as np, tensorflow as tf
from t2r_seq import specs
from t2r_seq.data import store_windows
from t2r_seq.store import EpisodeStore, layout, manifest
import zlib

def private():
  with open("/proc/self/status") as file:
    lines = dict(line.split(":", 1) for line in file)
  return int(lines["RssAnon"].split()[0]) << 10

path, size = sys.argv[1], 1 << 20
spec = {"x": specs.ExtendedTensorSpec((size,), tf.uint8, is_sequence=True)}
window = {"x": specs.ExtendedTensorSpec((2, size), tf.uint8, time_offsets=(-1, 0))}
with EpisodeStore.create(path, spec) as writer:
  writer.append_episode({"x": np.ones((3, size), np.uint8)})
list(store_windows(EpisodeStore(path), window, 2))
steps, folder = 6 << 10, f"{path}/segments/main"
ends = np.asarray([steps], "<i8").tobytes()
with open(f"{folder}/{layout.ENDS}", "wb") as file:
  file.write(ends)
commit = manifest.Commit.read(folder)
os.truncate(f"{folder}/x.data", steps * size)
manifest.Commit(
  1, steps, {**commit.sizes, "x.data": steps * size},
  {**commit.index_crc32, layout.ENDS: zlib.crc32(ends)},
).write(folder)
before = private()
dataset = store_windows(EpisodeStore(path), window, 2, seed=1)
shapes = {tuple(batch["x"].shape) for batch in dataset.take(4)}
assert shapes == {(2, 2, size)}, shapes
print((private() - before) >> 20)
"""


def test_a_store_larger_than_memory_costs_none(tmp_path):
  done = subprocess.run(
    [sys.executable, "-c", SCRIPT, str(tmp_path / "store")],
    capture_output=True,
    text=True,
    check=False,
    timeout=240,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  assert int(done.stdout.split()[-1]) < 200, "private memory for a store of 6 GB"
