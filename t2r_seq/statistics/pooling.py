"""Pools the statistics of several sources, weighted by the counts of their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from t2r_seq import errors
from t2r_seq.statistics.statistics import (
  COUNTS,
  QUANTILES,
  SKETCH,
  PathStatistics,
  Statistics,
)


def pool_statistics(parts: Sequence[Statistics]) -> Statistics:
  """Returns the statistics of all sources together.

  Counts, means, standard deviations, minima and maxima are those of all values.
  Quantiles are interpolated between the known quantiles of the sources.

  Args:
    parts: statistics of one or more sources, with the same paths and representations.
  Returns:
    The pooled statistics, without `lengths`; a single part is returned unchanged.
  Raises:
    SpecError: paths, specs, conventions or transforms differ; all are listed.
  """
  first, *others = parts
  if not others:
    return first
  problems = []
  for number, other in enumerate(others, 1):
    for path in {*first.paths, *other.paths}:
      sides = [each.paths.get(path) for each in (first, other)]
      want, got = (_representation(side) for side in sides)
      if want != got:
        problems.append(errors.Mismatch(f"{path} of file {number + 1}", want, got))
  if problems:
    raise errors.mismatch_error("pool statistics", problems)
  return dataclasses.replace(
    first,
    fingerprint={
      f"{number}/{name}": value
      for number, each in enumerate(parts)
      for name, value in each.fingerprint.items()
    },
    num_items=sum(each.num_items for each in parts),
    lengths=None,
    paths={path: _pool([each.paths[path] for each in parts]) for path in first.paths},
  )


def _representation(measured: PathStatistics | None) -> str:
  if measured is None:
    return "nothing"
  spec, transform = measured.spec, measured.transform
  parts = [errors.describe(spec), transform and f"after {transform}"]
  parts.append(f"of {spec.convention}" if spec.convention else "")
  return " ".join(filter(None, parts))


def _pool(parts: list[PathStatistics]) -> PathStatistics:
  first, rows = parts[0], sum(part.rows for part in parts)
  if any(part.count is None for part in parts):
    return dataclasses.replace(first, rows=rows)
  counts = np.stack([part.measure("count") for part in parts])
  total = np.maximum(counts.sum(0), 1)
  # A part without values has NaN.
  means, stds = (np.stack([p.measure(n) for p in parts]) for n in ("mean", "std"))
  means, stds = np.where(counts, means, 0), np.where(counts, stds, 0)
  mean = (counts * means).sum(0) / total
  variance = (counts * (stds**2 + (means - mean) ** 2)).sum(0) / total
  stacked = {n: np.stack([getattr(p, n) for p in parts]) for n in ("min", "max")}
  return dataclasses.replace(
    first,
    rows=rows,
    mean=np.where(counts.sum(0), mean, np.nan),
    std=np.where(counts.sum(0), np.sqrt(variance), np.nan),
    min=np.fmin.reduce(stacked["min"]),
    max=np.fmax.reduce(stacked["max"]),
    quantiles=_pool_quantiles(parts, counts),
    method=SKETCH,
    rank_error=1.0,  # Interpolation has no bound.
    **{name: sum(getattr(part, name) for part in parts) for name in COUNTS},
  )


def _pool_quantiles(
  parts: list[PathStatistics], counts: np.ndarray
) -> dict[float, np.ndarray]:
  """Inverts the mean of the parts' distribution functions, weighted by count.

  Each is linear between its quantiles, and jumps at equal ones, as those of a constant.
  """
  fractions = np.array([0.0, *QUANTILES, 1.0])
  of_parts = np.stack(
    [
      [p.measure("min"), *(p.quantiles[q] for q in QUANTILES), p.measure("max")]
      for p in parts
    ]
  )
  shape = counts.shape[1:]
  of_parts = of_parts.reshape(len(parts), len(fractions), -1)
  weights = counts.reshape(len(parts), -1)
  quantiles = np.full((len(QUANTILES), of_parts.shape[2]), np.nan)
  for element in range(of_parts.shape[2]):
    has = weights[:, element] > 0
    values = of_parts[has, :, element]
    grid = np.unique(values)
    if not len(grid):
      continue
    share = weights[has, element] / weights[:, element].sum()
    # `interp` takes the last of equal quantiles, and of negated ones the first: the two
    # ends of a jump.
    low = [np.interp(-grid, -row[::-1], fractions[::-1]) for row in values]
    high = [np.interp(grid, row, fractions) for row in values]
    ends = np.stack([share @ np.stack(low), share @ np.stack(high)], 1)
    quantiles[:, element] = np.interp(QUANTILES, ends.ravel(), np.repeat(grid, 2))
  return {q: row.reshape(shape) for q, row in zip(QUANTILES, quantiles, strict=True)}
