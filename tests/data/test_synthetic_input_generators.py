from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, specs

DTYPES = {
  "bool": tf.bool,
  "bytes": tf.string,
  "half": tf.bfloat16,
  "pixels": tf.uint8,
  "real": tf.float32,
}


def every_dtype(mode):
  del mode
  flat = {name: specs.ExtendedTensorSpec((2,), t, name) for name, t in DTYPES.items()}
  flat["stacks"] = specs.ExtendedTensorSpec(
    (2, 3), tf.float32, "stacks", time_offsets=(-1, 0), is_sequence=True
  )
  return flat


def build(cls, kit, mode="train", **kwargs):
  generator = cls(**{"batch_size": 4, **kwargs})
  generator.set_specification_from_model(kit.FakeModel(every_dtype), mode)
  return generator


def take(generator, count, mode="train"):
  return [
    {path: leaf.numpy() for path, leaf in features.items()}
    for features, _ in generator.create_dataset(mode).take(count)
  ]


@pytest.mark.parametrize(
  "cls", [data.DefaultRandomInputGenerator, data.DefaultConstantInputGenerator]
)
@pytest.mark.parametrize("mode", specs.ModeKeys.ALL)
def test_batches_fit_the_specs_in_every_mode(kit, cls, mode):
  generator = build(cls, kit, mode, sequence_length=5)
  features, labels = next(iter(generator.create_dataset(mode)))
  assert {path: leaf.dtype for path, leaf in features.items()} == {
    **DTYPES,
    "stacks": tf.float32,
  }
  assert features.stacks.shape == (4, 5, 2, 3)
  assert features.real.shape == (4, 2)
  assert set(labels) == (set() if mode == "infer" else {"next"})


def test_random_batches_are_seeded_and_differ(kit):
  first, second = take(build(data.DefaultRandomInputGenerator, kit, seed=1), 2)
  again, _ = take(build(data.DefaultRandomInputGenerator, kit, seed=1), 2)
  (other,) = take(build(data.DefaultRandomInputGenerator, kit, seed=2), 1)
  for path in first:
    np.testing.assert_array_equal(first[path], again[path])
  assert not np.array_equal(first["real"], second["real"])
  assert not np.array_equal(first["real"], other["real"])


def test_random_batches_resume(kit):
  generator = build(data.DefaultRandomInputGenerator, kit, seed=1)
  third = take(generator, 3)[2]
  (resumed,) = generator.create_dataset("train", start_step=2).take(1)
  np.testing.assert_array_equal(third["real"], resumed[0]["real"])


def test_constant_batches_have_the_constant(kit):
  batches = take(build(data.DefaultConstantInputGenerator, kit, constant_value=3), 3)
  for batch in batches:
    np.testing.assert_array_equal(batch["real"], np.full((4, 2), 3, np.float32))
    np.testing.assert_array_equal(batch["pixels"], np.full((4, 2), 3, np.uint8))
    assert batch["bool"].all()
