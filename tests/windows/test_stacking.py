"""Windows that travel flat and are stacked later equal those stacked at once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.windows.cut import PADDINGS
from t2r_seq.windows.reader import WindowReader

Spec = specs.ExtendedTensorSpec
F32 = tf.float32
STACK = (-3, -2, -1, 0)

# name: (the specs of a window, further arguments of the reader)
CASES = {
  "stack": ({"x": Spec((4, 2), F32, time_offsets=STACK)}, {}),
  "gaps": ({"x": Spec((3, 2), F32, time_offsets=(-4, 0, 3))}, {}),
  "next, own step and context": (
    {
      "x": Spec((2,), F32, time_offsets=1),
      "y": Spec((), F32),
      "task": Spec((3,), F32),
    },
    {},
  ),
  "sequence of stacks": (
    {"x": Spec((4, 2), F32, time_offsets=STACK, is_sequence=True), "y": Spec((), F32)},
    {"sequence_length": 5},
  ),
  "strides": (
    {"x": Spec((2, 2), F32, time_offsets=(0, 1), is_sequence=True)},
    {"sequence_length": 3, "stride": 3},
  ),
  "declared masks": (
    windows.add_mask_specs({"x": Spec((4, 2), F32, time_offsets=STACK)}),
    {},
  ),
  "added masks": ({"x": Spec((4, 2), F32, time_offsets=STACK)}, {"masks": True}),
}
EPISODE = {
  "x": tf.reshape(tf.range(1, 49, dtype=F32), [24, 2]),
  "y": tf.range(100, 124, dtype=F32),
  "task": tf.constant([7.0, 8.0, 9.0]),
}
ELEMENT = {
  "x": tf.TensorSpec([None, 2], F32),
  "y": tf.TensorSpec([None], F32),
  "task": tf.TensorSpec([3], F32),
}


# What is stacked later has its padding: each case meets one.
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
  ("name", "padding"), [*zip(CASES, itertools.cycle(PADDINGS), strict=False)]
)
def test_stacked_later_is_stacked_at_once(name, padding, jit_compile):
  spec, options = CASES[name]
  sequence = {k: v for k, v in options.items() if k != "masks"}
  starts = tf.constant([5, 6, 9])
  at_once, flat = (
    WindowReader(ELEMENT, spec, windows.Cut(padding=padding, **options), flat).read(
      EPISODE, starts
    )
    for flat in (False, True)
  )

  @tf.function(jit_compile=jit_compile)
  def stack(flat):
    return windows.stack_windows(flat, spec, **sequence)

  stacked = stack(flat)
  assert sorted(stacked) == sorted(at_once)
  for path, want in at_once.items():
    assert stacked[path].dtype == want.dtype
    np.testing.assert_array_equal(stacked[path], want, err_msg=path)


def test_frames_travel_once():
  spec = {"x": Spec((4, 2), F32, time_offsets=STACK, is_sequence=True)}
  reader = WindowReader(ELEMENT, spec, windows.Cut(16), flat=True)
  assert reader.read(EPISODE, tf.constant([3])).x.shape == (1, 19, 2)
  assert reader.window_spec.x.shape == (19, 2)


def test_another_number_of_steps_is_refused():
  spec = {"x": Spec((4, 2), F32, time_offsets=STACK), "y": Spec((), F32)}
  flat = {"x": tf.zeros([8, 5, 2]), "y": tf.zeros([8, 1])}
  message = r"stack_windows: x: expected \[B, 4, \.\.\.\] flat steps, got \(8, 5, 2\)"
  with pytest.raises(errors.SpecError, match=message):
    windows.stack_windows(flat, spec)
