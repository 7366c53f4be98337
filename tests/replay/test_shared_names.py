"""Specs of one name are one feature: appended once, read by all of them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, records, replay, store, windows
from t2r_seq.specs import ExtendedTensorSpec as Spec

# The name is no path of the structure, as in critics whose state is a branch.
FEATURES = {
  "state/obs": Spec((2,), tf.float32, "obs", time_offsets=0),
  "action": Spec((1,), tf.float32, "act", time_offsets=0),
}
LABELS = {
  "reward": Spec((), tf.float32, "rew", time_offsets=0),
  "terminated": Spec((), tf.bool, "terminated", time_offsets=0),
  "discount": Spec((), tf.float32),
  "next_state/obs": Spec((2,), tf.float32, "obs", time_offsets=1),
}
APPENDED = ["state/obs", "action", "reward", "terminated"]
N_STEP = windows.NStep(2, 0.5, rew="reward", done="terminated")
OBS = np.arange(10, dtype=np.float32).reshape(5, 2)
EPISODE = {
  "state/obs": OBS,
  "action": np.zeros((5, 1), np.float32),
  "reward": np.arange(5, dtype=np.float32),
  "terminated": np.array([False, False, False, True, False]),
}
ONCE = {"sampler": replay.Fifo(), "max_times_sampled": 1, "timeout": 0}
WANT_NEXT = OBS[[2, 3, 4, 4]]


def _buffer():
  return replay.ReplayBuffer({**FEATURES, **LABELS}, 20, n_step=N_STEP, **ONCE)


def _batch(generator):
  generator.set_feature_specifications(FEATURES)
  generator.set_label_specifications(LABELS)
  generator.set_padding(("repeat", "drop"))
  features, labels = next(iter(generator.create_dataset("eval")))
  return {**features, **labels}


def from_replay(folder):
  with _buffer() as buffer, buffer.writer() as writer:
    for t in range(5):
      writer.append({path: values[t] for path, values in EPISODE.items()})
    writer.end_episode()
    return buffer.sample(4)


def from_store(folder):
  with store.EpisodeStore.create(folder / "store", _buffer().flat_spec) as writer:
    writer.append_episode(EPISODE)
  return _batch(data.StoreInputGenerator(folder / "store", 4, n_step=N_STEP))


def from_replay_of_a_store(folder):
  with store.EpisodeStore.create(folder / "store", _buffer().flat_spec) as writer:
    writer.append_episode(EPISODE)
  structure = {**FEATURES, **LABELS}
  buffer = replay.ReplayBuffer.from_store(
    folder / "store", structure, capacity_steps=20, n_step=N_STEP, **ONCE
  )
  with buffer:
    return buffer.sample(4)


def from_records(folder):
  records.write_records(str(folder / "episodes"), _buffer().flat_spec, [EPISODE])
  return _batch(
    data.DefaultRecordInputGenerator(str(folder / "episodes"), 4, n_step=N_STEP)
  )


@pytest.mark.parametrize(
  "source", [from_replay, from_replay_of_a_store, from_store, from_records]
)
def test_shared_names(source, tmp_path):
  assert list(_buffer().flat_spec) == APPENDED
  batch = source(tmp_path)
  order = np.argsort(np.asarray(batch["state/obs"])[:, 0])
  got = {path: np.asarray(values)[order] for path, values in batch.items()}
  np.testing.assert_array_equal(got["state/obs"], OBS[:4])
  np.testing.assert_array_equal(got["next_state/obs"], WANT_NEXT)
  np.testing.assert_allclose(got["reward"], [0.5, 2.0, 3.5, 3.0])
  np.testing.assert_allclose(got["discount"], [0.25, 0.25, 0, 0])
