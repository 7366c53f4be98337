"""n-step transitions equal what joining the steps one by one gives."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from t2r_seq import errors, transitions

ENDS = ("terminal", "truncated", "gap")


@st.composite
def problems(draw):
  chain = st.tuples(st.integers(1, 6), st.sampled_from(ENDS))
  chains = draw(st.lists(chain, min_size=1, max_size=6))
  n = draw(st.integers(1, 8))
  gamma = draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
  return chains, n, gamma, draw(st.booleans()), draw(st.booleans())


@hypothesis.settings(max_examples=40)
@hypothesis.given(problems())
def test_n_step_equals_brute_force(tmp_path_factory, make, oracle, problem):
  chains, n, gamma, column, truncated = problem
  given_ = make(chains, column, truncated)
  path = tmp_path_factory.mktemp("n_step") / "s"
  assert transitions.save_transitions(path, given_) == len(chains)
  reading = transitions.load_transitions(path).n_step(n, gamma)
  got = reading.to_numpy()
  assert list(got) == list(reading.spec)
  for index in range(len(reading)):
    want = oracle(given_, index, n, gamma)
    assert set(got) == set(want)
    for name, value in want.items():
      spec = reading.spec[name]
      assert got[name].dtype == spec.dtype.as_numpy_dtype, name
      assert got[name].shape == (len(reading), *spec.shape), name
      np.testing.assert_allclose(
        got[name][index], value, rtol=1e-6, err_msg=f"{name} of {index}"
      )


@pytest.fixture
def reading(tmp_path, make):
  chains = [(4, "terminal"), (2, "truncated"), (1, "gap")]
  transitions.save_transitions(tmp_path / "s", make(chains))
  return transitions.load_transitions(tmp_path / "s")


def test_terminals_stop_and_truncations_bootstrap(reading):
  got = reading.n_step(3, 0.5).to_numpy()
  assert got.num_steps.tolist() == [3, 3, 2, 1, 2, 1, 1]
  assert got.discount.tolist() == [0.125, 0, 0, 0, 0.25, 0.5, 0.5]
  assert got.done.tolist() == [0, 1, 1, 1, 0, 0, 0]
  assert got.truncated.tolist() == [*[False] * 4, True, True, False]
  first = [30.25, 40.25, 40.25, 40.25, 1020.25, 1020.25, 2010.25]
  assert got["next_obs/state"][:, 0].tolist() == first


def test_n_step_twice_is_an_error(reading):
  message = (
    "n_step: .*/s: expected one-step transitions, got 3-step transitions with gamma 0.9"
  )
  with pytest.raises(errors.SpecError, match=message) as raised:
    reading.n_step(3, 0.9).n_step(3, 0.9)
  assert isinstance(raised.value, ValueError)


def test_n_step_of_saved_n_step_is_an_error(tmp_path, make):
  transitions.save_transitions(tmp_path / "s", make([(3, "gap")]), n_step=(5, 0.99))
  loaded = transitions.load_transitions(tmp_path / "s", n_step=(5, 0.99))
  with pytest.raises(ValueError, match=r"got 5-step transitions with gamma 0\.99"):
    loaded.n_step(2, 0.9)


@pytest.mark.parametrize(
  ("n", "gamma", "want"),
  [
    (0, 0.9, "n: expected an integer of at least 1, got 0"),
    (1.5, 0.9, "n: expected an integer of at least 1, got 1.5"),
    (True, 0.9, "n: expected an integer of at least 1, got True"),
    (1, 1.1, "gamma: expected a number from 0 to 1, got 1.1"),
    (1, float("nan"), "gamma: expected a number from 0 to 1, got nan"),
    (1, "0.9", "gamma: expected a number from 0 to 1, got '0.9'"),
  ],
)
def test_bad_arguments(reading, n, gamma, want):
  with pytest.raises(errors.SpecError, match=f"n_step: {want}"):
    reading.n_step(n, gamma)


@pytest.mark.parametrize(
  ("dtype", "want"),
  [
    (np.int32, np.float32),
    (np.uint8, np.float32),
    (np.bool_, np.float32),
    (np.float16, np.float16),
    (np.float64, np.float64),
    (tf.bfloat16.as_numpy_dtype, tf.bfloat16.as_numpy_dtype),
  ],
)
def test_dtypes_of_rewards(dtype, want, tmp_path):
  given = {
    "obs": np.arange(3.0),
    "next_obs": np.arange(1, 4.0),
    "rew": np.ones(3).astype(dtype),
    "done": np.array([False, False, True]),
  }
  transitions.save_transitions(tmp_path / "s", given)
  reading = transitions.load_transitions(tmp_path / "s").n_step(2, 0.5)
  got = reading.to_numpy()
  assert got.rew.dtype == want
  assert got.rew.astype(float).tolist() == [1.5, 1.5, 1]
  assert got.done.tolist() == [False, True, True]
  assert got.discount.tolist() == [0.25, 0, 0]


def test_rejects_names_in_use(tmp_path, make):
  given = {**make([(2, "gap")]), "discount": np.zeros(2), "num_steps": np.zeros(2)}
  transitions.save_transitions(tmp_path / "s", given)
  loaded = transitions.load_transitions(tmp_path / "s")
  with pytest.raises(errors.SpecError, match="2 mismatches:\n  discount: expected no"):
    loaded.n_step(2, 0.9)
