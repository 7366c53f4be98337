"""From a policy's outputs back to the units of the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.preprocessors.abstract_preprocessor import AbstractPreprocessor
from t2r_seq.preprocessors.composed_preprocessor import ComposedPreprocessor
from t2r_seq.preprocessors.normalize import LABELS, Normalize


def unnormalize(
  preprocessor: AbstractPreprocessor, path: str, values: Any, kind: str = LABELS
) -> tf.Tensor:
  """Undoes the normalisation of a label, such as the action that a model predicts.

  Call it in a model's `create_export_outputs_fn`, so that the exported policy answers
  in the units of the data.

  Args:
    preprocessor: a `Normalize`, or a chain with one in it: `model.preprocessor`.
    path: of the label (or feature).
    values: normalised, [..., *shape].
    kind: 'labels' or 'features'.
  Returns:
    The values in the units of the data; shape and dtype unchanged.
  Raises:
    SpecError: no stage normalises the path.
  """
  stages = list(_normalizing_stages(preprocessor))
  found = [stage for stage in stages if stage.is_normalized(path, kind)]
  if stages and not found:
    return stages[-1].unnormalize(path, values, kind)  # Says which paths there are.
  if not found:
    raise errors.SpecError(
      f"unnormalize: {kind}/{path}: expected a preprocessor that is or has a "
      f"Normalize, got {type(preprocessor).__name__}."
    )
  for stage in reversed(found):
    values = stage.unnormalize(path, values, kind)
  return values


def _normalizing_stages(preprocessor: AbstractPreprocessor) -> Iterator[Normalize]:
  if isinstance(preprocessor, Normalize):
    yield preprocessor
  elif isinstance(preprocessor, ComposedPreprocessor):
    for stage in preprocessor.stages:
      yield from _normalizing_stages(stage)
