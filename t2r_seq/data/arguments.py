"""Checks of the arguments of input generators."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.records import files as patterns_lib
from t2r_seq.records.images import DecodeImages
from t2r_seq.specs.names import check_mode

# TensorFlow allocates a whole batch before it reads; for larger ones it takes minutes.
MAX_BATCH_SIZE = 1 << 24


def flat_specs(spec_structure: Any) -> specs.TensorSpecStruct:
  """Returns a new flat struct whose leaves are all `ExtendedTensorSpec`s."""
  flat = specs.flatten_spec_structure(spec_structure)
  return specs.map_leaves(specs.ExtendedTensorSpec.to_spec, flat)


def check_batch_size(where: str, size: Any, name: str = "batch_size") -> int:
  """Returns a batch size; raises SpecError unless it is from 1 to MAX_BATCH_SIZE."""
  size = errors.check_count(where, name, size)
  if size > MAX_BATCH_SIZE:
    raise errors.SpecError(
      f"{where}: {name}: expected at most {MAX_BATCH_SIZE:,} examples, got {size:,}."
    )
  return size


def check_seed(where: str, seed: Any, name: str = "seed") -> int | None:
  """Returns a seed; raises SpecError unless it is None or from 0 to 2**32 - 1."""
  if seed is None:
    return None
  if errors.check_count(where, name, seed, minimum=0) >= 2**32:
    raise errors.SpecError(
      f"{where}: {name}: expected an integer below {2**32:,}, got {seed!r}."
    )
  return int(seed)


def check_flag(
  where: str, name: str, flag: Any, expected: str = "True or False"
) -> bool:
  """Returns a flag as a bool; raises SpecError unless it is a Python or numpy bool."""
  if isinstance(flag, (bool, np.bool_)):
    return bool(flag)
  raise errors.SpecError(f"{where}: {name}: expected {expected}, got {flag!r}.")


def check_parallel_calls(where: str, num_parallel_calls: Any) -> int | None:
  """Returns the `num_parallel_calls` of a `tf.data.Dataset.map`.

  Raises:
    SpecError: the value is neither None, tf.data.AUTOTUNE nor a positive integer.
  """
  calls = num_parallel_calls
  if calls is None:
    return None
  is_integer = isinstance(calls, numbers.Integral) and not isinstance(calls, bool)
  if is_integer and (calls >= 1 or calls == tf.data.AUTOTUNE):
    return int(calls)
  raise errors.SpecError(
    f"{where}: num_parallel_calls: expected an integer of at least 1, "
    f"tf.data.AUTOTUNE or None, got {calls!r}."
  )


def check_image_decoding(where: str, image_decoding: Any) -> DecodeImages:
  """Returns how images are decoded; True, TensorFlow's defaults, for None.

  Raises:
    SpecError: the value is neither None nor an `ImageDecoding`.
  """
  if image_decoding is None:
    return True
  if isinstance(image_decoding, records.ImageDecoding):
    return image_decoding
  hint = (
    "Its options are fancy_upscaling, crops and dct_method, such as "
    "records.ImageDecoding(dct_method='INTEGER_FAST')."
  )
  if isinstance(image_decoding, type):
    hint = "Make one: @ImageDecoding() in gin, with the parentheses."
  raise errors.SpecError(
    f"{where}: image_decoding: expected a records.ImageDecoding or None, got "
    f"{image_decoding!r}. {hint}"
  )


def check_file_patterns(
  where: str, file_patterns: Any, name: str = "file_patterns"
) -> Any:
  """Checks file patterns, or a map of them, without looking for files.

  Args:
    where: the class that takes them, for the error.
    file_patterns: a pattern, a comma-separated string or a list of them; or a map of
      dataset_key to these.
    name: name of the argument.
  Returns:
    The patterns; an iterator as a list, so that they can be read more than once.
  Raises:
    SpecError: a pattern is neither a string nor a path, or there is no pattern.
  """
  place = f"{where}: {name}"
  if not isinstance(file_patterns, Mapping):
    return patterns_lib.check_file_patterns(place, file_patterns)
  if not file_patterns:
    raise errors.SpecError(
      f"{place}: expected file patterns by dataset_key, got {file_patterns!r}. Name "
      "the files of each dataset."
    )
  return {
    key: patterns_lib.check_file_patterns(f"{place}[{key!r}]", patterns)
    for key, patterns in file_patterns.items()
  }


def params_batch_size(where: str, params: Any) -> int | None:
  """Returns the batch size in the params of an Estimator; None if they have none.

  Raises:
    SpecError: the params are not a mapping.
  """
  if params is None:
    return None
  if not isinstance(params, Mapping):
    raise errors.SpecError(
      f"{where}: params: expected a mapping or None, got {params!r}. Such as "
      "{'batch_size': 64}."
    )
  return params.get("batch_size")


def check_no_windows(where: str, cut: windows.Cut) -> None:
  """Checks the cut of specs without time offsets, which are not cut.

  Raises:
    SpecError: it has a sequence_length or an n_step.
  """
  for name, value in (("sequence_length", cut.sequence_length), ("n_step", cut.n_step)):
    if value is not None:
      raise errors.SpecError(
        f"{where}: {name}: expected None for specs without time offsets, got {value}. "
        "Give the specs that are to be cut time_offsets=0."
      )


def check_mode_is_bound(preprocess_fn: Callable[..., Any]) -> None:
  """Checks that a preprocess_fn can be called without a mode.

  Raises:
    SpecError: the function has a parameter 'mode' without a default.
  """
  mode = inspect.signature(preprocess_fn).parameters.get("mode")
  if mode is not None and mode.default is inspect.Parameter.empty:
    raise errors.SpecError(
      "set_preprocess_fn: mode: expected a bound argument, got an open one. Pass "
      "functools.partial(preprocessor.preprocess, mode=...)."
    )


def describe_preprocess_fn(preprocess_fn: Any) -> list[dict[str, Any]]:
  """Returns the stages of a preprocess_fn, each with its name as 'stage'."""
  owner = _unbound(preprocess_fn)[1]
  if hasattr(owner, "describe_stages"):
    return owner.describe_stages()
  return [{"stage": _name(preprocess_fn)}]


def _unbound(preprocess_fn: Any) -> tuple[Any, Any]:
  """Returns the function inside `functools.partial`, and the object of a method."""
  while isinstance(preprocess_fn, functools.partial):
    preprocess_fn = preprocess_fn.func
  return preprocess_fn, getattr(preprocess_fn, "__self__", None)


def _name(preprocess_fn: Any) -> str:
  function, owner = _unbound(preprocess_fn)
  if owner is not None:
    return type(owner).__name__
  return getattr(function, "__qualname__", type(function).__name__)


def check_replaces(where: str, preprocess_fn: Any, other: Any) -> None:
  """Checks that no stage is lost if another preprocess_fn replaces a generator's.

  Args:
    where: the generator's class.
    preprocess_fn: the generator's preprocess_fn.
    other: the preprocess_fn of the model or mixture that the generator feeds.
  Raises:
    SpecError: the two are not methods of one object.
  """
  owner = _unbound(preprocess_fn)[1]
  if owner is not None and owner is _unbound(other)[1]:
    return
  raise errors.SpecError(
    f"{where}: preprocess_fn: expected none, because the preprocessor of the model or "
    f"mixture, {_name(other)}, replaces it, got {_name(preprocess_fn)}. Chain the two "
    "there, by preprocessors.ComposedPreprocessor: a model's export has all its stages."
  )


def check_specifications(
  where: str, given: Mapping[str, Any], set_for: str | None, mode: str
) -> None:
  """Checks that an input generator has specs for a mode.

  Args:
    where: the generator's class.
    given: specs by kind, 'feature' and 'label'; None for missing ones.
    set_for: the mode that the specs are for; None for any.
    mode: the requested mode.
  Raises:
    SpecError: the mode is unknown, or specs are missing or for another mode.
  """
  check_mode(where, mode)
  for name, spec in given.items():
    if spec is None:
      raise errors.SpecError(
        f"{where}: {name} specs: expected a spec structure, got nothing. Call "
        f"set_specification_from_model or set_{name}_specifications first."
      )
  if set_for not in (None, mode):
    raise errors.SpecError(
      f"{where}: mode: expected {set_for!r}, which the specs were set for, got "
      f"{mode!r}. Call set_specification_from_model with that mode."
    )
