"""Sequences whose steps are one list in a tf.train.Example, as RLDS episodes have them.

TFDS writes an episode as one Example: the values of all steps of a feature, one after
the other, under a name such as 'steps/observation/state'. How many steps there are
follows from the shape that the spec declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tensorflow as tf

from t2r_seq.records import run_time_checks, storage
from t2r_seq.records.contents import RecordContents, kind_of, values_of
from t2r_seq.records.features import RecordFeature


def divide(
  features: Iterable[RecordFeature],
  parsed: Mapping[str, tf.Tensor | tf.RaggedTensor],
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
  """Divides parsed lists into steps, in graph ops.

  Args:
    features: those of the record.
    parsed: lists by name, [n] or, of a batch, [B, (n)].
  Returns:
    Steps by name, [T, ...] or [B, T, ...] padded to the longest with zeros or '';
    and the number of steps of each, [] or [B] int64.
  """
  tensors: dict[str, tf.Tensor] = {}
  lengths: dict[str, tf.Tensor] = {}
  for feature in features:
    if feature.is_concatenated:
      values = parsed[feature.name]
      lengths[feature.name] = _num_steps(feature, values)
      tensors[feature.name] = _to_steps(feature, values, lengths[feature.name])
  return tensors, lengths


def _num_steps(
  feature: RecordFeature, values: tf.Tensor | tf.RaggedTensor
) -> tf.Tensor:
  is_batched = isinstance(values, tf.RaggedTensor)
  count = values.row_lengths() if is_batched else tf.size(values, tf.int64)
  per_step = feature.values_per_step
  fits = tf.equal(count % per_step, 0)
  want = f"{per_step} values a step, for shape {tuple(feature.spec.shape)}"
  if not feature.is_optional:
    # Without this a feature that is missing would be an episode without steps.
    fits = tf.logical_and(fits, count > 0)
    want += ", and at least one step"
  message = f"parse: {feature.path}: expected {want}, got values:"
  count = run_time_checks.require(count, tf.reduce_all(fits), [message, count])
  return count // per_step


def _to_steps(
  feature: RecordFeature, values: tf.Tensor | tf.RaggedTensor, num_steps: tf.Tensor
) -> tf.Tensor:
  # Shapes are made of the number of steps, so that no value passes its check by.
  shape = tf.constant(feature.record_shape, tf.int64)
  if not isinstance(values, tf.RaggedTensor):
    steps = tf.reshape(values, tf.concat([[num_steps], shape], 0))
    return tf.ensure_shape(steps, [None, *feature.record_shape])
  longest = tf.reduce_max(tf.concat([[0], num_steps], 0))
  fill = tf.zeros([], values.dtype)
  width = longest * feature.values_per_step
  padded = values.to_tensor(fill, shape=tf.stack([values.nrows(), width]))
  steps = tf.reshape(padded, tf.concat([[values.nrows(), longest], shape], 0))
  return tf.ensure_shape(steps, [values.shape[0], None, *feature.record_shape])


def as_lists(
  contents: RecordContents, features: Iterable[RecordFeature]
) -> RecordContents:
  """Moves concatenated features to where a SequenceExample has them, in Python.

  So whatever explains a sequence explains these, too. The last step of a list that
  ends too early has fewer values.

  Args:
    contents: of a record; it is changed.
    features: those of the record.
  Returns:
    The same contents.
  """
  for feature in features:
    if not feature.is_concatenated:
      continue
    value = contents.context.pop(feature.name, None)
    if contents.steps.pop(feature.name, None) is not None:
      # A SequenceExample's own lists are not where this feature is looked for.
      contents.context[feature.name] = tf.train.Feature()
    if value is not None and len(values_of(value)):
      contents.steps[feature.name] = divide_list(value, feature.values_per_step)
  return contents


def divide_list(value: tf.train.Feature, per_step: int) -> list[tf.train.Feature]:
  """Divides a list into the features of steps; the last one may be shorter.

  Args:
    value: a feature with values.
    per_step: values of a step.
  Returns:
    A feature for each step.
  """
  values = list(values_of(value))
  dtype = {kind: dtype for dtype, kind in storage.KINDS.items()}[kind_of(value)]
  return [
    storage.to_feature(values[start : start + per_step], dtype)
    for start in range(0, len(values), per_step)
  ]
