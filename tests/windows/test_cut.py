"""Cuts are checked when they are made, and anchors are those of a count by hand."""

from __future__ import annotations

import dataclasses
import itertools

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, windows
from t2r_seq.windows.cut import WindowGrid, check_padding

SPANS = [(0, 0), (-3, 0), (0, 2), (-1, 1), (-4, 3)]
PADDINGS = [*windows.cut.PADDINGS, *itertools.permutations(windows.cut.PADDINGS, 2)]


def grid(span, num_stacks=1, stride=1, shift=1, padding="drop"):
  return WindowGrid(span, windows.Cut(num_stacks, stride, shift, padding))


GRIDS = [
  grid(span, num_stacks, stride, shift, padding)
  for span, num_stacks, stride, shift, padding in itertools.product(
    SPANS, (1, 2, 4), (1, 2, 3), (1, 2, 5), PADDINGS
  )
]
LENGTHS = list(range(18))


def sequences(grid, num_steps):
  """Lists the anchors of every sequence, one step at a time."""
  first_step = -grid.span[0] if grid.cut.front == "drop" else 0
  last_step = num_steps - (grid.span[1] if grid.cut.end == "drop" else 0)
  steps = range(first_step, last_step)
  anchors = [t for t in steps if (t - first_step) % grid.cut.stride == 0]
  found, first = [], 0
  while first < len(anchors):
    sequence = anchors[first : first + grid.cut.num_stacks]
    missing = grid.cut.num_stacks - len(sequence)
    if grid.cut.end == "drop" and missing:
      break
    last = sequence[-1]
    further = [last + (i + 1) * grid.cut.stride for i in range(missing)]
    found.append(sequence + further)
    if grid.cut.end != "drop" and first + grid.cut.num_stacks >= len(anchors):
      break
    first += grid.cut.shift
  return found


def test_reference_on_an_example():
  assert sequences(grid((-1, 0), 2, 1, 1, "drop"), 4) == [[1, 2], [2, 3]]
  assert sequences(grid((-1, 0), 2, 2, 2, "zero"), 6) == [[0, 2], [4, 6]]
  assert sequences(grid((-1, 1), 1, 1, 1, ("repeat", "drop")), 3) == [[0], [1]]
  assert sequences(grid((-1, 1), 1, 1, 1, ("drop", "repeat")), 3) == [[1], [2]]


@pytest.mark.parametrize("padding", PADDINGS)
def test_grid_equals_the_count_by_hand(padding):
  for grid in GRIDS:
    if grid.cut.padding != padding:
      continue
    for num_steps in LENGTHS:
      want = [sequence[0] for sequence in sequences(grid, num_steps)]
      count = grid.num_windows(num_steps)
      got = [grid.start(i) for i in range(count)]
      assert got == want, (grid, num_steps)
      assert (count > 0) == (num_steps >= grid.min_steps), (grid, num_steps)
      are_starts = [t for t in range(num_steps) if grid.is_anchor(t)]
      assert are_starts[:count] == want


def test_kinds_of_numbers():
  for grid in GRIDS[::7]:
    want = [grid.num_windows(num_steps) for num_steps in LENGTHS]
    assert all(type(count) is int for count in want)
    array = grid.num_windows(np.array(LENGTHS))
    assert isinstance(array, np.ndarray)
    assert array.tolist() == want
    for dtype in (tf.int32, tf.int64):
      tensor = grid.num_windows(tf.constant(LENGTHS, dtype))
      assert tf.is_tensor(tensor) and tensor.dtype == dtype
      assert tensor.numpy().tolist() == want


# name: (grid, episode length, starts)
EXAMPLES = {
  "a shift beyond the sequence stays in the episode": (
    grid((0, 0), 1, 1, 3, "repeat"),
    6,
    [0, 3],
  ),
  "every anchor is in some sequence": (
    grid((0, 0), 3, 1, 2, "zero"),
    6,
    [0, 2, 4],
  ),
  "one sequence is enough": (grid((0, 0), 9, 1, 1, "zero"), 5, [0]),
  "the last sequence is a full one": (
    grid((-1, 0), 3, 1, 2, "drop"),
    7,
    [1, 3],
  ),
  "stride of single windows": (
    grid((0, 1), 1, 2, 1, "drop"),
    6,
    [0, 2, 4],
  ),
  "nothing in an empty episode": (grid((0, 0), 1, 1, 1, "repeat"), 0, []),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_starts(name):
  grid, num_steps, want = EXAMPLES[name]
  assert [grid.start(i) for i in range(grid.num_windows(num_steps))] == want
  starts = grid.start(tf.range(len(want)))
  assert starts.numpy().tolist() == want


BAD = {
  "padding": (
    {"padding": "repeats"},
    r"windows: padding: expected one of drop, repeat, zero, or two of them for the "
    r"front and the end, got 'repeats'\. Did you mean 'repeat'\?",
  ),
  "no padding": ({"padding": None}, r"windows: padding: expected one of .*, got None"),
  "one end": (
    {"padding": ("repeat", "zeros")},
    r"padding: expected .*, got \('repeat', 'zeros'\)\. Did you mean 'zero'",
  ),
  "three ends": ({"padding": ("drop",) * 3}, r"windows: padding: expected one of .*"),
  "no end": ({"padding": ()}, r"windows: padding: expected one of .*, got \(\)"),
  "stride": (
    {"stride": 0},
    r"windows: stride: expected an integer of at least 1, got 0",
  ),
  "shift": ({"shift": -1}, r"windows: shift: expected an integer .*, got -1"),
  "stacks": (
    {"sequence_length": 1.5},
    r"windows: sequence_length: expected .*, got 1\.5",
  ),
  "too large": (
    {"stride": 2**31, "shift": 2**31},
    r"windows: stride: expected an integer of at most 2,147,483,647, got 2147483648",
  ),
  "bool": ({"stride": True}, r"windows: stride: expected .*, got True"),
  "steps": (
    {"n_step": (0, 0.9)},
    "n_step: n: expected an integer of at",
  ),
  "discount": ({"n_step": (2, 1.5)}, "n_step: gamma: expected a number from 0 to 1"),
  "rate": ({"max_rate": "60"}, "max_rate: expected steps per second, > 0, got '60'"),
  "no pair": ({"n_step": 3}, r"n_step: expected \(n, gamma\) or None, got 3"),
  "sequences of joined steps": (
    {"n_step": (3, 0.9), "sequence_length": 2},
    "sequence_length: expected None with n_step, got 2",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_cut(name):
  arguments, match = BAD[name]
  with pytest.raises(errors.SpecError, match=match):
    windows.Cut(**arguments)


# name: (padding, what the cut has, its front, its end)
ENDS = {
  "one word": ("repeat", "repeat", "repeat", "repeat"),
  "a pair": (("zero", "drop"), ("zero", "drop"), "zero", "drop"),
  "a list, as gin gives it": (["zero", "drop"], ("zero", "drop"), "zero", "drop"),
  "a pair of equals": (("drop", "drop"), "drop", "drop", "drop"),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends(name):
  padding, want, front, end = ENDS[name]
  cut = windows.Cut(padding=padding)
  assert (cut.padding, cut.front, cut.end) == (want, front, end)
  assert check_padding(padding) == want


def test_n_step_windows_drop_the_end():
  assert windows.Cut(padding="repeat", n_step=(2, 0.9)).end == "drop"


def test_gin_configures_cuts_in_one_place():
  gin.parse_config("""
    Cut.padding = ('repeat', 'drop')
    Cut.n_step = @NStep()
    NStep.n = 3
    NStep.gamma = 0.5
  """)
  try:
    made = gin.get_configurable("Cut")()
  finally:
    gin.clear_config()
  n_step = windows.NStep(3, 0.5)
  assert made == windows.Cut(padding=("repeat", "drop"), n_step=n_step)
  assert windows.Cut() == windows.Cut(padding="repeat", n_step=None)
  with pytest.raises(dataclasses.FrozenInstanceError):
    made.stride = 2


def test_numpy_integers_are_integers():
  assert grid((0, 0), np.int64(2), np.int32(3)).num_windows(7) == 2
