"""Frames before and after a step, from one column that holds every frame once.

Every value says which episode and step it is of, so each place of each batch is
checked, the first and last windows of every episode among them.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.data import StoreWindowLoader
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
LENGTHS = (7, 4, 5, 1, 9, 6)
STORED = {
  "obs": Spec((2, 2, 1), tf.int32, is_sequence=True),
  "rew": Spec((), tf.float32, is_sequence=True),
  "goal": Spec((), tf.int32),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  path = tmp_path_factory.mktemp("stores") / "frames"
  EpisodeStore.create(path, STORED).close()
  for episode, length in enumerate(LENGTHS):
    steps = 100 * episode + np.arange(length, dtype=np.int32)
    with EpisodeStore.append(path, "ab"[episode // 4]) as writer:
      writer.append_episode(
        {
          "obs": np.broadcast_to(steps[:, None, None, None], (length, 2, 2, 1)).copy(),
          "rew": -steps.astype(np.float32),
          "goal": np.int32(episode),
        }
      )
  return EpisodeStore(path)


def frames(before, after, name=None, shift=0):
  offsets = tuple(range(shift - before, shift + after + 1))
  return Spec((len(offsets), 2, 2, 1), tf.int32, name, time_offsets=offsets)


# name: the specs of a window
FIELDS = {
  "two before and two after": {"obs": frames(2, 2)},
  "two columns of a pair": {
    "obs0": frames(2, 2, "obs"),
    "rew0": Spec((), tf.float32, "rew", time_offsets=0),
    "obs1": frames(2, 2, "obs", shift=1),
    "rew1": Spec((), tf.float32, "rew", time_offsets=1),
  },
  "beside the column itself": {
    "obs": frames(1, 0),
    "next/obs": frames(1, 0, "obs", shift=3),
    "task": Spec((), tf.int32, "goal"),
  },
}


def expected(fields, padding):
  """Every window, one by one, in plain Python."""
  times = [t for f in fields.values() for t in np.atleast_1d(f.time_offsets or 0)]
  found = []
  for episode, length in enumerate(LENGTHS):
    for anchor in range(length):
      if padding == "drop" and not (
        anchor + min(times) >= 0 and anchor + max(times) < length
      ):
        continue
      window = {}
      for path, field in fields.items():
        steps = np.clip(anchor + np.asarray(field.time_offsets or 0), 0, length - 1)
        values = 100 * episode + steps
        source = field.name or path
        if source == "goal":
          values = np.asarray(episode)
        window[path] = (-values if source == "rew" else values).tolist()
      found.append(window)
  return found


def rows_of(batches):
  found = []
  for batch in batches:
    leaves = {}
    for path, leaf in batch.items():
      values = leaf.numpy()
      if "obs" in path:
        # All pixels of a frame say the same.
        assert (values == values[..., :1, :1, :]).all()
        values = values[..., 0, 0, 0]
      leaves[path] = values.tolist()
    size = len(next(iter(leaves.values())))
    found += [{path: leaves[path][i] for path in leaves} for i in range(size)]
  return found


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize(
  "order, padding", [("sequential", "drop"), ("quasi_random", "repeat")]
)
def test_every_window_is_right_wherever_it_stands(store, name, padding, order):
  fields = FIELDS[name]
  want = expected(fields, padding)
  got = read(store, fields, min(3, len(want)), order, padding)
  if order == "sequential":
    assert got == want
  assert sorted(got, key=repr) == sorted(want, key=repr)


def read(store, fields, batch_size, order, padding, **options):
  loader = StoreWindowLoader(
    *(store, fields, batch_size, order),
    **{"seed": 2, "drop_remainder": False, "padding": padding, **options},
  )
  return rows_of(loader.dataset())


@pytest.mark.parametrize("order", ["sequential", "global", "quasi_random"])
def test_every_window_is_right_in_its_shard(store, order):
  """What a shard reads of a window is the same in all orders, and for all fields."""
  fields = FIELDS["two columns of a pair"]
  want = expected(fields, "repeat")
  got = [
    read(store, fields, 4, order, "repeat", shard_index=shard, num_shards=2)
    for shard in range(2)
  ]
  assert sorted(got[0] + got[1], key=repr) == sorted(want, key=repr)


def test_each_column_is_read_once_for_all_that_show_it(store):
  fields = FIELDS["two columns of a pair"]
  windows = store.windows(fields)
  assert windows.reader.paths == ("obs", "rew")
  assert list(windows[0]) == ["obs0", "rew0", "obs1", "rew1"]


def test_a_name_that_does_not_fit(store):
  with pytest.raises(errors.SpecError, match="windows: 2 mismatches") as caught:
    store.windows({"obs0": frames(2, 2, "rew"), "obs1": frames(2, 2, "obz")})
  assert str(caught.value).splitlines() == [
    "windows: 2 mismatches:",
    "  obs0: expected [T] steps of (2, 2, 1) int32, got (None,) float32 of its name, "
    "rew.",
    "  obs1: expected [T] steps of (2, 2, 1) int32, got nothing. It reads 'obz', by "
    "its name. Did you mean 'obs'?",
  ]


def test_steps_are_no_value_of_the_episode(store):
  """The shape of a whole episode of steps, were it as long."""
  fields = {"rew": Spec((5,), tf.float32), "obs": frames(0, 1)}
  want = (
    "windows: rew: expected a value for each episode, got (None,) float32, one for "
    "each step. Say which steps: time_offsets=(...)."
  )
  with pytest.raises(errors.SpecError, match=f"^{re.escape(want)}$"):
    store.windows(fields)
