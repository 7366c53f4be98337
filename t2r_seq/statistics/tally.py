"""All that is counted of some parts of a source."""

from __future__ import annotations

from typing import Any

from t2r_seq import errors, specs
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct
from t2r_seq.statistics.accumulator import Accumulator, Arrays
from t2r_seq.statistics.figures import PathStatistics
from t2r_seq.statistics.histogram_accumulator import (
  HistogramAccumulator,
  has_histogram,
)
from t2r_seq.statistics.lengths import LengthCounter
from t2r_seq.statistics.row_counter import RowCounter
from t2r_seq.statistics.sketch_accumulator import SketchAccumulator
from t2r_seq.statistics.sources import Item, Part, Source
from t2r_seq.statistics.transforms import Transform

_SEPARATOR = "|"


def create_accumulator(spec: ExtendedTensorSpec, is_counted: bool) -> Accumulator:
  """Chooses what is kept of a path.

  Args:
    spec: of one row.
    is_counted: counts rows only.
  Returns:
    An empty accumulator.
  """
  dtype = spec.dtype
  if is_counted or not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
    return RowCounter(spec)
  return HistogramAccumulator(spec) if has_histogram(spec) else SketchAccumulator(spec)


class Tally:
  """Accumulators by path, and the lengths of the episodes.

  Attributes:
    num_items: episodes, or records where there are none.
  """

  def __init__(self) -> None:
    """Creates an empty tally."""
    self.num_items = 0
    self._paths: dict[str, Accumulator] = {}
    self._lengths = LengthCounter()

  def expect(self, spec: TensorSpecStruct, images: bool) -> None:
    """Makes sure that paths have figures even if no item has them.

    Args:
      spec: by path.
      images: whether encoded images are decoded.
    """
    for path, leaf in spec.items():
      self._accumulator(path, leaf, specs.is_encoded_image_spec(leaf) and not images)

  @classmethod
  def of_part(cls, part: Part, source: Source, transform: Transform) -> Tally:
    """Counts a part of a source.

    Raises:
      SpecError: an item has other shapes or dtypes than those before.
    """
    tally = cls()
    for item in source.read(part):
      tally._add(item, source, transform)
    for accumulator in tally._paths.values():
      accumulator.to_arrays()  # Works on what is buffered, here in the worker.
    return tally

  def _add(self, item: Item, source: Source, transform: Transform) -> None:
    if item.num_steps is None:
      self.num_items += max([len(v) for v in item.values.values()] or [0])
    else:
      self.num_items += 1
      self._lengths.add(item.num_steps)
    for path, (spec, rows) in transform.to_rows(item.values, source).items():
      self._accumulator(path, spec, rows.dtype == object).add(rows)
    if not transform.name:
      for path, count in item.skipped.items():
        self._accumulator(path, source.spec[path], True).add_rows(count)

  def _accumulator(
    self, path: str, spec: ExtendedTensorSpec, is_counted: bool
  ) -> Accumulator:
    if path not in self._paths:
      self._paths[path] = create_accumulator(spec, is_counted)
    found = self._paths[path]
    _check_same(path, found.spec, spec)
    return found

  def merge(self, other: Tally) -> None:
    """Takes in the tally of the parts that follow.

    Raises:
      SpecError: a path has another shape or dtype there.
    """
    self.num_items += other.num_items
    self._lengths.merge(other._lengths)
    for path, accumulator in other._paths.items():
      if path in self._paths:
        _check_same(path, self._paths[path].spec, accumulator.spec)
        self._paths[path].merge(accumulator)
      else:
        self._paths[path] = accumulator

  def finish(self) -> dict[str, PathStatistics]:
    """Returns the figures by path, sorted."""
    return {path: self._paths[path].finish() for path in sorted(self._paths)}

  @property
  def lengths(self) -> LengthCounter:
    """The lengths of the episodes."""
    return self._lengths

  def to_state(self) -> tuple[dict[str, Any], Arrays]:
    """Returns the state: JSON values, and arrays by name."""
    arrays = {
      f"lengths{_SEPARATOR}{k}": v for k, v in self._lengths.to_arrays().items()
    }
    described = []
    for index, (path, accumulator) in enumerate(self._paths.items()):
      is_counted = isinstance(accumulator, RowCounter)
      described.append([path, accumulator.spec.to_json(), is_counted])
      for name, array in accumulator.to_arrays().items():
        arrays[f"{index}{_SEPARATOR}{name}"] = array
    return {"num_items": self.num_items, "paths": described}, arrays

  @classmethod
  def from_state(cls, values: dict[str, Any], arrays: Arrays) -> Tally:
    """Restores what `to_state` gave."""
    by_owner: dict[str, Arrays] = {}
    for name, array in arrays.items():
      owner, _, field = name.partition(_SEPARATOR)
      by_owner.setdefault(owner, {})[field] = array
    tally = cls()
    tally.num_items = int(values["num_items"])
    tally._lengths = LengthCounter.from_arrays(by_owner["lengths"])
    for index, (path, text, is_counted) in enumerate(values["paths"]):
      spec = specs.ExtendedTensorSpec.from_json(text)
      tally._paths[path] = create_accumulator(spec, is_counted)
      tally._paths[path].restore(by_owner[str(index)])
    return tally


def _check_same(path: str, before: ExtendedTensorSpec, now: ExtendedTensorSpec) -> None:
  if before != now:
    raise errors.SpecError(
      f"statistics: {path}: expected {errors.describe(before)}, as in the episodes "
      f"before, got {errors.describe(now)}. A transform gives the same shapes and "
      "dtypes for every episode."
    )
