"""Casts of numbers to another dtype, which lose nothing without an error."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.imports import tf
from t2r_seq.specs import names as spec_names

_NUMBERS = (
  *("float16", "bfloat16", "float32", "float64", "bool"),
  *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)


@dataclasses.dataclass(frozen=True)
class Cast:
  """A new dtype. `is_of_path`: the path itself is named, so values may become equal."""

  dtype: tf.DType
  is_of_path: bool


def find_casts(
  operation: str, casts: Iterable[str], spec: specs.TensorSpecStruct
) -> dict[str, Cast]:
  """Returns the casts by path; SpecError if one is invalid.

  Args:
    operation: for errors.
    casts: 'float64=float32' for all paths of a dtype, or 'path=float32' for a path and
      all below it, which has precedence.
    spec: flat specs by path.
  """
  by_dtype: dict[str, Cast] = {}
  by_path: dict[str, Cast] = {}
  mismatches = []
  for text in casts:
    name, _, dtype = text.partition("=")
    below = [p for p in spec if p == name or p.startswith(f"{name}/")]
    if dtype not in _NUMBERS:
      want = f"a dtype of {errors.listing(_NUMBERS)} after a ="
      near = errors.nearest(dtype, _NUMBERS)
      mismatches.append(errors.Mismatch(f"cast {text}", want, repr(dtype), near))
    elif below:
      by_path |= {path: Cast(tf.as_dtype(dtype), path == name) for path in below}
    elif name in _NUMBERS:
      by_dtype[name] = Cast(tf.as_dtype(dtype), False)
    else:
      want = f"a dtype, or a path of {errors.listing(spec)}"
      near = errors.nearest(name, spec)
      mismatches.append(errors.Mismatch(f"cast {text}", want, repr(name), near))
  result = {}
  for path, leaf in spec.items():
    is_video = specs.extended_tensor_spec.is_video_spec(leaf)
    is_image = is_video or specs.is_encoded_image_spec(leaf)
    is_number = leaf.dtype.name in _NUMBERS and not is_image
    cast = by_path.get(path)
    if is_number and cast is None:
      cast = by_dtype.get(leaf.dtype.name)
    if not is_number and cast is not None:
      got = "encoded images" if leaf.data_format else leaf.dtype.name
      mismatches.append(errors.Mismatch(path, "numbers to cast", got))
    elif cast is not None and cast.dtype != leaf.dtype:
      result[path] = cast
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)
  return result


def cast_values(path: str, array: np.ndarray, cast: Cast, place: str) -> np.ndarray:
  """Casts numbers; ConversionError if more is lost than by rounding floats."""
  dtype = cast.dtype
  with np.errstate(over="ignore", invalid="ignore"):
    result = array.astype(dtype.as_numpy_dtype)
  are_floating = (tf.as_dtype(array.dtype).is_floating, dtype.is_floating)
  if are_floating == (True, True):
    lost = np.isfinite(array) & ~np.isfinite(result.astype(np.float64))
  else:
    lost = result.astype(array.dtype) != array
  if are_floating == (False, False) and not dtype.is_bool:
    # A cast to the other signedness and back may restore the bits.
    lost = lost | ((result < 0) != (array < 0))
  if lost.any():
    raise errors.ConversionError(
      f"cast: {place}: {path}: expected numbers that fit {dtype.name}, got "
      f"{array[lost].ravel()[0]} of {array.dtype.name}."
    )
  merged = None
  if are_floating == (True, True) and not cast.is_of_path:
    merged = _find_merged(path, array.astype(np.float64), result.astype(np.float64))
  if merged is not None:
    raise errors.ConversionError(
      f"cast: {place}: {path}: expected values that {dtype.name} distinguishes, got "
      f"{merged[0]!r} and {merged[1]!r}, which become equal. Keep them, --cast "
      f"{path}={array.dtype.name}, or round them all the same, --cast "
      f"{path}={dtype.name}."
    )
  return result


# Rounding spoils a column that rises if it moves a number by more than `_MOVED`, and by
# more than this share of the column's range.
_MOVED, _MOVED_SHARE = 0.1, 0.01
_LOST_SHARE = 0.25  # The share for a column that rises and falls.
_MAX_COLUMNS = 256  # A step with more numbers is an image.


def _find_merged(
  path: str, array: np.ndarray, rounded: np.ndarray
) -> tuple[float, float] | None:
  """Finds two values, of [T, ...], that become equal, if their difference matters.

  Rounding makes neighbors of almost any signal equal. That matters for time stamps, by
  their name; for numbers that rise through the episode, such as a time under another
  name or the position of a vehicle on a map, if rounding moves them by `_MOVED_SHARE`
  of their range; and for others, if by `_LOST_SHARE`.
  """
  if array.ndim == 0 or len(array) < 2:
    # One time stamp per episode: stamps of other episodes would become equal to it.
    moved = np.abs(rounded - array).ravel()
    if not spec_names.is_time(path) or not moved.size or moved.max() <= _MOVED:
      return None
    return float(array.ravel()[moved.argmax()]), float(rounded.ravel()[moved.argmax()])
  if array.size > _MAX_COLUMNS * len(array):
    return None
  before, after = (v.reshape(len(v), -1) for v in (array, rounded))
  with np.errstate(invalid="ignore"):
    steps = np.diff(before, axis=0)
    merged = (steps != 0) & (np.diff(after, axis=0) == 0)
    if not spec_names.is_time(path):
      moved = np.abs(after - before).max(axis=0)
      is_rising = (steps >= 0).all(axis=0) & ((steps > 0).sum(axis=0) > 1)
      share = np.where(is_rising, _MOVED_SHARE, _LOST_SHARE)
      merged &= (moved > _MOVED) & (moved > share * np.ptp(before, axis=0))
  if not merged.any():
    return None
  step, column = np.argwhere(merged)[0]
  return float(before[step, column]), float(before[step + 1, column])
