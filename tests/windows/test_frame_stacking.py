"""The worked examples of Reverb's frame-stacking notebook, one named case each.

Its functions stack `stack_size` frames, take `stride` steps from one stack to the next
and give `sequence_length` stacks; here these are time offsets, stride and
sequence_length of the windows.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import windows
from t2r_seq.specs import ExtendedTensorSpec
from t2r_seq.windows.cut import flat_length, time_span

# name: (stack_size, stride, sequence_length, number of frames, want)
STACK_BEFORE_WRITING = {
  "no frame shared": (
    4,
    4,
    3,
    16,
    [
      [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]],
      [[5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]],
    ],
  ),
  "two frames shared": (
    4,
    2,
    3,
    12,
    [
      [[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 8]],
      [[3, 4, 5, 6], [5, 6, 7, 8], [7, 8, 9, 10]],
      [[5, 6, 7, 8], [7, 8, 9, 10], [9, 10, 11, 12]],
    ],
  ),
  # The notebook's code anchors where (i + 1) % stride == 0, which gives
  # [[2, 3], [5, 6], [8, 9]]; its comment says [[1, 2], [4, 5], [6, 7]], which has no
  # single stride. Here the first anchor is the earliest whose stack is full: one rule
  # for every example, and no frame at the start is lost.
  "frames dropped": (
    2,
    3,
    3,
    12,
    [
      [[1, 2], [4, 5], [7, 8]],
      [[4, 5], [7, 8], [10, 11]],
    ],
  ),
}

# "Store flat and stack when sampled": the flat sequences, and the stacks of each.
STORE_FLAT = {
  "two frames, three stacks": (
    2,
    3,
    6,
    [
      ([1, 2, 3, 4], [[1, 2], [2, 3], [3, 4]]),
      ([2, 3, 4, 5], [[2, 3], [3, 4], [4, 5]]),
      ([3, 4, 5, 6], [[3, 4], [4, 5], [5, 6]]),
    ],
  ),
  "three frames, four stacks": (
    3,
    4,
    6,
    [([1, 2, 3, 4, 5, 6], [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]])],
  ),
}


def frames(numbers):
  """Frames of 2x2 that show their number."""
  return np.ones((len(numbers), 2, 2), np.uint8) * np.reshape(numbers, [-1, 1, 1])


def stack_spec(stack_size):
  return {
    "frame": ExtendedTensorSpec(
      (stack_size, 2, 2),
      tf.uint8,
      "frame",
      is_sequence=True,
      time_offsets=range(1 - stack_size, 1),
    )
  }


def stacks(numbers, stack_size, sequence_length, **kwargs):
  episodes = tf.data.Dataset.from_tensors({"frame": frames(numbers).astype(np.uint8)})
  cut = windows.Cut(sequence_length, padding="drop", **kwargs)
  dataset = windows.windows(episodes, stack_spec(stack_size), cut)
  shown = [window["frame"] for window in dataset.as_numpy_iterator()]
  for window in shown:
    assert window.dtype == np.uint8
    assert window.shape == (sequence_length, stack_size, 2, 2)
    np.testing.assert_array_equal(window, window[..., :1, :1] + np.zeros_like(window))
  return [window[..., 0, 0].tolist() for window in shown]


@pytest.mark.parametrize("name", STACK_BEFORE_WRITING)
def test_stack_before_writing(name):
  stack_size, stride, sequence_length, num_frames, want = STACK_BEFORE_WRITING[name]
  numbers = list(range(1, num_frames + 1))
  assert stacks(numbers, stack_size, sequence_length, stride=stride) == want


@pytest.mark.parametrize("name", STORE_FLAT)
def test_store_flat(name):
  stack_size, sequence_length, num_frames, want = STORE_FLAT[name]
  span = time_span(stack_spec(stack_size))
  length = flat_length(sequence_length, span)
  assert length == sequence_length + stack_size - 1
  starts = range(num_frames - length + 1)
  flat = [list(range(start + 1, start + 1 + length)) for start in starts]
  got = [(numbers, stacks(numbers, stack_size, sequence_length)) for numbers in flat]
  # A flat sequence of that length holds exactly one sequence of stacks.
  assert got == [(numbers, [wanted]) for numbers, wanted in want]
  # The whole stream at once gives the same stacks.
  stream = list(range(1, num_frames + 1))
  assert stacks(stream, stack_size, sequence_length) == [wanted for _, wanted in want]


def test_a_stream_that_ends_before_the_first_full_sequence():
  assert stacks(list(range(1, 12)), 4, 3, stride=4) == []
