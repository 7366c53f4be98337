"""What all formats share: errors of damaged files, fingerprints, specs of arrays."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.imports import tf

# Files in the folder of a data set that are computed from it.
_STATISTICS = "statistics.json"


@contextlib.contextmanager
def explained(place: str, what: str) -> Iterator[None]:
  """Says where damage lies: of damaged files libraries raise what they like.

  Args:
    place: the file, or what of it.
    what: is read, as 'chunks'.
  Raises:
    ConversionError: it cannot be read.
  """
  try:
    yield
  except (errors.SpecError, ImportError):
    raise
  except Exception as error:
    raise errors.ConversionError(
      f"convert: {place}: expected {what} that can be read, got "
      f"{type(error).__name__}: {error}."
    ) from error


def read_json_object(operation: str, path: str) -> dict[str, Any]:
  """Reads a JSON file whose values have names.

  Args:
    operation: for the error.
    path: of the file.
  Raises:
    ConversionError: it is not a JSON object.
  """
  try:
    with open(path, encoding="utf-8") as file:
      values = json.load(file)
  except (OSError, RecursionError, ValueError) as error:
    raise errors.ConversionError(
      f"{operation}: expected a JSON object, got {error}."
    ) from error
  if not isinstance(values, dict):
    raise errors.ConversionError(
      f"{operation}: expected a JSON object, got {values!r:.80}."
    )
  return values


def natural_order(name: str) -> list[Any]:
  """Sorts episode_2 before episode_10.

  Args:
    name: of a file or a group.
  """
  return [(not part.isdigit(), part.zfill(20)) for part in re.split(r"(\d+)", name)]


def folder_fingerprint(path: str) -> dict[str, Any]:
  """Returns the number of the files in a folder, their sizes and the newest time.

  But for the statistics that were computed of them.
  """
  count, size, newest = 0, 0, 0
  for folder, _, names in os.walk(path):
    for name in names:
      if _STATISTICS in name and folder == path:
        continue
      found = os.stat(os.path.join(folder, name))
      count, size = count + 1, size + found.st_size
      newest = max(newest, found.st_mtime_ns)
  return {"files": count, "bytes": size, "newest": newest}


def left_out(count: int, first: str) -> str:
  """Says that episodes without a step were left out: nothing would be read of them.

  Args:
    count: of them.
    first: where the first one is.
  """
  one = f"An episode without a step is left out: {first}."
  more = f"{count} episodes without a step are left out, the first: {first}."
  return one if count == 1 else more


def check_numbers(operation: str, spec: specs.TensorSpecStruct) -> None:
  """Checks that all specs of steps are numbers, which a plain array can hold.

  Args:
    operation: for the error.
    spec: of the episodes.
  Raises:
    SpecError: with every path that is an encoded image, a byte string or of a dtype
      that numpy alone does not have.
  """
  found = []
  for path, leaf in spec.items():
    if specs.is_encoded_image_spec(leaf):
      got = f"encoded images ({leaf.data_format})"
      hint = "Store pixels: --decode_images."
    elif leaf.dtype == tf.string:
      got, hint = "byte strings", f"Leave them out: --drop {path}."
    elif leaf.dtype == tf.bfloat16:
      got, hint = "bfloat16", f"Leave it out: --drop {path}."
    else:
      continue
    found.append(errors.Mismatch(path, "numbers", got, hint))
  if found:
    raise errors.mismatch_error(operation, found)


def array_spec(
  path: str, dtype: np.dtype, shape: tuple[int, ...], is_sequence: bool
) -> specs.ExtendedTensorSpec | errors.Mismatch:
  """Describes an array, or says why it cannot be taken over.

  Args:
    path: of the spec.
    dtype: of the array.
    shape: of one step, or of one episode's value.
    is_sequence: there is one for each step.
  """
  hint = f"Leave it out: --drop {path}."
  if dtype.kind not in "biufc":
    name = {"O": "objects", "S": "byte strings", "U": "text"}.get(dtype.kind, dtype)
    return errors.Mismatch(path, "numbers", f"{name}", hint)
  try:
    tf_dtype = tf.as_dtype(dtype.newbyteorder("="))
  except TypeError:
    return errors.Mismatch(path, "a dtype that TensorFlow has", str(dtype), hint)
  return specs.ExtendedTensorSpec(shape, tf_dtype, path, is_sequence=is_sequence)


def describe(dtype: np.dtype, shape: tuple[int, ...]) -> str:
  """Renders shape and dtype of an array on disk."""
  return f"{tuple(shape)} {dtype.newbyteorder('=').name}"
