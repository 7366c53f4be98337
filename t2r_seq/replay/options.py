"""How a replay samples, removes and paces: names and semantics are Reverb's.

The same options go to either engine. What they choose between are items: an item is
the window of one anchor. All are gin-configurable.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any

import gin

from t2r_seq import errors
from t2r_seq.data.arguments import check_count


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Uniform:
  """Every item with the same probability."""


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Fifo:
  """The oldest item: it came in first. A queue, as a sampler with one sample each."""


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Lifo:
  """The newest item: it came in last."""


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Prioritized:
  """An item with priority p with probability p^priority_exponent / sum of all.

  Prioritized experience replay (Schaul et al. 2016). Items of priority 0 are not
  sampled as long as there are others.

  Attributes:
    priority_exponent: at least 0; 0 makes it uniform. The paper's alpha.
  """

  priority_exponent: float = 0.6

  def __post_init__(self) -> None:
    """Raises SpecError unless the exponent is a finite number of at least 0."""
    _check_number("Prioritized", "priority_exponent", self.priority_exponent, 0)


@gin.configurable
@dataclasses.dataclass(frozen=True)
class MaxHeap:
  """The highest priority; of equal ones, the one inserted or updated first."""


@gin.configurable
@dataclasses.dataclass(frozen=True)
class MinHeap:
  """The lowest priority; of equal ones, the one inserted or updated first."""


@gin.configurable
@dataclasses.dataclass(frozen=True)
class MinSize:
  """Samples wait for a number of items; inserts never wait.

  Attributes:
    min_size_to_sample: items that must be there, at least 1.
  """

  min_size_to_sample: int = 1

  def __post_init__(self) -> None:
    """Raises SpecError unless the size is a count of at least 1."""
    check_count("MinSize", "min_size_to_sample", self.min_size_to_sample)


@gin.configurable
@dataclasses.dataclass(frozen=True)
class SampleToInsertRatio:
  """Keeps samples at a number for each insert, within a buffer of tolerance.

  Attributes:
    samples_per_insert: the ratio that is held on average, above 0.
    min_size_to_sample: items that must be there before the first sample, at least 1.
    error_buffer: how far `inserts * samples_per_insert - samples` may stray from
      `samples_per_insert * min_size_to_sample` to either side; or a pair (min_diff,
      max_diff) of bounds of that difference itself.
  """

  samples_per_insert: float
  min_size_to_sample: int
  error_buffer: float | tuple[float, float]

  def __post_init__(self) -> None:
    """Raises SpecError where the numbers cannot hold a ratio."""
    where = "SampleToInsertRatio"
    check_count(where, "min_size_to_sample", self.min_size_to_sample)
    ratio = self.samples_per_insert
    _check_number(where, "samples_per_insert", ratio, 0, is_above=True)
    _check_error_buffer(where, self.error_buffer)
    low, high = self.bounds
    # With less room than one insert or one sample both sides would wait for ever.
    if not high - low >= 2 * max(1.0, ratio):
      raise errors.SpecError(
        f"{where}: error_buffer: expected at least {max(1.0, ratio):g}, or a pair of "
        f"bounds {2 * max(1.0, ratio):g} apart, got {self.error_buffer!r}. With less, "
        "inserts and samples come to wait for each other."
      )

  @property
  def bounds(self) -> tuple[float, float]:
    """The least and the greatest `inserts * samples_per_insert - samples`."""
    if isinstance(self.error_buffer, (tuple, list)):
      low, high = self.error_buffer
      return float(low), float(high)
    offset = self.samples_per_insert * self.min_size_to_sample
    return offset - self.error_buffer, offset + self.error_buffer


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Queue:
  """Inserts wait while it is full, samples while it is empty.

  It goes with `Fifo` and `max_times_sampled=1`.

  Attributes:
    size: items that fit in, at least 1.
  """

  size: int

  def __post_init__(self) -> None:
    """Raises SpecError unless the size is a count of at least 1."""
    check_count("Queue", "size", self.size)


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Stack:
  """As `Queue`; it goes with `Lifo` and `max_times_sampled=1`.

  Attributes:
    size: items that fit in, at least 1.
  """

  size: int

  def __post_init__(self) -> None:
    """Raises SpecError unless the size is a count of at least 1."""
    check_count("Stack", "size", self.size)


SelectorOption = Uniform | Fifo | Lifo | Prioritized | MaxHeap | MinHeap
RateLimiterOption = MinSize | SampleToInsertRatio | Queue | Stack


def _check_number(
  where: str, name: str, value: Any, least: float, is_above: bool = False
) -> None:
  fits = _is_number(value) and math.isfinite(value) and value >= least
  if not fits or (is_above and value == least):
    want = (
      f"a number above {least:g}" if is_above else f"a number of at least {least:g}"
    )
    raise errors.SpecError(f"{where}: {name}: expected {want}, got {value!r}.")


def _check_error_buffer(where: str, value: Any) -> None:
  is_pair = isinstance(value, (tuple, list)) and len(value) == 2
  if not all(map(_is_number, value if is_pair else [value])):
    raise errors.SpecError(
      f"{where}: error_buffer: expected a number, or a pair of bounds, got {value!r}."
    )


def _is_number(value: Any) -> bool:
  return isinstance(value, numbers.Real) and not isinstance(value, bool)
