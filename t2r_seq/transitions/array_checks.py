"""Are arrays transitions that can be stored? All that is wrong at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.transitions.fields import TransitionFields


def check_arrays(
  operation: str, arrays: Mapping[str, np.ndarray], fields: TransitionFields
) -> specs.TensorSpecStruct:
  """Checks that arrays are transitions that can be stored.

  Args:
    operation: for the error.
    arrays: by path.
    fields: which one is what.
  Returns:
    The specs of the store's columns.
  Raises:
    SpecError: dtypes, lengths or values do not fit; all of a kind are named.
  """
  found = [problem for p in fields.paths if (problem := _dtype_problem(p, arrays[p]))]
  if not found:
    found = [*_length_problems(arrays, fields), *_partner_problems(arrays, fields)]
  if not found:
    found = [*_flag_problems(arrays, fields), *_reward_problems(arrays, fields)]
  if found:
    raise errors.mismatch_error(operation, found)
  return specs.TensorSpecStruct(
    (path, _column_spec(arrays[path])) for path in fields.stored
  )


def _column_spec(array: np.ndarray) -> specs.ExtendedTensorSpec:
  dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
  return specs.ExtendedTensorSpec(array.shape[1:], dtype, is_sequence=True)


def _dtype_problem(path: str, array: np.ndarray) -> errors.Mismatch | None:
  want = "an array [N, ...] of numbers or bytes objects"
  if not array.ndim:
    return errors.Mismatch(path, want, errors.describe(array))
  if array.dtype == object:
    others = (item for item in array.flat if not isinstance(item, bytes))
    other = next(others, None)
    if other is None:
      return None
    return errors.Mismatch(path, want, f"objects, a {type(other).__name__} among them")
  try:
    tf.as_dtype(array.dtype.newbyteorder("="))
  except TypeError:
    return errors.Mismatch(path, want, errors.describe(array), "Convert it.")
  if array.dtype.kind in "SU":
    hint = "Such arrays lose zeros at the end: use array.astype(object)."
    return errors.Mismatch(path, want, errors.describe(array), hint)
  return None


def _length_problems(
  arrays: Mapping[str, np.ndarray], fields: TransitionFields
) -> Iterator[errors.Mismatch]:
  num = len(arrays[fields.done])
  if not num:
    yield errors.Mismatch(fields.done, "at least one transition", "none")
  for path in fields.paths:
    if len(arrays[path]) != num:
      want = f"{num} transitions, as {fields.done} has"
      yield errors.Mismatch(path, want, str(len(arrays[path])))


def _partner_problems(
  arrays: Mapping[str, np.ndarray], fields: TransitionFields
) -> Iterator[errors.Mismatch]:
  for path, of in fields.next_of.items():
    got, want = _kind(arrays[path]), _kind(arrays[of])
    if got != want:
      want_text = f"rows of {want[0]} {want[1]}, as {of} has"
      yield errors.Mismatch(path, want_text, f"rows of {got[0]} {got[1]}")


def _kind(array: np.ndarray) -> tuple[tuple[int, ...], np.dtype]:
  return array.shape[1:], array.dtype.newbyteorder("=")


def _flag_problems(
  arrays: Mapping[str, np.ndarray], fields: TransitionFields
) -> Iterator[errors.Mismatch]:
  for path in fields.flags:
    array, want = arrays[path], "one 0 or 1 for each transition"
    if array.size != len(array) or array.dtype.kind not in "biuf":
      yield errors.Mismatch(path, want, errors.describe(array))
    elif (others := array[(array != 0) & (array != 1)]).size:
      yield errors.Mismatch(path, want, f"a {others.flat[0]!r}")


def _reward_problems(
  arrays: Mapping[str, np.ndarray], fields: TransitionFields
) -> Iterator[errors.Mismatch]:
  for path in fields.rewards:
    dtype = _column_spec(arrays[path]).dtype
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
      got = errors.describe(arrays[path])
      yield errors.Mismatch(path, "a reward of real numbers", got)
