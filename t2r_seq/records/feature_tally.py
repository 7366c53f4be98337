"""What is known of each feature over all records: its range, NaNs, constant values."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from t2r_seq import errors
from t2r_seq.records import problems
from t2r_seq.records.batch_check import BatchCheck
from t2r_seq.records.features import RecordFeature

# A range below this part of the values is one that a network cannot tell from none.
_NEAR = 1e-6


@dataclasses.dataclass(frozen=True)
class FeatureReport:
  """One feature over all records that could be parsed.

  Attributes:
    path: its first path.
    name: key in the record.
    described: shape, dtype and encoding, as text.
    num_problems: of content, and of lengths.
    num_nan: records with a NaN.
    low: the smallest value; None for strings.
    high: the largest value; None for strings.
    num_values: of one step.
    constant: which values never change, or hardly.
  """

  path: str
  name: str
  described: str
  num_problems: int
  num_nan: int
  low: float | None
  high: float | None
  num_values: int
  constant: tuple[int, ...]


class FeatureTally:
  """Adds up what batches of records show.

  Attributes:
    num_empty: episodes without a step.
  """

  def __init__(self, features: Sequence[RecordFeature]) -> None:
    """Creates an empty tally.

    Args:
      features: those of the dataset.
    """
    self._features = features
    self._lows: dict[int, np.ndarray] = {}
    self._highs: dict[int, np.ndarray] = {}
    self._num_nan: collections.Counter[int] = collections.Counter()
    self._problems: collections.Counter[str] = collections.Counter()
    self._num_parsed = 0
    self.num_empty = 0

  def add(self, check: BatchCheck) -> None:
    """Adds a batch."""
    self._num_parsed += int(check.is_parsed.sum())
    self.num_empty += int(check.is_empty.sum())
    for number, has_nan in check.has_nan.items():
      self._num_nan[number] += int(has_nan.sum())
    for number, low in check.lows.items():
      high = check.highs[number]
      self._lows[number] = np.fmin(self._lows.get(number, low), low)
      self._highs[number] = np.fmax(self._highs.get(number, high), high)

  def add_problem(self, path: str, kind: str) -> None:
    """Adds a problem of a feature."""
    if kind != problems.NAN:
      self._problems[path] += 1

  def reports(self) -> list[FeatureReport]:
    """Returns what is known of each feature."""
    return [self._report(n, feature) for n, feature in enumerate(self._features)]

  def _report(self, number: int, feature: RecordFeature) -> FeatureReport:
    low, high = self._lows.get(number), self._highs.get(number)
    described = errors.describe(feature.spec)
    if feature.is_image:
      described += f" {str(feature.spec.data_format).lower()}"
    constant: tuple[int, ...] = ()
    # With one record, what has no steps is never seen to change.
    if low is not None and high is not None and self._num_parsed > 1:
      scale = np.maximum(np.abs(low), np.abs(high))
      constant = tuple(np.flatnonzero(high - low <= _NEAR * scale).tolist())
    return FeatureReport(
      path=feature.path,
      name=feature.name,
      described=described,
      num_problems=self._problems[feature.path],
      num_nan=self._num_nan[number],
      low=None if low is None else float(np.fmin.reduce(low)),
      high=None if high is None else float(np.fmax.reduce(high)),
      num_values=0 if low is None else len(low),
      constant=constant,
    )
