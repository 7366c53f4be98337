"""Episodes on disk in all forms of a source."""

from __future__ import annotations

import types

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import records, specs
from t2r_seq.specs.packing import encode_image
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
SPEC = {
  "state": Spec((3,), tf.float32, "state", is_sequence=True),
  "done": Spec((), tf.int64, "done", is_sequence=True),
  "image": Spec((4, 6, 3), tf.uint8, "image", is_sequence=True, data_format="png"),
  "force": Spec((2,), tf.float32, "force", is_sequence=True, is_optional=True),
  "goal": Spec((2,), tf.float32, "goal"),
  "task": Spec((), tf.string, "task"),
}


def make_episodes(count: int = 30) -> list[dict[str, np.ndarray]]:
  """Returns episodes of 3 to 40 steps; every third lacks its force."""
  rng = np.random.default_rng(0)
  episodes = []
  for index, num_steps in enumerate(rng.integers(3, 41, count)):
    episode = {
      "state": (1e5 + rng.normal(size=(num_steps, 3))).astype(np.float32),
      "done": (np.arange(num_steps) == num_steps - 1).astype(np.int64),
      "image": rng.integers(0, 200, (num_steps, 4, 6, 3)).astype(np.uint8),
      "force": rng.normal(size=(num_steps, 2)).astype(np.float32),
      "goal": rng.normal(size=2).astype(np.float32),
      "task": np.array(b"wave", object),
    }
    if index % 3 == 0:
      del episode["force"]
    episodes.append(episode)
  return episodes


@pytest.fixture(name="data", scope="session")
def fixture_data(tmp_path_factory):
  """The same episodes in memory, as record files, and as a store of two segments."""
  folder = tmp_path_factory.mktemp("statistics")
  episodes = make_episodes()
  for index in range(3):
    part = episodes[10 * index : 10 * index + 10]
    records.write_records(folder / f"part-{index}.tfrecord", SPEC, part)
  records.write_records(folder / "packed.tfrecord.gz", SPEC, episodes)
  flat = specs.TensorSpecStruct(SPEC)
  store = str(folder / "store")
  EpisodeStore.create(store, flat, segment="a").close()
  for segment, part in (("a", episodes[:12]), ("b", episodes[12:])):
    with EpisodeStore.append(store, segment=segment) as writer:
      for episode in part:
        encoded = [encode_image(image, "png") for image in episode["image"]]
        images = np.array(encoded, object)
        writer.append_episode({**episode, "image": images})
  return types.SimpleNamespace(
    episodes=episodes,
    folder=folder,
    records=str(folder / "part-*.tfrecord"),
    packed=str(folder / "packed.tfrecord.gz"),
    store=store,
    spec=flat,
  )
