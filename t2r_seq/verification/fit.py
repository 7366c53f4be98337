"""Warns if a dataset does not fit the statistics of the training data."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.policies.policy_model import PolicyRecord
from t2r_seq.statistics.accumulators import Accumulator, create_accumulator
from t2r_seq.statistics.statistics import PathStatistics, Statistics
from t2r_seq.verification.training_side import Dataset, Episode

# A mean this many standard deviations off is a warning.
_FAR = 1.0
# With fewer rows, such as the goals of a few episodes, the spread is unknown.
_FEWEST = 5
# Statistics of an element that are compared with training's.
_COMPARED = ("mean", "std", "min", "max")
# Fewer episodes do not show a swap: one scene may have another light.
_FEWEST_EPISODES = 3


class FitCheck:
  """Collects statistics of replayed episodes, and compares them with training's."""

  def __init__(
    self, dataset: Dataset, trained: Statistics | None, record: PolicyRecord | None
  ) -> None:
    """Creates the check; `trained` are the statistics of the training data."""
    self._dataset = dataset
    self._trained = trained
    self._record = record
    self._seen: dict[str, Accumulator] = {}
    self._means: dict[str, list[np.ndarray]] = {}  # Means of the episodes, by path.

  def add(self, episode: Episode) -> None:
    """Adds the statistics of an episode."""
    for path, values in episode.observed.items():
      if values.dtype.kind not in "fiub" or path not in self._dataset.observed_spec:
        continue
      rows = values[np.newaxis] if path in episode.context else values
      if path not in self._seen:
        spec = specs.ExtendedTensorSpec(rows.shape[1:], tf.as_dtype(rows.dtype))
        self._seen[path] = create_accumulator(spec, is_counted=False)
      self._seen[path].add(rows)
      means = self._means.setdefault(path, [])
      trained = self._find(path)
      if trained is not None and len(rows):
        axes = tuple(range(rows.ndim - trained.measure("mean").ndim))
        means.append(rows.mean(axes))

  def warnings(self) -> list[str]:
    """Returns a sentence for each mismatch of the episodes added so far."""
    warnings = [*self._period()]
    measured = {path: seen.finish() for path, seen in self._seen.items()}
    trained = {path: self._find(path) for path in measured}
    for path, seen in measured.items():
      warnings += _check(path, seen, trained[path], self._are_bgr(path, trained[path]))
    warnings += self._find_swapped(measured, trained)
    return warnings

  def _find(self, path: str) -> PathStatistics | None:
    if self._trained is None:
      return None
    name = self._dataset.observed_spec[path].name
    stored = self._dataset.stored_spec(path).name
    # Replayed values are raw: statistics of transformed values do not apply.
    paths = {path: s for path, s in self._trained.paths.items() if not s.transform}
    for key in (path, name, stored):
      if key in paths and paths[key].mean is not None:
        return paths[key]
    named = [s for s in paths.values() if s.spec.name == name and s.mean is not None]
    return named[0] if name is not None and len(named) == 1 else None

  def _are_bgr(self, path: str, trained: PathStatistics | None) -> bool:
    """Whether every episode has the colors of training in reverse order."""
    means = self._means.get(path, [])
    return len(means) >= _FEWEST_EPISODES and all(
      _distance(mean, trained) > 2 * _distance(mean[::-1], trained) for mean in means
    )

  def _are_crossed(self, one: str, other: str, trained: Any) -> bool:
    """Whether the two paths are swapped in every episode."""
    pairs = [*zip(self._means[one], self._means[other], strict=True)]
    return len(pairs) >= _FEWEST_EPISODES and all(
      _distance(a, trained[one]) + _distance(b, trained[other])
      > 2 * (_distance(a, trained[other]) + _distance(b, trained[one]))
      for a, b in pairs
    )

  def _period(self) -> list[str]:
    trained = None if self._record is None else self._record.control_period
    period = self._dataset.control_period
    offsets = [spec.time_offsets for spec in self._dataset.trained_spec.values()]
    by_steps = [each for each in offsets if not isinstance(each, specs.Seconds)]
    if len(by_steps) < len(offsets) and all(x in (None, 0, "last") for x in by_steps):
      return []  # Times in seconds are the same at any rate.
    if trained is None or period is None or abs(period / trained - 1) < 0.02:
      return []
    return [
      f"the dataset has a step every {1e3 * period:.4g} ms ({1 / period:.4g} Hz), and "
      f"the policy was trained on one every {1e3 * trained:.4g} ms "
      f"({1 / trained:.4g} Hz)"
    ]

  def _find_swapped(
    self, measured: dict[str, PathStatistics], trained: dict[str, PathStatistics | None]
  ) -> list[str]:
    swapped = []
    paths = [path for path in measured if trained[path] is not None]
    for i, one in enumerate(paths):
      for other in paths[i + 1 :]:
        a, b = measured[one].measure("mean"), measured[other].measure("mean")
        if a.shape != b.shape:
          continue
        straight = _distance(a, trained[one]) + _distance(b, trained[other])
        crossed = _distance(a, trained[other]) + _distance(b, trained[one])
        is_clear = straight > 4 * crossed and straight > 0.2
        if is_clear and self._are_crossed(one, other, trained):
          swapped.append(
            f"{one} and {other} look swapped: their means are {straight:.3g} standard "
            f"deviations off the training statistics, and {crossed:.3g} the other way "
            "round"
          )
    return swapped


def _distance(mean: np.ndarray, trained: PathStatistics | None) -> float:
  """Returns the largest distance of a mean, in training's standard deviations."""
  if trained is None or trained.measure("mean").shape != mean.shape:
    return np.inf
  scale = np.maximum(trained.measure("std"), 1e-6)
  return float(np.abs((mean - trained.measure("mean")) / scale).max(initial=0.0))


def _check(
  path: str, seen: PathStatistics, trained: PathStatistics | None, are_bgr: bool
) -> list[str]:
  warnings = []
  if seen.num_not_finite:
    warnings.append(f"{path}: {seen.num_not_finite} values are NaN or infinite")
  own_mean, own_std, low, high = map(seen.measure, _COMPARED)
  has_spread = seen.rows >= _FEWEST
  is_constant = (low == high) & has_spread
  if trained is None:
    if is_constant.all() and low.size:
      warnings.append(f"{path}: it is constant, {_short(low)}")
    return warnings
  mean, std, least, most = map(trained.measure, _COMPARED)
  if std.shape != own_mean.shape:
    got, want = own_mean.shape, std.shape
    warnings.append(f"{path}: training's statistics are {want}, the dataset's {got}")
    return warnings

  def warn(mask: np.ndarray, text: str, *values: np.ndarray) -> None:
    """Adds a warning about some elements; the text has a place for each value."""
    if mask.any():
      message = text.format(*(_short(value[mask]) for value in values))
      warnings.append(f"{path}: {_which(mask)} {message}")

  varied = is_constant & (std > 0)
  warn(
    varied,
    "constant, {}, and varied in training with a standard deviation of {}",
    low,
    std,
  )
  margin = 0.01 * (most - least) + 1e-9
  outside = (low < least - margin) | (high > most + margin)
  warn(
    outside,
    "outside of the range of training: {} ... {}, where training has {} ... {}",
    low,
    high,
    least,
    most,
  )
  if own_mean.shape == (3,) and trained.per == "channel" and are_bgr:
    straight, crossed = _distance(own_mean, trained), _distance(own_mean[::-1], trained)
    if straight > 2 * crossed and straight > 0.1:
      warnings.append(
        f"{path}: its channels look swapped, BGR for RGB: the means are {straight:.3g} "
        f"standard deviations off those of training, turned around {crossed:.3g}"
      )
      return warnings
  off = np.abs(own_mean - mean) > _FAR * np.maximum(std, 1e-6)
  warn(
    off & ~outside & ~varied & has_spread,
    f"more than {_FAR:g} standard deviation off: the mean is {{}}, and was {{}} in "
    "training",
    own_mean,
    mean,
  )
  warn(
    (own_std < 0.05 * std) & ~varied & has_spread,
    "narrower than in training: a standard deviation of {}, where training has {}",
    own_std,
    std,
  )
  return warnings


def _which(mask: np.ndarray) -> str:
  where = np.argwhere(mask)
  if not mask.ndim or mask.all():
    return "it is" if not mask.ndim else "all elements are"
  listed = ", ".join(str(list(map(int, index))) for index in where[:5])
  return f"the elements {listed}{' ...' if len(where) > 5 else ''} are"


def _short(values: np.ndarray) -> str:
  flat = np.ravel(values)[:3]
  more = ", ..." if np.size(values) > 3 else ""
  text = ", ".join(f"{value:.4g}" for value in flat)
  return f"[{text}{more}]" if np.size(values) > 1 else text
