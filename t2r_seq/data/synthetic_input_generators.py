"""Input generators of made-up data: for tests, profiling and first runs of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.data import joint
from t2r_seq.data.abstract_input_generator import AbstractInputGenerator


@gin.configurable
class DefaultRandomInputGenerator(AbstractInputGenerator):
  """Gives random batches that fit the specs; another one each time, without an end.

  The same seed gives the same batches. Optional features are given, too.
  """

  def __init__(
    self, batch_size: int = 32, sequence_length: int = 3, seed: int = 0
  ) -> None:
    """Creates the generator.

    Args:
      batch_size: examples in a batch, over all replicas together.
      sequence_length: steps (or stacks) of specs with is_sequence.
      seed: of the random numbers.
    """
    super().__init__(batch_size)
    self._sequence_length = sequence_length
    self._seed = seed

  def _create_batches(self, mode: str, batch_size: int) -> tf.data.Dataset:
    joined = joint.join(self._feature_spec, self._label_spec_for(mode))
    paths, start = list(joined), self._start_step

    def make_batch(index: int) -> list[np.ndarray]:
      seed = int(np.random.SeedSequence([self._seed, index]).generate_state(1)[0])
      batch = specs.make_random_numpy(joined, batch_size, self._sequence_length, seed)
      return [batch[path] for path in paths]

    def batches() -> Iterator[tuple[np.ndarray, ...]]:
      index = start
      while True:
        yield tuple(make_batch(index))
        index += 1

    signature = tuple(
      tf.TensorSpec([batch_size, *self._dims(spec)], spec.dtype)
      for spec in joined.values()
    )
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.map(
      lambda *leaves: joint.split(dict(zip(paths, leaves, strict=True)))
    )

  def _dims(self, spec: Any) -> list[int | None]:
    return [self._sequence_length] * spec.is_sequence + spec.shape.as_list()


@gin.configurable
class DefaultConstantInputGenerator(AbstractInputGenerator):
  """Gives the same batch for ever, every value in it the same."""

  def __init__(
    self, constant_value: Any = 1, batch_size: int = 32, sequence_length: int = 3
  ) -> None:
    """Creates the generator.

    Args:
      constant_value: cast to the dtype of each spec.
      batch_size: examples in a batch, over all replicas together.
      sequence_length: steps (or stacks) of specs with is_sequence.
    """
    super().__init__(batch_size)
    self._constant_value = constant_value
    self._sequence_length = sequence_length

  def _create_batches(self, mode: str, batch_size: int) -> tf.data.Dataset:
    joined = joint.join(self._feature_spec, self._label_spec_for(mode))
    batch = specs.make_constant_numpy(
      joined, self._constant_value, batch_size, self._sequence_length
    )
    return tf.data.Dataset.from_tensors(joint.split(batch)).repeat()
