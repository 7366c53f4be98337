"""Options and layouts as Reverb's tables; and whether a server's table is the one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.replay import options
from t2r_seq.replay.reverb.bundles import describe_columns
from t2r_seq.replay.reverb.layout import ItemLayout
from t2r_seq.replay.reverb.wire import wire_signature

# Between what a column shows and what the windows of its table are.
_WINDOWS = "; windows: "


def make_selector(reverb: ModuleType, option: options.SelectorOption) -> Any:
  """Makes Reverb's selector of an option.

  Raises:
    SpecError: the option is no selector.
  """
  selectors = reverb.selectors
  match option:
    case options.Uniform():
      return selectors.Uniform()
    case options.Fifo():
      return selectors.Fifo()
    case options.Lifo():
      return selectors.Lifo()
    case options.Prioritized():
      return selectors.Prioritized(option.priority_exponent)
    case options.MaxHeap():
      return selectors.MaxHeap()
    case options.MinHeap():
      return selectors.MinHeap()
  raise errors.SpecError(
    f"Reverb: the option: expected a selector, got {errors.describe(option)}."
  )


def make_rate_limiter(reverb: ModuleType, option: options.RateLimiterOption) -> Any:
  """Makes Reverb's rate limiter of an option.

  Raises:
    SpecError: the option is no rate limiter.
  """
  limiters = reverb.rate_limiters
  match option:
    case options.MinSize():
      return limiters.MinSize(option.min_size_to_sample)
    case options.SampleToInsertRatio():
      return limiters.SampleToInsertRatio(
        option.samples_per_insert, option.min_size_to_sample, option.bounds
      )
    case options.Queue():
      return limiters.Queue(option.size)
    case options.Stack():
      return limiters.Stack(option.size)
  raise errors.SpecError(
    f"Reverb: the option: expected a rate limiter, got {errors.describe(option)}."
  )


def make_signature(layout: ItemLayout) -> dict[str, tf.TensorSpec]:
  """Makes the signature of a layout's table: what travels, and of which windows.

  Two layouts may have the same columns and other windows. A table has no place for
  those but the names of its specs, so the first one ends with them.
  """
  signature = wire_signature(layout.signature)
  grid, first = layout.reader.grid, min(signature)
  windows = {
    "padding": grid.cut.padding,
    "sequence_length": grid.cut.num_stacks,
    "shift": grid.cut.shift,
    "stride": grid.cut.stride,
  }
  spec = signature[first]
  name = f"{spec.name}{_WINDOWS}{json.dumps(windows)}"
  signature[first] = tf.TensorSpec(spec.shape, spec.dtype, name)
  return signature


def check_signature(
  operation: str, wanted: Mapping[str, tf.TensorSpec], found: Any
) -> None:
  """Checks that a table is for the items that are meant.

  Args:
    operation: for the error.
    wanted: that `make_signature` makes.
    found: the table's signature.
  Raises:
    SpecError: with every column that the table lacks, has too many, or has otherwise,
      and everything else that its windows differ in.
  """
  if not isinstance(found, Mapping):
    raise errors.SpecError(
      f"{operation}: the table: expected the signature that t2r_seq makes of the "
      f"specs, got {errors.describe(found)}. Start the server by ReplayServer."
    )
  want, got = _describe(wanted), _describe(found)
  mismatches = [
    errors.Mismatch(
      path, want.get(path, "nothing"), f"{got.get(path, 'nothing')} on the server"
    )
    for path in sorted({*want, *got})
    if want.get(path) != got.get(path)
  ]
  if mismatches:
    hint = "Server and clients want the same specs, window arguments and `store`."
    if not any(_WINDOWS in (spec.name or "") for spec in found.values()):
      hint += (
        " This table does not say which windows it has: it, or the checkpoint that it "
        "comes from, is of an earlier version; begin with a new checkpoint_dir."
      )
    mismatches[-1] = dataclasses.replace(mismatches[-1], hint=hint)
    raise errors.mismatch_error(operation, mismatches)


def _describe(signature: Mapping[str, tf.TensorSpec]) -> dict[str, str]:
  """Describes the columns and the windows of a table, by path and by argument."""
  columns: dict[str, tf.TensorSpec] = {}
  windows: dict[str, Any] = {}
  for name, spec in signature.items():
    shown, found, text = (spec.name or "").partition(_WINDOWS)
    columns[name] = tf.TensorSpec(spec.shape, spec.dtype, shown)
    windows.update(json.loads(text) if found else {})
  texts = {f"the windows' {name}": str(value) for name, value in windows.items()}
  return {**describe_columns(columns), **texts}
