"""Meaning of the numbers of a tensor: units, frames, rotations, grippers, control."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.specs import rotations

# The base unit of each unit, and the factor to it.
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
  part inherits undeclared fields from the vector, except `names`; a gripper part
  inherits only `frame`. A rotation part inherits a unit only if that fits its layout.

  Attributes:
    unit: a key of `UNITS`, such as 'm', 'deg' or 'normalized'; for rotations, the unit
      of their angles, by default 'rad'.
    frame: any name, such as 'base'. Values can't be converted to another frame.
    rotation: 'quaternion_wxyz', 'quaternion_xyzw', 'matrix' (by rows), 'rot6d_rows' or
      'rot6d_columns' (the first two of the matrix), 'axis_angle', or Euler angles as
      'euler_xyz_extrinsic' (fixed axes, x first) and 'euler_zyx_intrinsic'.
    gripper: (open value, closed value), and 'binary' if no value lies in between.
    control: 'absolute'; 'relative' to the state at the anchor; 'delta': relative to the
      previous step (the first step: to the state); 'tool_relative' and 'tool_delta':
      the same, as SE(3) motions in the tool's frame; 'velocity'; or 'torque'.
    reference: path of the state that relative actions refer to; it has the same
      elements. 'path[7:14]' selects a part.
    channels: channel order of images, 'rgb' or 'bgr'.
    names: names of the elements.
    elements: parts with their own conventions, in order.
  Raises:
    SpecError: a value is invalid, or fields contradict each other.
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
    if self.rotation is not None and not _fits_unit(self.rotation, self.unit):
      want = "'rad' or 'deg'" if rotations.has_angles(self.rotation) else "no unit"
      raise _error("unit", f"{want} for the rotation {self.rotation}", f"'{self.unit}'")
    self._set("gripper", self._check_gripper())
    if self.names is not None:
      is_list = isinstance(self.names, Iterable) and not isinstance(self.names, str)
      names = tuple(self.names) if is_list else ("", "")
      if not all(isinstance(name, str) for name in names) or len({*names}) < len(names):
        raise _error("names", "a different text for each element", repr(self.names))
      self._set("names", names)
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
    if not isinstance(self.elements, Iterable):
      raise _error("elements", "a list of parts", repr(self.elements))
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
    """Makes a convention of its fields as JSON values; returns None if none is set.

    Raises:
      SpecError: a field is unknown, or a value is invalid.
    """
    if isinstance(value, Mapping):
      fields = [field.name for field in dataclasses.fields(cls)]
      for name in value:
        if name not in fields:
          want = f"one of the fields {errors.listing(fields)}"
          raise _error(str(name), want, "this name", str(name), fields)
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
    """Returns the parts of a vector in order, those between the `elements`, too."""
    parts, end = [], 0
    common = dataclasses.replace(self, elements=(), names=None)
    for start, stop, local in (*self.elements, (size, size, Convention())):
      if start > end:
        parts.append(Part(end, start, common))
      if stop > start:
        excluded: Sequence[str] = _OF_MOTION if local.gripper is not None else ()
        if local.rotation is not None and not _fits_unit(local.rotation, self.unit):
          excluded = ("unit",)
        inherited = common._fields()
        for name in excluded:
          inherited.pop(name, None)
        parts.append(Part(start, stop, Convention(**{**inherited, **local._fields()})))
      end = stop
    return parts

  def declares(self, field: str) -> bool:
    """Whether any part declares a field."""
    conventions = (self, *(part for _, _, part in self.elements))
    return any(getattr(part, field) is not None for part in conventions)

  def replace(self, size: int, **words: Any) -> tuple[Convention, int]:
    """Returns the convention with other values in all parts that they apply to.

    `rotation` changes the rotation parts, and their sizes; `unit` the parts of the same
    quantity; `gripper` the grippers; `control` and `reference` all other parts.

    Args:
      size: number of elements of the vector.
      **words: `unit`, `rotation`, `gripper`, `control`, `reference` or `channels`;
        None changes nothing.
    Returns:
      (the convention, the size of its vector).
    Raises:
      SpecError: a value is invalid, or no part has such a field.
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
        unit = local.unit if _fits_unit(changes["rotation"], local.unit) else None
        local = dataclasses.replace(local, rotation=changes["rotation"], unit=unit)
        used.add("rotation")
      local_changes = {
        name: value
        for name, value in changes.items()
        if name != "rotation"
        and (local.gripper is not None) == (name == "gripper")
        and (name != "unit" or _quantity(local) == UNITS[value][0])
      }
      used |= {*local_changes}
      stop = start + rotations.SIZES.get(local.rotation or "", part.size)
      elements.append((start, stop, dataclasses.replace(local, **local_changes)))
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
    """Splits after `size` elements."""
    middle = self.start + size
    rest = dataclasses.replace(self, start=middle)
    return dataclasses.replace(self, stop=middle), rest


def _fits_unit(rotation: str, unit: str | None) -> bool:
  return unit is None or (rotations.has_angles(rotation) and UNITS[unit][0] == "rad")


def _quantity(convention: Convention) -> str | None:
  """Returns the base unit of the numbers."""
  default = "rad" if rotations.has_angles(convention.rotation) else None
  unit = convention.unit or default
  return None if unit is None else UNITS[unit][0]


def _error(
  field: str, want: str, got: str, word: str = "", allowed: Iterable[str] = ()
) -> errors.SpecError:
  hint = errors.nearest(word, allowed) if word else ""
  return errors.SpecError(f"convention: {field}: expected {want}, got {got}.{hint}")


def parse_reference(text: str) -> tuple[str, int, int | None]:
  """Splits a `reference` into its path, start and stop; None for the end."""
  match = _REFERENCE.fullmatch(text)
  if match is None:
    raise _error("reference", "'path' or 'path[start:stop]'", repr(text))
  return match[1], int(match[2] or 0), int(match[3]) if match[3] else None


def reference_path(convention: Convention | None, size: int) -> str | None:
  """Returns the path that the first relative part refers to; None without any."""
  for part in convention.parts(size) if convention else ():
    if part.convention.control in RELATIVE and part.convention.reference:
      return parse_reference(part.convention.reference)[0]
  return None


def rotation_size(convention: Convention) -> int:
  """Returns how many elements of a vector are rotations of a known layout."""
  conventions = [convention, *(part for _, _, part in convention.elements)]
  return sum(rotations.SIZES.get(part.rotation or "", 0) for part in conventions)
