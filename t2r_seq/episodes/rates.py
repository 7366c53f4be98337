"""The control period of a data set: from its metadata, or measured from time stamps."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.episodes.episodes import Values, steps_spec
from t2r_seq.episodes.views import Episodes, View
from t2r_seq.specs.seconds import check_stamps
from t2r_seq.stamps import NANOSECONDS, to_nanoseconds


def control_period(metadata: Mapping[str, Any]) -> float | None:
  """Returns seconds from a step to the next one, if the metadata have them."""
  lerobot = metadata.get("lerobot")
  fps = lerobot.get("fps") if isinstance(lerobot, dict) else metadata.get("fps")
  if not isinstance(fps, (int, float)) or isinstance(fps, bool) or not fps > 0:
    return None
  return 1.0 / fps


def measured_period(episodes: Episodes) -> float | None:
  """Returns the control period; measured if it is unknown and values have clocks."""
  period = control_period(episodes.metadata)
  clock = default_clock(episodes.metadata, episodes.spec)
  if period is not None or not episodes.clocks or not isinstance(clock, str):
    return period
  return _period_of(episodes, clock)


def value_periods(episodes: Episodes) -> dict[str, float]:
  """Returns seconds between values on other clocks than the steps', by path."""
  periods = {c: _period_of(episodes, c) for c in {*episodes.clocks.values()}}
  by_path = {path: periods[clock] for path, clock in episodes.clocks.items()}
  return {path: period for path, period in by_path.items() if period}


def _period_of(episodes: Episodes, clock: str) -> float | None:
  """Returns the median interval of a clock in one of the first episodes, or None."""
  for number in range(min(episodes.num_episodes or 0, _RATE_EPISODES)):
    gaps = np.diff(to_nanoseconds(np.ravel(episodes.read(number, [clock])[clock])))
    if len(gaps) and np.median(gaps) > 0:
      return float(np.median(gaps)) / NANOSECONDS
  return None


def default_clock(
  metadata: Mapping[str, Any], stored: Mapping[str, Any]
) -> str | float | None:
  """Returns the clock of a data set's steps, as `windows.Cut.clock`.

  That is its only per-step path of time stamps (floats of seconds, or integers of
  nanoseconds named '_ns'). Without any such path: the only sequence below `clocks/`.
  Otherwise: the control period, or None.

  Args:
    metadata: metadata of the data set.
    stored: its specs by path.
  """
  paths = [path for path, spec in stored.items() if _is_clock(path, spec)]
  if not paths:
    # Below `clocks/` only the steps' own clock is a sequence: it has a stamp per step.
    paths = [p for p, s in stored.items() if p.startswith(CLOCKS) and s.is_sequence]
  return paths[0] if len(paths) == 1 else control_period(metadata)


def _is_clock(path: str, spec: specs.ExtendedTensorSpec) -> bool:
  name = path.lower()
  if not specs.names.is_time(path) or path.startswith(CLOCKS):
    return False
  if not spec.is_sequence and spec.time_offsets is None:
    return False
  is_float = spec.dtype.is_floating and not name.endswith(("_ms", "_us", "_ns"))
  is_integer = spec.dtype.is_integer and name.endswith("_ns")
  return spec.frame_shape.num_elements() == 1 and (is_float or is_integer)


class Resampled(View):
  """Values on other clocks as values of the steps, for formats of one clock."""

  def __init__(self, base: Episodes, select: str) -> None:
    """Finds the clock of the steps.

    Args:
      base: the data set.
      select: 'hold' shows the last value up to a step, 'nearest' the nearest one. Steps
        before the first value show the first value.
    Raises:
      SpecError: `select` is another word, or the steps have no time stamps.
    """
    self._select, self._clocks = select, dict(base.clocks)
    self._clock = default_clock(base.metadata, base.spec)
    if select not in ("hold", "nearest"):
      raise errors.SpecError(f"resample: expected 'hold' or 'nearest', got {select!r}.")
    if self._clocks and not isinstance(self._clock, str):
      raise errors.SpecError(
        f"resample: {base.path}: expected one path of time stamps of the steps, got "
        f"{self._clock!r}. Keep it, or drop {errors.listing(self._clocks)}."
      )
    spec = {
      path: steps_spec(leaf) if path in self._clocks else leaf
      for path, leaf in base.spec.items()
    }
    super().__init__(base, spec)
    self.clocks = {}

  def _wrap(self, base: Episodes) -> Episodes:
    return Resampled(base, self._select)

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    """Reads the whole episode, and returns the requested steps."""
    del out
    names = list(self.spec if paths is None else paths)
    clocks = {self._clocks[path] for path in names if path in self._clocks}
    clocks |= {str(self._clock)} if self._clocks else set()
    values = self._base.read(episode, [*dict.fromkeys([*names, *clocks])])
    changed = self._change(values, self._base.place(episode))
    return {
      path: array[start:stop] if self.spec[path].is_sequence else array
      for path, array in changed.items()
      if path in names
    }

  def _change(self, values: Values, place: str) -> Values:
    if not self._clocks:
      return values
    for clock in dict.fromkeys([str(self._clock), *self._clocks.values()]):
      if clock in values:
        check_stamps(f"resample: {place}: {clock}", values[clock])
    steps = to_nanoseconds(np.ravel(values[str(self._clock)]))
    changed = {**values}
    for path, clock in self._clocks.items():
      if path in values:
        stamps = to_nanoseconds(np.ravel(values[clock]))
        rows = np.maximum(np.searchsorted(stamps, steps, "right") - 1, 0)
        if self._select == "nearest":
          later = np.minimum(rows + 1, len(stamps) - 1)
          is_later = np.abs(stamps[later] - steps) < np.abs(steps - stamps[rows])
          rows = np.where(is_later, later, rows)
        changed[path] = values[path][rows]
    return changed


# Largest relative difference of a user's rate from metadata (30 for 29.97) and clocks.
_RATE_SLACK, _CLOCK_SLACK = 0.01, 0.1
# Possible units of time stamps, in parts of a second; the most likely first.
_UNITS = (1.0, 1e3, 1e6, 1e9)
_LEAST_RATE, _MOST_RATE = 0.5, 1000.0
# Episodes to measure a rate in; the first one may have a single step.
_RATE_EPISODES = 3
CLOCKS = "clocks/"


def check_rate(operation: str, source: Episodes, fps: float) -> None:
  """Checks that the data has the rate `fps`: nothing is resampled.

  The data has its rate in the metadata, or in time stamps, such as those of `clocks/`;
  if it has neither, any rate is accepted.

  Raises:
    ConversionError: the data has another rate.
  """
  period = control_period(source.metadata)
  declared = [] if period is None else [(1 / period, "its metadata have", _RATE_SLACK)]
  declared += [
    (rate, f"the time stamps of {path} have", _CLOCK_SLACK)
    for path, rates in _measured_rates(source).items()
    for rate in rates
  ]
  if not declared or any(abs(fps / rate - 1) <= slack for rate, _, slack in declared):
    return
  rate, origin, _ = declared[0]
  raise errors.ConversionError(
    f"{operation}: fps: expected {rate:.4g} steps per second, as {origin}, got {fps:g}."
    " fps names the rate of the data and does not resample them. Leave it out, or name "
    f"the right one: --fps {rate:.4g}. To train at a lower rate, choose steps by "
    "time_offsets and stride."
  )


def _measured_rates(source: Episodes) -> dict[str, list[float]]:
  """Returns steps per second by path of time stamps, in each unit they may have."""
  timed = [
    path
    for path, leaf in source.spec.items()
    if leaf.is_sequence
    and (leaf.dtype.is_integer or leaf.dtype.is_floating)
    and leaf.shape.num_elements() == 1
    and (path.startswith(CLOCKS) or specs.names.is_time(path))
  ]
  if not timed:
    return {}
  periods = {}
  for episode in itertools.islice(source, _RATE_EPISODES):
    values = episode.values
    for path in timed:
      if path in values and path not in periods:
        steps = np.diff(np.ravel(values[path]).astype(np.float64))
        # A topic that is slower than the steps repeats its stamp.
        if len(steps) and np.isfinite(steps).all() and np.median(steps) > 0:
          periods[path] = float(np.median(steps))
  clocks = {path: period for path, period in periods.items() if path.startswith(CLOCKS)}
  if clocks:
    # The fastest clock is that of the steps; its stamps are nanoseconds.
    path = min(clocks, key=clocks.__getitem__)
    return {path: [_UNITS[-1] / clocks[path]]}
  return {
    path: [
      unit / period for unit in _UNITS if _LEAST_RATE <= unit / period <= _MOST_RATE
    ]
    for path, period in periods.items()
  }
