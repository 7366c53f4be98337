"""Flat transitions cut from chains, and what n-step ones are, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

TERMINAL, TRUNCATED, GAP = "terminal", "truncated", "gap"


def make_transitions(
  chains: list[tuple[int, str]], column: bool = False, truncated: bool = True
) -> dict[str, Any]:
  """Makes transitions whose values say where they stand.

  Args:
    chains: (steps, how it ends) of each.
    column: rewards and flags are [N, 1], as cpprb has them.
    truncated: adds the flag of truncations.
  Returns:
    Arrays [N, ...] in a structure.
  """
  lengths = [length for length, _ in chains]
  num, number = sum(lengths), np.repeat(np.arange(len(chains)), lengths)
  step = np.concatenate([np.arange(length) for length in lengths])
  is_last = np.append(number[1:] != number[:-1], True)
  ends = np.asarray([end for _, end in chains])[number]
  # At a gap nothing is set: the next observation alone is another.
  place = 1000 * number + 10 * step
  flag_shape = (num, 1) if column else (num,)
  rng = np.random.default_rng(num)
  arrays: dict[str, Any] = {
    "obs": {
      "image": (place[:, None, None] + np.arange(6).reshape(2, 3)).astype(np.uint16),
      "state": (place[:, None] + [0.25, 0.5]).astype(np.float32),
    },
    "act": rng.integers(-9, 9, (num, 2)).astype(np.int8),
    "rew": rng.integers(-8, 8, flag_shape).astype(np.float32) / 4,
    "next_obs": {
      "image": (place[:, None, None] + 10 + np.arange(6).reshape(2, 3)).astype(
        np.uint16
      ),
      "state": (place[:, None] + [10.25, 10.5]).astype(np.float32),
    },
    "done": (is_last & (ends == TERMINAL)).reshape(flag_shape).astype(np.float32),
    "info": rng.normal(size=(num, 3)),
  }
  if truncated:
    arrays["truncated"] = (is_last & (ends == TRUNCATED)).reshape(flag_shape)
  return arrays


def flatten(structure: Any, prefix: str = "") -> dict[str, np.ndarray]:
  """Flattens nested dicts to paths."""
  flat = {}
  for name, value in structure.items():
    if isinstance(value, dict):
      flat.update(flatten(value, f"{prefix}{name}/"))
    else:
      flat[prefix + name] = value
  return flat


def brute_force(
  transitions: dict[str, Any], index: int, n: int, gamma: float
) -> dict[str, Any]:
  """Joins the n steps from one transition on, one after the other."""
  flat = flatten(transitions)
  of = {path: path[5:] for path in flat if path.startswith("next_")}
  total, last = np.zeros(flat["rew"].shape[1:]), index
  for k in range(n):
    last = index + k
    total = total + gamma**k * flat["rew"][last].astype(np.float64)
    is_cut = last + 1 == len(flat["done"]) or flat["done"][last].any()
    is_cut = is_cut or ("truncated" in flat and flat["truncated"][last].any())
    if is_cut or any(
      flat[path][last].tobytes() != flat[now][last + 1].tobytes()
      for path, now in of.items()
    ):
      break
  m = last - index + 1
  ends = {path: flat[path][last] for path in (*of, "done", "truncated") if path in flat}
  return {
    **{path: values[index] for path, values in flat.items()},
    **ends,
    "rew": total,
    "discount": gamma**m * (1 - flat["done"][last].astype(np.float64)),
    "num_steps": m,
  }


def assert_same(got: Any, want: Any) -> None:
  """Compares all fields: paths, in order, dtypes, shapes and bits."""
  want = flatten(want)
  assert list(got) == list(want)
  for path in want:
    assert got[path].dtype == want[path].dtype, path
    assert got[path].shape == want[path].shape, path
    if want[path].dtype == object:
      assert got[path].tolist() == want[path].tolist(), path
    else:
      assert got[path].tobytes() == want[path].tobytes(), path


@pytest.fixture(scope="session")
def make() -> Callable[..., dict[str, Any]]:
  """`make(chains, column=False, truncated=True)` makes transitions."""
  return make_transitions


@pytest.fixture(scope="session")
def oracle() -> Callable[..., dict[str, Any]]:
  """`oracle(transitions, index, n, gamma)` is an n-step transition."""
  return brute_force


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], None]:
  """`same(got, want)` compares transitions bit for bit."""
  return assert_same
