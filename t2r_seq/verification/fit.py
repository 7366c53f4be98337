"""Whether a dataset is of the kind that an export was trained on: figures compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from t2r_seq import policies
from t2r_seq.statistics import Statistics
from t2r_seq.statistics.accumulators import FigureLayout
from t2r_seq.statistics.statistics import PathStatistics
from t2r_seq.verification.training_side import Dataset, Episode

# A mean this many standard deviations off, values this share out of range.
_FAR = 1.0
# Of fewer rows, such as goals of a few episodes, no spread is known.
_FEWEST = 5


class FitCheck:
  """Collects figures of what is replayed, and warns of what does not fit."""

  def __init__(
    self,
    dataset: Dataset,
    known: Statistics | None,
    record: policies.PolicyRecord | None,
  ) -> None:
    """Creates the check.

    Args:
      dataset: that is replayed.
      known: figures of the data that was trained on, if there are any.
      record: what the policy tells of itself.
    """
    self._dataset = dataset
    self._known = known
    self._record = record
    self._values: dict[str, list[np.ndarray]] = {}
    self._rows: dict[str, int] = {}

  def add(self, episode: Episode) -> None:
    """Takes the figures of an episode."""
    for path, values in episode.observed.items():
      if values.dtype.kind not in "fiub":
        continue
      rows = values[np.newaxis] if path in episode.context else values
      self._rows[path] = self._rows.get(path, 0) + len(rows)
      layout = FigureLayout(rows.shape[1:])
      wide = layout.to_columns(rows).astype(np.float64)
      finite = np.isfinite(wide)
      numbers = np.where(finite, wide, 0.0)
      figures = np.stack(
        [
          finite.sum(0).astype(np.float64),
          numbers.sum(0),
          (numbers**2).sum(0),
          np.where(finite, wide, np.inf).min(0),
          np.where(finite, wide, -np.inf).max(0),
          (~finite).sum(0).astype(np.float64),
        ]
      ).reshape([-1, *layout.shape])
      self._values.setdefault(path, []).append(figures)

  def warnings(self) -> list[str]:
    """Returns what does not fit; a sentence each."""
    found = [*self._period()]
    measured = {
      path: _Figures(rows, self._rows[path]) for path, rows in self._values.items()
    }
    known = {path: self._find(path) for path in measured}
    for path, figures in measured.items():
      found += _check(path, figures, known[path])
    found += self._swapped(measured, known)
    return found

  def _find(self, path: str) -> PathStatistics | None:
    if self._known is None:
      return None
    name = self._dataset.observed_spec[path].name
    stored = self._dataset.stored_spec(path).name
    paths = self._known.paths
    for key in (path, name, stored):
      if key in paths and paths[key].mean is not None:
        return paths[key]
    named = [s for s in paths.values() if s.spec.name == name and s.mean is not None]
    return named[0] if name is not None and len(named) == 1 else None

  def _period(self) -> list[str]:
    trained = None if self._record is None else self._record.control_period
    has = self._dataset.control_period
    if trained is None or has is None or abs(has / trained - 1) < 0.02:
      return []
    return [
      f"the dataset has a step every {1e3 * has:.4g} ms ({1 / has:.4g} Hz), and the "
      f"policy was trained on one every {1e3 * trained:.4g} ms ({1 / trained:.4g} Hz)"
    ]

  def _swapped(
    self, measured: dict[str, Any], known: dict[str, PathStatistics | None]
  ) -> list[str]:
    found = []
    paths = [path for path in measured if known[path] is not None]
    for i, one in enumerate(paths):
      for other in paths[i + 1 :]:
        a, b = measured[one], measured[other]
        if a.mean.shape != b.mean.shape:
          continue
        straight = _distance(a.mean, known[one]) + _distance(b.mean, known[other])
        crossed = _distance(a.mean, known[other]) + _distance(b.mean, known[one])
        if straight > 4 * crossed and straight > 0.2:
          found.append(
            f"{one} and {other} look swapped: their means are {straight:.3g} standard "
            f"deviations off the figures of training, and {crossed:.3g} the other way "
            "round"
          )
    return found


class _Figures:
  """Figures of all that was seen of a path."""

  def __init__(self, rows: list[np.ndarray], num_rows: int) -> None:
    self.num_rows = num_rows
    count = np.sum([row[0] for row in rows], 0)
    safe = np.maximum(count, 1)
    self.mean = np.sum([row[1] for row in rows], 0) / safe
    square = np.sum([row[2] for row in rows], 0) / safe
    self.std = np.sqrt(np.maximum(square - self.mean**2, 0))
    self.low = np.min([row[3] for row in rows], 0)
    self.high = np.max([row[4] for row in rows], 0)
    self.bad = int(np.sum([row[5] for row in rows]))


def _distance(mean: np.ndarray, known: PathStatistics | None) -> float:
  """Returns how many standard deviations a mean is off, at most."""
  if known is None or known.measure("mean").shape != mean.shape:
    return np.inf
  scale = np.maximum(known.measure("std"), 1e-6)
  return float(np.abs((mean - known.measure("mean")) / scale).max(initial=0.0))


def _check(path: str, figures: _Figures, known: PathStatistics | None) -> list[str]:
  found = []
  if figures.bad:
    found.append(f"{path}: {figures.bad} values are NaN or infinite")
  has_spread = figures.num_rows >= _FEWEST
  is_constant = (figures.low == figures.high) & has_spread
  if known is None:
    if is_constant.all() and figures.low.size:
      found.append(f"{path}: it is constant, {_short(figures.low)}")
    return found
  mean, std = known.measure("mean"), known.measure("std")
  least, most = known.measure("min"), known.measure("max")
  if std.shape != figures.mean.shape:
    got, want = figures.mean.shape, std.shape
    return [*found, f"{path}: the figures of training are of {want}, its own of {got}"]
  varied = is_constant & (std > 0)
  if varied.any():
    found.append(
      f"{path}: {_which(varied)} constant, {_short(figures.low[varied])}, and varied "
      f"in training with a standard deviation of {_short(std[varied])}"
    )
  margin = 0.01 * (most - least) + 1e-9
  outside = (figures.low < least - margin) | (figures.high > most + margin)
  if outside.any():
    found.append(
      f"{path}: {_which(outside)} outside of the range of training: "
      f"{_short(figures.low[outside])} ... {_short(figures.high[outside])}, where "
      f"training has {_short(least[outside])} ... {_short(most[outside])}"
    )
  is_color = figures.mean.shape == (3,) and known.per == "channel"
  straight = _distance(figures.mean, known)
  if is_color:
    crossed = _distance(figures.mean[::-1], known)
    if straight > 2 * crossed and straight > 0.1:
      found.append(
        f"{path}: its channels look swapped, BGR for RGB: the means are {straight:.3g} "
        f"standard deviations off those of training, turned around {crossed:.3g}"
      )
      return found
  off = np.abs(figures.mean - mean) > _FAR * np.maximum(std, 1e-6)
  off &= ~outside & ~varied & has_spread
  if off.any():
    found.append(
      f"{path}: {_which(off)} more than {_FAR:g} standard deviation off: the mean is "
      f"{_short(figures.mean[off])}, and was {_short(mean[off])} in training"
    )
  narrow = (figures.std < 0.05 * std) & ~varied & has_spread
  if narrow.any():
    found.append(
      f"{path}: {_which(narrow)} narrower than in training: a standard deviation of "
      f"{_short(figures.std[narrow])}, where training has {_short(std[narrow])}"
    )
  return found


def _which(mask: np.ndarray) -> str:
  where = np.argwhere(mask)
  if not mask.ndim or mask.all():
    return "it is" if not mask.ndim else "all elements are"
  listed = ", ".join(str(list(map(int, index))) for index in where[:5])
  return f"the elements {listed}{' ...' if len(where) > 5 else ''} are"


def _short(values: np.ndarray) -> str:
  flat = np.ravel(values)[:3]
  more = ", ..." if np.size(values) > 3 else ""
  shown = ", ".join(f"{value:.4g}" for value in flat)
  return f"[{shown}{more}]" if np.size(values) > 1 else shown
