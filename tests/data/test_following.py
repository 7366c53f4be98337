"""A learner follows a store that processes append to, and are killed."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, store
from t2r_seq.specs import ExtendedTensorSpec as Spec
from tests import warm_python

WRITER = pathlib.Path(__file__).with_name("following_writer.py")
FEATURES = {"x": Spec((3,), tf.int64, time_offsets=(-2, -1, 0))}
LABELS = {"twice": Spec((), tf.int64, time_offsets=0)}
FLAT = {"x": Spec((), tf.int64, is_sequence=True)}


def follow(path, batch_size=16, labels=LABELS, padding="repeat", **options):
  options = {"poll_secs": 0.01, "timeout": 60.0, **options}
  generator = data.StoreInputGenerator(
    str(path), batch_size, seed=0, follow=data.Follow(**options)
  )
  generator.set_feature_specifications(FEATURES)
  generator.set_label_specifications(labels)
  generator.set_padding(padding)
  return generator


def read_until(batches, is_enough):
  """Checks windows until one is what is waited for."""
  for features, labels in batches:
    x = features["x"].numpy()
    np.testing.assert_array_equal(labels["twice"], 2 * x[:, 2])
    start = x[:, 2:] // 10 * 10  # Of its episode.
    want = np.maximum(x[:, 2:] + np.array([-2, -1, 0]), start)
    np.testing.assert_array_equal(x, want)
    if is_enough(x):
      return
  raise AssertionError("it has no end")


def test_writers_are_followed_killed_and_followed_again(tmp_path):
  path = tmp_path / "store"
  first = warm_python.start(WRITER, path, "a", 0, cwd=warm_python.ROOT)
  # Nobody has made the store yet: the learner waits for it.
  batches = iter(follow(path).create_dataset("train"))
  try:
    read_until(batches, lambda x: x.max() >= 50)
    first.kill()
    first.wait(60)
    again = warm_python.start(WRITER, path, "a", 1_000_000, cwd=warm_python.ROOT)
    other = warm_python.start(WRITER, path, "b", 2_000_000, cwd=warm_python.ROOT)
    try:
      # What the killed one had committed stays.
      read_until(batches, lambda x: x.min() < 1_000_000 and x.max() >= 2_000_000)
      read_until(
        batches, lambda x: ((x >= 1_000_000) & (x < 2_000_000)).any() and x.max() > 2e6
      )
    finally:
      again.kill()
      other.kill()
  finally:
    first.kill()


def append(path, *firsts):
  make = store.EpisodeStore.append if path.exists() else store.EpisodeStore.create
  arguments = (path,) if path.exists() else (path, FLAT)
  with make(*arguments) as writer:
    for first in firsts:
      writer.append_episode({"x": first + np.arange(10)})


def test_sampling_limit_survives_a_restart(tmp_path):
  path = tmp_path / "store"
  append(path, 0, 100)
  # 20 windows: twice as many samples, and 8 more, are three batches.
  pace = {"samples_per_insert": 2.0, "error_buffer": 8, "timeout": 0.3}
  generator = follow(path, labels={}, **pace)
  batches = iter(generator.create_dataset("train"))
  for _ in range(3):
    next(batches)
  late = pytest.raises(errors.StoreError, match="64 windows would be sampled of 20, mo")
  with late, generator.explain_failures():
    next(batches)
  append(path, 200)
  batches = iter(generator.create_dataset("train", start_step=3))
  next(batches)
  late = pytest.raises(errors.StoreError, match="80 windows would be sampled of 30, mo")
  with late, generator.explain_failures():
    next(batches)


def test_wait_for_an_empty_store_has_a_timeout(tmp_path):
  path = tmp_path / "store"
  with pytest.raises(errors.StoreError, match=r"waited 0\.2 s: .*a store\.json"):
    follow(path, timeout=0.2).create_dataset("train")
  append(path)
  with pytest.raises(errors.StoreError, match=r"waited 0\.2 s: it has no episode"):
    follow(path, timeout=0.2).create_dataset("train")


def test_only_the_newest_steps_are_sampled(tmp_path):
  path = tmp_path / "store"
  append(path, 0, 100, 200)
  batches = iter(follow(path, labels={}, newest_steps=15).create_dataset("train"))
  for _ in range(4):
    features, _ = next(batches)
    assert features["x"].numpy().min() >= 100
  append(path, 300, 400)
  seen = np.concatenate([next(batches)[0]["x"] for _ in range(20)])
  assert seen[-64:].min() >= 300 and {300, 400} <= set(seen[-64:, 2] // 100 * 100)


def test_store_that_was_replaced_is_one_error(tmp_path):
  path = tmp_path / "store"
  append(path, 0, 100)
  generator = follow(path, labels={})
  batches = iter(generator.create_dataset("train"))
  next(batches)
  shutil.rmtree(path)
  append(path, 500)
  found = pytest.raises(errors.StoreError, match=r"^EpisodeStore: .* store that was op")
  with found, generator.explain_failures():
    for _ in range(10_000):
      next(batches)


def test_segment_that_begins_again_after_a_merge_is_followed(tmp_path):
  path = tmp_path / "store"
  append(path, 0)

  def append_to_other(*firsts):
    with store.EpisodeStore.append(path, segment="other") as writer:
      for first in firsts:
        writer.append_episode({"x": first + np.arange(10)})

  append_to_other(100, 200)
  batches = iter(follow(path, labels={}).create_dataset("train"))
  assert any(batch["x"].numpy().max() >= 200 for batch, _ in batches)
  store.EpisodeStore.merge(path)
  append_to_other(500)  # One, where there had been two.
  assert any(batch["x"].numpy().max() >= 500 for batch, _ in batches)


WRONG = {
  "count": ({"newest_steps": 0}, "newest_steps"),
  "ratio": ({"samples_per_insert": -1.0}, "samples_per_insert: expected at least 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options(name):
  options, match = WRONG[name]
  with pytest.raises(errors.SpecError, match=match):
    data.Follow(**options)


def test_follow_rejects_orders_and_shards(tmp_path):
  append(tmp_path / "store", 0)
  generator = data.StoreInputGenerator(
    str(tmp_path / "store"), order="global", num_shards=2, follow=True
  )
  generator.set_feature_specifications(FEATURES)
  generator.set_label_specifications({})
  with pytest.raises(errors.SpecError, match=r"follow: .*got \[num_shards, order\]"):
    generator.create_dataset("train")
