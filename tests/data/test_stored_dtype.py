"""Data of another dtype feeds a spec that says so: stores, records, LeRobot, replay."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, data, errors, records, replay, specs, store, windows

Spec = specs.ExtendedTensorSpec
FEATURES = {
  "state": Spec(
    (2, 3), tf.float32, "state", time_offsets=(-1, 0), stored_dtype=tf.float64
  )
}
LABELS = {"count": Spec((), tf.float32, "count", stored_dtype=tf.int64, time_offsets=0)}
FLAT = {
  "state": Spec((3,), tf.float64, "state", is_sequence=True),
  "count": Spec((), tf.int64, "count", is_sequence=True),
}
STATE = np.arange(12.0).reshape(4, 3) / 7
EPISODE = {"state": STATE, "count": np.arange(4)}


def batch(generator, features=FEATURES, labels=LABELS):
  generator.set_feature_specifications(features)
  generator.set_label_specifications(labels)
  return next(iter(generator.create_dataset("eval")))


@pytest.fixture(scope="module", name="here")
def fixture_here(tmp_path_factory):
  """The episode in a store, in records, and as LeRobot has it."""
  folder = tmp_path_factory.mktemp("stored")
  spec = windows.flat_specs({**FEATURES, **LABELS})
  assert {path: leaf.dtype for path, leaf in spec.items()} == {
    path: leaf.dtype for path, leaf in FLAT.items()
  }
  with store.EpisodeStore.create(folder / "store", spec) as writer:
    writer.append_episode(EPISODE)
  raw = {"state": Spec.from_spec(FLAT["state"], data_format="raw")}
  records.write_records(folder / "x.tfrecord", {**FLAT, **raw}, [EPISODE])
  options = dict(fps=10)
  convert.convert(folder / "store", folder / "x.lerobot", **options)
  return os.fspath(folder)


GENERATORS = {
  "store": lambda f: data.StoreInputGenerator(f"{f}/store", 4),
  "lerobot": lambda f: data.LeRobotInputGenerator(f"{f}/x.lerobot", 4),
  "mixture": lambda f: data.MixtureInputGenerator(
    {"a": data.StoreInputGenerator(f"{f}/store")}, batch_size=4
  ),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_numbers_are_cast_as_they_are_read(here, name):
  features, labels = batch(GENERATORS[name](here))
  assert (features.state.dtype, labels["count"].dtype) == (tf.float32, tf.float32)
  np.testing.assert_array_equal(features.state[:, 1], STATE.astype(np.float32))
  np.testing.assert_array_equal(labels["count"], np.arange(4.0))


def test_records_hold_raw_numbers_of_the_stored_dtype(here):
  raw = Spec.from_spec(FEATURES["state"], data_format="raw")
  generator = data.DefaultRecordInputGenerator(f"{here}/x.tfrecord", 4)
  features, labels = batch(generator, {"state": raw})
  np.testing.assert_array_equal(features.state[:, 1], STATE.astype(np.float32))
  assert labels["count"].dtype == tf.float32


def test_windows_and_a_replay_cast_alike(here):
  window = store.EpisodeStore(f"{here}/store").window(2, {**FEATURES, **LABELS})
  assert window["state"].dtype == np.float32
  live = replay.ReplayBuffer({**FEATURES, **LABELS}, capacity_steps=10, seed=0)
  with live.writer() as writer:
    for t in range(4):
      writer.append({"state": STATE[t], "count": np.int64(t)})
    writer.end_episode()
  generator = replay.ReplayInputGenerator(live, batch_size=2)
  features, labels = batch(generator)
  assert (features.state.dtype, labels["count"].dtype) == (tf.float32, tf.float32)


@pytest.mark.parametrize("name", ["store", "lerobot"])
def test_error_names_the_way(here, name):
  plain = {"state": Spec((2, 3), tf.float32, "state", time_offsets=(-1, 0))}
  with pytest.raises(errors.SpecError, match=r"stored_dtype=tf\.float64"):
    batch(GENERATORS[name](here), plain)


def test_casts_that_lose_values_are_refused():
  for dtype, stored in ((tf.int32, tf.int64), (tf.int32, tf.float32)):
    with pytest.raises(errors.SpecError, match="convert --cast"):
      Spec((), dtype, "x", stored_dtype=stored)
  with pytest.raises(errors.SpecError, match="got float32 of jpeg"):
    Spec((4, 4, 3), tf.uint8, "x", data_format="jpeg", stored_dtype=tf.float32)
