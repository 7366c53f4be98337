"""Seams: where one stage's specs are handed to the next, mode by mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs

SpecificationFn = Callable[[str], Any]


@tf.autograph.experimental.do_not_convert
def call_specification_fn(
  specification_fn: SpecificationFn | None, mode: str
) -> specs.TensorSpecStruct:
  """Flattens what a specification function gives for a mode.

  Args:
    specification_fn: takes a mode and returns a spec structure; None, or a function
      that returns None, stands for the empty structure.
    mode: one of `specs.ModeKeys`.
  Returns:
    A struct of its own; changing it does not change the function's.
  """
  structure = None if specification_fn is None else specification_fn(mode)
  if structure is None:
    return specs.TensorSpecStruct()
  return specs.flatten_spec_structure(structure)


def find_mismatches(
  prefix: str, wanted_fn: SpecificationFn | None, given_fn: SpecificationFn
) -> list[errors.Mismatch]:
  """Finds what the later stage wants and the earlier one does not give.

  Args:
    prefix: 'features' or 'labels'; starts the reported paths.
    wanted_fn: the in (or model) specs of the later stage, by mode.
    given_fn: the out specs of the earlier stage, by mode.
  Returns:
    One mismatch for each path and kind, naming its modes; empty when they meet.
  """
  found: dict[tuple[str, str, str, str], list[str]] = {}
  for mode in specs.ModeKeys.ALL:
    given = call_specification_fn(given_fn, mode)
    for path, wanted in call_specification_fn(wanted_fn, mode).items():
      problem = _compare(path, wanted, given)
      if problem is not None:
        found.setdefault((path, *problem), []).append(mode)
  return [
    errors.Mismatch(f"{prefix}/{path} (mode {', '.join(modes)})", expected, got, hint)
    for (path, expected, got, hint), modes in found.items()
  ]


def _compare(
  path: str, wanted: Any, given_specs: specs.TensorSpecStruct
) -> tuple[str, str, str] | None:
  if path not in given_specs:
    if getattr(wanted, "is_optional", False):
      return None
    return _describe(wanted), "nothing", errors.nearest(path, given_specs).strip()
  given = given_specs[path]
  if (
    wanted.dtype != given.dtype
    or not wanted.shape.is_compatible_with(given.shape)
    or _flag(wanted, "is_sequence") != _flag(given, "is_sequence")
  ):
    return _describe(wanted), _describe(given), ""
  if _flag(given, "is_optional") and not _flag(wanted, "is_optional"):
    return f"required {_describe(wanted)}", f"optional {_describe(given)}", ""
  return None


def _flag(spec: Any, field: str) -> bool:
  return bool(getattr(spec, field, False))


def _describe(spec: Any) -> str:
  return f"{errors.describe(spec)}{' sequence' if _flag(spec, 'is_sequence') else ''}"
