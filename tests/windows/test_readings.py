"""An episode that does not fit the specs: one error, before any data is read."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, windows
from t2r_seq.specs import ExtendedTensorSpec
from t2r_seq.windows.reader import WindowReader

STATE = ExtendedTensorSpec((2, 3), tf.float32, "state", time_offsets=(-1, 0))
REWARDS = ExtendedTensorSpec((), tf.float32, "reward", is_sequence=True)
TASK = ExtendedTensorSpec((4,), tf.float32, "task")
IMAGE = ExtendedTensorSpec(
  (2, 8, 8, 3), tf.uint8, "image", data_format="jpeg", time_offsets=(-1, 0)
)
EPISODE = {"state": tf.TensorSpec((None, 3), tf.float32)}

# name: (specs, element_spec, arguments, match)
ERRORS = {
  "missing path": (
    {"sate": ExtendedTensorSpec((2, 3), tf.float32, "s", time_offsets=(-1, 0))},
    EPISODE,
    {},
    r"windows: sate: expected \[T\] steps of \(3,\) float32, got nothing\. "
    r"It reads 's', by its name\. Did you mean 'state'\?",
  ),
  "missing name": (
    {"x": ExtendedTensorSpec((2, 3), tf.float32, "states", time_offsets=(-1, 0))},
    EPISODE,
    {},
    r"nothing\. It reads 'states', by its name\. Did you mean 'state'\?",
  ),
  "missing path of a plain spec": (
    {"state": STATE, "x": tf.TensorSpec((2,), tf.int32)},
    EPISODE,
    {},
    r"windows: x: expected \[T\] steps of \(2,\) int32, got nothing\. There is "
    r"\[state\]",
  ),
  "dtype": (
    {"state": STATE},
    {"state": tf.TensorSpec((None, 3), tf.float64)},
    {},
    r"windows: state: expected \[T\] steps of \(3,\) float32, got \(None, 3\) float64",
  ),
  "frame shape": (
    {"state": STATE},
    {"state": tf.TensorSpec((None, 4), tf.float32)},
    {},
    r"state: expected \[T\] steps of \(3,\) float32, got \(None, 4\) float32",
  ),
  "no time axis": (
    {"state": STATE},
    {"state": tf.TensorSpec((3,), tf.float32)},
    {},
    r"state: expected \[T\] steps of \(3,\) float32, got \(3,\) float32",
  ),
  "stacked already": (
    {"state": STATE},
    {"state": tf.TensorSpec((None, 2, 3), tf.float32)},
    {},
    r"state: expected \[T\] steps of \(3,\) float32, got \(None, 2, 3\) float32",
  ),
  "strings without a data_format": (
    {"state": STATE},
    {"state": tf.TensorSpec((None,), tf.string)},
    {},
    r"state: expected \[T\] steps of \(3,\) float32, got \(None,\) string",
  ),
  "one encoded image for the episode": (
    {"image": IMAGE},
    {"image": tf.TensorSpec((), tf.string)},
    {},
    r"image: expected \[T\] steps of \(8, 8, 3\) uint8, got \(\) string",
  ),
  "context dtype": (
    {"state": STATE, "task": TASK},
    {**EPISODE, "task": tf.TensorSpec((4,), tf.int32)},
    {},
    r"windows: task: expected \(4,\) float32, got \(4,\) int32",
  ),
  "context shape": (
    {"state": STATE, "task": TASK},
    {**EPISODE, "task": tf.TensorSpec((5,), tf.float32)},
    {},
    r"windows: task: expected \(4,\) float32, got \(5,\) float32",
  ),
  "neither context nor steps": (
    {"state": STATE, "task": TASK},
    {**EPISODE, "task": tf.TensorSpec((None, 1, 4), tf.float32)},
    {},
    r"task: expected \[T\] steps of \(4,\) float32, got \(None, 1, 4\) float32",
  ),
  "unknown rank, context or step": (
    {"state": STATE, "task": TASK},
    {**EPISODE, "task": tf.TensorSpec(None, tf.float32)},
    {},
    r"task: expected \[T\] steps of \(4,\) float32, got \(unknown shape\) float32\. "
    r"Set its static shape, or time_offsets=0 for the anchor's own step\.",
  ),
  "sequence without its length": (
    {"state": STATE, "reward": REWARDS},
    {**EPISODE, "reward": tf.TensorSpec((None,), tf.float32)},
    {},
    r"windows: reward: expected a sequence_length, got None\. Pass sequence_length, or "
    r"declare the spec with is_sequence=False\.",
  ),
  "no windowed path": (
    {"task": TASK},
    {"task": tf.TensorSpec((4,), tf.float32)},
    {},
    r"windows: the specs: expected at least one path with a time axis, got none\. "
    r"Give the specs time_offsets\.",
  ),
  "all optional and absent": (
    {"state": ExtendedTensorSpec.from_spec(STATE, is_optional=True)},
    {"other": tf.TensorSpec((None,), tf.float32)},
    {},
    r"windows: the specs: expected at least one path with a time axis, got none",
  ),
  "optional of a wrong shape": (
    {"state": ExtendedTensorSpec.from_spec(STATE, is_optional=True)},
    {"state": tf.TensorSpec((None, 4), tf.float32)},
    {},
    r"windows: state: expected \[T\] steps of \(3,\) float32, got \(None, 4\) float32",
  ),
  "no structure": (
    {"state": STATE},
    tf.TensorSpec((None, 3), tf.float32),
    {},
    r"the root: expected a dict",
  ),
  "padding": (
    {"state": STATE},
    EPISODE,
    {"padding": "edge"},
    r"windows: padding: expected one of drop, repeat, zero, .*got 'edge'",
  ),
  "stride": (
    {"state": STATE},
    EPISODE,
    {"stride": 0},
    r"windows: stride: expected an integer of at least 1, got 0",
  ),
  "shift": (
    {"state": STATE},
    EPISODE,
    {"shift": 0},
    r"windows: shift: expected an integer of at least 1, got 0",
  ),
  "sequence_length": (
    {"state": STATE},
    EPISODE,
    {"sequence_length": 0},
    r"windows: sequence_length: expected an integer of at least 1, got 0",
  ),
  "no integer": (
    {"state": STATE},
    EPISODE,
    {"sequence_length": "3"},
    r"windows: sequence_length: expected an integer of at least 1, got '3'",
  ),
  "no sequence to give a length": (
    {"state": STATE},
    EPISODE,
    {"sequence_length": 3},
    r"windows: sequence_length: expected None, because no spec has .*got 3",
  ),
  "a mask in the way of a stored path": (
    {"state": STATE, "state_mask": ExtendedTensorSpec((), tf.bool, "m")},
    {**EPISODE, "state_mask": tf.TensorSpec((None,), tf.bool)},
    {"masks": True},
    r"windows: state_mask: expected no spec with a name at the path of a mask",
  ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
  structure, element_spec, arguments, match = ERRORS[name]
  with pytest.raises(errors.SpecError, match=match):
    WindowReader(element_spec, structure, windows.Cut(**arguments))


def test_dataset_fails_when_it_is_made():
  episodes = tf.data.Dataset.from_tensors({"state": tf.zeros([5, 4])})
  with pytest.raises(errors.SpecError, match=r"windows: state: expected \[T\] steps"):
    windows.windows(episodes, {"state": STATE})


def test_gathering_from_one_episode_fails_alike():
  with pytest.raises(errors.SpecError, match=r"windows: state: expected \[T\] steps"):
    windows.gather_windows({"state": tf.zeros([5, 4])}, 0, {"state": STATE})


def test_all_mismatches_come_in_one_error_by_path():
  other = ExtendedTensorSpec((2, 3), tf.float32, "other", time_offsets=(-1, 0))
  structure = {"z": other, "state": STATE, "y": STATE, "task": TASK}
  element_spec = {
    "state": tf.TensorSpec((None, 3), tf.int32),
    "task": tf.TensorSpec((4,), tf.float32),
    "zz": tf.TensorSpec((None, 3), tf.float32),
  }
  cast = "To have it cast, say so in the spec: stored_dtype=tf.int32."
  with pytest.raises(errors.SpecError, match="3 mismatches") as caught:
    WindowReader(element_spec, structure)
  assert str(caught.value).splitlines() == [
    "windows: 3 mismatches:",
    f"  state: expected [T] steps of (3,) float32, got (None, 3) int32. {cast}",
    "  y: expected [T] steps of (3,) float32, got (None, 3) int32 at 'state', its "
    f"name. {cast}",
    "  z: expected [T] steps of (3,) float32, got nothing. It reads 'other', by its "
    "name. Did you mean 'zz'?",
  ]


# name: (spec, element_spec)
ACCEPTED = {
  "static length": (STATE, tf.TensorSpec((7, 3), tf.float32)),
  "unknown frame": (STATE, tf.TensorSpec((None, None), tf.float32)),
  "unknown rank": (STATE, tf.TensorSpec(None, tf.float32)),
  "decoded images": (IMAGE, tf.TensorSpec((None, 8, 8, 3), tf.uint8)),
  "encoded images": (IMAGE, tf.TensorSpec((None,), tf.string)),
  "own step": (TASK, tf.TensorSpec((None, 4), tf.float32)),
  "plain spec": (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((9, 4), tf.float32)),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
  spec, element_spec = ACCEPTED[name]
  WindowReader({"x": element_spec}, {"x": spec})


def test_missing_path_is_read_by_name():
  def state(name, offsets):
    return ExtendedTensorSpec((2, 1), tf.int64, name, time_offsets=offsets)

  structure = {
    "now": state("state", (-1, 0)),
    "later": state("state", (1, 2)),
    "state": state("other", (0, 1)),  # A path goes before a name.
    "all/task": ExtendedTensorSpec((4,), tf.float32, "task"),
    "none": ExtendedTensorSpec((4,), tf.float32, "nowhere", is_optional=True),
  }
  steps = np.arange(6)[:, np.newaxis]
  episode = {"state": steps, "other": -steps, "task": np.ones(4, np.float32)}
  dataset = tf.data.Dataset.from_tensors(episode)
  cut = windows.Cut(masks=True, padding="drop")
  got = list(windows.windows(dataset, structure, cut, shuffle_buffer_size=1))
  assert [window.now[:, 0].numpy().tolist() for window in got] == [
    [t - 1, t] for t in (1, 2, 3)
  ]
  assert [window.later[:, 0].numpy().tolist() for window in got] == [
    [t + 1, t + 2] for t in (1, 2, 3)
  ]
  assert [window.state[:, 0].numpy().tolist() for window in got] == [
    [t, t + 1] for t in (1, 2, 3)
  ]
  assert sorted(got[0]) == sorted(
    ["now", "now_mask", "later", "later_mask", "state", "state_mask", "all/task"]
  )
  reader = WindowReader(dataset.element_spec, structure)
  assert reader.paths == ("state", "task") and reader.timed_paths == ("state",)
