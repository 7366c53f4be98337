"""What goes in and out of a policy at run time, in numpy: observations and states.

TensorFlow is not imported here: `t2r_seq.lite` works without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors


class PolicyState(dict[str, np.ndarray]):
  """What a policy remembers, by path, with a row per environment, kept by the caller.

  Attributes:
    model_path: of the model that it belongs to.
  """

  def __init__(self, values: Mapping[str, Any], model_path: str = "") -> None:
    """Keeps the values."""
    super().__init__(values)
    self.model_path = model_path


def flatten_observation(
  observation: Mapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
  """Flattens nested dictionaries to 'a/b' paths; anything else is a leaf."""
  flat: dict[str, Any] = {}
  for key, value in observation.items():
    if isinstance(value, Mapping):
      flat.update(flatten_observation(value, f"{prefix}{key}/"))
    else:
      flat[f"{prefix}{key}"] = value
  return flat


def pack(
  observation: Any,
  spec: Mapping[str, Any],
  context: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
  """Finds the value of every feature in an observation.

  Args:
    observation: a dictionary by path, nested or flat, more entries allowed; or one
      array, when a single feature is left to find.
    spec: what one step needs, by path: specs, or other things of a shape and dtype.
    context: values by path that come on top, e.g. a goal that holds for the episode.
  Returns:
    Arrays by path, see `to_spec_dtype`; shapes and dtypes are not checked here.
  Raises:
    SpecError: features are missing (all are named), or a list is ragged.
  """
  values = flatten_observation(context or {})
  open_paths = [path for path in spec if path not in values]
  if isinstance(observation, Mapping):
    values = {**flatten_observation(observation), **values}
  elif len(open_paths) == 1:
    values[open_paths[0]] = observation
  elif open_paths:
    raise errors.SpecError(
      f"pack observation: expected a dictionary with {errors.listing(open_paths)}, got "
      f"{errors.describe(observation)}. One array is enough only for one feature."
    )
  missing = [
    errors.Mismatch(
      path, errors.describe(leaf), "nothing", errors.nearest(path, values)
    )
    for path, leaf in spec.items()
    if path not in values
  ]
  if missing:
    raise errors.mismatch_error("pack observation", missing)
  return {path: to_spec_dtype(path, values[path], leaf) for path, leaf in spec.items()}


def to_spec_dtype(path: str, value: Any, spec: Any) -> np.ndarray:
  """Converts numbers to a spec's dtype where that keeps their kind.

  NumPy and Gymnasium make float64 and int64 of nearly everything; what is converted is
  what `np.can_cast(..., casting="same_kind")` allows, so float64 becomes float32 and
  int64 int32 or float32, but floats never become integers. Unsigned integers never
  become floats: they are pixels, and nobody has scaled them.

  Args:
    path: where the value goes, for the error.
    value: an array, a number, or a list of numbers.
    spec: what is asked for.
  Returns:
    The array; of its own dtype where that cannot be converted.
  Raises:
    SpecError: a list is ragged.
  """
  want_dtype = np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))
  if type(value) is np.ndarray and value.dtype == want_dtype:
    return value
  try:
    array = np.asarray(value)
  except ValueError as error:
    want, got = errors.describe(spec), f"a {type(value).__name__} that is no array"
    mismatch = errors.Mismatch(path, want, got, f"NumPy says: {error}")
    raise errors.mismatch_error("pack observation", [mismatch]) from error
  if array.dtype.kind not in "biuf" or want_dtype.kind not in "iuf":
    return array
  is_pixels_to_float = array.dtype.kind == "u" and want_dtype.kind == "f"
  if is_pixels_to_float or not np.can_cast(array.dtype, want_dtype, "same_kind"):
    return array
  return array.astype(want_dtype, copy=False)
