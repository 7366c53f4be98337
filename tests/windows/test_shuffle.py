"""The shuffle of windows: every window once, by the seed, each frame held once."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import windows
from t2r_seq.specs import ExtendedTensorSpec
from tests import warm_python

SPEC = {"x": ExtendedTensorSpec((2,), tf.int32, "x", time_offsets=(-1, 0))}


def episodes(lengths):
  """Episodes whose steps are numbered 100 * episode + step."""
  numbered = [100 * i + np.arange(n, dtype=np.int32) for i, n in enumerate(lengths)]
  signature = {"x": tf.TensorSpec([None], tf.int32)}
  return tf.data.Dataset.from_generator(
    lambda: ({"x": x} for x in numbered), output_signature=signature
  )


def shown(dataset):
  return [window["x"].tolist() for window in dataset.as_numpy_iterator()]


def shuffled(seed=7, buffer_size=1000, **kwargs):
  return windows.windows(
    episodes((20, 30)),
    SPEC,
    padding="repeat",
    shuffle_buffer_size=buffer_size,
    seed=seed,
    **kwargs,
  )


@pytest.mark.parametrize("buffer_size", [1, 7, 1000])
def test_shuffle_shows_every_window_once(buffer_size):
  in_order = shown(shuffled(buffer_size=None))
  got = shown(shuffled(buffer_size=buffer_size))
  assert sorted(got) == in_order
  assert (got == in_order) == (buffer_size == 1)


def test_seed_makes_the_order():
  first, again, other = shown(shuffled()), shown(shuffled()), shown(shuffled(seed=8))
  assert first == again
  assert first != other


def test_every_epoch_has_its_own_order():
  dataset = shuffled()
  repeated = shown(dataset.repeat(2))
  first, second = repeated[:50], repeated[50:]
  assert first != second
  assert sorted(first) == sorted(second)


@pytest.mark.parametrize("buffer_size", [7, 1000])
def test_epochs_end_before_the_next_begins(buffer_size):
  in_order = shown(shuffled(buffer_size=None))
  repeated = shown(shuffled(buffer_size=buffer_size, num_epochs=3))
  epochs = [repeated[i : i + 50] for i in range(0, len(repeated), 50)]
  assert [sorted(epoch) for epoch in epochs] == [in_order] * 3
  assert len({str(epoch) for epoch in epochs}) == 3


def test_shuffle_buffer_holds_every_frame_once():
  # 64 steps of 1 MiB are 64 MiB of frames; 64 stacks of 16 would be 1 GiB. The peak is
  # that of the process's life, so the dataset is read in a process of its own.
  code = """
import resource
import tensorflow as tf
from t2r_seq import windows
from t2r_seq.specs import ExtendedTensorSpec

def peak():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def read(num_steps):
  spec = ExtendedTensorSpec((16, 2**20), tf.uint8, time_offsets=range(-15, 1))
  episodes = tf.data.Dataset.range(1).map(
    lambda i: {"x": tf.zeros([num_steps, 2**20], tf.uint8) + tf.cast(i, tf.uint8)})
  dataset = windows.windows(episodes, {"x": spec}, padding="repeat",
                            shuffle_buffer_size=1000)
  options = tf.data.Options()
  options.autotune.enabled = False
  options.threading.private_threadpool_size = 1
  return sum(1 for _ in dataset.with_options(options))

assert read(2) == 2  # What TensorFlow itself takes.
before = peak()
assert read(64) == 64
print("MIB", int(peak() - before))
"""
  run = warm_python.run("-c", code)
  assert run.returncode == 0, run.stderr[-2000:]
  (line,) = [line for line in run.stdout.splitlines() if line.startswith("MIB")]
  assert int(line.split()[1]) < 512
