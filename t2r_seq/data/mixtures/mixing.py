"""Datasets of several sources made one: cut to size, and put together row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq.data.mixtures.mixture_report import MixtureReport

_as_it_is = tf.autograph.experimental.do_not_convert
_LAST = np.iinfo(np.int64).max


def cut(
  dataset: tf.data.Dataset, counts: np.ndarray, num_skipped: int
) -> tf.data.Dataset:
  """Cuts batches anew.

  Args:
    dataset: of batches, [B, ...]; without an end.
    counts: examples of each batch that comes out, int64 [P], over and over; batches
      that have that size already are not copied.
    num_skipped: examples of the first batch to leave out.
  Returns:
    Dataset of batches.
  """
  if num_skipped:
    dataset = dataset.enumerate().map(
      _as_it_is(lambda i, batch: _without_first(batch, i, num_skipped))
    )
  sizes = counts[:1] if (counts == counts[0]).all() else counts
  return dataset.rebatch(tf.constant(sizes, tf.int64))


def _without_first(batch: Any, index: tf.Tensor, count: int) -> Any:
  start = tf.where(tf.equal(index, 0), count, 0)
  return tf.nest.map_structure(lambda leaf: leaf[start:], batch)


def interleave(
  parts: Sequence[tf.data.Dataset],
  batch_size: int,
  seed: int,
  first: int,
  report: MixtureReport | None,
) -> tf.data.Dataset:
  """Puts batches together, their rows in an order that the seed and number tell.

  Args:
    parts: datasets of the same paths; their i-th batches together have B examples.
    batch_size: B.
    seed: of the order of the rows.
    first: number of the first batch.
    report: counts the examples, if it is not None.
  Returns:
    Dataset of batches [B, ...].
  """

  @_as_it_is
  def put_together(number: tf.Tensor, batches: Sequence[Any]) -> Any:
    leaves = [tf.nest.flatten(batch) for batch in batches]
    counts = tf.stack([tf.shape(own[0])[0] for own in leaves])
    seeds = tf.stack([tf.constant(seed, tf.int64), number])
    rows = tf.random.experimental.stateless_shuffle(tf.range(batch_size), seeds)
    places = tf.split(rows, counts, num=len(leaves))
    with tf.control_dependencies(
      [] if report is None else [report.count(tf.cast(counts, tf.int64))]
    ):
      # One copy; concatenating and gathering would take two.
      mixed = [
        _fixed(tf.dynamic_stitch(places, values), batch_size)
        for values in zip(*leaves, strict=True)
      ]
    return tf.nest.pack_sequence_as(batches[0], mixed)

  numbers = tf.data.Dataset.range(first, _LAST)
  return tf.data.Dataset.zip((numbers, tuple(parts))).map(
    put_together, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
  )


def _fixed(leaf: tf.Tensor, batch_size: int) -> tf.Tensor:
  return tf.ensure_shape(leaf, [batch_size, *leaf.shape[1:]])


def count(
  dataset: tf.data.Dataset, source: int, report: MixtureReport | None
) -> tf.data.Dataset:
  """Counts the examples of one source's batches, which stay as they are.

  Args:
    dataset: of batches, [B, ...].
    source: its number.
    report: counts the examples, if it is not None.
  Returns:
    The dataset.
  """

  if report is None:
    return dataset

  def counted(batch: Any) -> Any:
    size = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
    counts = tf.one_hot(source, report.num_sources, on_value=size, dtype=tf.int64)
    with tf.control_dependencies([report.count(counts)]):
      return tf.nest.map_structure(tf.identity, batch)

  return dataset.map(_as_it_is(counted))
