"""One number a step: a spec of () or (1,) reads data of either shape."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, data, preprocessors, replay, specs, statistics, store
from t2r_seq.convert.conversion import verify_conversion

Spec = specs.ExtendedTensorSpec
STORED = {
  "scalar": Spec((), tf.float32, "scalar", is_sequence=True),
  "vector": Spec((1,), tf.float32, "vector", is_sequence=True),
  "scalar_of_episode": Spec((), tf.float32, "scalar_of_episode"),
  "vector_of_episode": Spec((1,), tf.float32, "vector_of_episode"),
  "other": Spec((2,), tf.float32, "other", is_sequence=True),
}
LENGTHS = (2, 3)
STEPS = np.concatenate([np.arange(length) for length in LENGTHS]).astype(np.float32)
STACKS = np.stack([np.maximum(STEPS - 1, 0), STEPS], axis=-1)
EPISODES = np.repeat([0, 1], LENGTHS).astype(np.float32)


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
  """The same episodes in a store and in other formats."""
  folder = tmp_path_factory.mktemp("one_number")
  source = folder / "store"
  metadata = {"lerobot": {"fps": 10}}
  with store.EpisodeStore.create(source, STORED, metadata) as writer:
    for number, length in enumerate(LENGTHS):
      steps = np.arange(length, dtype=np.float32)
      of_episode = np.float32(number)
      writer.append_episode(
        {
          "scalar": steps,
          "vector": steps[:, np.newaxis],
          "scalar_of_episode": of_episode,
          "vector_of_episode": of_episode[np.newaxis],
          "other": np.zeros((length, 2), np.float32),
        }
      )
  convert.convert(source, folder / "set.lerobot")
  convert.convert(source, folder / "set.tfrecord")
  return folder


def _generator(folder, kind):
  if kind == "store":
    return data.StoreInputGenerator(folder / "store", batch_size=5)
  if kind == "lerobot":
    return data.LeRobotInputGenerator(folder / "set.lerobot", batch_size=5)
  return data.DefaultRecordInputGenerator(str(folder / "set.tfrecord"), batch_size=5)


READS = {
  "the step": (None, "scalar", STEPS),
  "the step of a vector": (None, "vector", STEPS),
  "an offset": (0, "scalar", STEPS),
  "an offset of a vector": (0, "vector", STEPS),
  "a stack": ((-1, 0), "scalar", STACKS),
  "a stack of a vector": ((-1, 0), "vector", STACKS),
  "an episode": (None, "scalar_of_episode", EPISODES),
  "an episode's vector": (None, "vector_of_episode", EPISODES),
}


@pytest.mark.parametrize("shape", [(), (1,)], ids=["scalar", "vector"])
@pytest.mark.parametrize("kind", ["store", "lerobot", "records"])
def test_either_spec_reads_either_shape(folder, kind, shape):
  # Labels are what a model of one action trains on.
  leaves, expected = {}, {}
  for name, (offsets, key, want) in READS.items():
    if kind == "records" and offsets is None and "episode" not in key:
      continue  # A record of an episode has no step of its own.
    stack = (len(offsets),) if isinstance(offsets, tuple) else ()
    leaves[name] = Spec((*stack, *shape), tf.float32, key, time_offsets=offsets)
    expected[name] = want.reshape(*want.shape, *shape)
  generator = _generator(folder, kind)
  other = Spec((2,), tf.float32, "other", time_offsets=0)
  generator.set_feature_specifications({"other": other})
  generator.set_label_specifications(leaves)
  _, labels = next(iter(generator.create_dataset("eval")))
  for path, want in expected.items():
    np.testing.assert_array_equal(labels[path], want, err_msg=path)


OTHER = {
  "scalar": Spec((1,), tf.float32, "scalar", is_sequence=True),
  "vector": Spec((), tf.float32, "vector", is_sequence=True),
  "scalar_of_episode": Spec((1,), tf.float32, "scalar_of_episode"),
  "vector_of_episode": Spec((), tf.float32, "vector_of_episode"),
  "other": STORED["other"],
}


@pytest.mark.parametrize("spec", [STORED, OTHER], ids=["as stored", "the other way"])
def test_conversions_keep_the_shape_of_the_spec(folder, tmp_path, spec):
  source, made = folder / "set.lerobot", str(tmp_path / "made")
  convert.convert(source, made, spec=spec)
  verify_conversion(source, made)
  convert.convert(made, f"{made}.lerobot")
  convert.convert(f"{made}.lerobot", f"{made}_again")
  for path in (made, f"{made}_again"):
    opened = store.EpisodeStore(path)
    for key, leaf in spec.items():
      assert opened.spec[key].shape == leaf.shape
    np.testing.assert_array_equal(np.ravel(opened.episode(1)["vector"]), [0, 1, 2])


def test_statistics_of_one_shape_normalize_the_other(folder, tmp_path):
  path = tmp_path / "statistics.json"
  statistics.compute_statistics(folder / "store", path, spec=OTHER)
  leaves = {key: OTHER[key] for key in ("scalar", "vector")}
  windowed = {
    key: Spec.from_spec(leaf, is_sequence=False, time_offsets=0)
    for key, leaf in leaves.items()
  }
  normalize = preprocessors.Normalize(
    lambda mode: windowed, lambda mode: {}, path, {"*": "mean_std"}
  )
  given = {"scalar": STEPS[:, np.newaxis], "vector": STEPS}
  features, _ = normalize.preprocess(
    specs.TensorSpecStruct({k: tf.constant(v) for k, v in given.items()}), None, "train"
  )
  want = (STEPS - STEPS.mean()) / STEPS.std()
  np.testing.assert_allclose(features["vector"], want, rtol=1e-5)
  np.testing.assert_allclose(features["scalar"], want[:, np.newaxis], rtol=1e-5)


def test_replay_is_filled_from_a_store_of_the_other_shape(folder):
  spec = {
    "scalar": Spec((1,), tf.float32, "scalar", time_offsets=0),
    "vector": Spec((), tf.float32, "vector", time_offsets=0),
  }
  buffer = replay.ReplayBuffer.from_store(
    str(folder / "store"), spec, capacity_steps=10
  )
  found = buffer.sample(20)
  assert found["scalar"].shape == (20, 1)
  np.testing.assert_array_equal(found["scalar"][:, 0], found["vector"])
