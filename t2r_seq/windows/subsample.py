"""Sub-samples sequences of any length to the number of steps that a model takes.

Index arithmetic on the lengths of the rows: padding is never sampled. All of it
is graph ops of static shapes, without a loop over the batch: XLA compiles it.
After Tensor2Robot's `utils/subsample.py`.
"""

from __future__ import annotations

from collections.abc import Callable
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
    SpecError: the lengths are not integers [B], or one of them or n is less than 1; in
      a graph the first of these fails at run time.
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
    seed: integers [2] as of `tf.random.stateless_uniform`: the same give the same
      steps; None draws others at every call.
  Returns:
    Sorted indices, int64 [B, n].
  Raises:
    SpecError: the lengths are not integers [B], or one of them or n is less than 1; in
      a graph the first of these fails at run time.
  """
  lengths = _check("random_indices", lengths, num_samples)
  return _sort(_draw(lengths, num_samples, _seeds(seed)[0]))


def boundary_indices(lengths: Any, num_samples: int, seed: Any = None) -> tf.Tensor:
  """Keeps the first and the last step, and draws the others.

  Rows of at least n steps are drawn from without replacement, every choice being as
  likely as any other, shorter ones with replacement. A single sample is any step.

  Args:
    lengths: steps of each row, integers [B], at least 1.
    num_samples: n, steps to keep of each row.
    seed: see `random_indices`.
  Returns:
    Sorted indices, int64 [B, n].
  Raises:
    SpecError: the lengths are not integers [B], or one of them or n is less than 1; in
      a graph the first of these fails at run time.
  """
  lengths = _check("boundary_indices", lengths, num_samples)
  return _with_boundaries(lengths, num_samples, _seeds(seed)[0])


def random_span_indices(
  lengths: Any, num_samples: int, min_steps: int, max_steps: int, seed: Any = None
) -> tf.Tensor:
  """Draws a span of each row, and keeps the steps of it as `boundary_indices` does.

  Args:
    lengths: steps of each row, integers [B], at least 1.
    num_samples: n, steps to keep of each row.
    min_steps: steps of the shortest span; a row that is shorter is its own span.
    max_steps: steps of the longest span.
    seed: see `random_indices`.
  Returns:
    Sorted indices, int64 [B, n].
  Raises:
    SpecError: the lengths are not integers [B], one of them or a count is less than 1,
      or the shortest span is longer than the longest.
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
  # XLA leaves it out.
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
  # A product's upper half: a float cannot represent each step of long rows.
  return tf.bitwise.right_shift(bits * counts, tf.constant(32, tf.int64))


def _sort(indices: tf.Tensor) -> tf.Tensor:
  return tf.sort(indices, axis=1)


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
  return _sort(tf.concat([ends, middle], axis=1))


def _distinct(bits: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
  """Draws m different numbers from range(count), by Floyd's algorithm.

  Args:
    bits: random, int64 [B, m].
    counts: int64 [B]; rows with less than m are meaningless.
  Returns:
    int64 [B, m].
  """
  num_drawn = bits.shape[1]
  first = counts - num_drawn

  def draw_next(i: tf.Tensor, drawn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    last = first + tf.cast(i, tf.int64)
    number = _scale(tf.gather(bits, i, axis=1), last + 1)
    is_taken = tf.reduce_any(tf.equal(drawn, number[:, tf.newaxis]), axis=1)
    number = tf.where(is_taken, last, number)
    is_place = tf.equal(tf.range(num_drawn), i)
    return i + 1, tf.where(is_place, number[:, tf.newaxis], drawn)

  not_drawn = tf.fill(tf.shape(bits), tf.constant(-1, tf.int64))
  not_drawn = tf.ensure_shape(not_drawn, bits.shape)
  return _repeat(draw_next, num_drawn, not_drawn)


def _repeat(
  body: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
  times: int,
  state: tf.Tensor,
) -> tf.Tensor:
  _, state = tf.while_loop(
    lambda i, _: i < times,
    tf.autograph.experimental.do_not_convert(body),
    (tf.constant(0), state),
    maximum_iterations=times,
  )
  return state
