"""From steps to the structure that is stored of a step, or of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors, policies, specs, windows
from t2r_seq.actors import rollouts


def flatten_step(step: rollouts.Step) -> dict[str, Any]:
  """Flattens a step into one value a path.

  Args:
    step: of an episode.
  Returns:
    'observation' (or, for dictionary observations, one path a leaf, 'a/b' when
    nested), 'action' (of a dictionary, 'action/a' and so on), 'reward', 'terminated'
    and 'truncated'.
  """
  observation, action = step["observation"], step["action"]
  return {
    **(
      policies.flatten_observation(observation)
      if isinstance(observation, Mapping)
      else {"observation": observation}
    ),
    **(
      policies.flatten_observation(action, "action/")
      if isinstance(action, Mapping)
      else {"action": action}
    ),
    "reward": np.float32(step["reward"]),
    "terminated": np.bool_(step["terminated"]),
    "truncated": np.bool_(step["truncated"]),
  }


def flatten_steps(steps: rollouts.Episode) -> dict[str, list[Any]]:
  """Flattens an episode into one list of per-step values a path.

  Args:
    steps: the episode.
  Returns:
    The values of `flatten_step`, in lists.
  """
  flat: dict[str, list[Any]] = {}
  for step in steps:
    for path, value in flatten_step(step).items():
      flat.setdefault(path, []).append(value)
  return flat


def step_to_features(step: rollouts.Step, spec: Any) -> specs.TensorSpecStruct:
  """Turns a step into what the spec structure stores of it.

  The default of the sinks: each path of the spec is looked up among the observation's
  own paths, 'action', 'reward', 'terminated' and 'truncated'. Numbers are converted as
  the policies convert them, so that what acts and what is stored are one.

  Args:
    step: of an episode.
    spec: the flat specs of an episode (or windowed ones: their flat specs are taken).
  Returns:
    Numpy arrays by path, without a time axis. A path that the step lacks is left out
    when its spec is optional.
  Raises:
    SpecError: the step lacks required paths; all are named.
  """
  flat_spec = windows.flat_specs(spec)
  values = flatten_step(step)
  _check_present("step to features", flat_spec, values)
  return specs.TensorSpecStruct(
    (path, _fit_shape(policies.to_spec_dtype(path, values[path], leaf), leaf))
    for path, leaf in flat_spec.items()
    if path in values
  )


def stack_steps(rows: Sequence[Mapping[str, Any]], spec: Any) -> specs.TensorSpecStruct:
  """Makes an episode of its steps.

  Args:
    rows: T >= 1 structures as of `step_to_features`, with the same paths.
    spec: the flat specs of the episode.
  Returns:
    Numpy arrays by path: [T, ...] for sequence specs, the first step's value for the
    others.
  """
  flat = [policies.flatten_observation(row) for row in rows]
  return specs.TensorSpecStruct(
    (path, np.stack([row[path] for row in flat]) if leaf.is_sequence else flat[0][path])
    for path, leaf in windows.flat_specs(spec).items()
    if path in flat[0]
  )


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
  flat_spec = windows.flat_specs(spec)
  values = flatten_steps(steps)
  _check_present("episode to features", flat_spec, values)
  features = specs.TensorSpecStruct()
  for path, leaf in flat_spec.items():
    if path in values:
      stacked = [_fit_shape(np.asarray(value), leaf) for value in values[path]]
      features[path] = np.stack(stacked) if leaf.is_sequence else stacked[0]
  return features


def _check_present(
  operation: str, flat_spec: specs.TensorSpecStruct, values: Mapping[str, Any]
) -> None:
  """Checks that there is a value for every path that is not optional."""
  missing = [
    errors.Mismatch(
      path, errors.describe(leaf), "nothing", errors.nearest(path, values)
    )
    for path, leaf in flat_spec.items()
    if path not in values and not leaf.is_optional
  ]
  if missing:
    raise errors.mismatch_error(operation, missing)


def _fit_shape(value: np.ndarray, spec: specs.ExtendedTensorSpec) -> np.ndarray:
  """Gives a scalar (a reward) the shape (1,) that records often keep it in."""
  if value.ndim == 0 and spec.shape.rank == 1 and spec.shape.is_compatible_with([1]):
    return value.reshape(1)
  return value
