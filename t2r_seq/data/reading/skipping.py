"""Parsing past bad records: what is good of a batch, or of some episodes, is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq.data import emptiness
from t2r_seq.data.python_calls import call_of_python
from t2r_seq.data.reading.record_reading import ParseFn, map_in_order
from t2r_seq.data.reading.step_bytes import num_step_bytes

KeepFn = Callable[..., np.ndarray]

# To watch a function for failure takes 0.2 ms, so records are parsed by the chunk. Of
# stacks of raw frames 8 MiB came at 0.87 to 0.97 of the rate of 'raise', 16 at 0.98 to
# 1.07.
_BATCHES_BYTES, _MAX_BATCHES = 1 << 24, 16
# Of episodes: more would take memory that nobody counts.
_EPISODES_BYTES, _MAX_EPISODES = 1 << 20, 8
_as_it_is = tf.autograph.experimental.do_not_convert


def watched(function: Any, rescue: Any) -> Any:
  """Returns a function that does what one does, and where that fails what another does.

  TensorFlow catches no failure inside of a function; a dataset goes on after one.

  Args:
    function: of tensors.
    rescue: of the same; what it returns is alike.
  """

  @_as_it_is
  def watch(*given: Any) -> Any:
    once = tf.data.Dataset.from_tensors(given)
    good = once.map(_as_it_is(function)).ignore_errors(log_warning=False)
    # The second is only made when there is no first.
    return good.concatenate(once.map(_as_it_is(rescue))).take(1).get_single_element()

  return watch


def parse_batches(
  serialized: tf.data.Dataset,
  parse_fn: ParseFn,
  batch_size: int,
  record_size: int,
  num_parallel_calls: int | None,
  keep: KeepFn,
  most_bad: int,
) -> tf.data.Dataset:
  """Parses records by the batch, but those that cannot be.

  Args:
    serialized: scalar strings.
    parse_fn: takes a batch [n].
    batch_size: the least to parse at once: small records are parsed more at a time.
    record_size: bytes of a record, about.
    num_parallel_calls: has no influence on the order.
    keep: given some records, object [n], notes bad ones and returns which are good,
      bool [n].
    most_bad: records of an epoch that may be bad. Where twice as many are, one after
      the other, an epoch had no good one: an error, or more epochs like it would be
      read for ever.
  Returns:
    Dataset of what `parse_fn` returns; batches are not of one size.
  """
  one_by_one = serialized.batch(1).map(_as_it_is(parse_fn))
  leaves = tf.nest.flatten(one_by_one.element_spec)
  # JPEGs become ten times as large. Chunks of 50 MiB were taken from the system anew
  # each time: where that is dear, they came at 0.90 of the rate.
  example_bytes = max(1, record_size, sum(num_step_bytes(spec) or 0 for spec in leaves))
  num_batches = np.clip(_BATCHES_BYTES // (batch_size * example_bytes), 1, _MAX_BATCHES)
  batches = serialized.batch(batch_size * int(num_batches))

  def parse(texts: tf.Tensor) -> tf.Tensor:
    return _pack(parse_fn(texts))[None]

  def rescue(texts: tf.Tensor) -> tf.Tensor:
    (kept,) = _keep_rows(keep, texts)
    # What failed for another reason fails again, and is not lost.
    nothing = tf.raw_ops.OptionalNone()[None][:0]
    return tf.cond(tf.size(kept) > 0, lambda: parse(kept), lambda: tf.identity(nothing))

  watch = watched(parse, rescue)

  def goes_on(num_bad: tf.Tensor, chunk: tuple[tf.Tensor, tf.Tensor]) -> Any:
    packed, num_records = chunk
    num_bad = tf.where(
      tf.size(packed) > 0, tf.zeros_like(num_bad), num_bad + num_records
    )
    check = tf.raw_ops.Assert(
      condition=num_bad <= 2 * most_bad, data=[tf.constant(emptiness.NOTHING_LEFT)]
    )
    with tf.control_dependencies([check]):
      return tf.identity(num_bad), packed

  packed = map_in_order(
    batches,
    _as_it_is(lambda texts: (watch(texts), tf.size(texts, tf.int64))),
    num_parallel_calls,
  ).scan(tf.constant(0, tf.int64), _as_it_is(goes_on))
  return packed.unbatch().map(_unpacker(one_by_one.element_spec))


def parse_episodes(
  serialized: tf.data.Dataset,
  parse_fn: Any,
  record_size: int,
  num_parallel_calls: int | None,
  keep: KeepFn,
  then: Any,
) -> tf.data.Dataset:
  """Parses episodes one by one, but those that cannot be.

  Args:
    serialized: records, scalar strings, or tuples of one and what belongs to it.
    parse_fn: takes an element, gives a tuple; the fewer ops, the cheaper to watch.
    record_size: bytes of a record, about: short ones are parsed several at a time.
    num_parallel_calls: has no influence on the order.
    keep: given the arrays of some elements, notes bad records and returns which are
      good, bool [n].
    then: takes its parts; where that fails no record is bad.
  Returns:
    Dataset of what `then` returns.
  """
  num_episodes = np.clip(_EPISODES_BYTES // max(1, record_size), 1, _MAX_EPISODES)
  if num_episodes > 1:
    chunks = serialized.batch(int(num_episodes))
    return parse_chunks(chunks, parse_fn, num_parallel_calls, keep, then)

  # To put large strings in a batch, and to take them out, copies them.
  return _map_watched(serialized, parse_fn, num_parallel_calls, keep, then)


def of_equal_lengths(
  episode: Any, sequences: Sequence[str], lengths: Sequence[tf.Tensor] = ()
) -> Any:
  """Returns an episode, if all its sequences are equally long, and fails otherwise.

  Args:
    episode: tensors by path.
    sequences: paths of those that have a length.
    lengths: int64 scalars, of others.
  """
  if len(lengths) + len(sequences) < 2:
    return episode
  all_lengths = tf.stack(
    [*lengths, *(tf.shape(episode[path], tf.int64)[0] for path in sequences)]
  )
  # `tf.debugging.assert_equal` takes ten ops more.
  check = tf.raw_ops.Assert(
    condition=tf.reduce_all(all_lengths == all_lengths[0]),
    data=["expected sequences of one length, got", all_lengths],
  )
  with tf.control_dependencies([check]):
    return tf.nest.map_structure(tf.identity, episode)


def parse_chunks(
  chunks: tf.data.Dataset,
  parse_fn: Any,
  num_parallel_calls: int | None,
  keep: KeepFn,
  then: Any,
) -> tf.data.Dataset:
  """Does `parse_episodes` for some at a time.

  Args:
    chunks: batches of elements.
    parse_fn: takes an element, gives a tuple.
    num_parallel_calls: has no influence on the order.
    keep: returns which elements of a chunk are good.
    then: takes its parts.
  Returns:
    Dataset of what `then` returns.
  """

  def parse(*chunk: tf.Tensor) -> tf.Tensor:
    return _parse_each(parse_fn, chunk)

  def rescue(*chunk: tf.Tensor) -> tf.Tensor:
    return _parse_each(parse_fn, _keep_rows(keep, *chunk))

  parsed_spec = chunks.unbatch().map(_as_it_is(parse_fn)).element_spec
  packed = map_in_order(chunks, watched(parse, rescue), num_parallel_calls)
  # Not unbatched: of that a checkpoint would have the episodes that are left.
  each = packed.flat_map(_as_it_is(tf.data.Dataset.from_tensor_slices))
  return each.map(_unpacker(parsed_spec, then))


def _map_watched(
  elements: tf.data.Dataset,
  parse_fn: Any,
  num_parallel_calls: int | None,
  keep: KeepFn,
  then: Any,
) -> tf.data.Dataset:
  """Does `parse_episodes` for one at a time, in a single call for each."""

  def parse(*one: tf.Tensor) -> tuple[tf.Tensor, ...]:
    return tf.constant(True), *tf.nest.flatten(then(*parse_fn(*one)))

  def rescue(*one: tf.Tensor) -> tuple[tf.Tensor, ...]:
    is_good = _are_good(keep, *(part[None] for part in one))[0]
    # What failed for another reason fails again, and is not lost.
    return tf.cond(is_good, lambda: parse(*one), lambda: (is_good, *nothing))

  structure = elements.map(_as_it_is(lambda *one: then(*parse_fn(*one)))).element_spec
  nothing = [_nothing_like(spec) for spec in tf.nest.flatten(structure)]
  parsed = map_in_order(elements, watched(parse, rescue), num_parallel_calls)
  # Neither calls its function: both give what they are given.
  good = parsed.filter(_as_it_is(lambda is_good, *_: is_good))
  return good.map(
    _as_it_is(lambda _, *values: tf.nest.pack_sequence_as(structure, values))
  )


def _keep_rows(keep: KeepFn, *rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
  """Returns the rows of what is good."""
  is_good = _are_good(keep, *rows)
  return tuple(tf.boolean_mask(part, is_good) for part in rows)


def _are_good(keep: KeepFn, *rows: tf.Tensor) -> tf.Tensor:
  """Returns which rows are good."""

  def call(*arrays: np.ndarray) -> np.ndarray:
    with call_of_python():
      return np.asarray(keep(*arrays), bool)

  is_good = tf.numpy_function(call, list(rows), tf.bool, stateful=True)
  return tf.ensure_shape(is_good, [None])


def _nothing_like(spec: tf.TensorSpec) -> tf.Tensor:
  """Returns a value for what is left out."""
  if spec.dtype == tf.variant:
    return tf.raw_ops.OptionalNone()
  return tf.zeros([size or 0 for size in spec.shape], spec.dtype)


def _parse_each(parse_fn: Any, rows: tuple[tf.Tensor, ...]) -> tf.Tensor:
  return tf.map_fn(
    _as_it_is(lambda parts: _pack(parse_fn(*parts))),
    rows,
    fn_output_signature=tf.TensorSpec([], tf.variant),
  )


def _pack(structure: Any) -> tf.Tensor:
  """Makes one value of a structure: those of several episodes differ in length."""
  return tf.raw_ops.OptionalFromValue(components=tf.nest.flatten(structure))


def _unpacker(structure: Any, then: Any = None) -> Any:
  flat = tf.nest.flatten(structure)

  @_as_it_is
  def unpack(packed: tf.Tensor) -> Any:
    values = tf.raw_ops.OptionalGetValue(
      optional=packed,
      output_types=[spec.dtype for spec in flat],
      output_shapes=[spec.shape for spec in flat],
    )
    whole = tf.nest.pack_sequence_as(structure, values)
    return whole if then is None else then(*whole)

  return unpack
