"""`ReplayInputGenerator`: a model's features and labels from a live replay."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay
from t2r_seq.specs import ExtendedTensorSpec as Spec

FEATURES = {"image": Spec((2, 3, 3), tf.uint8, "image", time_offsets=(-1, 0))}
LABELS = {"target": Spec((2,), tf.float32, "action", time_offsets=0)}


@pytest.fixture
def buffer():
  spec = {**FEATURES, "action": Spec((2,), tf.float32, "action", time_offsets=0)}
  with replay.ReplayBuffer(spec, 100, seed=0, timeout=0.2) as made:
    yield made


def make_generator(source, features=FEATURES, labels=LABELS):
  generator = replay.ReplayInputGenerator(source, batch_size=4)
  generator.set_feature_specifications(features)
  generator.set_label_specifications(labels)
  return generator


@pytest.mark.parametrize("is_made_late", [False, True])
def test_batches_fit_the_specs(buffer, is_made_late):
  with buffer.writer() as writer:
    for t in range(9):
      image = np.full((3, 3), t, np.uint8)
      writer.append({"image": image, "action": np.full(2, t, np.float32)})
  generator = make_generator((lambda: buffer) if is_made_late else buffer)
  dataset = generator.create_dataset("train")
  assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
  for features, labels in dataset.take(5):
    assert features["image"].shape == (4, 2, 3, 3)
    now = features["image"][:, 1, 0, 0].numpy()
    np.testing.assert_array_equal(features["image"][:, 0, 2, 2], now - 1)
    np.testing.assert_array_equal(labels["target"][:, 0], now)
  assert buffer.counters.num_samples >= 20


def test_differences_are_named_at_once(buffer):
  generator = make_generator(
    buffer,
    {"image": Spec((4, 3, 3), tf.uint8, "image", time_offsets=(-3, -2, -1, 0))},
    {"imag": Spec((2,), tf.float32), "target": Spec((2,), tf.float64, "action")},
  )
  want = "^ReplayInputGenerator: 3 mismatches"
  with pytest.raises(errors.SpecError, match=want) as caught:
    generator.create_dataset("train")
  for text in (
    r"features/image: expected \(4, 3, 3\) uint8, got \(2, 3, 3\) uint8",
    r"labels/imag: expected \(2,\) float32, got nothing. Did you mean 'image'",
    r"labels/target: expected \(2,\) float64, got \(2,\) float32",
  ):
    caught.match(text)


def test_failures_are_explained(buffer):
  generator = make_generator(buffer)
  dataset = generator.create_dataset("train")
  with (
    pytest.raises(errors.ReplayTimeoutError, match=r"waited 0\.2 s: 0 of 1 items"),
    generator.explain_failures(),
  ):
    next(iter(dataset))
