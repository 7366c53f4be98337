"""One small data set for all ready policies, made once."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import cli, specs, store

Spec = specs.ExtendedTensorSpec
FEATURES = {
  "observation.state": Spec((3,), tf.float32, "observation.state", is_sequence=True),
  "observation.images.top": Spec(
    (24, 32, 3), tf.uint8, "observation.images.top", is_sequence=True
  ),
  "action": Spec((2,), tf.float32, "action", is_sequence=True),
}
LENGTHS = (9, 10, 11, 12)


def make_episodes(seed=0):
  """Returns episodes whose actions follow from the states."""
  rng = np.random.default_rng(seed)
  for length in LENGTHS:
    states = np.cumsum(rng.normal(size=(length, 3)), axis=0).astype(np.float32)
    yield {
      "observation.state": states,
      "observation.images.top": rng.integers(0, 255, (length, 24, 32, 3), np.uint8),
      "action": states[:, :2] * 2 + 1,
    }


@pytest.fixture(scope="session")
def store_path(tmp_path_factory) -> pathlib.Path:
  path = tmp_path_factory.mktemp("demonstrations") / "demos"
  with store.EpisodeStore.create(path, FEATURES, {"fps": 10}) as writer:
    for episode in make_episodes():
      writer.append_episode(episode)
  return path


@pytest.fixture(scope="session")
def lerobot_path(store_path) -> pathlib.Path:
  pytest.importorskip("pyarrow")
  path = store_path.parent / "demos.lerobot"
  argv = ["convert", str(store_path), str(path), "--fps", "10", "--task", "push it"]
  assert cli.main(argv) == 0
  return path
