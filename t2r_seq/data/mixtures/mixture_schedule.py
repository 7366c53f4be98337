"""How many examples of each source are in which batch of a mixture: a function."""

from __future__ import annotations

import dataclasses
import fractions
import math
from collections.abc import Sequence

import numpy as np

from t2r_seq import errors

# Batches after which a schedule begins anew. Shares that don't come out even by then
# are rounded to one example in a whole period.
_MAX_PERIOD = 4096
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclasses.dataclass(frozen=True)
class MixtureSchedule:
  """The counts of every batch; they repeat after a period.

  Attributes:
    counts: int64 [P, S], examples of each source in each batch of a period.
  """

  counts: np.ndarray

  @property
  def period(self) -> int:
    """Batches after which the counts repeat."""
    return len(self.counts)

  @property
  def shares(self) -> np.ndarray:
    """The part of all examples that comes from each source, float64 [S]."""
    return self.counts.sum(axis=0) / self.counts.sum()

  def given(self, batch: int) -> np.ndarray:
    """Returns how many examples of each source came in the batches before.

    Args:
      batch: its number, from 0.
    Returns:
      int64 [S].
    """
    periods, rest = divmod(batch, self.period)
    return periods * self.counts.sum(axis=0) + self.counts[:rest].sum(axis=0)

  def counts_from(self, batch: int) -> np.ndarray:
    """Returns the counts of a period that begins at a batch, int64 [P, S]."""
    return np.roll(self.counts, -(batch % self.period), axis=0)


def make_schedule(
  weights: Sequence[float], batch_size: int, seed: int
) -> MixtureSchedule:
  """Plans batches that hold the sources in proportion to their weights.

  A batch of B holds B times its share of each source, rounded up or down. Who gets
  the places that are left by rounding down goes round, so that after a period the
  sums are exact, and so that they are nearly so at any time.

  Args:
    weights: one a source, above 0; their scale is of no account.
    batch_size: B.
    seed: of where in the round the first batch is.
  Returns:
    The schedule.
  Raises:
    SpecError: a weight is too small to get one example in the longest period.
  """
  # As they are written: 0.1 is a tenth here, and not the nearest binary fraction.
  exact = [fractions.Fraction(repr(weight)) for weight in weights]
  quotas = [batch_size * weight / sum(exact) for weight in exact]
  period = min(math.lcm(*(quota.denominator for quota in quotas)), _MAX_PERIOD)
  totals = _largest_remainders([quota * period for quota in quotas])
  if not all(totals):
    lost = [weight for weight, total in zip(weights, totals, strict=True) if not total]
    raise errors.SpecError(
      f"mixture: weights: expected a share that gives one example in {period} batches "
      f"of {batch_size}, got {lost[0]} of {float(sum(exact)):g}. Leave the source out, "
      "or give it more."
    )
  base, extras = np.divmod(np.array(totals, np.int64), period)
  # The sources' extra places stand one after the other on a ring of P batches, which
  # therefore all have equally many. Going round it in golden steps spreads them.
  ends = np.cumsum(extras)
  phase = np.random.default_rng([seed, 0]).integers(period)
  places = (
    np.arange(period) * _coprime_near(_GOLDEN * period, period) + phase
  ) % period
  after_start = (places[:, np.newaxis] - (ends - extras)) % period
  return MixtureSchedule(base + (after_start < extras).astype(np.int64))


def _largest_remainders(quotas: Sequence[fractions.Fraction]) -> list[int]:
  """Rounds to integers of the same sum, up where the remainder is largest."""
  rounded = [math.floor(quota) for quota in quotas]
  missing = int(sum(quotas)) - sum(rounded)
  by_remainder = sorted(
    range(len(quotas)), key=lambda i: quotas[i] - rounded[i], reverse=True
  )
  for i in by_remainder[:missing]:
    rounded[i] += 1
  return rounded


def _coprime_near(target: float, number: int) -> int:
  candidates = sorted(range(1, number + 1), key=lambda step: abs(step - target))
  return next(step for step in candidates if math.gcd(step, number) == 1)
