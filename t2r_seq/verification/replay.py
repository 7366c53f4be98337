"""Recorded values as a robot gets them: at any rate, late, lost and out of order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import ExtendedTensorSpec, Seconds, TensorSpecStruct
from t2r_seq.stamps import NANOSECONDS
from t2r_seq.windows.cut import Anchors, Cut, Padding
from t2r_seq.windows.reader import WindowReader, present_path
from t2r_seq.windows.times import clock_rows, rows_path

_TICKS, _STAMPS = "#ticks", "#stamps"


@dataclasses.dataclass(frozen=True)
class Replay:
  """Options of a simulated robot, which receives the values of a recording.

  A step of the robot gets all values of each sensor that have come since the step
  before: none, one or several.

  Attributes:
    rate: steps per second; None for the recorded steps.
    jitter: seconds by which steps come early or late, at most.
    drop: the probability that a value is lost, in [0, 1).
    delay: seconds from a measurement until its value comes, at most; uniform, so that
      values may come out of order.
    seed: seed of the random numbers.
  """

  rate: float | None = None
  jitter: float = 0.0
  drop: float = 0.0
  delay: float = 0.0
  seed: int = 0

  def __post_init__(self) -> None:
    """Raises SpecError if an option is out of range."""
    rate = 1.0 if self.rate is None else self.rate
    for name, value, is_good, expected in (
      ("rate", self.rate, rate > 0, "steps per second, > 0, or None"),
      ("jitter", self.jitter, self.jitter >= 0, "seconds >= 0"),
      ("drop", self.drop, 0 <= self.drop < 1, "a probability in [0, 1)"),
      ("delay", self.delay, self.delay >= 0, "seconds >= 0"),
      ("seed", self.seed, self.seed >= 0, "an integer >= 0"),
    ):
      if not is_good or not math.isfinite(value or 0):
        raise errors.SpecError(f"replay: {name}: expected {expected}, got {value}.")

  def receive(
    self, where: str, number: int, stamps: Mapping[str, np.ndarray], steps: np.ndarray
  ) -> Received:
    """Simulates an episode of a robot.

    Args:
      where: the episode, for errors.
      number: number of the episode; each has other random numbers.
      stamps: measurement times by path, int64 nanoseconds [R].
      steps: times of the recorded steps, int64 nanoseconds [T].
    Returns:
      The robot's steps, and the values that come to each.
    Raises:
      SpecError: no value of a sensor comes by the last step.
    """
    rng = np.random.default_rng([self.seed, number])
    arrivals = {path: self._arrivals(rng, each) for path, each in stamps.items()}
    ticks = steps
    if self.rate is not None:
      count = int((steps[-1] - steps[0]) * self.rate / NANOSECONDS) + 1
      ticks = steps[0] + np.rint(np.arange(count) * NANOSECONDS / self.rate)
    moved = rng.uniform(-self.jitter, self.jitter, len(ticks)) * NANOSECONDS
    ticks = np.maximum.accumulate((ticks + np.rint(moved)).astype(np.int64))
    for path, (_, times) in arrivals.items():
      first = np.searchsorted(ticks, times[0]) if len(times) else len(ticks)
      if first == len(ticks):
        raise errors.SpecError(
          f"{where}: replay: {path}: expected a value by the last step, got none. "
          "Lower drop or delay."
        )
      ticks = ticks[first:]  # An episode starts when each sensor has a value.
    rows = {}
    for path, (order, times) in arrivals.items():
      ends = np.searchsorted(times, ticks, "right")
      rows[path] = np.split(order[: ends[-1]], ends[:-1])
    return Received(ticks, rows)

  def _arrivals(
    self, rng: np.random.Generator, stamps: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns (rows of the values that come, their arrival times), in that order."""
    is_lost = rng.random(len(stamps)) < self.drop
    delays = np.rint(rng.uniform(0, self.delay, len(stamps)) * NANOSECONDS)
    times = stamps + delays.astype(np.int64)
    order = np.argsort(times, kind="stable")
    order = order[~is_lost[order]]
    return order, times[order]

  def __str__(self) -> str:
    rate = "at the recorded steps" if self.rate is None else f"at {self.rate:g} Hz"
    parts = [
      f"{name} {value:g}{unit}"
      for name, value, unit in (
        ("jitter", self.jitter, " s"),
        ("drop", self.drop, ""),
        ("delay", self.delay, " s"),
      )
      if value
    ]
    return ", ".join([rate, *parts])


class Received(NamedTuple):
  """Values that a robot gets in an episode.

  Attributes:
    ticks: the times of its steps, int64 nanoseconds [T].
    rows: the recorded values that come to each step, by path; T arrays of rows.
  """

  ticks: np.ndarray
  rows: dict[str, list[np.ndarray]]

  def newest(self, path: str) -> np.ndarray:
    """Returns the row of the last value that has come by each step, int64 [T]."""
    newest, by_step = -1, []
    for rows in self.rows[path]:
      newest = rows[-1] if len(rows) else newest
      by_step.append(newest)
    return np.array(by_step, np.int64)


class ReplayedWindows:
  """Cuts training's windows of the values that a robot has at each of its steps."""

  def __init__(
    self,
    element: Mapping[str, tf.TensorSpec],
    window_specs: TensorSpecStruct,
    padding: Padding,
  ) -> None:
    """Plans the windows.

    Args:
      element: recorded values by path, [None, ...] for those with a time axis.
      window_specs: specs of the windows, by the same paths.
      padding: padding of training's windows.
    Raises:
      SpecError: no path has time offsets in seconds.
    """
    self.timed = {
      path: f"{path}{_STAMPS}"
      for path, spec in window_specs.items()
      if isinstance(spec.time_offsets, Seconds) and path in element
    }
    if not self.timed:
      raise errors.SpecError(
        "replay: expected a policy with time offsets in seconds, got steps only. "
        "Declare specs.Seconds to act at any rate."
      )
    known = {**element, _TICKS: tf.TensorSpec([None], tf.int64)}
    known |= {clock: known[_TICKS] for clock in self.timed.values()}
    self._reader = WindowReader(
      known,
      TensorSpecStruct(
        (p, self._with_clock(p, spec)) for p, spec in window_specs.items()
      ),
      Cut(padding=padding, clock=_TICKS, clocks=self.timed),
    )

  def _with_clock(self, path: str, spec: ExtendedTensorSpec) -> ExtendedTensorSpec:
    offsets = spec.time_offsets
    if path not in self.timed or not isinstance(offsets, Seconds):
      return spec
    seconds = Seconds(
      offsets.offsets,
      select=offsets.select,
      tolerance=offsets.tolerance,
      clock=self.timed[path],
    )
    return ExtendedTensorSpec.from_spec(spec, time_offsets=seconds)

  def read(
    self,
    values: Mapping[str, np.ndarray],
    stamps: Mapping[str, np.ndarray],
    received: Received,
    paths: Mapping[str, str],
  ) -> dict[str, np.ndarray]:
    """Cuts the windows at all steps of the robot.

    Args:
      values: recorded, by path of `element`.
      stamps: int64 nanoseconds [R], by path of `received`.
      received: what the robot gets.
      paths: the path in `received` of each path of `element` with a time axis.
    Returns:
      Windows by path, [T, ...].
    """
    ticks, cut = received.ticks, dict[str, list[np.ndarray]]()
    series = {**values, _TICKS: ticks}
    known = {path: np.zeros(0, np.int64) for path in self.timed}
    at = {clock: np.zeros([len(ticks), 3], np.int64) for clock in self.timed.values()}
    series |= {rows_path(clock): rows for clock, rows in at.items()}

    def show(path: str, rows: np.ndarray) -> None:
      for each in {path, present_path(path)} & values.keys():
        series[each] = values[each][rows]

    for path, column in paths.items():
      if path not in self.timed:
        show(path, received.newest(column))

    def take(path: str, rows: np.ndarray | None) -> Any:
      return series[path][np.newaxis] if rows is None else series[path][rows]

    for tick in range(len(ticks)):
      for path, clock in self.timed.items():
        column = paths[path]
        rows = received.rows[column][tick]
        if not tick:
          # A policy's history starts with the newest value at its first step.
          rows = rows[np.argsort(stamps[column][rows], kind="stable")][-1:]
        if len(rows) or not tick:
          joined = np.concatenate([known[path], rows])
          known[path] = joined[np.argsort(stamps[column][joined], kind="stable")]
          show(path, known[path])
          series[clock] = stamps[column][known[path]]
        at[clock][tick] = clock_rows(ticks[tick : tick + 1], series[clock], begin=0)[0]
      row = np.array([tick])
      for path, window in self._reader.read_at(
        take, Anchors(row, row, 0 * row)
      ).items():
        cut.setdefault(path, []).append(window)
    return {path: np.concatenate(windows) for path, windows in cut.items()}


def parse_replay(options: list[str]) -> Replay:
  """Reads options such as ['rate=25', 'drop=0.05'].

  Raises:
    SpecError: an option is unknown, not a number, or out of range.
  """
  names = [field.name for field in dataclasses.fields(Replay)]
  fields: dict[str, Any] = {}
  for name, _, value in (option.partition("=") for option in options):
    if name not in names:
      raise errors.SpecError(
        f"replay: expected options of {errors.listing(names)}, got '{name}'."
        f"{errors.nearest(name, names)}"
      )
    try:
      fields[name] = int(value) if name == "seed" else float(value)
    except ValueError as error:
      raise errors.SpecError(
        f"replay: {name}: expected a number, got '{value}'. Give {name}=NUMBER."
      ) from error
  return Replay(**fields)
