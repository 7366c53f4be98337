"""From the steps of an episode to the structure that a record holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, policies, specs, windows
from t2r_seq.actors import rollouts


def flatten_steps(steps: rollouts.Episode) -> dict[str, list[Any]]:
  """Flattens an episode into one list of per-step values a path.

  Args:
    steps: the episode.
  Returns:
    'observation' (or, for dictionary observations, one path a leaf, 'a/b' when
    nested), 'action', 'reward', 'terminated' and 'truncated'.
  """
  flat: dict[str, list[Any]] = {}
  for step in steps:
    observation = step["observation"]
    leaves = (
      policies.flatten_observation(observation)
      if isinstance(observation, Mapping)
      else {"observation": observation}
    )
    leaves["action"] = step["action"]
    leaves["reward"] = np.float32(step["reward"])
    leaves["terminated"] = np.bool_(step["terminated"])
    leaves["truncated"] = np.bool_(step["truncated"])
    for path, value in leaves.items():
      flat.setdefault(path, []).append(value)
  return flat


def episode_to_features(steps: rollouts.Episode, spec: Any) -> specs.TensorSpecStruct:
  """Turns the steps of an episode into what the spec structure stores of it.

  The default of `collect_episodes`: each path of the spec is looked up among the
  observation's own paths, 'action', 'reward', 'terminated' and 'truncated'.

  Args:
    steps: the episode, T steps.
    spec: the flat specs of an episode record (or windowed ones: their flat specs are
      taken).
  Returns:
    Numpy arrays by path: [T, ...] for sequence specs, the first step's value for the
    others. A path that the episode lacks is left out when its spec is optional.
  Raises:
    SpecError: the episode lacks required paths; all are named.
  """
  values = flatten_steps(steps)
  features = specs.TensorSpecStruct()
  missing = []
  for path, leaf in windows.flat_specs(spec).items():
    if path in values:
      stacked = [_fit_shape(np.asarray(value), leaf) for value in values[path]]
      features[path] = np.stack(stacked) if leaf.is_sequence else stacked[0]
    elif not leaf.is_optional:
      missing.append(
        errors.Mismatch(
          path, errors.describe(leaf), "nothing", errors.nearest(path, values)
        )
      )
  if missing:
    raise errors.mismatch_error("episode to features", missing)
  return features


def _fit_shape(value: np.ndarray, spec: specs.ExtendedTensorSpec) -> np.ndarray:
  """Gives a scalar (a reward) the shape (1,) that records often keep it in."""
  if value.ndim == 0 and spec.shape.rank == 1 and spec.shape.is_compatible_with([1]):
    return value.reshape(1)
  return value
