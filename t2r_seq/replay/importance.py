"""Importance weights: what makes up for samples that are prioritized."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.replay.replay import SampleInfo


def importance_weights(info: SampleInfo, beta: float | tf.Tensor | tf.Variable) -> Any:
  """Returns what each sample's loss is to be multiplied by.

  Prioritized sampling shows some items more often than others; the weights
  `(table_size * probability) ** -beta`, divided by the largest of the batch, make up
  for it (Schaul et al. 2016).

  Args:
    info: of a batch, arrays or tensors.
    beta: from 0, no correction, to 1, a full one; or a scalar tensor or variable, whose
      value is not looked at.
  Returns:
    float32 [B], in (0, 1]; of the same kind.
  Raises:
    SpecError: info is no SampleInfo, or beta is no such number.
  """
  if not isinstance(info, SampleInfo):
    raise errors.SpecError(
      f"importance_weights: info: expected a SampleInfo, got {errors.describe(info)}. "
      "It comes from dataset(batch_size, with_info=True)."
    )
  if beta.__class__ is not float or not 0 <= beta <= 1:
    beta = _to_beta(beta)
  if not isinstance(info.probability, np.ndarray):  # Quicker than tf.is_tensor.
    size = tf.cast(info.table_size, tf.float64)
    weights = tf.pow(size * tf.cast(info.probability, tf.float64), -beta)
    return tf.cast(weights / tf.reduce_max(weights), tf.float32)
  sizes = np.asarray(info.table_size, np.float64)
  weights = (sizes * np.asarray(info.probability, np.float64)) ** -float(beta)
  return (weights / weights.max()).astype(np.float32)


def _to_beta(beta: Any) -> Any:
  """Returns a number as a float, a tensor or variable as float64."""
  if tf.is_tensor(beta):
    tensor = tf.convert_to_tensor(beta)
    is_number = tensor.dtype.is_floating or tensor.dtype.is_integer
    if is_number and tensor.shape.rank in (0, None):
      return tf.cast(tensor, tf.float64)
  elif isinstance(beta, numbers.Real) and not isinstance(beta, bool):
    number = float(beta)
    if 0 <= number <= 1:
      return number
  raise errors.SpecError(
    f"importance_weights: beta: expected a number from 0 to 1, or a scalar tensor, got "
    f"{beta!r}. 0 corrects nothing, 1 everything."
  )
