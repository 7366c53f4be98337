"""Tests of `StepCheck`: one row of the flat specs, or an error that names all."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.replay.step_check import StepCheck

SPEC = specs.TensorSpecStruct(
  {
    "obs/image": specs.ExtendedTensorSpec((2, 2, 3), tf.uint8, is_sequence=True),
    "obs/speed": specs.ExtendedTensorSpec((), tf.float32, is_sequence=True),
    "count": specs.ExtendedTensorSpec((), tf.uint8, is_sequence=True),
    "done": specs.ExtendedTensorSpec((), tf.bool, is_sequence=True),
    "text": specs.ExtendedTensorSpec((), tf.string, is_sequence=True),
    "goal": specs.ExtendedTensorSpec((2,), tf.float32),
  }
)


def make_step(**changes):
  step = {
    "obs/image": np.ones((2, 2, 3), np.uint8),
    "obs/speed": np.float32(0.5),
    "count": np.uint8(3),
    "done": np.bool_(True),
    "text": b"ab\0",
    "goal": np.ones(2, np.float32),
  }
  step.update({name.replace("__", "/"): value for name, value in changes.items()})
  return {path: value for path, value in step.items() if value is not None}


def test_values_keep_shape_dtype_and_zeros_at_the_end_of_strings():
  row = StepCheck(SPEC)(make_step(), True)
  assert {path: array.dtype for path, array in row.items()} == {
    "obs/image": np.uint8,
    "obs/speed": np.float32,
    "count": np.uint8,
    "done": np.bool_,
    "text": object,
    "goal": np.float32,
  }
  assert row["text"][()] == b"ab\0"


ACCEPTED = {
  "packed": {
    **{path: value for path, value in make_step().items() if path[0] != "o"},
    "obs": {"image": np.ones((2, 2, 3), np.uint8), "speed": np.float32(0.5)},
  },
  "python's numbers": make_step(obs__speed=1, count=255, done=False),
  "tensors": make_step(obs__speed=tf.constant(0.5), text=tf.constant(b"ab\0")),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_accepted(name):
  row = StepCheck(SPEC)(ACCEPTED[name], True)
  assert row.keys() == SPEC.keys()
  assert row["obs/speed"].dtype == np.float32


def test_context_comes_with_the_first_step():
  check = StepCheck(SPEC)
  assert "goal" in check(make_step(), False)
  assert "goal" not in check(make_step(goal=None), False)
  with pytest.raises(errors.SpecError, match=r"goal: expected .* got nothing"):
    check(make_step(goal=None), True)


REFUSED = {
  "shape": (make_step(obs__image=np.ones((3, 2, 3), np.uint8)), "obs/image: expected"),
  "dtype": (make_step(obs__speed=np.float64(1)), "obs/speed: .* got .* float64"),
  "too large": (make_step(count=256), "count: expected .* uint8"),
  "negative": (make_step(count=-1), "count: expected .* uint8"),
  "a fraction": (make_step(count=0.5), "count: expected .* uint8, got .* float64"),
  "a bool": (make_step(count=True), "count: expected .* uint8, got .* bool"),
  "no bool": (make_step(done=1), "done: expected .* bool, got .* int64"),
  "no string": (make_step(text=3.0), "text: expected .* string, got .* float64"),
  "missing": (make_step(done=None), "done: expected .* got nothing"),
  "unknown": (make_step(gaol=1.0), "gaol: expected no such path.* Did you mean 'goal'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
  step, message = REFUSED[name]
  with pytest.raises(errors.SpecError, match=message):
    StepCheck(SPEC)(step, True)


@pytest.mark.parametrize("step", [3, np.ones(2), [1, 2]])
def test_what_is_no_step(step):
  with pytest.raises(errors.SpecError, match="append: the step: expected a dict"):
    StepCheck(SPEC)(step, True)


def test_all_mismatches_come_at_once():
  with pytest.raises(errors.SpecError, match="append: 3 mismatches") as caught:
    StepCheck(SPEC)(make_step(done=None, count=1.5, more=1), True)
  assert all(path in str(caught.value) for path in ("done", "count", "more"))
