"""A small store with every kind of column, and how its episodes are made."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import specs, store

Spec = specs.ExtendedTensorSpec
BFLOAT16 = tf.bfloat16.as_numpy_dtype

SPEC = {
  "obs": {
    "image": Spec((4, 3, 1), tf.uint8, "image", is_sequence=True),
    "jpeg": Spec((8, 8, 3), tf.uint8, is_sequence=True, data_format="jpeg"),
    "half": Spec((2,), tf.bfloat16, is_sequence=True),
  },
  "reward": Spec((), tf.float32, is_sequence=True),
  "done": Spec((), tf.bool, is_sequence=True),
  "words": Spec((2,), tf.string, is_sequence=True),
  "task": Spec((), tf.string),
  "goal": Spec((3,), tf.float64),
  "force": Spec((2,), tf.float32, is_sequence=True, is_optional=True),
  "rating": Spec((), tf.int64, is_optional=True),
}


def make_episode(index: int, num_steps: int = 5) -> dict[str, Any]:
  """Makes the flat episode of an index; odd ones have the optional paths."""
  rng = np.random.default_rng(index)
  words = np.empty((num_steps, 2), dtype=object)
  jpeg = np.empty(num_steps, dtype=object)
  for t in range(num_steps):
    words[t] = [b"w" * (t % 3), b"\0ends in zero\0"]
    pixels = rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)
    jpeg[t] = tf.io.encode_jpeg(pixels).numpy()
  episode: dict[str, Any] = {
    "obs/image": rng.integers(0, 256, (num_steps, 4, 3, 1)).astype(np.uint8),
    "obs/jpeg": jpeg,
    "obs/half": rng.normal(size=(num_steps, 2)).astype(BFLOAT16),
    "reward": rng.normal(size=num_steps).astype(np.float32),
    "done": np.arange(num_steps) == num_steps - 1,
    "words": words,
    "task": np.array(f"episode {index}".encode(), dtype=object),
    "goal": rng.normal(size=3),
  }
  if index % 2:
    episode["force"] = rng.normal(size=(num_steps, 2)).astype(np.float32)
    episode["rating"] = np.asarray(index, np.int64)
  return episode


def assert_same(got: Any, want: Any) -> None:
  """Compares an episode in paths, dtypes, shapes and values."""
  assert sorted(got) == sorted(want)
  for path in want:
    assert got[path].dtype == want[path].dtype, path
    assert got[path].shape == want[path].shape, path
    np.testing.assert_array_equal(np.asarray(got[path]), want[path], err_msg=path)


LENGTHS = (5, 1, 8)


@pytest.fixture
def spec() -> dict[str, Any]:
  """A spec structure with every kind of column."""
  return SPEC


@pytest.fixture
def episode() -> Callable[..., dict[str, Any]]:
  """`episode(index, num_steps=5)` makes a flat episode."""
  return make_episode


@pytest.fixture
def same() -> Callable[[Any, Any], None]:
  """`same(got, want)` compares two episodes."""
  return assert_same


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> str:
  """The store that `path` is a copy of: committing is what takes time."""
  folder = str(tmp_path_factory.mktemp("original") / "store")
  with store.EpisodeStore.create(folder, SPEC, {"robot": "arm"}) as writer:
    for index, length in enumerate(LENGTHS):
      writer.append_episode(make_episode(index, length))
  return folder


@pytest.fixture
def path(tmp_path: pathlib.Path, original: str) -> str:
  """A store of three episodes of 5, 1 and 8 steps."""
  return str(shutil.copytree(original, tmp_path / "store"))
