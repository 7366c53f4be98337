"""Subsamples sequences of any length to the number of steps that a model takes.

Index arithmetic on the lengths of the rows: padding is never sampled. These are graph
ops of static shapes, without a loop over the batch, so XLA compiles them.
After Tensor2Robot's `utils/subsample.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.specs import SpecStructure, TensorSpecStruct

_LENGTH_SUFFIX = "_length"


def uniform_indices(lengths: Any, num_samples: int) -> tf.Tensor:
  """Picks evenly spaced steps, with the last one; deterministic.

  Args:
    lengths: steps of each row, integers [B], at least 1.
    num_samples: n, steps to keep of each row.
  Returns:
    Sorted indices, int64 [B, n]; those of short rows repeat.
  Raises:
    SpecError: the lengths are not integers [B], n is < 1, or a length is < 1 (in a
      graph tf.errors.InvalidArgumentError, except under XLA).
  """
  lengths = _check("uniform_indices", lengths, num_samples)
  # Rounds half to even, as Tensor2Robot did, but in integers, which never are inexact.
  doubled = 2 * tf.range(num_samples, dtype=tf.int64) * (lengths[:, tf.newaxis] - 1)
  period = 2 * num_samples
  rounded = (doubled + num_samples) // period
  is_half = tf.equal((doubled + num_samples) % period, 0)
  rounded -= tf.cast(is_half, tf.int64) * (rounded % 2)
  return tf.reverse(lengths[:, tf.newaxis] - 1 - rounded, [1])


def random_indices(lengths: Any, num_samples: int, seed: Any = None) -> tf.Tensor:
  """Samples steps with replacement; the first and last may be missing.

  Args:
    lengths: steps of each row, integers [B], at least 1.
    num_samples: n, steps to draw of each row.
    seed: integers [2] as for `tf.random.stateless_uniform`; the same seed gives the
      same steps. None: different steps at every call.
  Returns:
    Sorted indices, int64 [B, n].
  Raises:
    SpecError: `seed` is not integers [2]; or as in `uniform_indices`.
  """
  lengths = _check("random_indices", lengths, num_samples)
  return tf.sort(_draw(lengths, num_samples, _seeds(seed)[0]), axis=1)


def boundary_indices(lengths: Any, num_samples: int, seed: Any = None) -> tf.Tensor:
  """Keeps the first and the last step, and draws the others.

  Rows of at least n steps are sampled without replacement, each choice with the same
  probability, and shorter rows with replacement. For n = 1, it is any step.

  Args:
    lengths: steps of each row, integers [B], at least 1.
    num_samples: n, steps to keep of each row.
    seed: see `random_indices`.
  Returns:
    Sorted indices, int64 [B, n].
  Raises:
    SpecError: see `random_indices`.
  """
  lengths = _check("boundary_indices", lengths, num_samples)
  return _with_boundaries(lengths, num_samples, _seeds(seed)[0])


def random_span_indices(
  lengths: Any, num_samples: int, min_steps: int, max_steps: int, seed: Any = None
) -> tf.Tensor:
  """Draws a span of each row, and then steps of the span like `boundary_indices`.

  Args:
    lengths: steps of each row, integers [B], at least 1.
    num_samples: n, steps to keep of each row.
    min_steps: steps of the shortest span; the span of a shorter row is the whole row.
    max_steps: steps of the longest span.
    seed: see `random_indices`.
  Returns:
    Sorted indices, int64 [B, n].
  Raises:
    SpecError: `min_steps` or `max_steps` is < 1, or min_steps > max_steps; or as in
      `random_indices`.
  """
  lengths = _check("random_span_indices", lengths, num_samples)
  errors.check_count("windows", "min_steps", min_steps)
  errors.check_count("windows", "max_steps", max_steps)
  if min_steps > max_steps:
    raise errors.SpecError(
      f"random_span_indices: min_steps: expected at most max_steps = {max_steps}, got "
      f"{min_steps}."
    )
  span_seed, start_seed, seed = _seeds(seed)
  choices = tf.fill(tf.shape(lengths), tf.constant(max_steps - min_steps + 1, tf.int64))
  spans = tf.minimum(min_steps + _draw(choices, 1, span_seed)[:, 0], lengths)
  starts = _draw(lengths - spans + 1, 1, start_seed)
  return starts + _with_boundaries(spans, num_samples, seed)


def gather_steps(
  tensors: SpecStructure, indices: tf.Tensor, spec_structure: SpecStructure
) -> TensorSpecStruct:
  """Keeps the steps at the indices of every sequence of a batch.

  Args:
    tensors: batch by path; sequences [B, T, ...], anything else is unchanged.
    indices: indices of steps, int64 [B, n].
    spec_structure: the specs of the batch; `is_sequence` marks sequences.
  Returns:
    Tensors by path; sequences [B, n, ...], and their '<path>_length' n.
  Raises:
    SpecError: a sequence has no time axis, or a path has no spec; all are named.
  """
  flat = specs.flatten_spec_structure(tensors)
  spec_of = specs.flatten_spec_structure(spec_structure)
  kept, mismatches = TensorSpecStruct(), []
  for path, tensor in flat.items():
    if path not in spec_of:
      hint = errors.nearest(path, spec_of).strip()
      mismatches.append(errors.Mismatch(path, "a spec for it", "none", hint))
    elif not getattr(spec_of[path], "is_sequence", False):
      kept[path] = _length(path, tensor, indices, spec_of)
    elif tf.TensorShape(tensor.shape).rank in (0, 1):
      mismatches.append(errors.Mismatch(path, "[B, T] steps", errors.describe(tensor)))
    else:
      kept[path] = tf.gather(tensor, indices, axis=1, batch_dims=1)
  if mismatches:
    raise errors.mismatch_error("gather_steps", mismatches)
  return kept


def _length(
  path: str, tensor: tf.Tensor, indices: tf.Tensor, spec_of: TensorSpecStruct
) -> tf.Tensor:
  """Returns n where the path is the length of a sequence, or else the tensor."""
  sequence = spec_of.get(path.removesuffix(_LENGTH_SUFFIX))
  if not path.endswith(_LENGTH_SUFFIX) or not getattr(sequence, "is_sequence", False):
    return tensor
  return tf.ones_like(tensor) * tf.cast(tf.shape(indices)[1], tensor.dtype)


def _check(operation: str, lengths: Any, num_samples: int) -> tf.Tensor:
  errors.check_count("windows", "num_samples", num_samples)
  lengths = tf.convert_to_tensor(lengths)
  if not lengths.dtype.is_integer or lengths.shape.rank != 1:
    raise errors.SpecError(
      f"{operation}: lengths: expected integers [B], got {errors.describe(lengths)}."
    )
  lengths = tf.cast(lengths, tf.int64)
  message = f"{operation}: lengths: expected at least 1 step in every row, got"
  if tf.executing_eagerly():
    empty = np.flatnonzero(lengths.numpy() < 1)
    if len(empty):
      got = f"{lengths[empty[0]].numpy()} in row {empty[0]}"
      raise errors.SpecError(f"{message} {got}. Leave such rows out.")
    return lengths
  # XLA leaves the assertion out.
  check = tf.raw_ops.Assert(
    condition=tf.reduce_all(lengths > 0), data=[message, lengths], summarize=1000
  )
  with tf.control_dependencies([check]):
    return tf.identity(lengths)


def _seeds(seed: Any) -> list[tf.Tensor]:
  """Returns three seeds, each [2], derived from a seed or random."""
  if seed is None:
    return tf.unstack(tf.random.uniform([3, 2], maxval=2**31 - 1, dtype=tf.int32))
  seed = tf.convert_to_tensor(seed)
  if not seed.dtype.is_integer or seed.shape != [2]:
    raise errors.SpecError(
      f"subsample: seed: expected integers [2], got {errors.describe(seed)}."
    )
  return tf.unstack(tf.random.experimental.stateless_split(seed, 3))


def _draw(counts: tf.Tensor, num_samples: int, seed: tf.Tensor) -> tf.Tensor:
  """Draws from range(count) of each row, int64 [B, n]."""
  return _scale(_random_bits(counts, num_samples, seed), counts[:, tf.newaxis])


def _random_bits(rows: tf.Tensor, num_samples: int, seed: tf.Tensor) -> tf.Tensor:
  bits = tf.random.stateless_uniform(
    [tf.shape(rows)[0], num_samples], seed, None, None, tf.uint32
  )
  return tf.ensure_shape(tf.cast(bits, tf.int64), [rows.shape[0], num_samples])


def _scale(bits: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
  # The bits are 32: bits * count >> 32 is in range(count). A float cannot represent
  # each step of long rows.
  return tf.bitwise.right_shift(bits * counts, tf.constant(32, tf.int64))


def _with_boundaries(
  lengths: tf.Tensor, num_samples: int, seed: tf.Tensor
) -> tf.Tensor:
  if num_samples == 1:
    return _draw(lengths, 1, seed)
  ends = tf.stack([tf.zeros_like(lengths), lengths - 1], axis=1)
  if num_samples == 2:
    return ends
  bits = _random_bits(lengths, num_samples - 2, seed)
  repeated = _scale(bits, lengths[:, tf.newaxis])
  distinct = 1 + _distinct(bits, lengths - 2)
  is_long = lengths[:, tf.newaxis] >= num_samples
  middle = tf.where(is_long, distinct, repeated)
  return tf.sort(tf.concat([ends, middle], axis=1), axis=1)


def _distinct(bits: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
  """Draws m different numbers from range(count), by Floyd's algorithm.

  Args:
    bits: random, int64 [B, m].
    counts: int64 [B]; the numbers of a row with a count < m are meaningless.
  Returns:
    int64 [B, m].
  """
  num_drawn = bits.shape[1]
  first = counts - num_drawn

  @tf.autograph.experimental.do_not_convert
  def draw_next(i: tf.Tensor, drawn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    last = first + tf.cast(i, tf.int64)
    number = _scale(tf.gather(bits, i, axis=1), last + 1)
    is_taken = tf.reduce_any(tf.equal(drawn, number[:, tf.newaxis]), axis=1)
    number = tf.where(is_taken, last, number)
    is_place = tf.equal(tf.range(num_drawn), i)
    return i + 1, tf.where(is_place, number[:, tf.newaxis], drawn)

  not_drawn = tf.fill(tf.shape(bits), tf.constant(-1, tf.int64))
  state = tf.constant(0), tf.ensure_shape(not_drawn, bits.shape)
  return tf.while_loop(
    lambda i, _: i < num_drawn, draw_next, state, maximum_iterations=num_drawn
  )[1]
