"""Windows of a store equal those that `gather_windows` takes from its episodes."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, replay, specs, windows
from t2r_seq.data import StoreWindowLoader
from t2r_seq.data.pool import num_bytes_alive
from t2r_seq.store import EpisodeStore
from t2r_seq.windows.cut import PADDINGS
from tests import warm_python
from tests.data.window_reference import episode_windows

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


def write(path, segments):
  """Six short episodes whose values say where they stand, in segments by name."""
  EpisodeStore.create(path, STORED).close()
  for index, length in enumerate(LENGTHS):
    steps = 100 * index + np.arange(length) + 1
    images = [np.full((8, 8, 3), 20 * index + step) for step in range(length)]
    with EpisodeStore.append(path, segments[index]) as writer:
      writer.append_episode(
        {
          "x": np.stack([steps, -steps], 1).astype(np.float32),
          "done": steps % 3 == 0,
          "half": np.stack([steps, -steps], 1).astype(tf.bfloat16.as_numpy_dtype),
          "word": [b"\0%d\0" % step for step in steps],
          "pair": [[b"a%d" % step, b""] for step in steps],
          "image": [tf.io.encode_jpeg(image).numpy() for image in images],
          "goal": np.full(3, index, np.float32),
          "task": f"task {index}",
          "flag": index % 2 == 0,
          "always": steps.astype(np.float32),
          "at times": None if index else steps.astype(np.float32),
        }
      )
  return EpisodeStore(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  return write(tmp_path_factory.mktemp("stores") / "one", ["main"] * 6)


@pytest.fixture(scope="module")
def parted_store(tmp_path_factory):
  return write(tmp_path_factory.mktemp("stores") / "parted", [*"aabccc"])


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
  "two paths of a column": (
    {
      "x": x((-2, -1, 0, 1, 2)),
      "next": x((-1, 0, 1, 2, 3), name="x"),
      "done": Spec((), tf.bool, time_offsets=0),
      "later": Spec((), tf.bool, "done", time_offsets=1),
      "text": Spec((), tf.string, "task"),
    },
    {},
  ),
}


# Windows are cut by one reader in all orders, and tests/windows has every case of it:
# each of these meets one padding in order, and the next one in pools.
IN_ORDER = dict(zip(CASES, itertools.cycle(PADDINGS), strict=False))
IN_POOLS = dict(zip(CASES, itertools.cycle([*PADDINGS[1:], PADDINGS[0]]), strict=False))


@functools.cache
def wanted(store, name, padding):
  """The windows of a case, each taken from its own episode."""
  return reference(store, CASES[name][0], padding, CASES[name][1])


def reference(store, spec, padding, kwargs):
  return [
    row
    for episode in decoded_episodes(store)
    for batch in episode_windows(episode, len(episode["x"]), spec, padding, **kwargs)
    for row in rows_of(batch)
  ]


@functools.cache
def decoded_episodes(store):
  found = []
  for index in range(len(store)):
    episode = store.episode(index)
    episode.pop("at times", None)
    images = [tf.io.decode_image(image) for image in episode["image"]]
    renamed = {"next": "x", "later": "done", "text": "task"}
    more = {path: episode[name] for path, name in renamed.items()}
    found.append({**episode, "image": tf.stack(images), **more})
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


@pytest.mark.parametrize("name, padding", IN_ORDER.items())
def test_windows_are_those_of_the_episodes(name, padding, store):
  """In full batches, whose shape the graph knows; pools have batches of any size."""
  spec, kwargs = CASES[name]
  want = wanted(store, name, padding)
  size = next(size for size in range(2, 33) if len(want) % size == 0)
  full = StoreWindowLoader(
    store, spec, size, "sequential", padding=padding, **kwargs
  ).dataset()
  batches = list(full)
  assert all(isinstance(batch, specs.TensorSpecStruct) for batch in batches)
  assert_same_windows(unbatched(batches), want)
  assert_static_shapes(full, size)


def assert_static_shapes(dataset, batch_size):
  for path, element in dataset.element_spec.items():
    assert element.shape.is_fully_defined(), path
    assert element.shape[0] == batch_size, path


def test_columns_of_every_kind_in_batches_of_any_size(store):
  """What is done with the rows that the columns give, pools do for all cases."""
  spec, _ = CASES["everything"]
  dataset = StoreWindowLoader(
    store, spec, 5, "sequential", drop_remainder=False, padding="zero"
  ).dataset()
  assert_same_windows(unbatched(dataset), wanted(store, "everything", "zero"))


def assert_same_arrays(got, want):
  assert sorted(got) == sorted(want)
  for path, value in want.items():
    assert isinstance(got[path], (np.ndarray, np.generic, bytes)), path
    np.testing.assert_array_equal(got[path], value, err_msg=path)


def by_first(windows_):
  """Sorts windows by something that no two share."""
  return sorted(windows_, key=lambda window: np.ravel(window["x"]).tolist())


def test_several_segments_read_as_one(store, parted_store):
  spec, _ = CASES["everything"]
  # An image is a string of a step, as a word is; each costs six loops.
  spec = {path: leaf for path, leaf in spec.items() if path != "word"}
  want = [dict(window) for window in wanted(store, "everything", "drop")]
  for window in want:
    del window["word"]
  dataset = StoreWindowLoader(
    parted_store, spec, 4, "sequential", drop_remainder=False, padding="drop"
  ).dataset()
  assert_same_windows(unbatched(dataset), want)


@pytest.mark.parametrize("name, padding", IN_POOLS.items())
def test_pools_show_the_same_windows(name, padding, store):
  """Pools of one batch, or of some; a pool ends where it ends, in an episode, too."""
  spec, kwargs = CASES[name]
  budget = least_budget(store, spec, 3, padding=padding, **kwargs)
  if padding != "repeat":
    budget = budget * 5 // 4
  kwargs = {"memory_budget": budget, "padding": padding, **kwargs}
  loader = StoreWindowLoader(
    store, spec, 3, "quasi_random", drop_remainder=False, **kwargs
  )
  got = by_first(unbatched(loader.dataset()))
  assert_same_windows(got, by_first(wanted(store, name, padding)))


def test_pool_of_all_windows(store):
  spec, _ = CASES["everything"]
  loader = StoreWindowLoader(store, spec, 3, "quasi_random", drop_remainder=False)
  assert loader.pool_size.num_batches == loader.batches_per_epoch == 11
  got = by_first(unbatched(loader.dataset()))
  assert_same_windows(got, by_first(wanted(store, "everything", "repeat")))
  spec = {path: spec[path] for path in ("x", "pair", "image", "task")}
  full = StoreWindowLoader(store, spec, 3, "quasi_random", padding="zero").dataset()
  assert_static_shapes(full, 3)


def least_budget(store, spec, batch_size, **kwargs):
  loader = StoreWindowLoader(
    store, spec, batch_size, "quasi_random", memory_budget=1, **kwargs
  )
  return loader.pool_size.max_bytes


def test_ids_in_any_order(store):
  spec = {k: v for k, v in CASES["everything"][0].items() if k != "image"}
  reader = store.windows(spec, padding="repeat")
  want = reference(store, spec, "repeat", {})
  assert reader.num_windows == len(want) == sum(LENGTHS)
  ids = [31, 0, 4, 5, 5, 6, 30, 1]  # First and last windows, and one twice.
  got = rows_of(reader.read(tf.constant(ids, tf.int64)))
  assert_same_windows(got, [want[i] for i in ids])
  assert_same_arrays(store.window(0, spec, padding="repeat"), want[0])
  assert_same_arrays(reader[-1], want[-1])
  with pytest.raises(IndexError, match="expected a window below 32, got 32"):
    reader[32]
  with pytest.raises(errors.SpecError, match="window: expected an integer, got fl"):
    reader[1.5]
  for wrong in ([-1], [0, 32]):
    with pytest.raises(IndexError, match=rf"from 0 to 31, got .* from {wrong[0]} to"):
      reader.read(tf.constant(wrong))


def test_images_can_stay_encoded(store):
  spec = {
    "image": Spec((2, 8, 8, 3), tf.uint8, data_format="jpeg", time_offsets=(0, 1))
  }
  want = store.episode(0).image
  for order in ("sequential", "quasi_random"):
    dataset = StoreWindowLoader(store, spec, 4, order, decode_images=False).dataset()
    batch = next(iter(dataset.take(1)))
    assert batch.image.dtype == tf.string and batch.image.shape == (4, 2)
  assert store.window(1, spec).image.tolist() == want[1:3].tolist()


def test_each_column_is_read_once_for_all_that_show_it(store):
  found = store.windows(CASES["two paths of a column"][0])
  assert found.reader.paths == ("x", "done", "task")
  assert list(found[0]) == ["x", "next", "done", "later", "text"]


def test_names_that_do_not_fit(store):
  with pytest.raises(errors.SpecError, match="windows: 2 mismatches") as caught:
    store.windows({"a": x((0, 1), name="always"), "b": x((0, 1), name="gaol")})
  assert str(caught.value).splitlines() == [
    "windows: 2 mismatches:",
    "  a: expected [T] steps of (2,) float32, got (None,) float32 at 'always', its "
    "name.",
    "  b: expected [T] steps of (2,) float32, got nothing. It reads 'gaol', by its "
    "name. Did you mean 'goal'?",
  ]
  # The shape of a whole episode of steps, if it was as long.
  want = (
    "windows: always: expected a value for each episode, got (None,) float32, one for "
    "each step. Set which steps to read: time_offsets=(...)."
  )
  with pytest.raises(errors.SpecError, match=f"^{re.escape(want)}$"):
    store.windows({"always": Spec((5,), F32), "x": x((0, 1))})


def flatten(batches):
  return [anchor for batch in batches for anchor in batch]


def anchors(dataset):
  return [batch["x"][:, 0].numpy().astype(int).tolist() for batch in dataset]


NOW = {"x": Spec((2,), F32)}
ALL = [100 * e + t + 1 for e, n in enumerate(LENGTHS) for t in range(n)]


# Pools of 16 windows, of a row each, and batches of 6.
SMALL = num_bytes_alive(16 * 8, 0, 6 * 8)
ORDERS = {
  "sequential": {"order": "sequential"},
  "global": {"order": "global"},
  "one pool": {"order": "quasi_random"},
  "small pools": {"order": "quasi_random", "memory_budget": SMALL},
}


def assert_epochs(epochs, name):
  """Each shows every window once; one that is shuffled, in an order of its own."""
  assert [sorted(epoch) for epoch in epochs] == [ALL] * len(epochs)
  if name != "sequential":
    for one, other in itertools.combinations([ALL, *epochs], 2):
      assert one != other


@pytest.mark.parametrize("name", ORDERS)
def test_every_window_once_an_epoch_in_one_shard(name, store):
  kwargs = {"num_epochs": 2, "drop_remainder": False, "seed": 4, **ORDERS[name]}
  epochs = [[], []]
  for i in range(3):
    shard = anchors(
      StoreWindowLoader(store, NOW, 5, shard_index=i, num_shards=3, **kwargs).dataset()
    )
    half = len(shard) // 2
    epochs[0] += flatten(shard[:half])
    epochs[1] += flatten(shard[half:])
  assert_epochs(epochs, name)


@pytest.mark.parametrize(
  "name, drop_remainder",
  [*((name, True) for name in ORDERS), ("global", False), ("small pools", False)],
)
def test_same_batches_again_and_from_any_batch_on(name, drop_remainder, store):
  def make(num_epochs=3):
    return StoreWindowLoader(
      *(store, NOW, 6),
      **{"seed": 1, "num_epochs": num_epochs, "drop_remainder": drop_remainder},
      **ORDERS[name],
    )

  def with_threads(dataset, number):
    options = tf.data.Options()
    options.threading.private_threadpool_size = number
    return dataset.with_options(options)

  loader = make()
  dataset = loader.dataset()
  want = anchors(with_threads(dataset, 1))
  assert len(want) == 3 * (5 if drop_remainder else 6)
  assert anchors(with_threads(dataset, 4)) == want
  if drop_remainder:
    # These are read many at once, unless in pools: some of a read may be left out.
    starts = (1, 14, 15) if "pool" in name else (1, 4, 5, 6, 14, 15)
  else:
    starts = (6, 15, 18)
    assert_epochs([flatten(want[i : i + 6]) for i in (0, 6, 12)], name)
  for start in starts:
    again = with_threads(loader.dataset(start), 1)
    assert anchors(again) == want[start:], start
  if drop_remainder:
    assert anchors(make(None).dataset(12).take(3)) == want[12:15]


def test_pools_keep_their_budget(tmp_path):
  path, size = tmp_path / "store", 1000
  spec = {"x": Spec((size,), tf.uint8, is_sequence=True)}
  with EpisodeStore.create(path, spec, commit_every=100) as writer:
    for length in (200, 2, 30, 2, 2, 1, 90, 2):
      writer.append_episode({"x": np.zeros((length, size), np.uint8)})
  window = {"x": Spec((2, size), tf.uint8, time_offsets=(-1, 0))}
  for budget in (2 * 60 * size, 2 * 100 * size, 2 * 1000 * size):
    loader = StoreWindowLoader(
      *(EpisodeStore(path), window, 8, "quasi_random"), memory_budget=budget
    )
    assert loader.pool_size.max_bytes <= budget


def test_dataset_outlives_what_it_was_made_from(store):
  spec = {path: CASES["everything"][0][path] for path in ("x", "image", "task")}

  def make():
    return StoreWindowLoader(EpisodeStore(store.path), spec, 2).dataset()

  iterator = iter(make())
  next(iterator)
  gc.collect()
  assert len(list(iterator)) > 0


def test_optional_path_that_some_episodes_lack(store):
  optional = {**NOW, "at times": Spec((), F32, is_optional=True)}
  assert list(StoreWindowLoader(store, optional, 2).dataset().element_spec) == ["x"]
  needed = {**NOW, "at times": Spec((), F32, time_offsets=0)}
  with pytest.raises(
    errors.SpecError, match=r"at times: expected it .* none in 5 of 6 "
  ):
    StoreWindowLoader(store, needed, 2).dataset()


def test_loader_rejects_specs_that_it_cannot_read(store, tmp_path):
  with pytest.raises(errors.SpecError, match=r"x: expected \[T\] steps of \(3,\) flo"):
    StoreWindowLoader(store, {"x": Spec((2, 3), F32, time_offsets=(0, 1))}, 2).dataset()
  with pytest.raises(errors.SpecError, match=r"51 steps of a window, got none.* 12\."):
    StoreWindowLoader(store, {"x": x(50)}, 2, padding="drop").dataset()
  with pytest.raises(
    errors.SpecError, match="start_batch: expected an integer of at least 0, got -1"
  ):
    StoreWindowLoader(store, NOW, 2).dataset(-1)
  with pytest.raises(
    errors.SpecError, match="at most 48, the batches of num_epochs=3, got 49"
  ):
    StoreWindowLoader(store, NOW, 2, num_epochs=3).dataset(49)
  with pytest.raises(errors.SpecError, match="at most the 32 windows of a shard"):
    StoreWindowLoader(store, NOW, 33).dataset()

  path = tmp_path / "store"
  spec = {"x": Spec((2,), F32, is_sequence=True)}
  EpisodeStore.create(path, spec).close()
  with pytest.raises(errors.StoreError, match="expected episodes, got none"):
    StoreWindowLoader(EpisodeStore(path), NOW, 1).dataset()
  with pytest.raises(errors.SpecError, match=r"order: .*'globl'\. Did you mean 'glo"):
    StoreWindowLoader(store, NOW, 2, "globl").dataset()


SCRIPT = """
import os, sys, time
import numpy as np, tensorflow as tf
from t2r_seq import specs
from t2r_seq.data import StoreWindowLoader
from t2r_seq.store import EpisodeStore, layout, manifest
import zlib

def most():
  with open("/proc/self/status") as file:
    lines = dict(line.split(":", 1) for line in file)
  return int(lines["VmHWM"].split()[0]) << 10

path, size = sys.argv[1], 1 << 20
spec = {"x": specs.ExtendedTensorSpec((size,), tf.uint8, is_sequence=True)}
window = {"x": specs.ExtendedTensorSpec((2, size), tf.uint8, time_offsets=(-1, 0))}
with EpisodeStore.create(path, spec) as writer:
  writer.append_episode({"x": np.ones((3, size), np.uint8)})
list(StoreWindowLoader(EpisodeStore(path), window, 2).dataset())
steps, folder = 1 << 10, f"{path}/segments/main"
ends = np.asarray([steps], "<i8").tobytes()
with open(f"{folder}/{layout.ENDS}", "wb") as file:
  file.write(ends)
commit = manifest.Commit.read(folder)
os.truncate(f"{folder}/x.data", steps * size)
manifest.Commit(
  1, steps, {**commit.sizes, "x.data": steps * size},
  {**commit.index_crc32, layout.ENDS: zlib.crc32(ends)},
).write(folder)
with open("/proc/self/clear_refs", "w") as file:
  file.write("5")  # The most that is resident counts from here.
before = most()
dataset = StoreWindowLoader(EpisodeStore(path), window, 2, seed=1).dataset()
shapes = {tuple(batch["x"].shape) for batch in dataset.take(4)}
assert shapes == {(2, 2, size)}, shapes
print((most() - before) >> 20)
"""


def test_large_store_costs_no_memory(tmp_path):
  done = warm_python.run("-c", SCRIPT, tmp_path / "store")
  assert done.returncode == 0, done.stderr[-2000:]
  assert int(done.stdout.split()[-1]) < 200, "MiB at most for a store of 1 GB"


def test_loaders_check_and_convert_arguments(store):
  for name, wrong in {
    "batch_size": None,
    "memory_budget": "1GB",
    "num_epochs": 1.5,
  }.items():
    with pytest.raises(errors.SpecError, match=rf"{name}: expected an integer of at"):
      StoreWindowLoader(store, NOW, **{"batch_size": 2, name: wrong}).dataset()
  for order in ("global", "quasi_random"):
    kwargs = {"drop_remainder": False, "num_shards": 33, "shard_index": 0}
    with pytest.raises(errors.SpecError, match="num_shards: expected at most the 32 w"):
      StoreWindowLoader(store, NOW, 4, order, **kwargs).dataset()
  sizes = {"batch_size": np.int64(4), "seed": np.int64(1), "num_epochs": np.int64(1)}
  assert anchors(StoreWindowLoader(store.path, NOW, **sizes).dataset()) == anchors(
    StoreWindowLoader(store, NOW, 4, seed=1).dataset()
  )


def test_loader_reads_on_systems_without_affinity(store, monkeypatch):
  want = anchors(StoreWindowLoader(store, NOW, 4, seed=1).dataset())
  monkeypatch.delattr(os, "sched_getaffinity")  # As on macOS.
  assert anchors(StoreWindowLoader(store, NOW, 4, seed=1).dataset()) == want


def test_values_without_any_numbers(tmp_path):
  spec = {
    "none": Spec((0,), F32, is_sequence=True),
    "x": Spec((), F32, is_sequence=True),
  }
  with EpisodeStore.create(tmp_path / "store", spec) as writer:
    writer.append_episode({"none": np.zeros((20, 0), np.float32), "x": [1.0] * 20})
  window = {path: Spec(leaf.shape, F32, time_offsets=0) for path, leaf in spec.items()}
  for order in ("global", "quasi_random"):
    batches = list(
      StoreWindowLoader(EpisodeStore(tmp_path / "store"), window, 4, order).dataset()
    )
    assert [batch["none"].shape for batch in batches] == [(4, 0)] * 5


def _by_window(path, wanted):
  read = EpisodeStore(path).windows(wanted, padding="drop")
  return read.read(tf.range(len(read), dtype=tf.int64))


def _by_generator(path, wanted):
  generator = data.StoreInputGenerator(path, 4, seed=0)
  generator.set_feature_specifications(wanted)
  generator.set_label_specifications(specs.TensorSpecStruct())
  return next(iter(generator.create_dataset("eval")))[0]


def _by_replay(path, wanted):
  return replay.ReplayBuffer.from_store(
    path, wanted, capacity_steps=9, padding="drop"
  ).sample(4)


@pytest.mark.parametrize("read", [_by_window, _by_generator, _by_replay])
def test_next_observations_are_of_what_they_are_named_after(read, tmp_path):
  """Also where transitions were stored, each with its next observation."""
  column = Spec((1,), F32, "obs", is_sequence=True)
  path = str(tmp_path / "store")
  with EpisodeStore.create(path, {"obs": column, "next_obs": column}) as writer:
    steps = np.arange(5, dtype=np.float32)[:, np.newaxis]
    writer.append_episode({"obs": steps, "next_obs": steps + 1})
  wanted = specs.TensorSpecStruct(
    obs=Spec((1,), F32, "obs", time_offsets=0),
    next_obs=Spec((1,), F32, "obs", time_offsets=1),
  )
  batch = read(path, wanted)
  np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + 1)


_OWN = {
  # Of features (by path: name and offset) and labels: what each path shows.
  "a label of a feature's path": (
    {"pose": (None, 0), "goal": (None, 0)},
    {"pose": ("goal", 1)},
    {"features/pose": "pose", "features/goal": "goal", "labels/pose": "pose"},
  ),
  "a feature that is named after a label": (
    {"last": ("goal", 0), "pose": (None, 0)},
    {"goal": (None, 1)},
    {"features/last": "last", "features/pose": "pose", "labels/goal": "goal"},
  ),
  "a label that is named after a feature": (
    {"pose": (None, 0)},
    {"goal": ("pose", 1)},
    {"features/pose": "pose", "labels/goal": "goal"},
  ),
  "another name at the same time": (
    {"pose": (None, 0), "goal": ("pose", 0)},
    {},
    {"features/pose": "pose", "features/goal": "goal"},
  ),
  "named crosswise": (
    {"pose": ("goal", 0), "goal": ("pose", 1)},
    {},
    {"features/pose": "pose", "features/goal": "goal"},
  ),
}


@pytest.mark.parametrize("case", _OWN)
def test_columns_are_found_by_name_or_path(case, tmp_path):
  features, labels, want = _OWN[case]
  starts = {"pose": 0, "goal": 100, "last": 200}
  path = str(tmp_path / "store")
  columns = {name: Spec((), F32, is_sequence=True) for name in starts}
  with EpisodeStore.create(path, columns) as writer:
    steps = np.arange(6, dtype=np.float32)
    writer.append_episode({name: steps + start for name, start in starts.items()})
  given = [
    specs.TensorSpecStruct(
      (own, Spec((), F32, name, time_offsets=offset))
      for own, (name, offset) in branch.items()
    )
    for branch in (features, labels)
  ]
  generator = data.StoreInputGenerator(path, 1)
  generator.set_feature_specifications(given[0])
  generator.set_label_specifications(given[1])
  batch = next(iter(generator.create_dataset("eval")))
  for branch, values in zip(("features", "labels"), batch, strict=True):
    for own, value in (values or {}).items():
      offset = (
        {**features, **labels}[own][1] if branch == "labels" else features[own][1]
      )
      assert float(value[0]) == starts[want[f"{branch}/{own}"]] + offset
