"""Memory that iterators leave behind goes back when the next one starts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import allocation, data, records, specs
from t2r_seq.data import freed_memory
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
FLAT = {"x": Spec((), tf.int64, "x", is_sequence=True)}
PAIR = {"x": Spec((2,), tf.int64, "x", time_offsets=(0, 1))}
EPISODES = [{"x": 10 * e + np.arange(5)} for e in range(3)]


@pytest.fixture(name="times")
def fixture_times(monkeypatch):
  """A list with an entry for each time that memory is given back."""
  found = []
  monkeypatch.setattr(allocation, "give_back_freed_memory", lambda: found.append(1))
  return found


def test_each_iterator_gives_back_once(times):
  numbers = tf.data.Dataset.range(3, 7)
  pairs = tf.data.Dataset.zip((numbers, numbers))
  numbers = freed_memory.give_back_first(numbers, lambda number: number == 3)
  pairs = freed_memory.give_back_first(pairs, lambda one, other: one + other == 6)
  assert numbers.element_spec == tf.TensorSpec([], tf.int64)
  for count in (1, 2):
    assert list(numbers.as_numpy_iterator()) == [3, 4, 5, 6]
    assert len(times) == 2 * count - 1
    assert list(pairs.as_numpy_iterator()) == [(i, i) for i in range(3, 7)]
    assert len(times) == 2 * count


def make_stream(folder):
  path = str(folder / "a.tfrecord")
  records.write_records(path, FLAT, EPISODES)
  generator = data.DefaultRecordInputGenerator(path, batch_size=2, seed=1)
  generator.set_feature_specifications(PAIR)
  generator.set_label_specifications({})
  return generator.create_dataset("train")


def make_function(_):
  steps = np.stack([episode["x"] for episode in EPISODES])
  episodes = tf.data.Dataset.from_tensor_slices({"x": steps})
  return data.streamed_windows(episodes, PAIR, 2, seed=1, num_epochs=None)


def make_indexed(folder):
  path = str(folder / "a.tfrecord")
  records.write_records(path, FLAT, EPISODES)
  records.write_index(path)
  return data.indexed_records(path, PAIR, 2, seed=1, num_epochs=None)


def make_stored(folder):
  with EpisodeStore.create(folder / "store", FLAT) as writer:
    for episode in EPISODES:
      writer.append_episode(episode)
  return data.store_windows(
    str(folder / "store"), PAIR, 2, "quasi_random", seed=1, num_epochs=None
  )


@pytest.mark.parametrize(
  "make", [make_stream, make_function, make_indexed, make_stored]
)
def test_pools_give_back_before_they_are_filled(make, tmp_path, times):
  dataset = make(tmp_path)
  assert not times
  first = list(dataset.take(14).as_numpy_iterator())  # More than two epochs.
  assert len(times) == 1
  second = list(dataset.take(14).as_numpy_iterator())
  assert len(times) == 2
  tf.nest.map_structure(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("is_portable", [False, True])
def test_a_portable_dataset_does_not(is_portable, tmp_path, times):
  episodes = tf.data.Dataset.from_tensors({"x": tf.range(5, dtype=tf.int64)})
  made = data.streamed_windows(episodes, PAIR, 2, seed=1, is_portable=is_portable)
  assert len(list(made)) == 2
  assert len(times) == (0 if is_portable else 1)
