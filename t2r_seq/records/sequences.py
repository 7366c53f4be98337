"""Varying lengths in parsed tensors: padding, clipping, and absent sequences."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from t2r_seq import specs
from t2r_seq.records import run_time_checks, storage
from t2r_seq.records.features import RecordFeature


def pad_or_clip(
  values: tf.Tensor | tf.RaggedTensor, spec: specs.ExtendedTensorSpec
) -> tf.Tensor:
  """Pads with the varlen default, or clips, to `spec.shape[0]` values.

  Args:
    values: [..., (n)] ragged, or [n], as parsed.
    spec: a varlen spec.
  Returns:
    [..., N] of the record dtype, N static.
  """
  length = spec.shape[0]
  default = tf.constant(storage.record_default(spec), values.dtype)
  if isinstance(values, tf.RaggedTensor):
    outer = [None] * (values.shape.rank - 1)
    return values.to_tensor(default, shape=[*outer, length])
  clipped = values[:length]
  missing = length - tf.shape(clipped)[0]
  return tf.ensure_shape(tf.concat([clipped, tf.fill([missing], default)], 0), [length])


def complete_lengths(
  features: list[RecordFeature],
  parsed: Mapping[str, tf.Tensor | tf.RaggedTensor],
  lengths: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
  """Adds the number of steps of varlen sequences, which the parse op doesn't count.

  Args:
    features: those of the record.
    parsed: sequences by name; varlen ones [(T), (n)] or [B, (T), (n)].
    lengths: steps of the others by name, [] or [B] int64.
  Returns:
    Steps of every sequence by name.
  """
  completed = dict(lengths)
  for feature in features:
    if feature.spec.is_sequence and feature.is_varlen:
      values = parsed[feature.name]
      completed[feature.name] = (
        values.nrows() if values.shape.rank == 2 else values.row_lengths()
      )
  return completed


def require_bytes(
  features: list[RecordFeature],
  parsed: Mapping[str, tf.Tensor | tf.RaggedTensor],
  lengths: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
  """Fails at run time where a step that a batch holds is an empty byte string.

  Those that pad shorter sequences are empty as well, and become zeros.

  Args:
    features: those of the record.
    parsed: sequences by name, [B, T].
    lengths: steps of every sequence by name, [B] int64.
  Returns:
    Raw sequences that are not optional, by name.
  """
  checked: dict[str, tf.Tensor] = {}
  for feature in features:
    num_bytes = storage.bytes_per_value(feature.spec)
    may_be_empty = feature.is_optional or feature.is_varlen or not num_bytes
    if not storage.is_raw(feature.spec) or not feature.spec.is_sequence or may_be_empty:
      continue
    values = parsed[feature.name]
    is_step = tf.sequence_mask(lengths[feature.name], tf.shape(values)[1])
    fits = tf.reduce_all((tf.strings.length(values) > 0) | ~is_step)
    message = f"parse: {feature.path}: expected {num_bytes} bytes a step, got none."
    checked[feature.name] = run_time_checks.require(values, fits, [message])
  return checked


def _may_be_absent(feature: RecordFeature) -> bool:
  return feature.is_optional or feature.is_varlen


def _record_steps(
  features: list[RecordFeature], lengths: Mapping[str, tf.Tensor]
) -> tf.Tensor:
  """Returns the number of steps of each record, [] or [B] int64: the longest's."""
  names = [f.name for f in features if f.spec.is_sequence]
  return tf.reduce_max(tf.stack([lengths[name] for name in names]), axis=0)


def fill_lengths(
  features: list[RecordFeature], lengths: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
  """Gives absent optional sequences the length of the record's other sequences."""
  filled = dict(lengths)
  for feature in features:
    if feature.spec.is_sequence and _may_be_absent(feature):
      steps = _record_steps(features, lengths)
      own = lengths[feature.name]
      filled[feature.name] = tf.where(tf.equal(own, 0), steps, own)
  return filled


def fill_absent(
  features: list[RecordFeature],
  tensors: Mapping[str, tf.Tensor],
  lengths: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
  """Gives absent optional sequences the steps of the record's other sequences.

  One that is there, but too short, stays so: what is lost is not made up.

  Args:
    features: those of the record.
    tensors: decoded sequences by name, [T, ...] or [B, T, ...].
    lengths: steps of every sequence by name.
  Returns:
    The extended tensors by name: zeros, '', black, or the varlen default at the end.
  """
  filled = fill_lengths(features, lengths)
  return {
    feature.name: _extend(
      tensors[feature.name],
      tf.reduce_max(filled[feature.name]),
      _fill_value(feature, tensors[feature.name].dtype),
      time_axis=lengths[feature.name].shape.rank,
    )
    for feature in features
    if feature.spec.is_sequence and _may_be_absent(feature)
  }


def _fill_value(feature: RecordFeature, dtype: tf.DType) -> tf.Tensor:
  if feature.is_varlen and not feature.is_image:
    return tf.constant(storage.default_value(feature.spec), dtype)
  return tf.zeros([], dtype)


def _extend(
  tensor: tf.Tensor, steps: tf.Tensor, fill: tf.Tensor, time_axis: int
) -> tf.Tensor:
  shape = tf.shape(tensor, out_type=tf.int64)
  missing = tf.maximum(steps - shape[time_axis], 0)
  extra_shape = tf.concat([shape[:time_axis], [missing], shape[time_axis + 1 :]], 0)
  extended = tf.concat([tensor, tf.fill(extra_shape, fill)], time_axis)
  return tf.ensure_shape(
    extended,
    [None if i == time_axis else size for i, size in enumerate(tensor.shape.as_list())],
  )
