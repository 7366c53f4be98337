"""From an environment's observation to the features that a model steps on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, specs


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


def pack_observation(
  observation: Any,
  spec: specs.TensorSpecStruct,
  context: Mapping[str, Any] | None = None,
) -> specs.TensorSpecStruct:
  """Finds the value of every feature in an observation.

  Args:
    observation: a dictionary by path, nested or flat, more entries allowed; or one
      array, when a single feature is left to find.
    spec: what one step needs, by path.
    context: values by path that come on top, e.g. a goal that holds for the episode.
  Returns:
    Arrays by path, as they are; shapes and dtypes are not checked here.
  Raises:
    SpecError: features are missing; all are named.
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
  return specs.TensorSpecStruct([(path, np.asarray(values[path])) for path in spec])
