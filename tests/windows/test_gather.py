"""Windows of one episode: offsets, padding, masks, sequences, kinds of frames."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct

FRAMES = np.arange(1, 6, dtype=np.int32)


def spec(offsets, shape=(), dtype=tf.int32, **kwargs):
  stack = (len(offsets),) if isinstance(offsets, tuple) else ()
  return ExtendedTensorSpec((*stack, *shape), dtype, time_offsets=offsets, **kwargs)


# name: (offsets, anchor, {padding: want}, mask); frames are 1 to 5, the anchors 0 to 4.
OFFSETS = {
  "inside": ((-1, 0), 2, {"drop": [2, 3], "repeat": [2, 3], "zero": [2, 3]}, [1, 1]),
  "history at the start": (
    (-3, -2, -1, 0),
    1,
    {"repeat": [1, 1, 1, 2], "zero": [0, 0, 1, 2]},
    [0, 0, 1, 1],
  ),
  "chunk at the end": (
    (0, 1, 2, 3),
    3,
    {"repeat": [4, 5, 5, 5], "zero": [4, 5, 0, 0]},
    [1, 1, 0, 0],
  ),
  "next at the end": (1, 4, {"repeat": 5, "zero": 0}, 0),
  "next": (1, 3, {"drop": 5, "repeat": 5, "zero": 5}, 1),
  "previous at the start": (-1, 0, {"repeat": 1, "zero": 0}, 0),
  "own step": (0, 4, {"drop": 5, "repeat": 5, "zero": 5}, 1),
  "own step, stacked": ((0,), 4, {"drop": [5], "repeat": [5], "zero": [5]}, [1]),
  "past only": ((-3, -2), 2, {"repeat": [1, 1], "zero": [0, 1]}, [0, 1]),
  "future only": ((1, 3), 2, {"repeat": [4, 5], "zero": [4, 0]}, [1, 0]),
  "beyond both ends": (
    (-9, 0, 9),
    2,
    {"repeat": [1, 3, 5], "zero": [0, 3, 0]},
    [0, 1, 0],
  ),
  "unsorted and twice": (
    (2, -1, 0, 2),
    3,
    {"repeat": [5, 3, 4, 5], "zero": [0, 3, 4, 0]},
    [0, 1, 1, 0],
  ),
  "with gaps": ((-4, -2, 0), 4, {"drop": [1, 3, 5], "zero": [1, 3, 5]}, [1, 1, 1]),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_offsets(name):
  offsets, anchor, by_padding, mask = OFFSETS[name]
  for padding, want in by_padding.items():
    window = windows.gather_windows(
      {"x": FRAMES}, anchor, {"x": spec(offsets)}, padding=padding, masks=True
    )
    assert window["x"].numpy().tolist() == want
    assert window["x"].dtype == tf.int32
    assert window["x_mask"].numpy().tolist() == np.array(mask, bool).tolist()
    # A list of anchors gives the same, stacked.
    both = windows.gather_windows(
      {"x": FRAMES}, [anchor, anchor], {"x": spec(offsets)}, padding=padding
    )
    assert both["x"].numpy().tolist() == [want, want]


@pytest.mark.parametrize(
  "dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float64", "string"]
)
def test_zero_of_every_dtype(dtype):
  dtype = tf.as_dtype(dtype)
  ones = tf.fill([2], "frame") if dtype == tf.string else tf.ones([2], dtype)
  want = tf.constant(["", "frame"]) if dtype == tf.string else tf.cast([0, 1], dtype)
  window = windows.gather_windows(
    {"x": ones}, 0, {"x": spec((-1, 0), dtype=dtype)}, padding="zero"
  )
  assert window["x"].dtype == dtype
  assert bool(tf.reduce_all(window["x"] == want))


def test_stack_chunk_scalar_and_context_in_one_structure():
  steps = np.arange(10, 16)
  episode = {
    "obs": {"image": np.tile(steps.reshape(-1, 1, 1, 1).astype(np.uint8), (2, 2, 3))},
    "action": np.stack([steps, -steps], axis=1).astype(np.float32),
    "state": steps.astype(np.int64),
    "task": np.array([7, 8], np.int32),
  }
  structure = {
    "obs": {"image": spec((-1, 0), (2, 2, 3), tf.uint8)},
    "action": spec((0, 1), (2,), tf.float32),
    "next_state": None,
    "state": spec(1, (), tf.int64),
    "task": spec(None, (2,)),
  }
  window = windows.gather_windows(episode, [1, 4], structure)
  assert isinstance(window, TensorSpecStruct)
  assert list(window) == ["obs/image", "action", "state", "task"]
  np.testing.assert_array_equal(window.obs.image[:, :, 0, 0, 0], [[10, 11], [13, 14]])
  assert window.obs.image.shape == (2, 2, 2, 2, 3)
  np.testing.assert_array_equal(
    window.action, [[[11, -11], [12, -12]], [[14, -14], [15, -15]]]
  )
  np.testing.assert_array_equal(window.state, [12, 15])
  np.testing.assert_array_equal(window.task, [[7, 8], [7, 8]])


def test_step_without_offsets_is_the_anchors_own():
  structure = {"x": spec((-1, 0)), "own": spec(None, (2,)), "task": spec(None, (2,))}
  own = np.stack([FRAMES, FRAMES * 10], axis=1)
  episode = {"x": FRAMES, "own": own, "task": np.array([1, 2], np.int32)}
  window = windows.gather_windows(episode, 0, structure, padding="zero", masks=True)
  assert window["own"].numpy().tolist() == [1, 10]
  assert window["task"].numpy().tolist() == [1, 2]
  assert list(window) == ["x", "own", "task", "x_mask", "own_mask"]


SEQUENCES = {
  "stacks": (spec((-1, 0), is_sequence=True), [[1, 2], [3, 4]], [[1, 1], [1, 1]]),
  "steps": (spec(None, is_sequence=True), [2, 4], [1, 1]),
  "one step each": (spec(1, is_sequence=True), [3, 5], [1, 1]),
  "many to one, stack": (spec((-1, 0)), [3, 4], [1, 1]),
  "many to one, step": (spec(None), 4, 1),
  "many to one, next": (spec(1), 5, 1),
  "stacks over the end": (
    spec((0, 1, 2), is_sequence=True),
    [[2, 3, 4], [4, 5, 5]],
    [[1, 1, 1], [1, 1, 0]],
  ),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(name):
  structure, want, mask = SEQUENCES[name]
  window = windows.gather_windows(
    {"x": FRAMES, "sequence": FRAMES},
    1,
    {"x": structure, "sequence": spec(None, is_sequence=True)},
    sequence_length=2,
    stride=2,
    padding="repeat",
    masks=True,
  )
  assert window["x"].numpy().tolist() == want
  assert window["x_mask"].numpy().tolist() == np.array(mask, bool).tolist()


def test_many_to_one_beyond_the_end_is_padding():
  structure = {"x": spec(None, is_sequence=True), "label": spec(0)}
  episode = {"x": FRAMES, "label": FRAMES}
  window = windows.gather_windows(
    episode, 3, structure, sequence_length=3, padding="zero", masks=True
  )
  assert window["x"].numpy().tolist() == [4, 5, 0]
  assert window["x_mask"].numpy().tolist() == [True, True, False]
  assert (int(window["label"]), bool(window["label_mask"])) == (0, False)


def test_declared_masks():
  structure = windows.add_mask_specs({"x": spec((-1, 0)), "y": spec(1)}, ["x"])
  window = windows.gather_windows(
    {"x": FRAMES, "y": FRAMES}, 0, structure, padding="zero"
  )
  assert list(window) == ["x", "y", "x_mask"]
  assert window["x_mask"].numpy().tolist() == [False, True]
  specs.validate_and_flatten(structure, window)


def test_optional_paths():
  structure = windows.add_mask_specs(
    {"x": spec((-1, 0)), "debug": spec((-1, 0), is_optional=True)}
  )
  without = windows.gather_windows({"x": FRAMES}, 1, structure)
  assert list(without) == ["x", "x_mask"]
  specs.validate_and_flatten(structure, without)
  given = windows.gather_windows({"x": FRAMES, "debug": FRAMES}, 1, structure)
  assert list(given) == ["x", "debug", "x_mask", "debug_mask"]


def test_paths_that_no_spec_reads_are_left_out():
  window = windows.gather_windows(
    {"x": FRAMES, "other": np.zeros([3])}, 1, {"x": spec((-1, 0))}
  )
  assert list(window) == ["x"]


# name: (padding, span, length of the episode, anchors)
OUTSIDE = {
  "history is missing": ("drop", (-1, 0), 5, 0),
  "future is missing": ("drop", (0, 1), 5, 4),
  "one of several": ("drop", (-1, 0), 5, [2, 0]),
  "before the episode": ("repeat", (-1, 0), 5, -1),
  "after the episode": ("zero", (-1, 0), 5, 5),
  "an empty episode": ("repeat", (-1, 0), 0, 0),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_anchors_outside(name):
  # On a GPU, tf.gather gives zeros for a step that there is not.
  padding, offsets, length, anchors = OUTSIDE[name]
  structure = {"x": spec(offsets)}
  match = r"windows: the anchors: expected \d <= anchor < T - \d with T"
  with pytest.raises(tf.errors.InvalidArgumentError, match=match):
    windows.gather_windows({"x": FRAMES[:length]}, anchors, structure, padding=padding)
  gather = tf.function(
    lambda x: windows.gather_windows({"x": x}, anchors, structure, padding=padding)
  )
  with pytest.raises(tf.errors.InvalidArgumentError, match=match):
    gather(tf.constant(FRAMES[:length]))


def test_last_sequence_that_fits():
  structure = {"x": spec((-1, 0), is_sequence=True)}
  cut = windows.Cut(sequence_length=2, stride=2, padding="drop")
  windows.gather_windows({"x": FRAMES}, 2, structure, cut)
  match = r"expected 1 <= anchor < T - 2 with T"
  with pytest.raises(tf.errors.InvalidArgumentError, match=match):
    windows.gather_windows({"x": FRAMES}, 3, structure, cut)


def test_anchors_of_two_axes():
  with pytest.raises(
    errors.SpecError,
    match=r"the anchors: expected an int scalar or \[B\], got \(1, 2\)",
  ):
    windows.gather_windows({"x": FRAMES}, [[1, 2]], {"x": spec((-1, 0))})


def test_ragged_lengths():
  structure = {"x": spec((-1, 0)), "y": spec(0)}
  episode = {"x": FRAMES, "y": FRAMES[:3]}
  match = r"windows: y: expected as many steps as x has"
  with pytest.raises(tf.errors.InvalidArgumentError, match=match):
    windows.gather_windows(episode, 1, structure)


def test_unknown_sizes_in_a_graph():
  structure = {"x": spec((-1, 0), (2,)), "task": spec(None, (3,)), "n": spec(1)}

  def gather(episode, anchors):
    window = windows.gather_windows(episode, anchors, structure, padding="zero")
    assert window["x"].shape.as_list() == [None, 2, 2]
    assert window["task"].shape.as_list() == [None, 3]
    assert window["n"].shape.as_list() == [None]
    return window

  function = tf.function(gather).get_concrete_function(
    {
      "x": tf.TensorSpec([None, 2], tf.int32),
      "task": tf.TensorSpec([3], tf.int32),
      "n": tf.TensorSpec([None], tf.int32),
    },
    tf.TensorSpec([None], tf.int64),
  )
  episode = {
    "x": tf.constant([[1, 2], [3, 4]]),
    "task": tf.constant([7, 8, 9]),
    "n": tf.constant([5, 6]),
  }
  window = function(episode, tf.constant([0, 1, 1], tf.int64))
  assert window["x"][0].numpy().tolist() == [[0, 0], [1, 2]]
  assert window["n"].numpy().tolist() == [6, 0, 0]
  assert window["task"].shape == (3, 3)


@pytest.mark.parametrize("anchors", [2, [0, 4]])
def test_xla(anchors):
  structure = {"x": spec((-1, 0)), "task": spec(None, (3,))}
  episode = {"x": tf.constant(FRAMES), "task": tf.constant([7, 8, 9])}

  def gather(episode):
    return windows.gather_windows(episode, anchors, structure, padding="zero")

  want = gather(episode)
  got = tf.function(gather, jit_compile=True)(episode)
  for path, value in want.items():
    np.testing.assert_array_equal(got[path], value)
    assert got[path].shape == value.shape


def test_gradient_reaches_every_frame_that_a_window_shows():
  frames = tf.Variable([1.0, 2.0, 3.0])
  structure = {"x": spec((-1, 0), dtype=tf.float32)}
  with tf.GradientTape() as tape:
    window = windows.gather_windows({"x": frames}, [0, 1], structure, padding="repeat")
    loss = tf.reduce_sum(window["x"])
  gradient = tf.convert_to_tensor(tape.gradient(loss, frames))
  assert gradient.numpy().tolist() == [3.0, 1.0, 0.0]
