"""How long the episodes are: counted exactly, one number for each length."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np

from t2r_seq.statistics.figures import QUANTILES

_MAX_BINS = 20


@dataclasses.dataclass(frozen=True)
class LengthStatistics:
  """The lengths of episodes, in steps; all exact.

  Attributes:
    num_episodes: how many episodes.
    num_steps: steps of all of them.
    min: of the shortest.
    max: of the longest.
    mean: steps of an episode.
    quantiles: lengths by fraction: 0.01, 0.1, 0.5, 0.9, 0.99.
    edges: bins of the histogram: bin i counts lengths in [edges[i], edges[i + 1]).
    counts: episodes in each bin.
  """

  num_episodes: int
  num_steps: int
  min: int
  max: int
  mean: float
  quantiles: dict[float, int]
  edges: tuple[int, ...]
  counts: tuple[int, ...]


class LengthCounter:
  """Counts episodes by their length."""

  def __init__(self) -> None:
    """Creates an empty counter."""
    self._counts: collections.Counter[int] = collections.Counter()

  def add(self, num_steps: int) -> None:
    """Counts an episode."""
    self._counts[num_steps] += 1

  def merge(self, other: LengthCounter) -> None:
    """Takes in the episodes of another counter."""
    self._counts.update(other._counts)

  def finish(self) -> LengthStatistics | None:
    """Returns the statistics; None if there were no episodes."""
    if not self._counts:
      return None
    lengths, counts = self.to_arrays()["counts"]
    ranks = np.cumsum(counts)
    total, steps = int(ranks[-1]), int(lengths @ counts)
    wanted = np.ceil(np.asarray(QUANTILES) * total).clip(1)
    quantiles = lengths[np.searchsorted(ranks, wanted)].tolist()
    low, high = int(lengths[0]), int(lengths[-1])
    width = -(-(high - low + 1) // _MAX_BINS)
    edges = np.arange(low, high + width + 1, width)
    bins, _ = np.histogram(lengths, edges, weights=counts)
    return LengthStatistics(
      num_episodes=total,
      num_steps=steps,
      min=low,
      max=high,
      mean=steps / total,
      quantiles=dict(zip(QUANTILES, quantiles, strict=True)),
      edges=tuple(edges.tolist()),
      counts=tuple(int(count) for count in bins),
    )

  def to_arrays(self) -> dict[str, np.ndarray]:
    """Returns the state: lengths, sorted, over their counts, int64 [2, n]."""
    pairs = sorted(self._counts.items())
    return {"counts": np.asarray(pairs, np.int64).reshape(-1, 2).T}

  @classmethod
  def from_arrays(cls, arrays: dict[str, np.ndarray]) -> LengthCounter:
    """Restores what `to_arrays` gave."""
    counter = cls()
    counter._counts.update(dict(arrays["counts"].T.tolist()))
    return counter
