"""What datasets of a buffer keep in memory, and what keeps the buffer there."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay
from t2r_seq.specs import ExtendedTensorSpec as Spec

# Small values, and large ones, of which no copy is made.
SIZES = [(3,), (2000,), (3, 2000)]


def _buffer(sizes, count=20):
  spec = {f"x{n}": Spec((2, n), tf.int64, f"x{n}", time_offsets=(-1, 0)) for n in sizes}
  buffer = replay.ReplayBuffer(spec, 100, seed=0, padding="drop")
  with buffer.writer() as writer:
    for t in range(count):
      writer.append({f"x{n}": np.full(n, t) for n in sizes})
  return buffer


@pytest.mark.parametrize("with_info", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_buffer_goes_when_its_datasets_have_gone(sizes, with_info):
  buffer = _buffer(sizes)
  dataset = buffer.dataset(4, with_info)
  assert len(list(dataset.take(2))) == 2
  ring = weakref.ref(buffer._sampling)
  del buffer, dataset
  gc.collect()
  assert ring() is None


@pytest.mark.parametrize("sizes", SIZES)
def test_dataset_keeps_its_buffer(sizes):
  batches = iter(_buffer(sizes).dataset(4).map(dict).prefetch(1))
  gc.collect()
  for _ in range(40):
    batch = next(batches)
    for n in sizes:
      first, second = batch[f"x{n}"][:, 0], batch[f"x{n}"][:, 1]
      assert np.array_equal(first + 1, second)
      assert batch[f"x{n}"].shape == (4, 2, n)


def test_graph_alone_does_not_keep_its_buffer():
  dataset = _buffer((3,)).dataset(4)
  # Nothing of Python is left of the dataset.
  variant = tf.data.experimental.to_variant(dataset)
  spec = dataset.element_spec
  del dataset
  gc.collect()
  with pytest.raises(tf.errors.OpError) as error:
    next(iter(tf.data.experimental.from_variant(variant, spec)))
  assert errors.ReplayError.__name__ in str(error.value)
  assert "expected the buffer, got none: it was deleted." in str(error.value)
