"""What arrays alone can hold, and how they are described."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs


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
