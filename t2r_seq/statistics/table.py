"""Statistics as tables for people."""

from __future__ import annotations

from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.statistics import figures
from t2r_seq.statistics.figures import PathStatistics
from t2r_seq.statistics.lengths import LengthStatistics
from t2r_seq.statistics.statistics import Statistics

HEADER = ("path", "one step", "rows", "mean", "std", "min", "1 %", "50 %", "99 %",
          "max", "rank error")  # fmt: skip
_MAX_NOTED = 8


def table_rows(statistics: Statistics, elements: bool = False) -> list[list[str]]:
  """Returns the cells under `HEADER`.

  Args:
    statistics: of a source.
    elements: a line for each element; otherwise one for each path, with the span of
      its elements.
  Returns:
    Rows of texts, by path.
  """
  rows = []
  for path, found in statistics.paths.items():
    if elements and found.count is not None and found.count.ndim:
      for index in np.ndindex(found.count.shape):
        name = f"{path}[{', '.join(map(str, index))}]"
        rows.append(_row(name, found, index))
    else:
      rows.append(_row(path, found, ...))
  return rows


def describe_lengths(lengths: LengthStatistics) -> str:
  """Says in a line how long the episodes are."""
  shown = ", ".join(f"{100 * q:g} %: {n}" for q, n in lengths.quantiles.items())
  return (
    f"{lengths.num_episodes} episodes of {lengths.min} to {lengths.max} steps, mean "
    f"{lengths.mean:.4g}, {lengths.num_steps} in all ({shown})"
  )


def describe_problems(statistics: Statistics) -> list[str]:
  """Says what normalisation should know: values that are not finite, and constants."""
  lines = []
  for path, found in statistics.paths.items():
    if found.kind == figures.BYTES:
      lines.append(f"{path}: bytes, counted only.")
    elif found.kind == figures.UNSUPPORTED:
      lines.append(f"{path}: {found.spec.dtype.name}, counted only.")
    if found.num_not_finite:
      lines.append(f"{path}: {_not_finite(found)}. They are in none of the figures.")
    if found.count is not None and not np.all(found.count):
      lines.append(f"{path}: no finite value {_where(found.count == 0)}.")
    if found.std is not None and np.any(found.std == 0):
      lines.append(f"{path}: constant {_where(found.std == 0)}.")
  return lines


def _row(name: str, found: PathStatistics, index: Any) -> list[str]:
  step = errors.describe(found.spec)
  if found.mean is None:
    return [name, step, str(found.rows), *[""] * 8]
  quantiles = [found.quantiles[q] for q in (0.01, 0.5, 0.99)]
  figures_of_path = (found.mean, found.std, found.min, *quantiles, found.max)
  exact = found.rank_error == 0
  return [
    name,
    f"{step} per {found.per}",
    str(found.rows),
    *(_span(np.asarray(numbers)[index]) for numbers in figures_of_path),
    "exact" if exact else f"{100 * found.rank_error:.2g} %",
  ]


def _span(numbers: Any) -> str:
  if not np.size(numbers) or np.all(np.isnan(numbers)):
    return "-"
  low, high = np.nanmin(numbers), np.nanmax(numbers)
  return f"{low:.4g}" if low == high else f"{low:.4g}..{high:.4g}"


def _not_finite(found: PathStatistics) -> str:
  kinds = {"NaN": found.nan, "+inf": found.posinf, "-inf": found.neginf}
  return ", ".join(
    f"{int(count.sum())} {name} {_where(count > 0)}"
    for name, count in kinds.items()
    if count is not None and count.any()
  )


def _where(mask: np.ndarray) -> str:
  """Names the elements of a mask; nothing where there is only one figure."""
  if not mask.ndim:
    return "throughout"
  found = np.argwhere(mask)
  indices = found[:, 0].tolist() if mask.ndim == 1 else found.tolist()
  more = f" and {len(indices) - _MAX_NOTED} more" if len(indices) > _MAX_NOTED else ""
  shown = ", ".join(str(index) for index in indices[:_MAX_NOTED])
  return f"in element{'' if len(indices) == 1 else 's'} {shown}{more}"
