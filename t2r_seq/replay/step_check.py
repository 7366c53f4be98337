"""`StepCheck`: whether one step is what a replay takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs


class StepCheck:
  """Turns steps into arrays by path, or says all that is wrong with one.

  Python's own numbers take the dtype of their path; arrays must have it.
  """

  def __init__(self, flat_spec: specs.TensorSpecStruct) -> None:
    """Plans the checks.

    Args:
      flat_spec: what one step has; see `flat_replay_specs`.
    """
    self._expected = {
      path: (tuple(spec.shape.as_list()), _numpy_dtype(spec))
      for path, spec in flat_spec.items()
    }
    self._context = frozenset(
      path for path, spec in flat_spec.items() if not spec.is_sequence
    )

  def __call__(self, step: Any, is_first: bool) -> dict[str, np.ndarray]:
    """Checks one step.

    Args:
      step: values, packed or by path.
      is_first: of its episode: then context features have to be there.
    Returns:
      Arrays by path; strings are objects.
    Raises:
      SpecError: the step does not fit; every path is named.
    """
    if not isinstance(step, Mapping) and not hasattr(step, "_asdict"):
      raise errors.SpecError(
        "append: the step: expected a dict, namedtuple or TensorSpecStruct of values, "
        f"got {errors.describe(step)}."
      )
    flat = dict(_flatten(step))
    row: dict[str, np.ndarray] = {}
    for path, (shape, dtype) in self._expected.items():
      value = flat.get(path)
      if value is None:
        if is_first or path not in self._context:
          raise self._error(flat, is_first)
        continue
      array = _to_array(value, dtype)
      if array.shape != shape or array.dtype != dtype:
        raise self._error(flat, is_first)
      row[path] = array
    if len(flat) != len(row):
      raise self._error(flat, is_first)
    return row

  def _error(self, flat: Mapping[str, Any], is_first: bool) -> errors.SpecError:
    """Says what is wrong, once something is."""
    found = []
    for path, (shape, dtype) in self._expected.items():
      want = f"{shape} {_name(dtype)}"
      if flat.get(path) is None:
        if is_first or path not in self._context:
          found.append(errors.Mismatch(path, want, "nothing"))
        continue
      array = _to_array(flat[path], dtype)
      if array.shape != shape or array.dtype != dtype:
        got = f"{array.shape} {_name(array.dtype)}"
        found.append(errors.Mismatch(path, want, got))
    for path in flat.keys() - self._expected.keys():
      hint = errors.nearest(path, self._expected)
      got = errors.describe(np.asarray(flat[path]))
      found.append(errors.Mismatch(path, "no such path", got, hint))
    return errors.mismatch_error("append", found)


def _flatten(step: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
  """Yields (path, value); unlike specs, values may be Python's own."""
  if isinstance(step, tuple) and hasattr(step, "_asdict"):
    step = step._asdict()
  for name, value in step.items():
    if isinstance(value, Mapping) or hasattr(value, "_asdict"):
      yield from _flatten(value, f"{prefix}{name}/")
    else:
      yield prefix + name, value


def _numpy_dtype(spec: specs.ExtendedTensorSpec) -> np.dtype:
  is_string = spec.dtype == tf.string
  return np.dtype(object) if is_string else np.dtype(spec.dtype.as_numpy_dtype)


def _to_array(value: Any, dtype: np.dtype) -> np.ndarray:
  if isinstance(value, (np.ndarray, np.generic)) and dtype.kind != "O":
    return np.asarray(value)
  if type(value) in (bool, int, float):  # Not numpy's, which have a dtype.
    return _number(value, dtype)
  if tf.is_tensor(value):
    value = value.numpy()
  if dtype.kind == "O":
    # As an array of its own kind a byte string would lose the zeros at its end.
    array = np.asarray(value, object)
    strings = (bytes, str)
    return array if all(isinstance(v, strings) for v in array.flat) else np.array(value)
  return np.asarray(value)


def _number(value: bool | int | float, dtype: np.dtype) -> np.ndarray:
  """Gives a Python number the dtype if that is of its kind and holds it."""
  if isinstance(value, bool) or dtype.kind in "Ob":
    return np.asarray(value)
  if np.issubdtype(dtype, np.integer):
    limits = np.iinfo(dtype)
    fits = isinstance(value, int) and limits.min <= value <= limits.max
    return np.asarray(value, dtype if fits else None)
  return np.asarray(value, dtype)


def _name(dtype: np.dtype) -> str:
  return "string" if dtype.kind == "O" else dtype.name
