"""The figures of one path."""

from __future__ import annotations

import dataclasses

import numpy as np

from t2r_seq import errors, specs

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
NUMBERS, BYTES, UNSUPPORTED = "numbers", "bytes", "unsupported"
HISTOGRAM, SKETCH = "histogram", "sketch"


@dataclasses.dataclass(frozen=True)
class PathStatistics:
  """What is known of the values of one path.

  Figures are of finite values only; those that are not are counted.

  Attributes:
    spec: of one step, without time offsets.
    kind: 'numbers'; 'bytes' (strings, images that were not decoded) and 'unsupported'
      (complex numbers) are only counted.
    rows: steps, or episodes for a path with a value for each episode.
    per: 'element', 'channel' or 'tensor'; '' where there are no figures.
    count: finite values, int64; its shape is that of all figures: the spec's last axes.
    nan: NaNs, int64.
    posinf: positive infinities, int64.
    neginf: negative infinities, int64.
    mean: float64; NaN where the count is 0, here and below.
    std: standard deviation of the values (numpy's ddof=0), float64.
    min: float64.
    max: float64.
    quantiles: by fraction: 0.01, 0.1, 0.5, 0.9, 0.99; values that occur, float64.
    method: of the quantiles: 'histogram' (exact) or 'sketch'.
    rank_error: how far the rank of a quantile may be off, as a fraction of the count.
  """

  spec: specs.ExtendedTensorSpec
  kind: str
  rows: int
  per: str = ""
  count: np.ndarray | None = None
  nan: np.ndarray | None = None
  posinf: np.ndarray | None = None
  neginf: np.ndarray | None = None
  mean: np.ndarray | None = None
  std: np.ndarray | None = None
  min: np.ndarray | None = None
  max: np.ndarray | None = None
  quantiles: dict[float, np.ndarray] = dataclasses.field(default_factory=dict)
  method: str = ""
  rank_error: float = 0.0

  def measure(self, name: str) -> np.ndarray:
    """Returns one of `MEASURES`.

    Raises:
      SpecError: the values were only counted.
    """
    found: np.ndarray | None = getattr(self, name)
    if found is None:
      raise errors.SpecError(
        f"statistics: {errors.describe(self.spec)}: expected a path with a {name}, got "
        f"one of {self.kind}, which are only counted."
      )
    return found

  def check(self) -> None:
    """Checks that the figures can be those of the spec; they may come from a file.

    Raises:
      ValueError: they have not one shape, or not that of the spec's last axes; or a
        count or a standard deviation is negative, or a minimum above the maximum.
    """
    if self.count is None:
      return
    shape, wanted = self.count.shape, self.spec.shape
    if len(shape) > wanted.rank or not wanted[wanted.rank - len(shape) :] == shape:
      raise ValueError(f"expected figures of {errors.describe(self.spec)}, got {shape}")
    figures = {name: getattr(self, name) for name in (*COUNTS, *MEASURES)}
    figures |= {f"quantile {q}": values for q, values in self.quantiles.items()}
    for name, values in figures.items():
      if values.shape != shape:
        raise ValueError(f"{name}: expected {shape} numbers, got {values.shape}")
    for name in (*COUNTS, "std"):
      if np.any(figures[name] < 0):
        raise ValueError(f"{name}: expected none below 0, got {figures[name].tolist()}")
    if np.any(figures["min"] > figures["max"]):
      raise ValueError(f"min: expected none above max, got {figures['min'].tolist()}")

  @property
  def num_not_finite(self) -> int:
    """NaNs and infinities of all elements."""
    counts = (self.nan, self.posinf, self.neginf)
    return sum(int(count.sum()) for count in counts if count is not None)


COUNTS = ("count", "nan", "posinf", "neginf")
MEASURES = ("mean", "std", "min", "max")
