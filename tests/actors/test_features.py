"""From steps to the structure of a record."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.actors.sinks import flatten_step, make_episode_to_features


def _steps(num_steps):
  return [
    {
      "observation": {"state": {"pos": np.full([2], t, np.float32)}, "id": np.int64(9)},
      "action": np.full([2], 10 + t, np.float32),
      "reward": float(t) / 2,
      "terminated": t == num_steps - 1,
      "truncated": False,
    }
    for t in range(num_steps)
  ]


def _spec(shape, dtype=tf.float32, **kwargs):
  return specs.ExtendedTensorSpec(shape, dtype, **kwargs)


def test_episode_to_features():
  spec = specs.TensorSpecStruct(
    [
      ("state/pos", _spec((2,), name="pos", is_sequence=True)),
      ("action", _spec((2,), name="action", is_sequence=True)),
      ("reward", _spec((1,), name="reward", is_sequence=True)),
      ("terminated", _spec((), tf.bool, name="done", is_sequence=True)),
      ("id", _spec((), tf.int64, name="id")),
      ("comment", _spec((), tf.string, name="comment", is_optional=True)),
    ]
  )
  got = make_episode_to_features(spec)(_steps(3))
  want = {
    "state/pos": np.float32([[0, 0], [1, 1], [2, 2]]),
    "action": np.float32([[10, 10], [11, 11], [12, 12]]),
    "reward": np.float32([[0], [0.5], [1]]),
    "terminated": np.array([False, False, True]),
    "id": np.int64(9),
  }
  assert list(got) == list(want)
  for path, value in want.items():
    np.testing.assert_array_equal(got[path], value)
    assert got[path].dtype == value.dtype, path


def test_windowed_specs_are_stored_flat():
  spec = {"action": _spec((4, 2), name="action", time_offsets=(0, 1, 2, 3))}
  got = make_episode_to_features(spec)(_steps(3))
  assert got["action"].shape == (3, 2)


def test_one_array_is_the_observation():
  step = {**_steps(1)[0], "observation": np.float32([1, 2])}
  assert set(flatten_step(step)) == {
    "observation",
    "action",
    "reward",
    "terminated",
    "truncated",
  }


def test_missing_paths_are_named():
  spec = {
    "state": {"poss": _spec((2,), name="pos", is_sequence=True)},
    "zeal": _spec((2,), name="zeal", is_sequence=True),
  }
  want = "^step to features: 2 mismatches:"
  with pytest.raises(errors.SpecError, match=want) as info:
    make_episode_to_features(spec)(_steps(1))
  message = str(info.value)
  assert (
    "state/poss: expected (2,) float32, got nothing. Did you mean 'state/pos'?"
    in (message)
  )
  assert "zeal: expected (2,) float32, got nothing." in message
