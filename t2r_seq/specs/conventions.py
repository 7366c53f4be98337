"""Meaning of the numbers of a tensor: units, frames, rotations, grippers, control."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.specs import rotations

UNITS = {
  "m": ("m", 1.0),
  "cm": ("m", 1e-2),
  "mm": ("m", 1e-3),
  "rad": ("rad", 1.0),
  "deg": ("rad", np.pi / 180),
  "s": ("s", 1.0),
  "ms": ("s", 1e-3),
  "N": ("N", 1.0),
  "Nm": ("Nm", 1.0),
  "m/s": ("m/s", 1.0),
  "mm/s": ("m/s", 1e-3),
  "rad/s": ("rad/s", 1.0),
  "deg/s": ("rad/s", np.pi / 180),
  "normalized": ("normalized", 1.0),
}
ABSOLUTE = "absolute"
RELATIVE = ("relative", "delta", "tool_relative", "tool_delta")
_CONTROLS = (ABSOLUTE, *RELATIVE, "velocity", "torque")
_WORDS: dict[str, Sequence[str]] = {
  "unit": tuple(UNITS),
  "rotation": tuple(rotations.SIZES),
  "control": _CONTROLS,
  "channels": ("rgb", "bgr"),
}
_BINARY = "binary"
# Fields that a gripper part does not inherit from the whole vector.
_OF_MOTION = ("unit", "control", "reference")
_REFERENCE = re.compile(r"(.+?)(?:\[(\d+):(\d*)\])?")


@dataclasses.dataclass(frozen=True, repr=False)
class Convention:
  """The meaning of the numbers of a tensor; None for undeclared fields.

  Parts of a vector may differ: `elements` has `(start, stop, Convention)` of each. A
  part inherits undeclared fields from the vector; a gripper part inherits only `frame`.

  Attributes:
    unit: 'm', 'mm', 'rad', 'deg', 'N', ..., or 'normalized'; for rotations, the unit of
      their angles, by default 'rad'.
    frame: any name, such as 'base'. Different frames can't be converted.
    rotation: 'quaternion_wxyz', 'quaternion_xyzw', 'matrix' (by rows), 'rot6d_rows' or
      'rot6d_columns' (the first two of the matrix), 'axis_angle', or Euler angles as
      'euler_xyz_extrinsic' (fixed axes, x first) and 'euler_zyx_intrinsic'.
    gripper: (open value, closed value), and 'binary' if there is nothing in between.
    control: 'absolute'; 'relative' to the state at the anchor; 'delta': relative to the
      previous step (the first step: to the state); 'tool_relative' and 'tool_delta':
      the same, as SE(3) motions in the tool's frame; 'velocity'; or 'torque'.
    reference: path of the state that relative actions refer to; it has the same
      elements. 'path[7:14]' selects a part.
    channels: channel order of images, 'rgb' or 'bgr'.
    names: names of the elements.
    elements: parts with their own conventions, in order.
  Raises:
    SpecError: an unknown value, or fields that contradict each other.
  """

  unit: str | None = None
  frame: str | None = None
  rotation: str | None = None
  gripper: tuple[Any, ...] | None = None
  control: str | None = None
  reference: str | None = None
  channels: str | None = None
  names: tuple[str, ...] | None = None
  elements: tuple[tuple[int, int, Convention], ...] = ()

  def __post_init__(self) -> None:
    """Checks the fields, and makes tuples of lists."""
    for field, words in _WORDS.items():
      value = getattr(self, field)
      if value is not None and value not in words:
        raise _error(
          field, f"one of {errors.listing(words, 40)}", repr(value), str(value), words
        )
    for field in ("frame", "reference"):
      if not isinstance(getattr(self, field), (str, type(None))):
        raise _error(field, "text", repr(getattr(self, field)))
    if self.rotation is not None and not _is_angle(self.rotation, self.unit):
      want = "'rad' or 'deg'" if rotations.has_angles(self.rotation) else "no unit"
      raise _error("unit", f"{want} for the rotation {self.rotation}", f"'{self.unit}'")
    self._set("gripper", self._check_gripper())
    if self.names is not None:
      is_text = isinstance(self.names, str) or not all(
        isinstance(name, str) for name in self.names
      )
      if is_text or len({*self.names}) != len(self.names):
        raise _error("names", "a different text for each element", repr(self.names))
      self._set("names", tuple(self.names))
    self._set("elements", tuple(self._check_elements()))

  def _set(self, field: str, value: Any) -> None:
    object.__setattr__(self, field, value)

  def _check_gripper(self) -> tuple[Any, ...] | None:
    if self.gripper is None:
      return None
    try:
      opened, closed, *kind = self.gripper
      numbers = float(opened), float(closed)
    except (TypeError, ValueError):
      numbers, kind = (0.0, 0.0), []
    if numbers[0] == numbers[1] or kind not in ([], [_BINARY]):
      want = f"(open value, closed value), or with '{_BINARY}' after two different ones"
      raise _error("gripper", want, repr(self.gripper))
    if self.rotation is not None:
      raise _error("gripper", "none for a rotation", repr(self.gripper))
    return (*numbers, *kind)

  def _check_elements(self) -> Iterator[tuple[int, int, Convention]]:
    end = 0
    for element in self.elements:
      try:
        start, stop, given = element
        start, stop = int(start), int(stop)
      except (TypeError, ValueError):
        raise _error("elements", "(start, stop, Convention)", repr(element)) from None
      if not end <= start < stop:
        want = f"increasing ranges, the next from {end} on"
        raise _error("elements", want, f"{start} to {stop}")
      convention = Convention.of(given) or Convention()
      if convention.elements or convention.names or self.rotation or self.channels:
        raise _error("elements", "no parts of parts, rotations or images", repr(self))
      size = rotations.SIZES.get(convention.rotation or "", stop - start)
      if size != stop - start:
        want = f"{size} numbers for {convention.rotation}"
        raise _error("elements", want, f"{stop - start}, {start} to {stop}")
      end = stop
      yield start, stop, convention

  @classmethod
  def of(cls, value: Any) -> Convention | None:
    """Makes a convention of JSON values; None and an empty one are None.

    Raises:
      SpecError: an unknown field or word.
    """
    if isinstance(value, Mapping):
      fields = [field.name for field in dataclasses.fields(cls)]
      for name in value:
        if name not in fields:
          raise _error(str(name), f"a field of {errors.listing(fields)}", "this name",
                       str(name), fields)  # fmt: skip
      value = cls(**value)
    if value is not None and not isinstance(value, Convention):
      raise _error("value", "a Convention, or its fields", repr(value))
    return None if value == cls() else value

  def to_json(self) -> dict[str, Any]:
    """Returns the fields that are set, as JSON values."""
    values = {**self._fields()}
    for field in ("gripper", "names"):
      if field in values:
        values[field] = list(values[field])
    if self.elements:
      values["elements"] = [[a, b, each.to_json()] for a, b, each in self.elements]
    return values

  def _fields(self) -> dict[str, Any]:
    values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    return {name: value for name, value in values.items() if value not in (None, ())}

  def __repr__(self) -> str:
    fields = ", ".join(f"{name}={value!r}" for name, value in self._fields().items())
    return f"Convention({fields})"

  def check_shape(self, where: str, shape: Sequence[int | None]) -> None:
    """Raises SpecError if a tensor of this shape can't have the convention."""
    size = shape[-1] if shape else None
    if self.channels and (len(shape) < 3 or size not in (3, 4, None)):
      raise _error(where, "an image for channels", f"shape {tuple(shape)}")
    ends = [stop for _, stop, _ in self.elements]
    need = rotations.SIZES.get(self.rotation or "") or (
      len(self.names) if self.names else None
    )
    if (need or ends) and not shape:
      raise _error(where, "a vector", "a scalar")
    if size is None:
      return
    if (need is not None and need != size) or size < max(ends, default=0):
      raise _error(where, f"{need or f'at least {ends[-1]}'} elements", str(size))

  def parts(self, size: int) -> list[Part]:
    """Returns the parts of a vector, also those without a declaration, in order."""
    parts, end = [], 0
    common = dataclasses.replace(self, elements=(), names=None)
    for start, stop, local in (*self.elements, (size, size, Convention())):
      if start > end:
        parts.append(Part(end, start, common))
      if stop > start:
        names: Sequence[str] = _OF_MOTION if local.gripper is not None else ()
        if local.rotation is not None and not _is_angle(local.rotation, self.unit):
          names = ("unit",)
        inherited = {
          name: value for name, value in common._fields().items() if name not in names
        }
        parts.append(Part(start, stop, Convention(**{**inherited, **local._fields()})))
      end = stop
    return parts

  def declares(self, field: str) -> bool:
    """Whether any part declares a field."""
    sides = (self, *(each for _, _, each in self.elements))
    return any(getattr(side, field) is not None for side in sides)

  def replace(self, size: int, **words: Any) -> tuple[Convention, int]:
    """Returns the convention with other words in all parts that have such a field.

    `rotation` changes the rotation parts, and their sizes; `unit` the parts of the same
    quantity; `gripper` the grippers; `control` and `reference` all other parts.

    Args:
      size: number of elements of the vector.
      **words: `unit`, `rotation`, `gripper`, `control`, `reference` or `channels`.
    Returns:
      (the convention, its size).
    Raises:
      SpecError: no part has such a field.
    """
    changes: dict[str, Any] = {}
    for name, value in words.items():
      changes |= (Convention.of({name: value}) or self)._fields() if value else {}
    if "channels" in changes:
      return dataclasses.replace(self, **changes), size
    elements: list[tuple[int, int, Convention]] = []
    start, used = 0, set()
    for part in self.parts(size):
      local = part.convention
      if local.rotation is not None and "rotation" in changes:
        is_angle = _is_angle(changes["rotation"], local.unit)
        unit = local.unit if is_angle else None
        local = dataclasses.replace(local, rotation=changes["rotation"], unit=unit)
        used.add("rotation")
      kept = {
        name: value
        for name, value in changes.items()
        if name != "rotation"
        and (local.gripper is not None) == (name == "gripper")
        and (name != "unit" or _quantity(local) == UNITS[value][0])
      }
      used |= {*kept}
      stop = start + rotations.SIZES.get(local.rotation or "", part.size)
      elements.append((start, stop, dataclasses.replace(local, **kept)))
      start = stop
    for name in changes:
      if name not in used:
        raise _error(name, f"a part that declares a {name}", repr(self))
    names = None if "rotation" in changes else self.names
    if len(elements) == 1:
      return dataclasses.replace(elements[0][2], names=names), start
    return Convention(names=names, elements=tuple(elements)), start


@dataclasses.dataclass(frozen=True)
class Part:
  """A range of a vector and its convention, without elements."""

  start: int
  stop: int
  convention: Convention

  @property
  def size(self) -> int:
    """The number of elements."""
    return self.stop - self.start

  def split(self, size: int) -> tuple[Part, Part]:
    """Returns the first elements, and the rest."""
    middle = self.start + size
    rest = dataclasses.replace(self, start=middle)
    return dataclasses.replace(self, stop=middle), rest


def _is_angle(rotation: str, unit: str | None) -> bool:
  """Whether a layout can have a unit, or needs none."""
  can_turn = rotations.has_angles(rotation)
  return unit is None or (can_turn and UNITS[unit][0] == "rad")


def _quantity(convention: Convention) -> str | None:
  default = "rad" if rotations.has_angles(convention.rotation) else None
  unit = convention.unit or default
  return None if unit is None else UNITS[unit][0]


def _error(
  field: str, want: str, got: str, word: str = "", allowed: Iterable[str] = ()
) -> errors.SpecError:
  hint = errors.nearest(word, allowed) if word else ""
  return errors.SpecError(f"convention: {field}: expected {want}, got {got}.{hint}")


def parse_reference(text: str) -> tuple[str, int, int | None]:
  match = _REFERENCE.fullmatch(text)
  if match is None:
    raise _error("reference", "'path' or 'path[start:stop]'", repr(text))
  return match[1], int(match[2] or 0), int(match[3]) if match[3] else None


def reference_path(convention: Convention | None, size: int) -> str | None:
  """Returns the path that relative parts of a vector refer to; None without any."""
  for part in convention.parts(size) if convention else ():
    if part.convention.control in RELATIVE and part.convention.reference:
      return parse_reference(part.convention.reference)[0]
  return None


def rotation_size(convention: Convention) -> int:
  """Returns how many elements of a vector are rotations of a known layout."""
  sides = [convention, *(each for _, _, each in convention.elements)]
  return sum(rotations.SIZES.get(side.rotation or "", 0) for side in sides)
