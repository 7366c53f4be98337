"""Padding and clipping of tensors to the length that a spec declares."""

from __future__ import annotations

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs.extended_tensor_spec import ExtendedTensorSpec


def pad_or_clip_tensor_to_spec_shape(
  tensor: tf.Tensor, tensor_spec: ExtendedTensorSpec
) -> tf.Tensor:
  """Pads or clips a batch of lists to `tensor_spec.shape[0]` elements.

  The parser does this by itself for varlen specs; this is for tensors from elsewhere.

  Args:
    tensor: [batch, n, ...].
    tensor_spec: a spec with a `varlen_default_value`, which pads.
  Returns:
    [batch, *tensor_spec.shape], of the tensor's dtype.
  Raises:
    SpecError: the spec is not of variable length, or the tensor's rank or element
      shape differs from the spec's.
  """
  if tensor_spec.varlen_default_value is None:
    raise errors.SpecError(
      f"pad_or_clip_tensor_to_spec_shape: {tensor_spec.name}: expected a spec with a "
      f"varlen_default_value, got {tensor_spec!r}."
    )
  length, element_shape = tensor_spec.shape[0], tensor_spec.shape[1:]
  want = tf.TensorShape([None, None]).concatenate(element_shape)
  if not tensor.shape.is_compatible_with(want):
    mismatch = errors.Mismatch(
      str(tensor_spec.name), f"shape {want}", errors.describe(tensor)
    )
    raise errors.mismatch_error("pad_or_clip_tensor_to_spec_shape", [mismatch])
  clipped = tensor[:, :length]
  shape = tf.shape(clipped)
  missing = tf.concat([shape[:1], [length - shape[1]], shape[2:]], 0)
  default = _cast(tensor_spec.varlen_default_value, tensor.dtype)
  padded = tf.concat([clipped, tf.fill(missing, default)], 1)
  return tf.ensure_shape(padded, tensor.shape[:1].concatenate(tensor_spec.shape))


def _cast(value: object, dtype: tf.DType) -> tf.Tensor:
  # Tensor2Robot's specs give 3.0 as the default of integers too.
  return tf.constant(value) if dtype == tf.string else tf.cast(value, dtype)
