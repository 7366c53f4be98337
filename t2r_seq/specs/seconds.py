"""`Seconds`: time offsets in seconds, for data and robots of any rate."""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors

SELECTS = ("hold", "nearest", "linear", "slerp", "event")
# Seconds that an offset may differ from a whole number of periods to be a step.
_GRID_SLACK = 2e-9


@dataclasses.dataclass(frozen=True, init=False)
class Seconds:
  """Time offsets in seconds from the anchor: a value of `time_offsets`.

  Values are selected by their time stamps, so that a model sees the same times at any
  rate of data or robot. An offset <= 0 never selects a step after the anchor, which a
  policy does not have yet. Elements before the first stamp, and with an offset > 0
  after the last stamp, are padded. Gaps between stamps are not, without a `tolerance`.

  >>> from t2r_seq.specs import ExtendedTensorSpec, Seconds
  >>> last = Seconds(-0.2, -0.1, 0.0)  # The values at these times: a stack of three.
  >>> ExtendedTensorSpec((3, 7), "float32", "pose", time_offsets=last).frame_shape
  TensorShape([7])
  >>> chunk = Seconds([k / 50 for k in range(8)], select="linear")  # Actions at 50 Hz.

  Attributes:
    offsets: a tuple for a stack, a number for one value without a stack axis.
    select: 'hold', the last value at or before the time; 'nearest', of two at the same
      distance the earlier one; 'linear', interpolated between both neighbors; 'slerp',
      the same for unit quaternions (..., 4); 'event', the number of stamps after the
      previous offset and up to this one, or for a bool, whether there is any. The first
      interval is as long as the second one.
    tolerance: maximum seconds between a value and its time. Beyond it, the element is
      padded, and its mask is False. For 'event', the length of each interval.
    clock: path of the time stamps of the values; None for the clock of the anchors.
  """

  offsets: tuple[float, ...] | float
  select: str
  tolerance: float | None
  clock: str | None

  def __init__(
    self,
    *offsets: float | Iterable[float],
    select: str = "hold",
    tolerance: float | None = None,
    clock: str | None = None,
  ) -> None:
    """Creates the offsets.

    Args:
      *offsets: seconds. Several, or one sequence of them, are a stack; one number has
        no stack axis.
      select: one of `SELECTS`.
      tolerance: seconds >= 0; None for no limit.
      clock: a path, or None.
    Raises:
      SpecError: a value is invalid; or the offsets of 'event' do not rise, are > 0, or
        are a single one without a tolerance.
    """
    given: Any = offsets[0] if len(offsets) == 1 else offsets
    is_one = isinstance(given, numbers.Real)
    try:
      values = [float(each) for each in ([given] if is_one else given)]
      is_valid = bool(values) and all(map(math.isfinite, values))
    except (TypeError, ValueError):
      is_valid = False
    if not is_valid or isinstance(given, (bool, str)):
      raise errors.SpecError(
        f"Seconds: offsets: expected finite numbers of seconds, got {offsets!r}."
      )
    if select not in SELECTS:
      raise errors.SpecError(
        f"Seconds: select: expected one of {errors.listing(SELECTS)}, got {select!r}."
        f"{errors.nearest(str(select), SELECTS)}"
      )
    is_number = isinstance(tolerance, numbers.Real) and not isinstance(tolerance, bool)
    if tolerance is not None and not (is_number and 0 <= tolerance < math.inf):
      raise errors.SpecError(
        f"Seconds: tolerance: expected seconds >= 0, or None, got {tolerance!r}."
      )
    if select == "event":
      rising = all(a < b for a, b in itertools.pairwise(values))
      if max(values) > 0 or not rising or (len(values) == 1 and not tolerance):
        raise errors.SpecError(
          "Seconds: offsets: expected rising offsets up to 0 for 'event', and for one "
          f"offset the length of its interval, tolerance=0.1, got {offsets!r}."
        )
    if clock is not None and not (isinstance(clock, str) and clock):
      raise errors.SpecError(
        f"Seconds: clock: expected the path of time stamps, or None, got {clock!r}."
      )
    fields = {
      "offsets": values[0] if is_one else tuple(values),
      "select": select,
      "tolerance": None if tolerance is None else float(tolerance),
      "clock": clock,
    }
    for name, value in fields.items():
      object.__setattr__(self, name, value)

  @property
  def is_stack(self) -> bool:
    """Whether there is a stack axis."""
    return isinstance(self.offsets, tuple)

  @property
  def array(self) -> np.ndarray:
    """The offsets, float64 [K] or []."""
    return np.asarray(self.offsets, np.float64)

  @property
  def starts(self) -> np.ndarray:
    """The exclusive start of each event's interval, in the shape of `array`."""
    array = self.array
    if self.tolerance is not None:
      return array - self.tolerance
    return np.append(2 * array[0] - array[1], array[:-1])

  @property
  def extent(self) -> tuple[float, float]:
    """The first and the last time that is read, in seconds from the anchor."""
    first = self.starts if self.select == "event" else self.array
    return float(first.min()), float(self.array.max())

  def __len__(self) -> int:
    return self.array.size

  def steps(self, period: float) -> np.ndarray | None:
    """Returns the offsets as steps of a regular clock, int64.

    Args:
      period: seconds from a step to the next one.
    Returns:
      The steps; None for events, for offsets that are not multiples of the period, or
      if the tolerance accepts neighboring steps.
    """
    if self.select == "event":
      return None
    steps = np.rint(self.array / period)
    is_off_grid = np.abs(steps * period - self.array).max() > _GRID_SLACK
    is_wide = self.tolerance is not None and self.tolerance >= period - _GRID_SLACK
    return None if is_off_grid or is_wide else steps.astype(np.int64)

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the fields as JSON values, without a `tolerance` or `clock` of None."""
    offsets = list(self.offsets) if isinstance(self.offsets, tuple) else self.offsets
    rest = {"tolerance": self.tolerance, "clock": self.clock}
    rest = {name: value for name, value in rest.items() if value is not None}
    return {"seconds": offsets, "select": self.select, **rest}

  @classmethod
  def from_json_dict(cls, values: Mapping[str, Any]) -> Seconds:
    """Reads the output of `to_json_dict`; raises SpecError if it is invalid."""
    fields = dict(values)
    offsets = fields.pop("seconds", ())
    names = [field.name for field in dataclasses.fields(cls)[1:]]
    if unknown := [name for name in fields if name not in names]:
      raise errors.SpecError(
        f"Seconds: expected fields {errors.listing(['seconds', *names])}, got "
        f"{errors.listing(unknown)}."
      )
    return cls(offsets, **fields)

  def __repr__(self) -> str:
    offsets = self.offsets if isinstance(self.offsets, tuple) else (self.offsets,)
    texts = [f"{each:g}" for each in offsets]
    if self.is_stack and len(texts) == 1:
      texts = [f"({texts[0]},)"]
    fields = {
      "select": self.select,
      **({} if self.tolerance is None else {"tolerance": self.tolerance}),
      **({} if self.clock is None else {"clock": self.clock}),
    }
    return f"Seconds({', '.join([*texts, *(f'{k}={v!r}' for k, v in fields.items())])})"


def check_stamps(where: str, stamps: np.ndarray) -> None:
  """Raises SpecError if time stamps are not finite, or fall."""
  values = np.asarray(stamps).reshape(len(stamps))
  is_bad = ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros(0, bool)
  if is_bad.any():
    step = int(is_bad.argmax())
    raise errors.SpecError(
      f"{where}: expected finite time stamps, got {values[step]} at step {step}. "
      "Repair the data, or choose another clock."
    )
  falls = values[1:] < values[:-1]
  if falls.any():
    step = int(falls.argmax()) + 1
    raise errors.SpecError(
      f"{where}: expected time stamps that never fall, got {values[step]} after "
      f"{values[step - 1]} at step {step}. Sort the steps by time, or choose another "
      "clock."
    )
