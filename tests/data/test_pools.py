"""Pools: steps are read and decoded once, and what is held is within the budget."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.data import StoreWindowLoader, stores
from t2r_seq.data.pool import BATCHES_ALIVE, POOLS_ALIVE, num_bytes_alive
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
SIZE = 8
FRAME_BYTES = SIZE * SIZE * 3
# Long ones, short ones, and some that are too short for a window.
LENGTHS = (60, 2, 9, 1, 3, 25, 2, 4, 40, 1, 5, 5, 30, 2)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  path = tmp_path_factory.mktemp("pools") / "store"
  spec = {
    "x": Spec((SIZE, SIZE, 3), tf.uint8, is_sequence=True, data_format="png"),
    "pixels": Spec((SIZE, SIZE, 3), tf.uint8, is_sequence=True),
  }
  pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
  image = tf.io.encode_png(pixels).numpy()
  with EpisodeStore.create(path, spec, commit_every=100) as writer:
    for length in LENGTHS:
      writer.append_episode({"x": [image] * length, "pixels": [pixels] * length})
  return EpisodeStore(path)


@pytest.fixture
def loads(monkeypatch):
  """The rows of each load, in the order in which pools are read."""
  found = []

  def note(rows):
    found.append(rows.tolist())
    return rows

  for name in ("take", "decode"):
    read = getattr(stores.DecodedColumns, name)

    def counting(self, path, rows, read=read):
      rows = tf.numpy_function(note, [rows], tf.int64)
      return read(self, path, tf.ensure_shape(rows, [None]))

    monkeypatch.setattr(stores.DecodedColumns, name, counting)
  return found


ENCODED = {"name": "x", "data_format": "png"}
PIXELS = {"name": "pixels"}  # Cost no loop of a graph, and a pool as much memory.
# name: (time offsets, of which column, further arguments)
CASES = {
  "stack": ((-3, -2, -1, 0), ENCODED, {}),
  "padded": ((-3, -2, -1, 0), PIXELS, {"padding": "repeat"}),
  "far apart": ((-20, 0, 3), PIXELS, {"padding": "zero"}),
  "next": ((0, 1), PIXELS, {"shift": 3, "padding": "repeat"}),
}


# A shard is a range of the windows that pools are cut from, whatever their size.
@pytest.mark.parametrize(
  "name, num_frames, num_shards",
  [
    *(("stack", 80, 2), ("stack", 150, 2), ("padded", 100, 1), ("padded", 150, 2)),
    *(("far apart", 100, 2), ("far apart", 1000, 1)),
    *(("next", 100, 1), ("next", 1000, 1)),
  ],
)
def test_pools_fit_their_budget(name, num_frames, num_shards, store, loads):
  offsets, column, options = CASES[name]
  shape = (len(offsets), SIZE, SIZE, 3)
  window = {"x": Spec(shape, tf.uint8, time_offsets=offsets, **column)}
  batches = BATCHES_ALIVE * 4 * len(offsets) * FRAME_BYTES
  window_bytes = 4 * len(offsets) * FRAME_BYTES
  budget = num_bytes_alive(num_frames * FRAME_BYTES, 0, window_bytes)
  shards = [
    StoreWindowLoader(
      *(store, window, 4, "quasi_random"),
      **{"seed": 3, "num_epochs": 3, "memory_budget": budget, **options},
      **{"shard_index": index, "num_shards": num_shards, "drop_remainder": False},
    )
    for index in range(num_shards)
  ]
  num_pools = 0
  for loader in shards:
    num_batches = sum(1 for _ in loader.dataset())
    assert num_batches == 3 * loader.batches_per_epoch
    num_pools += -(-loader.batches_per_epoch // loader.pool_size.num_batches)
    assert loader.pool_size.max_bytes <= budget
  # A pool of all windows is read once, and stays for all epochs.
  assert len(loads) == (1 if num_frames == 1000 else 3 * num_pools)
  for rows in loads:
    # Each frame of a pool is decoded once, and there are no more of them than planned.
    assert len(set(rows)) == len(rows)
    held = POOLS_ALIVE * len(rows) * FRAME_BYTES + batches
    assert held <= max(loader.pool_size.max_bytes for loader in shards)
  if num_frames == 1000:
    assert all(len(rows) == len(loads[0]) for rows in loads)
    assert num_pools == 1


def test_larger_budget_makes_larger_pools(store):
  window = {"x": Spec((SIZE, SIZE, 3), tf.uint8, time_offsets=0, data_format="png")}
  sizes = [
    StoreWindowLoader(
      *(store, window, 4, "quasi_random"),
      memory_budget=(POOLS_ALIVE * num_frames + 4 * BATCHES_ALIVE) * FRAME_BYTES,
    ).pool_size.num_batches
    for num_frames in (20, 60, 120, 1000)
  ]
  assert sizes == sorted(set(sizes)), np.diff(sizes)


def test_budget_that_is_too_small_is_warned_of(store, caplog):
  window = {"x": Spec((SIZE, SIZE, 3), tf.uint8, time_offsets=0, name="pixels")}
  loader = StoreWindowLoader(store, window, 4, "quasi_random", memory_budget=10)
  assert loader.pool_size.num_batches == 1
  assert "memory_budget: expected at least" in caplog.text
  assert len(list(loader.dataset())) == loader.batches_per_epoch


def test_eighth_of_a_budget_is_left_to_tensorflow():
  assert num_bytes_alive(7 * 2**19, 0, 0) == 2**23
