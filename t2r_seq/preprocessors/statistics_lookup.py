"""Which figures are those of a model's path, and whether they fit its spec."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.statistics import PathStatistics, Statistics

_ASK_FOR_IMAGES = "Compute the statistics with --images."


def find_statistics(
  place: str, path: str, spec: tf.TensorSpec, found: Statistics
) -> PathStatistics | errors.Mismatch:
  """Finds the figures of a path.

  The name in the record counts where both sides have one: models give paths of their
  own to what is stored. The path counts otherwise.

  Args:
    place: of the spec, for the error.
    path: of the spec.
    spec: what the model takes, windowed or flat.
    found: the statistics.
  Returns:
    The figures, of one step; or what does not fit.
  """
  spec = specs.ExtendedTensorSpec.to_spec(spec)
  key = _find_path(path, spec, found)
  if key is None:
    hint = errors.nearest(path, found.paths).strip()
    return errors.Mismatch(
      place, _describe(spec), f"figures of {errors.listing(found.paths)} only", hint
    )
  return _find_misfit(place, spec, key, found.paths[key]) or found.paths[key]


def _find_path(
  path: str, spec: specs.ExtendedTensorSpec, found: Statistics
) -> str | None:
  if spec.name is not None:
    named = [p for p, s in found.paths.items() if s.spec.name == spec.name]
    if len(named) == 1:
      return named[0]
  other = found.paths.get(path)
  if other is None:
    return None
  is_same = spec.name == other.spec.name or None in (spec.name, other.spec.name)
  return path if is_same else None


def _find_misfit(
  place: str, spec: specs.ExtendedTensorSpec, key: str, figures: PathStatistics
) -> errors.Mismatch | None:
  stored = figures.spec
  got = f"figures of {errors.describe(stored)} at '{key}'"
  want = _describe(spec)
  if not spec.dtype.is_floating:
    hint = "Only floats can be normalised: exclude the path with None."
    return errors.Mismatch(place, "a floating point dtype", errors.describe(spec), hint)
  if figures.count is None:
    hint = _ASK_FOR_IMAGES if specs.is_encoded_image_spec(stored) else ""
    return errors.Mismatch(place, want, f"no figures of the {figures.kind}", hint)
  if not spec.frame_shape.is_compatible_with(stored.shape):
    return errors.Mismatch(place, want, got)
  if stored.dtype.is_floating and stored.dtype != spec.dtype:
    hint = f"Declare it as {stored.dtype.name}, or compute the statistics with --spec."
    return errors.Mismatch(place, want, got, hint)
  if not np.all(figures.count):
    where = np.argwhere(figures.count == 0).tolist()
    return errors.Mismatch(
      place, "finite values of every element", f"none of the elements {where}"
    )
  for name in ("mean", "std", "min", "max"):
    measured = figures.measure(name)
    if not np.all(np.isfinite(measured)):
      where = np.argwhere(~np.isfinite(measured)).tolist()
      got = f"a {name} that is not finite of the elements {where}"
      hint = "Compute the statistics again, or exclude the path with None."
      return errors.Mismatch(place, "finite figures", got, hint)
  return None


def _describe(spec: specs.ExtendedTensorSpec) -> str:
  """Describes one step."""
  return errors.describe(tf.TensorSpec(spec.frame_shape, spec.dtype))
