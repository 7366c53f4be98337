"""What time offsets imply: storage, span, lengths, masks."""

from __future__ import annotations

import pytest
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct
from t2r_seq.windows.cut import (
  WindowGrid,
  flat_length,
  history_length,
  mask_paths,
  time_span,
)

STACK = ExtendedTensorSpec(
  (2, 8, 8, 3), tf.uint8, "image", data_format="jpeg", time_offsets=(-1, 0)
)
CHUNK = ExtendedTensorSpec((3, 7), tf.float32, "action", time_offsets=range(3))
NEXT = ExtendedTensorSpec((5,), tf.float32, "state", time_offsets=1)
TASK = ExtendedTensorSpec((), tf.string, "task")
REWARDS = ExtendedTensorSpec((), tf.float32, "reward", is_sequence=True)

# name: (spec of the window, spec of the record)
FLAT = {
  "stack": (
    STACK,
    ExtendedTensorSpec(
      (8, 8, 3), tf.uint8, "image", is_sequence=True, data_format="jpeg"
    ),
  ),
  "stack of scalars": (
    ExtendedTensorSpec((2,), tf.int64, "n", time_offsets=(0, 4)),
    ExtendedTensorSpec((), tf.int64, "n", is_sequence=True),
  ),
  "one other step": (
    NEXT,
    ExtendedTensorSpec((5,), tf.float32, "state", is_sequence=True),
  ),
  "sequence of stacks": (
    ExtendedTensorSpec.from_spec(CHUNK, is_sequence=True),
    ExtendedTensorSpec((7,), tf.float32, "action", is_sequence=True),
  ),
  "context": (TASK, TASK),
  "sequence": (REWARDS, REWARDS),
  "plain spec": (
    tf.TensorSpec((2,), tf.float32, "x"),
    ExtendedTensorSpec((2,), tf.float32, "x"),
  ),
  "list of images of variable length": (
    ExtendedTensorSpec(
      (2, 4, 8, 8, 3),
      tf.uint8,
      "views",
      data_format="png",
      varlen_default_value=0,
      time_offsets=(-1, 0),
    ),
    ExtendedTensorSpec(
      (4, 8, 8, 3),
      tf.uint8,
      "views",
      is_sequence=True,
      data_format="png",
      varlen_default_value=0,
    ),
  ),
  "all other fields": (
    ExtendedTensorSpec(
      (1, 2),
      tf.float32,
      "x",
      is_optional=True,
      dataset_key="d",
      time_offsets=[0],
    ),
    ExtendedTensorSpec(
      (2,), tf.float32, "x", is_optional=True, is_sequence=True, dataset_key="d"
    ),
  ),
}


@pytest.mark.parametrize("name", FLAT)
def test_flat_specs(name):
  spec, want = FLAT[name]
  (flat,) = windows.flat_specs({"path": spec}).values()
  assert flat.is_identical_to(want), flat
  # What is flat already stays as it is.
  assert windows.flat_specs({"path": flat})["path"].is_identical_to(flat)


def test_flat_specs_of_a_nested_structure():
  flat = windows.flat_specs(
    {"obs": {"image": STACK}, "parts": [CHUNK, None], "t": TASK}
  )
  assert list(flat) == ["obs/image", "parts/0", "t"]
  assert not windows.is_windowed(flat)


def test_two_paths_may_read_one_feature_at_other_times():
  flat = windows.flat_specs(
    {"now": ExtendedTensorSpec.from_spec(NEXT, time_offsets=0), "next": NEXT}
  )
  assert {spec.name for spec in flat.values()} == {"state"}
  assert flat["now"].is_identical_to(flat["next"])


# name: (specs, is_windowed, span, history)
SPANS = {
  "nothing windowed": ({"t": TASK, "r": REWARDS}, False, (0, 0), 1),
  "stack": ({"x": STACK}, True, (-1, 0), 2),
  "chunk": ({"x": CHUNK}, True, (0, 2), 1),
  "next": ({"x": NEXT, "t": TASK}, True, (0, 1), 1),
  "own step": (
    {"x": ExtendedTensorSpec((), tf.float32, time_offsets=0)},
    True,
    (0, 0),
    1,
  ),
  "all": ({"a": STACK, "b": {"c": CHUNK, "d": NEXT}}, True, (-1, 2), 2),
  "past only": (
    {"x": ExtendedTensorSpec((2,), tf.int32, time_offsets=(-5, -3))},
    True,
    (-5, 0),
    6,
  ),
  "future only": (
    {"x": ExtendedTensorSpec((2,), tf.int32, time_offsets=(2, 4))},
    True,
    (0, 4),
    1,
  ),
  "unsorted": (
    {"x": ExtendedTensorSpec((4,), tf.int32, time_offsets=(3, -2, 0, 3))},
    True,
    (-2, 3),
    3,
  ),
  "plain specs": ({"x": tf.TensorSpec((2,), tf.int32)}, False, (0, 0), 1),
}


@pytest.mark.parametrize("name", SPANS)
def test_spans(name):
  structure, is_windowed, span, history = SPANS[name]
  assert windows.is_windowed(structure) is is_windowed
  assert time_span(structure) == span
  assert history_length(structure) == history


# name: (stacks, span, stride, want)
LENGTHS = {
  "one frame": (1, (0, 0), 1, 1),
  "L + K - 1": (4, (-2, 0), 1, 6),
  "one stack": (1, (-3, 0), 5, 4),
  "next to each other": (3, (-3, 0), 4, 12),
  "frames between": (3, (-1, 0), 3, 8),
  "past and future": (2, (-3, 7), 1, 12),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_flat_length(name):
  num_stacks, span, stride, want = LENGTHS[name]
  assert flat_length(num_stacks, span, stride) == want
  # That many steps give exactly one full sequence, and one step less gives none.
  grid = WindowGrid(span, windows.Cut(num_stacks, stride, padding="drop"))
  assert (grid.num_windows(want), grid.num_windows(want - 1)) == (1, 0)
  assert grid.min_steps == want


def test_add_mask_specs():
  structure = TensorSpecStruct({"a": STACK, "b/c": NEXT, "t": TASK})
  masked = windows.add_mask_specs(structure)
  assert list(masked) == ["a", "b/c", "t", "a_mask", "b/c_mask"]
  assert list(structure) == ["a", "b/c", "t"], "the structure itself is left alone"
  assert masked["a_mask"].is_identical_to(ExtendedTensorSpec((2,), tf.bool))
  assert masked["b/c_mask"].is_identical_to(ExtendedTensorSpec((), tf.bool))
  assert mask_paths(masked) == {"a_mask": "a", "b/c_mask": "b/c"}


def test_masks_are_not_stored():
  masked = windows.add_mask_specs({"a": STACK, "t": TASK})
  assert list(windows.flat_specs(masked)) == ["a", "t"]
  assert time_span(masked) == (-1, 0)


def test_mask_of_a_sequence_of_stacks_and_of_an_optional():
  spec = ExtendedTensorSpec.from_spec(CHUNK, is_sequence=True, is_optional=True)
  mask = windows.add_mask_specs({"a": spec})["a_mask"]
  want = ExtendedTensorSpec((3,), tf.bool, is_sequence=True, is_optional=True)
  assert mask.is_identical_to(want)
  # Without the optional there is no mask, and that is no mismatch.
  assert not specs.validate_and_flatten({"a": spec, "a_mask": mask}, {})


def test_masks_of_some_paths():
  masked = windows.add_mask_specs({"a": STACK, "b": NEXT}, ["b"])
  assert list(masked) == ["a", "b", "b_mask"]
  assert mask_paths(masked) == {"b_mask": "b"}
  # Adding the same mask twice changes nothing.
  assert list(windows.add_mask_specs(masked, ["b"])) == list(masked)


NO_MASKS = {
  "a stored mask has a name": ExtendedTensorSpec((2,), tf.bool, "a_mask"),
  "a mask is bool": ExtendedTensorSpec((2,), tf.float32),
}


@pytest.mark.parametrize("name", NO_MASKS)
def test_mask_paths_ignore_other_specs(name):
  structure = {"a": STACK, "a_mask": NO_MASKS[name], "b_mask": TASK}
  assert mask_paths(specs.flatten_spec_structure(structure)) == {}
  assert list(windows.flat_specs(structure)) == ["a", "a_mask", "b_mask"]


BAD_MASKS = {
  "unknown path": (
    "imege",
    r"add_mask_specs: imege: expected a spec with time offsets\. Did you mean 'image'\?"
    r" There is \[image\]\.",
  ),
  "context": ("task", r"add_mask_specs: task: expected a spec with time offsets\."),
}


@pytest.mark.parametrize("name", BAD_MASKS)
def test_mask_errors(name):
  path, match = BAD_MASKS[name]
  with pytest.raises(errors.SpecError, match=match):
    windows.add_mask_specs({"image": STACK, "task": TASK}, [path])
