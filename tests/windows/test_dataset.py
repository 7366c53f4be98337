"""Datasets of windows: order, shuffle, batches, structures, what passes through."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct

LENGTHS = (5, 1, 3, 4)
SPEC = {"x": ExtendedTensorSpec((2,), tf.int32, "x", time_offsets=(-1, 0))}

Sample = collections.namedtuple("Sample", ["x", "y"])


def numbered(lengths=LENGTHS):
  """Episodes whose steps are numbered 100 * episode + step."""
  return [
    100 * i + np.arange(length, dtype=np.int32) for i, length in enumerate(lengths)
  ]


def episodes(lengths=LENGTHS):
  signature = {"x": tf.TensorSpec([None], tf.int32)}
  return tf.data.Dataset.from_generator(
    lambda: ({"x": x} for x in numbered(lengths)), output_signature=signature
  )


def shown(dataset, path="x"):
  return [window[path].tolist() for window in dataset.as_numpy_iterator()]


# name: (arguments, want); the episodes are 0 to 4, 100, 200 to 202 and 300 to 303.
WINDOWS = {
  "drop": (
    {"padding": "drop"},
    [
      [0, 1],
      [1, 2],
      [2, 3],
      [3, 4],
      [200, 201],
      [201, 202],
      [300, 301],
      [301, 302],
      [302, 303],
    ],
  ),
  "repeat, by default": (
    {},
    [
      [0, 0],
      [0, 1],
      [1, 2],
      [2, 3],
      [3, 4],
      [100, 100],
      [200, 200],
      [200, 201],
      [201, 202],
      [300, 300],
      [300, 301],
      [301, 302],
      [302, 303],
    ],
  ),
  "zero": (
    {"padding": "zero", "shift": 2},
    [[0, 0], [1, 2], [3, 4], [0, 100], [0, 200], [201, 202], [0, 300], [301, 302]],
  ),
  "shift": ({"shift": 3, "padding": "drop"}, [[0, 1], [3, 4], [200, 201], [300, 301]]),
  "stride and shift of single windows": (
    {"stride": 2, "shift": 2, "padding": "repeat"},
    [[0, 0], [3, 4], [100, 100], [200, 200], [300, 300]],
  ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name):
  arguments, want = WINDOWS[name]
  dataset = windows.windows(episodes(), SPEC, **arguments)
  assert shown(dataset) == want
  assert dataset.element_spec == TensorSpecStruct({"x": tf.TensorSpec([2], tf.int32)})
  assert isinstance(next(iter(dataset)), TensorSpecStruct)


# name: (lengths, padding, number of windows)
SHORT = {
  "empty": ([0], "drop", 0),
  "empty, repeat": ([0], "repeat", 0),
  "empty, zero": ([0], "zero", 0),
  "one step": ([1], "drop", 0),
  "one step, repeat": ([1], "repeat", 1),
  "one step, zero": ([1], "zero", 1),
  "too short, then long enough": ([1, 0, 2], "drop", 1),
  "no episodes": ([], "repeat", 0),
}


@pytest.mark.parametrize("shuffle_buffer_size", [None, 10])
@pytest.mark.parametrize("name", SHORT)
def test_short_episodes(name, shuffle_buffer_size):
  lengths, padding, want = SHORT[name]
  dataset = windows.windows(
    episodes(lengths), SPEC, padding=padding, shuffle_buffer_size=shuffle_buffer_size
  )
  assert len(shown(dataset)) == want


# name: (dataset of one episode, specs, path of x in the window)
X, Y = np.arange(4, dtype=np.int32), np.arange(4, dtype=np.float32)
Y_SPEC = ExtendedTensorSpec((), tf.float32, "y", time_offsets=1)
STRUCTURES = {
  "flat": ({"obs/x": X, "y": Y}, {"obs/x": SPEC["x"], "y": Y_SPEC}, "obs/x"),
  "nested": (
    {"obs": {"x": X}, "y": Y},
    {"obs": {"x": SPEC["x"]}, "y": Y_SPEC},
    "obs/x",
  ),
  "data nested, specs flat": (
    {"obs": {"x": X}, "y": Y},
    {"obs/x": SPEC["x"], "y": Y_SPEC},
    "obs/x",
  ),
  "struct": (
    TensorSpecStruct({"obs/x": X, "y": Y}),
    TensorSpecStruct({"obs/x": SPEC["x"], "y": Y_SPEC}),
    "obs/x",
  ),
  "pair": (({"x": X}, {"y": Y}), ({"x": SPEC["x"]}, {"y": Y_SPEC}), "0/x"),
  "tuple": ((X, Y), (SPEC["x"], Y_SPEC), "0"),
  "namedtuple": (Sample(X, Y), Sample(SPEC["x"], Y_SPEC), "x"),
  "more than is asked for": ({"x": X, "y": Y, "z": Y}, SPEC, "x"),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name):
  episode, structure, path = STRUCTURES[name]
  dataset = windows.windows(tf.data.Dataset.from_tensors(episode), structure)
  got = shown(dataset, path)
  assert got[:2] == [[0, 0], [0, 1]]
  assert list(dataset.element_spec) == list(specs.flatten_spec_structure(structure))
  specs.validate_and_pack(structure, next(iter(dataset)))


def test_unknown_shapes_become_static():
  def generate():
    yield {"x": np.zeros([4, 3], np.float32), "task": np.zeros([2], np.float32)}

  structure = {
    "x": ExtendedTensorSpec((2, 3), tf.float32, is_sequence=True, time_offsets=(-1, 0)),
    "task": ExtendedTensorSpec((2,), tf.float32),
  }
  dataset = tf.data.Dataset.from_generator(
    generate,
    output_signature={
      "x": tf.TensorSpec(None, tf.float32),
      "task": tf.TensorSpec([None], tf.float32),
    },
  )
  dataset = windows.windows(dataset, structure, sequence_length=2, masks=True)
  dataset = dataset.batch(2, drop_remainder=True)
  want = {"x": (2, 2, 2, 3), "x_mask": (2, 2, 2)}
  for path, shape in want.items():
    assert tuple(dataset.element_spec[path].shape) == shape
  assert next(iter(dataset))["x"].shape == want["x"]


def test_frame_of_another_shape_than_promised():
  def generate():
    yield {"x/y": np.zeros([4, 5], np.float32)}

  spec = ExtendedTensorSpec((2, 3), tf.float32, time_offsets=(-1, 0))
  dataset = tf.data.Dataset.from_generator(
    generate, output_signature={"x/y": tf.TensorSpec([None, None], tf.float32)}
  )
  dataset = windows.windows(dataset, {"x/y": spec}).batch(2)
  match = r"(?s)\[2,5\] is not compatible with expected shape \[2,3\].*windows_x_y"
  with pytest.raises(tf.errors.InvalidArgumentError, match=match):
    next(iter(dataset))


def test_paths_of_other_lengths():
  def generate():
    yield {"x": X, "y": Y[:2]}

  signature = {
    "x": tf.TensorSpec([None], tf.int32),
    "y": tf.TensorSpec([None], tf.float32),
  }
  dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
  dataset = windows.windows(dataset, {"x": SPEC["x"], "y": Y_SPEC})
  match = r"windows: y: expected as many steps as x has"
  with pytest.raises(tf.errors.InvalidArgumentError, match=match):
    next(iter(dataset))
  static = tf.data.Dataset.from_tensors({"x": X, "y": Y[:2]})
  with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=match):
    next(iter(windows.windows(static, {"x": SPEC["x"], "y": Y_SPEC})))


def test_windows_inside_a_function():
  @tf.function
  def total(x):
    episode = tf.data.Dataset.from_tensors({"x": x})
    dataset = windows.windows(episode, SPEC, padding="zero", shuffle_buffer_size=4)
    return dataset.reduce(0, lambda sum_, w: sum_ + tf.reduce_sum(w["x"]))

  assert int(total(tf.constant([1, 2, 3]))) == 9


def test_making_the_dataset_fails_before_any_data_is_read():
  read = []

  def generate():
    read.append(True)
    yield {"x": X}

  signature = {"x": tf.TensorSpec([None], tf.int32)}
  dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
  with pytest.raises(errors.SpecError, match=r"windows: stride: expected"):
    windows.windows(dataset, SPEC, stride=0)
  assert not read
