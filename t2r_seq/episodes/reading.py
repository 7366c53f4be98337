"""Shared by formats: errors of damaged files, layouts in JSON, specs of arrays."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.episodes.episodes import Fields
from t2r_seq.imports import tf
from t2r_seq.specs.image_headers import read_image_header
from t2r_seq.specs.names import DTYPES, are_fields, is_video_format

OPERATION = "open_episodes"
# Files in the folder of a data set that are computed from it.
_STATISTICS = "statistics.json"


def fault(
  place: str, expected: str, got: Any, hint: str = ""
) -> errors.ConversionError:
  """Builds the error of a data set that cannot be read; `hint`: what to do."""
  end = "" if str(got).endswith(".") else "."
  return errors.ConversionError(
    f"{OPERATION}: {place}: expected {expected}, got {got}{end}{hint and ' ' + hint}"
  )


def faults(place: str, mismatches: Iterable[errors.Mismatch]) -> errors.ConversionError:
  """Builds the error of several paths of a data set."""
  where = f"{OPERATION}: {place}"
  return errors.mismatch_error(where, mismatches, errors.ConversionError)


def leave_out(path: str) -> str:
  """Returns the hint for a path that cannot be read."""
  return f"Leave it out: --drop {path}."


@contextlib.contextmanager
def explain_errors(place: str, expected: str) -> Iterator[None]:
  """Raises a ConversionError with the place for any error of a library or file."""
  try:
    yield
  except (errors.SpecError, ImportError):
    raise
  except Exception as error:
    got = f"{type(error).__name__}: {error}"
    raise fault(place, f"{expected} that can be read", got) from error


def read_json_object(
  path: str, expected: str = "a JSON object", keys: Collection[str] = ()
) -> dict[str, Any]:
  """Reads a JSON object from a file; ConversionError if it has keys not in `keys`."""
  try:
    with open(path, encoding="utf-8") as file:
      values = json.load(file)
  except (OSError, RecursionError, ValueError) as error:
    raise fault(path, expected, error) from error
  if not isinstance(values, dict):
    raise fault(path, expected, f"{values!r:.80}")
  mismatches = [
    errors.Mismatch(
      key, f"one of {errors.listing(keys)}", repr(key), errors.nearest(key, keys)
    )
    for key in values
    if keys and key not in keys
  ]
  if mismatches:
    raise faults(path, mismatches)
  return values


def natural_order(name: str) -> list[Any]:
  """Sort key that puts episode_2 before episode_10."""
  return [(not part.isdigit(), part.zfill(20)) for part in re.split(r"(\d+)", name)]


def file_fingerprint(names: Iterable[str], **options: Any) -> dict[str, Any]:
  """Returns the sizes and times of files, and the options that they are read with."""
  stats = [os.stat(name) for name in names]
  return {"files": [[s.st_size, s.st_mtime_ns] for s in stats], **options}


def folder_fingerprint(path: str) -> dict[str, Any]:
  """Returns number, sizes and newest time of the files below a folder, or of a file.

  Statistics that were computed from them are left out.
  """
  stats = [os.stat(path)] if os.path.isfile(path) else []
  for folder, _, names in os.walk(path):
    stats += [
      os.stat(os.path.join(folder, name))
      for name in names
      if folder != path or _STATISTICS not in name
    ]
  newest = max((each.st_mtime_ns for each in stats), default=0)
  size = sum(each.st_size for each in stats)
  return {"files": len(stats), "bytes": size, "newest": newest}


def left_out(places: Sequence[str]) -> list[str]:
  """Returns the note about episodes without a step, if there are any."""
  if len(places) == 1:
    return [f"An episode without a step is left out: {places[0]}."]
  more = f"{len(places)} episodes without a step are left out, the first: "
  return [f"{more}{places[0]}."] if places else []


def check_numbers(operation: str, spec: specs.TensorSpecStruct) -> None:
  """Raises SpecError if a plain array cannot hold a path."""
  mismatches = []
  for path, leaf in spec.items():
    hint = leave_out(path)
    if specs.is_encoded_image_spec(leaf):
      got = f"encoded images ({leaf.data_format})"
      hint = "Store pixels: --decode_images."
    elif leaf.dtype in (tf.string, tf.bfloat16):
      got = "byte strings" if leaf.dtype == tf.string else "bfloat16"
    else:
      continue
    mismatches.append(errors.Mismatch(path, "numbers", got, hint))
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)


def check_present(operation: str, spec: specs.TensorSpecStruct) -> None:
  """Raises SpecError if a path is optional, for formats whose episodes have all."""
  mismatches = [
    errors.Mismatch(
      path, "a path that every episode has", "an optional one", leave_out(path)
    )
    for path, leaf in spec.items()
    if leaf.is_optional
  ]
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)


def dtype_name(dtype: str | np.dtype) -> str:
  """Returns the name that TensorFlow has for a dtype; else raises TypeError."""
  name = dtype if isinstance(dtype, str) else dtype.newbyteorder("=").name
  return name if name in DTYPES else tf.as_dtype(dtype).name


def fields_from_json(values: Mapping[str, Any]) -> dict[str, Fields]:
  """Returns the fields of specs by path; SpecError if they are invalid."""
  for path, fields in values.items():
    # Most are valid, and checked without TensorFlow.
    if not are_fields(fields) or fields["dtype"] not in DTYPES:
      specs.ExtendedTensorSpec.from_json_dict(fields, path)
  return dict(values)


def is_same_array(fields: Fields, other: Fields) -> bool:
  """Whether shape and dtype of two specs are the same."""
  return all(fields[name] == other[name] for name in ("shape", "dtype"))


def final_fields(fields: Fields, path: str) -> Fields:
  """Returns the fields of the value after the last step, stored once per episode."""
  return {**fields, "name": path, "is_sequence": False}


def frame_fields(fields: Fields) -> Fields:
  """Returns the fields of plain frames for a video; others are unchanged."""
  if not is_video_format(fields.get("data_format")):
    return fields
  return {name: value for name, value in fields.items() if name != "data_format"}


def array_fields(
  path: str, dtype: np.dtype, shape: tuple[int, ...], is_sequence: bool
) -> Fields | errors.Mismatch:
  """Returns the fields of an array, by the shape of one step; or why it has none."""
  if dtype.kind not in "biufc":
    name = {"O": "objects", "S": "byte strings", "U": "text"}.get(dtype.kind, dtype)
    return errors.Mismatch(path, "numbers", f"{name}", leave_out(path))
  try:
    name = dtype_name(dtype)
  except TypeError:
    want = "a dtype that TensorFlow has"
    return errors.Mismatch(path, want, str(dtype), leave_out(path))
  return make_fields(path, name, shape, is_sequence)


def make_fields(
  path: str, dtype: str, shape: Iterable[int], is_sequence: bool, **fields: Any
) -> Fields:
  """Returns the fields of a spec."""
  given = {name: value for name, value in fields.items() if value is not None}
  spec_fields = {"shape": [*shape], "dtype": dtype, "name": path, **given}
  return {**spec_fields, "is_sequence": True} if is_sequence else spec_fields


def describe(dtype: np.dtype, shape: tuple[int, ...]) -> str:
  """Renders shape and dtype of an array on disk."""
  return f"{tuple(shape)} {dtype.newbyteorder('=').name}"


def image_form(data: bytes) -> tuple[str, tuple[int, int, int]] | None:
  """Returns the format and the shape of an encoded image; None for other bytes."""
  header = read_image_header(data)
  if header is None:
    return None
  return header.format, (header.height, header.width, header.channels)


def objects(items: Iterable[bytes]) -> np.ndarray:
  """Returns byte strings as an array of bytes objects."""
  listed = list(items)
  array = np.empty(len(listed), object)
  array[:] = listed
  return array


def scalar(item: bytes) -> np.ndarray:
  """Returns a byte string as an array of shape ()."""
  return objects([item]).reshape(())


def unwritten(
  path: str,
  num_missing: int,
  num_chunks: int,
  fill: Any,
  first: str,
  shape: tuple[int, ...],
  dtype: np.dtype,
) -> tuple[str, bool]:
  """Describes chunks that no file stores; returns whether they are probably a loss.

  Writers may leave out chunks of the fill value, such as the zeros of a reward. Among
  colour images, a black one is suspicious.
  """
  text = (
    f"{path}: {num_missing} of {num_chunks} chunks were never written, and are read as "
    f"{fill}, {first}. They are lost, unless the writer leaves out chunks of that "
    "value."
  )
  is_colour = len(shape) == 4 and shape[-1] in (3, 4) and dtype.itemsize < 3
  return text, is_colour and num_missing < num_chunks
