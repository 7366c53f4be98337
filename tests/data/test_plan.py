"""Which windows are in which batch: every one once an epoch, wherever one starts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.data.plan import Plan, WindowOrder


def batches(order, num_epochs=1, start=0):
  last = num_epochs * order.batches_per_epoch
  return [order.window_ids(tf.constant(b)).numpy().tolist() for b in range(start, last)]


def flat(lists):
  return [item for one in lists for item in one]


@pytest.mark.parametrize("order", ["sequential", "global"])
@pytest.mark.parametrize("num_windows", [1, 7, 30])
@pytest.mark.parametrize("batch_size", [3, 40])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_every_window_once(order, num_windows, batch_size, num_shards):
  if num_shards > num_windows:
    return
  shards = [
    WindowOrder(num_windows, Plan(batch_size, order, 5, 1, shard, num_shards, False))
    for shard in range(num_shards)
  ]
  seen = flat(flat(batches(shard)) for shard in shards)
  assert sorted(seen) == list(range(num_windows))
  for shard in shards:
    assert {len(batch) for batch in batches(shard)[:-1]} <= {batch_size}
    first, second = np.split(np.array(batches(shard, 2), object), 2)
    assert len(first) == len(second) == shard.batches_per_epoch


def test_sequential_order_is_the_order_of_the_windows():
  assert batches(WindowOrder(7, Plan(3, "sequential", drop_remainder=False)), 2) == [
    *([0, 1, 2], [3, 4, 5], [6]),
    *([0, 1, 2], [3, 4, 5], [6]),
  ]
  assert batches(WindowOrder(7, Plan(3, "sequential"))) == [[0, 1, 2], [3, 4, 5]]
  odd = WindowOrder(7, Plan(2, "sequential", shard_index=1, num_shards=2))
  assert batches(odd) == [[1, 3]]


def test_full_batches_are_equally_many_in_every_shard():
  shards = [WindowOrder(23, Plan(3, "global", 0, 1, shard, 4)) for shard in range(4)]
  assert [shard.batches_per_epoch for shard in shards] == [1] * 4
  seen = flat(flat(batches(shard)) for shard in shards)
  assert len(set(seen)) == len(seen) == 12


def test_orders_differ_by_epoch_and_seed():
  first, second = np.array(batches(WindowOrder(100, Plan(10, "global")), 2)).reshape(
    2, 100
  )
  other = np.ravel(batches(WindowOrder(100, Plan(10, "global", seed=1))))
  for a, b in ((first, second), (first, other), (first, np.arange(100))):
    assert np.mean(a == b) < 0.1
  left_out = [
    set(range(10))
    - set(flat(batches(WindowOrder(10, Plan(4, "global")), 3)[i : i + 2]))
    for i in (0, 2, 4)
  ]
  assert len(set(map(frozenset, left_out))) > 1


def test_order_never_changes():
  # The same on every machine and version; a checkpoint's number must keep its meaning.
  want = [[7, 6, 3, 8, 4], [0, 1, 2, 5, 9], [2, 7, 8, 6, 9], [1, 5, 4, 0, 3]]
  assert batches(WindowOrder(10, Plan(5, "global", seed=7)), 2) == want


def test_any_batch_can_be_the_first():
  order = WindowOrder(50, Plan(7, "global", seed=3, drop_remainder=False))
  assert batches(order, 3, start=11) == batches(order, 3)[11:]


def test_billion_windows():
  order = WindowOrder(10**12, Plan(4, "global", shard_index=2, num_shards=3))
  ids = order.window_ids(tf.constant(3 * order.batches_per_epoch - 1, tf.int64)).numpy()
  assert ids.shape == (4,) and len(set(ids)) == 4 and ids.max() > 2**32
  assert (ids >= 0).all() and (ids < 10**12).all()


# name: (fields of the plan, the error)
BAD = {
  "order": (
    {"order": "quasi_random"},
    "order: expected one of sequential, global, got",
  ),
  "batch too large": (
    {"batch_size": 11},
    "batch_size: expected at most the 10 windows of a shard, got 11.*drop_remainder",
  ),
  "shards": ({"num_shards": 11}, "num_shards: expected at most the 10 windows"),
}


@pytest.mark.parametrize("name", BAD)
def test_order_that_has_no_batch(name):
  fields, want = BAD[name]
  with pytest.raises(errors.SpecError, match=want):
    WindowOrder(10, Plan(**{"batch_size": 2, "order": "global", **fields}))


BAD_PLANS = {
  "order": (
    {"order": "globl"},
    r"Plan: order: expected one .*mean 'global'",
  ),
  "too large": ({"batch_size": 1 << 25}, "batch_size: expected at most 16,777,216 exa"),
  "flag": (
    {"drop_remainder": 1},
    "drop_remainder: expected True, False or None",
  ),
  "seed": ({"seed": 2**32}, "seed: expected an integer below 4,294,967,296"),
  "several": ({"memory_budget": 0, "num_epochs": -1}, "2 mismatches"),
  "no integers": ({"seed": 1.5, "batch_size": True}, "2 mismatches"),
  "shard": ({"shard_index": 1}, "shard_index: expected an index below num_shards = 1"),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_plan_is_checked_when_it_is_made(name):
  fields, want = BAD_PLANS[name]
  with pytest.raises(errors.SpecError, match=want):
    Plan(**fields)


def test_plan_fills_in_unset_options():
  assert Plan(drop_remainder=None, num_epochs=None).drops
  assert not Plan(drop_remainder=None).drops
  drawn = [Plan(seed=None).with_seed("global") for _ in range(2)]
  assert drawn[0].order == "global"
  assert drawn[0].seed != drawn[1].seed
