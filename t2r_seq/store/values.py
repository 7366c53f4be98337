"""Values of one episode or step: found by path, checked, turned into rows of bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.specs import validation
from t2r_seq.store import files
from t2r_seq.store.layout import Column, Columns


@dataclasses.dataclass(frozen=True)
class Rows:
  """Rows of one column.

  Attributes:
    count: how many rows.
    data: their bytes, [n] uint8.
    lengths: bytes of each byte string, [items] int64; None where rows are numbers.
  """

  count: int
  data: np.ndarray
  lengths: np.ndarray | None = None


def collect(
  operation: str,
  columns: Columns,
  structure: Any,
  has_steps: bool,
  allow_nan: bool,
) -> dict[str, Rows]:
  """Turns a structure into rows of columns.

  Args:
    operation: for the error.
    columns: the columns that the structure may fill.
    structure: arrays, tensors, Python numbers, lists or byte strings, packed or flat.
    has_steps: values of columns with a row per step are [T, ...]; otherwise every
      value is one row.
    allow_nan: accepts NaN.
  Returns:
    Rows by path; absent optionals are left out.
  Raises:
    SpecError: with every mismatch.
  """
  given = dict(leaves(structure, columns))
  found = _unknown(columns, given) + _missing(columns, given, has_steps)
  rows: dict[str, Rows] = {}
  for path, column in columns.items():
    if given.get(path) is None:
      continue
    is_many = has_steps and column.is_per_step
    result = _to_rows(column, given[path], is_many, allow_nan)
    if isinstance(result, errors.Mismatch):
      found.append(result)
    else:
      rows[path] = result
  if has_steps:
    found += _ragged(columns, rows)
  if found:
    raise errors.mismatch_error(operation, found)
  return rows


def leaves(
  structure: Any, columns: Columns, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
  """Yields (path, value); a list is a branch above a column's path, else a value."""
  if prefix in columns or structure is None:
    yield prefix, structure
    return
  children: Any = None
  if isinstance(structure, tuple) and hasattr(structure, "_asdict"):
    children = structure._asdict().items()
  elif isinstance(structure, Mapping):
    children = structure.items()
  elif isinstance(structure, (list, tuple)) and _is_branch(prefix, columns):
    children = enumerate(structure)
  if children is None:
    yield prefix, structure
    return
  for name, value in children:
    yield from leaves(value, columns, f"{prefix}/{name}" if prefix else str(name))


def _is_branch(prefix: str, columns: Columns) -> bool:
  return not prefix or any(path.startswith(f"{prefix}/") for path in columns)


def _unknown(columns: Columns, given: Mapping[str, Any]) -> list[errors.Mismatch]:
  absent = [path for path in columns if path not in given]
  return [
    errors.Mismatch(
      path or "the structure",
      f"one of {errors.listing(columns)}",
      errors.describe(value),
      errors.nearest(path, absent) or "There is no such path here: leave it out.",
    )
    for path, value in given.items()
    if path not in columns and value is not None
  ]


def _missing(
  columns: Columns, given: Mapping[str, Any], has_steps: bool
) -> list[errors.Mismatch]:
  unused = [path for path in given if path not in columns]
  return [
    errors.Mismatch(
      path,
      _expected(column, has_steps and column.is_per_step),
      "nothing",
      errors.nearest(path, unused) or "What may be absent needs is_optional=True.",
    )
    for path, column in columns.items()
    if not column.spec.is_optional and given.get(path) is None
  ]


def _ragged(columns: Columns, rows: Mapping[str, Rows]) -> list[errors.Mismatch]:
  """Compares the steps of all paths with those of the first."""
  counts = {p: r.count for p, r in rows.items() if columns[p].is_per_step}
  first = next(iter(counts), "")
  if first and not counts[first]:
    return [errors.Mismatch(first, "at least one step", "none")]
  return [
    errors.Mismatch(
      path,
      f"{counts[first]} steps, as {first} has",
      f"{count} steps",
      "All paths with a time axis have the same length.",
    )
    for path, count in counts.items()
    if count != counts[first]
  ]


def _to_rows(
  column: Column, value: Any, is_many: bool, allow_nan: bool
) -> Rows | errors.Mismatch:
  array = _to_array(value, column)
  got, hint = "", ""
  if isinstance(array, np.ndarray):
    has_shape = array.shape[is_many:] == column.row_shape and array.ndim >= is_many
    if has_shape and column.is_bytes and array.dtype == object:
      misfit = _find_image_misfit(column, array, is_many)
      return misfit or _bytes_rows(array, len(array) if is_many else 1)
    if has_shape and not column.is_bytes and array.dtype == column.dtype:
      nan = None if allow_nan else _find_nan(array)
      if nan is None:
        return Rows(len(array) if is_many else 1, files.as_bytes(array))
      got = f"NaN at {nan}"
      hint = "Clean the data, or create the writer with allow_nan=True."
    elif specs.is_encoded_image_spec(column.spec) and array.dtype != object:
      hint = "Encode it (tf.io.encode_jpeg), or drop the data_format to store pixels."
    elif has_shape and not column.is_bytes:
      hint = "Cast it."
  return errors.Mismatch(
    column.path, _expected(column, is_many), got or _describe(array), hint
  )


def _find_image_misfit(
  column: Column, array: np.ndarray, is_many: bool
) -> errors.Mismatch | None:
  """Looks for an encoded image that no reader could decode as the spec says."""
  if not specs.is_encoded_image_spec(column.spec):
    return None
  spec = column.spec
  # Lists of any length are padded with empty strings.
  allow_empty = spec.is_optional or spec.varlen_default_value is not None
  images = array.ravel().tolist()
  found = validation.find_misfit(images, spec, column.path, allow_empty)
  if found is None or not is_many:
    return found and found[1]
  index, misfit = found
  step = index // column.items_per_row
  return dataclasses.replace(misfit, got=f"{misfit.got} at step {step}")


def _bytes_rows(array: np.ndarray, count: int) -> Rows:
  items = array.ravel().tolist()
  lengths = np.fromiter(map(len, items), np.int64, len(items))
  return Rows(count, np.frombuffer(b"".join(items), np.uint8), lengths)


def _to_array(value: Any, column: Column) -> np.ndarray | str:
  """Converts to an array, native byte order; to a text that says why it cannot."""
  is_typed = isinstance(value, (np.ndarray, np.generic))
  if not is_typed and (tf.is_tensor(value) or isinstance(value, tf.Variable)):
    value = value.numpy()
    is_typed = isinstance(value, (np.ndarray, np.generic))
  if column.is_bytes and not (is_typed and np.asarray(value).dtype.kind not in "SUO"):
    return _to_objects(value)
  try:
    array = np.asarray(value)
  except ValueError:
    return "a ragged list"
  if array.dtype.kind in "SUO":
    return f"{array.shape} {'strings' if array.dtype.kind in 'SU' else 'objects'}"
  if not is_typed and _has_values_of(array, column.spec.dtype):
    too_large = _find_overflow(array, column.spec.dtype)
    if too_large is not None:
      return f"{array.shape} with {too_large:g} in it, which is beyond its range"
    return array.astype(column.dtype)
  return array.astype(array.dtype.newbyteorder("="), copy=False)


def _to_objects(value: Any) -> np.ndarray | str:
  """Converts byte strings; as objects, because numpy's own drop trailing zeros."""
  if isinstance(value, (bytes, str)):
    array = np.empty((), dtype=object)
    array[()] = value
  else:
    try:
      array = np.asarray(value, dtype=object)
    except ValueError:
      return "a ragged list"
  flat = array.ravel().tolist()
  converted = np.empty(len(flat), dtype=object)
  for index, item in enumerate(flat):
    item = item.encode() if isinstance(item, str) else item
    if not isinstance(item, bytes):
      return f"{array.shape} with an item of type {type(item).__name__}"
    converted[index] = item
  return converted.reshape(array.shape)


def _has_values_of(array: np.ndarray, dtype: tf.DType) -> bool:
  """Whether Python numbers have values of this dtype: no fractions, no overflow."""
  if array.size == 0 or dtype.is_complex or (dtype.is_floating and array.dtype != bool):
    return array.dtype.kind in "iufcb" and (dtype.is_complex or array.dtype.kind != "c")
  if dtype.is_integer and array.dtype.kind in "iu":
    return bool(dtype.min <= array.min() and array.max() <= dtype.max)
  return dtype == tf.bool and array.dtype == bool


def _find_overflow(array: np.ndarray, dtype: tf.DType) -> Any:
  """Returns a finite number that would become an infinite one; None without one."""
  if not (dtype.is_floating or dtype.is_complex):
    return None
  with np.errstate(over="ignore"):
    converted: Any = array.astype(dtype.as_numpy_dtype)
  found = array[np.isfinite(array) & ~np.isfinite(converted)]
  return found[0] if found.size else None


def _find_nan(array: np.ndarray) -> tuple[int, ...] | None:
  # bfloat16 is of kind 'V'.
  if array.dtype.kind not in "fcV" or array.size == 0:
    return None
  nan: Any = np.isnan(array)
  if not nan.any():
    return None
  return tuple(int(i) for i in np.unravel_index(int(np.argmax(nan)), array.shape))


def _expected(column: Column, has_steps: bool) -> str:
  dims = [*(["T"] if has_steps else []), *map(str, column.row_shape)]
  kind = column.spec.dtype.name
  if specs.is_encoded_image_spec(column.spec):
    kind = f"bytes, encoded as {str(column.spec.data_format).lower()}"
  return f"({', '.join(dims)}{',' if len(dims) == 1 else ''}) {kind}"


def _describe(array: np.ndarray | str) -> str:
  if isinstance(array, str):
    return array
  return f"{array.shape} {'bytes' if array.dtype == object else array.dtype.name}"
