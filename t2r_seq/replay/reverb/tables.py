"""Options and layouts as Reverb's tables; and whether a server's table is the one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.replay import options
from t2r_seq.replay.reverb.bundles import describe_columns


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


def check_signature(
  operation: str, wanted: Mapping[str, tf.TensorSpec], found: Any
) -> None:
  """Checks that a table is for the items that are meant.

  Args:
    operation: for the error.
    wanted: specs by column, with the names that say which steps they show.
    found: the table's signature.
  Raises:
    SpecError: with every column that the table lacks, has too many, or has otherwise.
  """
  if not isinstance(found, Mapping):
    raise errors.SpecError(
      f"{operation}: the table: expected the signature that t2r_seq makes of the "
      f"specs, got {errors.describe(found)}. Start the server by ReplayServer."
    )
  want, got = describe_columns(wanted), describe_columns(found)
  mismatches = [
    errors.Mismatch(
      path, want.get(path, "nothing"), f"{got.get(path, 'nothing')} on the server"
    )
    for path in sorted({*want, *got})
    if want.get(path) != got.get(path)
  ]
  if mismatches:
    hint = "Server and clients want the same specs, window arguments and `store`."
    mismatches[-1] = dataclasses.replace(mismatches[-1], hint=hint)
    raise errors.mismatch_error(operation, mismatches)
