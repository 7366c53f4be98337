"""Averaged weights: what is evaluated and exported where a model trains with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

# Keras' names of what batch normalisation remembers. They are averages already, but of
# what the raw weights give: the averaged weights go with averages of them.
_STATISTICS = ("moving_mean", "moving_variance")


class WeightAverages:
  """Exponential moving averages of weights, and the weights' change of place with them.

  `average = weight + decay * (average - weight)` after each step; the first step
  copies, as Keras does it. Training goes on with the raw weights: the averages are in
  the model's variables only inside of `in_use`.
  """

  def __init__(
    self,
    trained: Sequence[tf.Variable],
    others: Sequence[tf.Variable],
    decay: float,
    overwrite_frequency: int | None = None,
  ) -> None:
    """Creates averages that equal the weights, under the current strategy.

    Args:
      trained: the variables that are trained.
      others: all others of the model, of which the statistics of batch normalisation
        are averaged.
      decay: in [0, 1).
      overwrite_frequency: puts the averages in the place of the weights every so many
        steps, for good; None never does.
    """
    self._decay = decay
    self._overwrite_frequency = overwrite_frequency
    self._strategy = tf.distribute.get_strategy()
    statistics = [v for v in others if any(name in v.name for name in _STATISTICS)]
    self._num_trained = len(trained)
    self._weights = [*trained, *statistics]
    # Each replica keeps its own, without a word to the others. Weights are the same on
    # all of them, statistics are not.
    first, mean = tf.VariableAggregation.ONLY_FIRST_REPLICA, tf.VariableAggregation.MEAN
    self._averages = [_create(weight, first) for weight in trained]
    self._averages += [_create(statistic, mean) for statistic in statistics]
    self._raw: list[tf.Tensor] | None = None

  @property
  def by_weight(self) -> dict[int, tf.Variable]:
    """The averages by the `id` of their weights."""
    pairs = zip(self._weights, self._averages, strict=True)
    return {id(weight): average for weight, average in pairs}

  def update(self, is_first: tf.Tensor, is_good: tf.Tensor) -> None:
    """Averages in the weights of this step; called by each replica.

    Args:
      is_first: bool scalar; copies the weights.
      is_good: bool scalar; False changes nothing.
    """
    for weight, average in zip(self._weights, self._averages, strict=True):
      value = tf.convert_to_tensor(weight)
      old = tf.convert_to_tensor(average)
      decay = tf.where(
        is_first, tf.zeros([], old.dtype), tf.cast(self._decay, old.dtype)
      )
      average.assign(tf.where(is_good, value + decay * (old - value), old))

  def overwrite_if_due(self, num_steps: tf.Tensor) -> None:
    """Puts averages in the place of weights, if told to; called across replicas."""
    if self._overwrite_frequency is None:
      return

    def overwrite() -> None:
      for index in range(self._num_trained):
        self._weights[index].assign(tf.convert_to_tensor(self._averages[index]))

    tf.cond(num_steps % self._overwrite_frequency == 0, overwrite, lambda: None)

  @contextlib.contextmanager
  def in_use(self) -> Iterator[None]:
    """Has the averages in the place of the weights; can be nested."""
    if self._raw is not None:
      yield
      return
    weights = self._local(self._weights)
    self._raw = [weight.read_value() for weight in weights]
    try:
      for weight, average in zip(weights, self._local(self._averages), strict=True):
        weight.assign(average.read_value())
      yield
    finally:
      self.put_back()

  def put_back(self) -> None:
    """Puts the raw weights back; does nothing where they are in place."""
    if self._raw is not None:
      for weight, raw in zip(self._local(self._weights), self._raw, strict=True):
        weight.assign(raw)
      self._raw = None

  def _local(self, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
    results = self._strategy.experimental_local_results
    return [part for variable in variables for part in results(variable)]


def _create(weight: tf.Variable, aggregation: tf.VariableAggregation) -> tf.Variable:
  return tf.Variable(
    tf.convert_to_tensor(weight),
    trainable=False,
    name="average",
    synchronization=tf.VariableSynchronization.ON_READ,
    aggregation=aggregation,
  )
