"""The control period of a data set: from its metadata, or measured from time stamps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.episodes.views import Episodes


def control_period(metadata: Mapping[str, Any]) -> float | None:
  """Returns seconds from a step to the next one, if the metadata have them."""
  known = metadata.get("lerobot")
  fps = known.get("fps") if isinstance(known, dict) else metadata.get("fps")
  if not isinstance(fps, (int, float)) or isinstance(fps, bool) or not fps > 0:
    return None
  return 1.0 / fps


def default_clock(
  metadata: Mapping[str, Any], stored: Mapping[str, Any]
) -> str | float | None:
  """Returns what times the steps of a data set, as `windows.Cut.clock`.

  That is its only path of time stamps in seconds or nanoseconds, or else its control
  period; None if it has neither.

  Args:
    metadata: of the data set.
    stored: its specs by path.
  """
  paths = [path for path, spec in stored.items() if _is_clock(path, spec)]
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


# Relative differences of a user's rate from metadata (30 for 29.97) and from clocks.
_RATE_SLACK, _CLOCK_SLACK = 0.01, 0.1
# Parts of a second that time stamps may be in, the likeliest first.
_UNITS = (1.0, 1e3, 1e6, 1e9)
_LEAST_RATE, _MOST_RATE = 0.5, 1000.0
# Episodes that are read for it, as the first may have one step.
_RATE_EPISODES = 3
CLOCKS = "clocks/"


def check_rate(operation: str, source: Episodes, fps: float) -> None:
  """Checks that steps a second are those of the data: nothing is resampled.

  The data has its rate in the metadata, or as time stamps, such as those of `clocks/`;
  if it has neither, any rate is right.
  """
  period = control_period(source.metadata)
  known = [] if period is None else [(1 / period, "its metadata have", _RATE_SLACK)]
  known += [
    (rate, f"the time stamps of {path} have", _CLOCK_SLACK)
    for path, rates in _measured_rates(source).items()
    for rate in rates
  ]
  if not known or any(abs(fps / rate - 1) <= slack for rate, _, slack in known):
    return
  rate, origin, _ = known[0]
  raise errors.ConversionError(
    f"{operation}: fps: expected {rate:.4g} steps a second, as {origin}, got {fps:g}: "
    "fps names the rate of the data and does not resample them. Leave it out, or name "
    f"the right one: --fps {rate:.4g}. To train at a lower rate, choose steps by "
    "time_offsets and stride."
  )


def _measured_rates(source: Episodes) -> dict[str, list[float]]:
  """Returns steps a second by path of time stamps, in each unit that they may have."""
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
    # The fastest is that of the steps. Nanoseconds.
    path = min(clocks, key=clocks.__getitem__)
    return {path: [_UNITS[-1] / clocks[path]]}
  return {
    path: [
      unit / period for unit in _UNITS if _LEAST_RATE <= unit / period <= _MOST_RATE
    ]
    for path, period in periods.items()
  }
