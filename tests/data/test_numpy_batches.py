"""Batches as numpy arrays are those of the dataset, bit for bit."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.data import StoreWindowLoader
from t2r_seq.data.loaders import NumpyBatches, WindowLoader
from t2r_seq.data.plan import Plan
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
DTYPES = (tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.uint8, tf.bool, tf.int64)
LENGTHS = (5, 1, 9, 3, 12)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  path = tmp_path_factory.mktemp("stores") / "store"
  stored = {
    **{dtype.name: Spec((2,), dtype, is_sequence=True) for dtype in DTYPES},
    "word": Spec((), tf.string, is_sequence=True),
    "image": Spec((8, 8, 3), tf.uint8, is_sequence=True, data_format="png"),
    "task": Spec((), tf.string),
  }
  with EpisodeStore.create(path, stored) as writer:
    for episode, length in enumerate(LENGTHS):
      steps = 20 * episode + np.arange(length)
      values = np.stack([steps, steps + 1], 1)
      images = [np.full((8, 8, 3), step, np.uint8) for step in steps]
      writer.append_episode(
        {
          **{d.name: (values % 7).astype(d.as_numpy_dtype) for d in DTYPES},
          "float32": values.astype(np.float32),
          "word": [b"%d\0" % step for step in steps],
          "image": [tf.io.encode_png(image).numpy() for image in images],
          "task": f"task {episode}",
        }
      )
  return EpisodeStore(path)


WINDOW = {
  "float32": Spec((3, 2), tf.float32, time_offsets=(-1, 0, 1)),
  "bool": Spec((2,), tf.bool, time_offsets=0),
}
EVERYTHING = {
  **{dtype.name: Spec((2,), dtype) for dtype in DTYPES},
  "float32": Spec((3, 2), tf.float32, time_offsets=(-1, 0, 1)),
  "word": Spec((2,), tf.string, time_offsets=(0, 1)),
  "image": Spec((8, 8, 3), tf.uint8, data_format="png"),
  "task": Spec((), tf.string),
}

# name: arguments of the loader
LOADERS = {
  "sequential": {"order": "sequential"},
  "global": {"order": "global"},
  "quasi_random": {"order": "quasi_random"},
  "remainder": {"order": "global", "drop_remainder": False},
  "remainder of pools": {"order": "quasi_random", "drop_remainder": False},
  "shard": {"order": "global", "shard_index": 1, "num_shards": 2},
}


def make_loader(store, name, window=None, **kwargs):
  kwargs = {"padding": "repeat", "num_epochs": 2, **LOADERS[name], **kwargs}
  return StoreWindowLoader(store, window or WINDOW, 4, **kwargs)


def assert_same(got, want):
  assert len(got) == len(want)
  for one, other in zip(got, want, strict=True):
    assert type(one) is dict and list(one) == list(other)
    for path, array in one.items():
      assert isinstance(array, np.ndarray)
      assert array.dtype == other[path].numpy().dtype, path
      np.testing.assert_array_equal(array, other[path].numpy(), path)


@pytest.mark.parametrize("name", LOADERS)
def test_batches_of_the_dataset(store, name):
  loader = make_loader(store, name)
  want = list(loader.dataset())
  assert len(want) == 2 * loader.batches_per_epoch
  assert_same(list(loader.numpy_batches()), want)
  # Pools are made from a start as those of the dataset are.
  for start in (3,) if "pools" in name or "quasi" in name else (3, len(want)):
    assert_same(list(loader.numpy_batches(start)), want[start:])


def test_every_dtype(store):
  """Of pools; test_every_dtype.py has those of an order without."""
  loader = make_loader(store, "quasi_random", EVERYTHING, num_epochs=1)
  got = list(loader.numpy_batches())
  assert_same(got, list(loader.dataset()))
  assert isinstance(got[0]["word"][0, 0], bytes)


@pytest.mark.parametrize("name", ["global", "quasi_random"])
def test_iterator_state_resumes(store, name):
  loader = make_loader(store, name, num_epochs=None)
  want = [batch for batch, _ in zip(loader.dataset(), range(20), strict=False)]
  batches = loader.numpy_batches(2)
  assert batches.next_batch == 2
  seen = [next(batches) for _ in range(5)]
  assert batches.next_batch == 7
  for batch in batches:
    seen.append(batch)
    if len(seen) == 10:
      break
  assert batches.next_batch == 12
  again = loader.numpy_batches(batches.next_batch)
  assert_same(seen + [next(again) for _ in range(8)], want[2:])


def test_batches_can_be_written_to_and_stay(store):
  window = {"float32": WINDOW["float32"], "same": Spec((2,), tf.float32, "float32")}
  masked = make_loader(store, "global", window, masks=True)
  want = list(masked.dataset())
  got = []
  for batch in masked.numpy_batches():
    got.append({path: array.copy() for path, array in batch.items()})
    for array in batch.values():
      assert array.flags.writeable
      array[:] = 0
  assert_same(got, want)
  first = next(masked.numpy_batches())
  gc.collect()
  assert_same([first], want[:1])


def test_leaves_that_share_memory_are_parted():
  def read(ids):
    return {"x": ids, "y": ids, "mask": ids > 3, "again": ids > 3}

  loader = WindowLoader(Plan(4, "sequential"), read, 8, 2)
  batches = list(loader.numpy_batches())
  assert [batch["x"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
  for batch in batches:
    batch["x"][:] = -1
    batch["mask"][:] = True
  assert [batch["y"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
  assert not batches[0]["again"].any()


@pytest.mark.parametrize("drop_remainder", [True, False])
@pytest.mark.parametrize(
  "window_bytes, starts",
  # A whole epoch at once; four batches; one.
  [(1, (15,)), (2**17, (1, 13, 14, 15, 28)), (2**27, (1, 15, 28))],
)
def test_however_many_are_read_at_once(drop_remainder, window_bytes, starts):

  def read(ids):
    return {"id": ids, "twice": tf.stack([ids, ids], 1)}

  plan = Plan(7, "global", 3, 2, drop_remainder=drop_remainder)
  loader = WindowLoader(plan, read, 101, window_bytes)
  want = list(loader.dataset())
  got = list(loader.numpy_batches())
  assert_same(got, want)
  sizes = {len(batch["id"]) for batch in got}
  assert sizes == ({7} if drop_remainder else {7, 101 % 7})
  for start in starts:
    assert_same(list(loader.numpy_batches(start)), want[start:])


def test_any_dataset_of_mappings():
  dataset = tf.data.Dataset.range(7).map(lambda i: {"i": i}).batch(3)
  batches = [batch["i"].tolist() for batch in NumpyBatches(dataset)]
  assert batches == [[0, 1, 2], [3, 4, 5], [6]]


def test_no_batch_before_the_first(store):
  with pytest.raises(
    errors.SpecError, match="start_batch: expected an integer of at least 0, got -"
  ):
    make_loader(store, "global").numpy_batches(-1)
