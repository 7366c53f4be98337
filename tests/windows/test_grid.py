"""Which anchors an episode has, against a count by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, windows

SPANS = [(0, 0), (-3, 0), (0, 2), (-1, 1), (-4, 3)]
GRIDS = [
  windows.WindowGrid(span, num_stacks, stride, shift, padding)
  for span, num_stacks, stride, shift, padding in itertools.product(
    SPANS, (1, 2, 4), (1, 2, 3), (1, 2, 5), windows.PADDINGS
  )
]
LENGTHS = list(range(18))


def sequences(grid, num_steps):
  """Lists the anchors of every sequence, one step at a time."""
  if grid.padding == "drop":
    full = range(-grid.span[0], num_steps - grid.span[1])
    anchors = [t for t in full if (t + grid.span[0]) % grid.stride == 0]
  else:
    anchors = [t for t in range(num_steps) if t % grid.stride == 0]
  found, first = [], 0
  while first < len(anchors):
    sequence = anchors[first : first + grid.num_stacks]
    missing = grid.num_stacks - len(sequence)
    if grid.padding == "drop" and missing:
      break
    last = sequence[-1]
    further = [last + (i + 1) * grid.stride for i in range(missing)]
    found.append(sequence + further)
    if grid.padding != "drop" and first + grid.num_stacks >= len(anchors):
      break
    first += grid.shift
  return found


def test_reference_on_an_example():
  grid = windows.WindowGrid((-1, 0), 2, 1, 1, "drop")
  assert sequences(grid, 4) == [[1, 2], [2, 3]]
  grid = windows.WindowGrid((-1, 0), 2, 2, 2, "zero")
  assert sequences(grid, 6) == [[0, 2], [4, 6]]


@pytest.mark.parametrize("padding", windows.PADDINGS)
def test_grid_equals_the_count_by_hand(padding):
  for grid in GRIDS:
    if grid.padding != padding:
      continue
    for num_steps in LENGTHS:
      want = [sequence[0] for sequence in sequences(grid, num_steps)]
      count = grid.num_windows(num_steps)
      got = [grid.start(i) for i in range(count)]
      assert got == want, (grid, num_steps)
      assert (count > 0) == (num_steps >= grid.min_steps), (grid, num_steps)


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
    windows.WindowGrid((0, 0), 1, 1, 3, "repeat"),
    6,
    [0, 3],
  ),
  "every anchor is in some sequence": (
    windows.WindowGrid((0, 0), 3, 1, 2, "zero"),
    6,
    [0, 2, 4],
  ),
  "one sequence is enough": (windows.WindowGrid((0, 0), 9, 1, 1, "zero"), 5, [0]),
  "the last sequence is a full one": (
    windows.WindowGrid((-1, 0), 3, 1, 2, "drop"),
    7,
    [1, 3],
  ),
  "stride of single windows": (
    windows.WindowGrid((0, 1), 1, 2, 1, "drop"),
    6,
    [0, 2, 4],
  ),
  "nothing in an empty episode": (windows.WindowGrid((0, 0), 1, 1, 1, "repeat"), 0, []),
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
    r"windows: padding: expected one of drop, repeat, zero, got 'repeats'\. "
    r"Did you mean 'repeat'\?",
  ),
  "no padding": ({"padding": None}, r"windows: padding: expected one of .*, got None"),
  "stride": (
    {"stride": 0},
    r"windows: stride: expected an integer of at least 1, got 0",
  ),
  "shift": ({"shift": -1}, r"windows: shift: expected an integer .*, got -1"),
  "stacks": ({"num_stacks": 1.5}, r"windows: num_stacks: expected .*, got 1\.5"),
  "too large": (
    {"stride": 2**31, "shift": 2**31},
    r"windows: stride: expected an integer of at most 2,147,483,647, got 2147483648",
  ),
  "bool": ({"stride": True}, r"windows: stride: expected .*, got True"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_grid(name):
  arguments, match = BAD[name]
  with pytest.raises(errors.SpecError, match=match):
    windows.WindowGrid((0, 0), **arguments)


def test_numpy_integers_are_integers():
  grid = windows.WindowGrid((0, 0), np.int64(2), np.int32(3))
  assert grid.num_windows(7) == 2


def test_check_padding():
  for padding in ("drop", "repeat", "zero"):
    windows.check_padding(padding)
  with pytest.raises(errors.SpecError, match=r"padding: .* Did you mean 'zero'"):
    windows.check_padding("zeros")
