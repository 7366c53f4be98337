"""Converts values between two conventions, in numpy and in the graph."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging

from t2r_seq import errors
from t2r_seq.specs import rotations
from t2r_seq.specs.conventions import (
  ABSOLUTE,
  RELATIVE,
  UNITS,
  Convention,
  Part,
  parse_reference,
  reference_path,
)
from t2r_seq.specs.rotations import Quaternion, array_module, concat


@functools.cache
def _warn_once(text: str) -> None:
  logging.warning("%s", text)


@dataclasses.dataclass(frozen=True)
class _Pair:
  """A part before and after the conversion, and its part of the state, if any."""

  source: Part
  target: Part
  state: Part | None

  @property
  def controls(self) -> tuple[str, str]:
    """The control of the part before and after."""
    before, after = self.source.convention.control, self.target.convention.control
    if before is None or after is None:
      return ABSOLUTE, ABSOLUTE
    return before, after


class Converter:
  """Converts the last axis of values from one convention to another.

  A field that only one side declares is not converted; `one_sided` lists it. The dtype
  of the values stays. Arrays are converted by numpy, tensors in the graph.
  """

  def __init__(
    self,
    source: Convention | None,
    target: Convention | None,
    size: int,
    target_size: int | None = None,
    where: str = "convert",
    state: tuple[Convention | None, int] | None = None,
  ) -> None:
    """Plans the conversion.

    Args:
      source: the convention of the given values.
      target: the convention to convert to.
      size: size of the last axis.
      target_size: size of the last axis after the conversion; None: unchanged.
      where: the operation and the path, for errors and warnings.
      state: convention and size of the state that relative actions refer to; without a
        convention, that of the source. None: no state, so `control` can't change.
    Raises:
      SpecError: a part has no conversion, and all of them are listed; or the sizes of
        the parts do not fit.
    """
    self.source, self.target = source or Convention(), target or Convention()
    self.size, self.target_size = size, size if target_size is None else target_size
    self._where = where
    self._state: tuple[Convention, int] | None = None
    if state is not None:
      self._state = (state[0] or self._like_source(), state[1])
    self.one_sided: list[str] = []
    self._order: list[int] | None = None
    self._pairs: list[_Pair] = []
    mismatches: list[errors.Mismatch] = []
    self.flips_channels = {self.source.channels, self.target.channels} == {"rgb", "bgr"}
    if not (self.source.channels or self.target.channels):
      self._pairs = self._align()
      for pair in self._pairs:
        mismatches += self._check(pair)
    if mismatches:
      raise errors.mismatch_error(where, mismatches)

  @property
  def reference(self) -> str | None:
    """The path of the required state; None if no `control` changes."""
    if all(pair.controls[0] == pair.controls[1] for pair in self._pairs):
      return None
    sides = ((self.source, self.size), (self.target, self.target_size))
    return next(filter(None, (reference_path(*side) for side in sides)), None)

  @property
  def changes(self) -> bool:
    """Whether any value changes."""
    return (
      self.flips_channels
      or self._order is not None
      or any(_changes(pair) for pair in self._pairs)
    )

  def changes_by_part(self) -> list[str]:
    """Describes the change of each part."""
    changes = []
    if self.flips_channels:
      changes.append(f"channels '{self.source.channels}' for '{self.target.channels}'")
    if self._order is not None:
      changes.append(f"elements {self.source.names} for {self.target.names}")
    for pair in self._pairs:
      if _changes(pair):
        ours, theirs = (
          side.convention.to_json() for side in (pair.source, pair.target)
        )
        changes += [
          f"elements {pair.source.start} to {pair.source.stop - 1}: {name} "
          f"{ours[name]!r} for {theirs[name]!r}"
          for name in ("unit", "rotation", "gripper", "control")
          if name in ours and name in theirs and ours[name] != theirs[name]
        ]
    return changes

  @property
  def needs_chunk(self) -> bool:
    """Whether a step depends on the steps before it in its chunk."""
    words = (w for p in self._pairs if _changes(p) for w in {*p.controls})
    return any(word.endswith("delta") for word in words)

  def warn(self) -> None:
    """Warns, once, of fields that only one side declares."""
    if self.one_sided:
      parts = "; ".join(self.one_sided)
      _warn_once(
        f"{self._where}: only one of data and model declares {parts}. Nothing is "
        "converted there. Declare it in the other's spec, too."
      )

  def inverse(self) -> Converter:
    """Returns the conversion back."""
    return Converter(
      self.target, self.source, self.target_size, self.size, self._where, self._state
    )

  def __call__(self, values: Any, state: Any = None, has_steps: bool = False) -> Any:
    """Converts values, [..., size].

    Args:
      values: floats; images of any dtype.
      state: the state at the anchor, [..., state size], without an axis of steps;
        required for a change of `control`.
      has_steps: whether the axis before the last one is that of a chunk's steps.
    Returns:
      [..., target size], of the same dtype.
    """
    if self.flips_channels:
      alpha = [values[..., 3:]] if values.shape[-1] == 4 else []
      return concat([values[..., 2::-1], *alpha])
    if not self.changes:
      return values
    if not has_steps:
      values = values[..., None, :]
    if state is not None:
      state = state[..., None, :]
    if self._order is not None:
      values = concat([values[..., i : i + 1] for i in self._order])
    outputs, moved = [], self._move(values, state)
    for number, pair in enumerate(self._pairs):
      block = values[..., pair.source.start : pair.source.stop]
      outputs.append(_write(pair, block, *moved[number]) if _changes(pair) else block)
    result = outputs[0] if len(outputs) == 1 else concat(outputs)
    return result if has_steps else result[..., 0, :]

  def _move(self, values: Any, state: Any) -> list[tuple[Any, Any]]:
    """Returns (values, near) of each part, with the target's control.

    `near` is the rotation of the state if the signs of quaternions continue from it.
    """
    read = [
      _read(pair.source, values[..., pair.source.start : pair.source.stop], pair.target)
      if _changes(pair)
      else None
      for pair in self._pairs
    ]
    moved: list[tuple[Any, Any]] = [(each, None) for each in read]
    number = 0
    while number < len(self._pairs):
      group = [number]
      pair = self._pairs[number]
      if _is_position(pair) and number + 1 < len(self._pairs):
        group += [number + 1]
      number += len(group)
      before, after = pair.controls
      if before == after:
        continue
      pose: list[Any] = [None, None]
      origin: list[Any] = [None, None]
      for each in group:
        other = self._pairs[each]
        is_rotation = other.source.convention.rotation is not None
        assert other.state is not None
        block = state[..., other.state.start : other.state.stop]
        pose[is_rotation] = read[each]
        origin[is_rotation] = _read(other.state, block, other.target)
      absolute = _compose(before, *pose, *origin)
      pose = [*_decompose(after, *absolute, *origin)]
      for each in group:
        is_rotation = self._pairs[each].source.convention.rotation is not None
        near = origin[1] if is_rotation and after == ABSOLUTE else None
        moved[each] = pose[is_rotation], near
    return moved

  def _align(self) -> list[_Pair]:
    """Pairs the parts of both sides, in their order or by their names."""
    sources = self._with_states(self.source.parts(self.size))
    targets = self.target.parts(self.target_size)
    sources = self._reorder(sources, targets)
    aligned = []
    rest = [*targets]
    while sources and rest:
      (source, state), target = sources.pop(0), rest.pop(0)
      are_rotations = [p.convention.rotation is not None for p in (source, target)]
      if not all(are_rotations):
        size = min(source.size, target.size)
        if source.size > size:
          if are_rotations[0]:
            raise self._unequal(source, target)
          source, left = source.split(size)
          state, after = (None, None) if state is None else state.split(size)
          sources.insert(0, (left, after))
        elif target.size > size:
          if are_rotations[1]:
            raise self._unequal(source, target)
          target, left = target.split(size)
          rest.insert(0, left)
      aligned.append(_Pair(source, target, state))
    if sources or rest:
      raise errors.SpecError(
        f"{self._where}: expected parts for all {self.target_size} elements of "
        f"{self.target}, got {self.size} elements of {self.source}."
      )
    return aligned

  def _unequal(self, source: Part, target: Part) -> errors.SpecError:
    return errors.SpecError(
      f"{self._where}: elements {source.start} to {source.stop}: expected "
      f"{target.convention} of {target.size} elements, got {source.convention}. "
      "Declare the rotation on both sides."
    )

  def _reference_text(self) -> str | None:
    parts = [*self.source.parts(self.size), *self.target.parts(self.target_size)]
    sides = [part.convention for part in parts]
    texts = (side.reference for side in sides if side.control in RELATIVE)
    return next(filter(None, texts), None)

  def _like_source(self) -> Convention:
    """Returns the convention of a state with the elements of the source."""
    text = self._reference_text()
    start = parse_reference(text)[1] if text else 0
    return Convention(
      elements=tuple(
        (start + part.start, start + part.stop, part.convention)
        for part in self.source.parts(self.size)
      )
    )

  def _with_states(self, parts: list[Part]) -> list[tuple[Part, Part | None]]:
    """Pairs each part with the part of the state that it refers to."""
    text = self._reference_text()
    if self._state is None or text is None:
      return [(part, None) for part in parts]
    convention, size = self._state
    _, start, stop = parse_reference(text)
    candidates = [
      each
      for each in convention.parts(size)
      if start <= each.start and each.stop <= (size if stop is None else stop)
    ]
    queue, paired = [*parts], list[tuple[Part, Part | None]]()
    while queue:
      part, match = queue.pop(0), candidates.pop(0) if candidates else None
      if match is not None and part.convention.rotation is None:
        ours, theirs = part.convention, match.convention
        if ours.gripper is None or theirs.gripper is None:
          if theirs.rotation is not None or theirs.gripper is not None:
            match = dataclasses.replace(match, convention=ours)
          if match.size > part.size:
            match, left = match.split(part.size)
            candidates.insert(0, left)
          elif match.size < part.size:
            part, rest = part.split(match.size)
            queue.insert(0, rest)
      elif match is not None and match.convention.rotation is None:
        candidates.insert(0, match)
        match = None
      paired.append((part, match))
    return paired

  def _reorder(
    self, sources: list[tuple[Part, Part | None]], targets: list[Part]
  ) -> list[tuple[Part, Part | None]]:
    """Orders the elements like the target's names, if both sides have the same set."""
    ours, theirs = self.source.names, self.target.names
    if not ours or not theirs or {*ours} != {*theirs} or ours == theirs:
      return sources
    by_element = {i: each for each in sources for i in range(*_range(each[0]))}
    order: list[int] = []
    paired: list[tuple[Part, Part | None]] = []
    for name in theirs:
      place = ours.index(name)
      part, state = by_element[place]
      if place in order:
        continue
      indices = [place]
      if part.convention.rotation is not None:
        indices = [*range(*_range(part))]
      elif state is not None:
        offset = state.start + place - part.start
        state = dataclasses.replace(state, start=offset, stop=offset + 1)
      start = len(order)
      order += indices
      moved = dataclasses.replace(part, start=start, stop=len(order))
      paired.append((moved, state))
    self._order = None if order == sorted(order) else order
    return paired if self._order is not None else sources

  def _check(self, pair: _Pair) -> Iterator[errors.Mismatch]:
    """Yields why a part has no conversion; adds one-sided fields to `one_sided`."""
    ours, theirs = pair.source.convention, pair.target.convention
    place = f"elements {pair.source.start} to {pair.source.stop}"
    for field in ("unit", "frame", "rotation", "gripper", "control"):
      a, b = getattr(ours, field), getattr(theirs, field)
      if field == "unit" and None in (a, b) and (ours.rotation or theirs.rotation):
        continue  # Radians by default.
      if (a is None) != (b is None):
        self.one_sided.append(f"{place}: {field}={(a if b is None else b)!r}")
      elif field == "frame" and a != b:
        hint = "No declaration has the pose between two frames: convert the data."
        yield errors.Mismatch(place, f"frame '{b}'", f"'{a}'", hint)
      elif field == "unit" and a and UNITS[a][0] != UNITS[b][0]:
        yield errors.Mismatch(place, f"a unit like '{b}'", f"'{a}'")
      elif field == "control" and a != b:
        yield from self._check_control(pair, place)

  def _check_control(self, pair: _Pair, place: str) -> Iterator[errors.Mismatch]:
    before, after = pair.controls
    if not {before, after} <= {ABSOLUTE, *RELATIVE}:
      yield errors.Mismatch(place, f"control '{after}'", f"'{before}'")
    elif pair.state is None:
      got = "none of its elements" if self._state else "no such state"
      want = "a reference: the path of the state that relative actions refer to"
      hint = "Declare reference='path', or 'path[start:stop]'."
      yield errors.Mismatch(place, want, got, hint)
    elif pair.source.convention.rotation is None and _is_in_tool(pair):
      number = self._pairs.index(pair) + 1
      other = self._pairs[number] if number < len(self._pairs) else None
      if other is None or not _is_position(pair) or other.controls != pair.controls:
        want = "3 numbers before their rotation, of the same control, for the tool"
        yield errors.Mismatch(place, want, f"{pair.source.size} without one")


def _range(part: Part) -> tuple[int, int]:
  return part.start, part.stop


def _is_in_tool(pair: _Pair) -> bool:
  return any(control.startswith("tool") for control in pair.controls)


def _is_position(pair: _Pair) -> bool:
  """Whether a part moves with the rotation that follows it."""
  before, after = pair.controls
  is_vector = pair.source.convention.rotation is None and pair.source.size == 3
  return is_vector and before != after and _is_in_tool(pair)


def _changes(pair: _Pair) -> bool:
  """Whether the values of a part change."""
  ours, theirs = pair.source.convention, pair.target.convention
  if pair.controls[0] != pair.controls[1]:
    return True
  if ours.rotation and theirs.rotation:
    units = {_factor(ours), _factor(theirs)}
    return ours.rotation != theirs.rotation or len(units) > 1
  return any(
    a is not None and b is not None and a != b
    for a, b in ((ours.unit, theirs.unit), (ours.gripper, theirs.gripper))
  )


def _factor(convention: Convention) -> float:
  return UNITS[convention.unit or "rad"][1] if convention.rotation else 1.0


def _read(part: Part, block: Any, target: Part) -> Any:
  """Returns quaternions of rotations, and numbers in the unit of the target."""
  ours, theirs = part.convention, target.convention
  if ours.rotation is not None and theirs.rotation is not None:
    return rotations.to_quaternion(ours.rotation, block, _factor(ours))
  if ours.gripper is not None and theirs.gripper is not None:
    opened, closed = ours.gripper[:2]
    new_opened, new_closed, *kind = theirs.gripper
    scale = (new_opened - new_closed) / (opened - closed)
    if kind and not ours.gripper[2:]:
      xp = array_module(block)
      is_open = (block - closed) / (opened - closed) >= 0.5
      return xp.where(is_open, block * 0 + new_opened, block * 0 + new_closed)
    return (block - closed) * scale + new_closed
  if ours.unit is not None and theirs.unit is not None and ours.unit != theirs.unit:
    return block * (UNITS[ours.unit][1] / UNITS[theirs.unit][1])
  return block


def _write(pair: _Pair, block: Any, moved: Any, near: Quaternion | None) -> Any:
  """Returns a part in the layout of the target."""
  ours, theirs = pair.source.convention, pair.target.convention
  if ours.rotation is None or theirs.rotation is None:
    return moved
  kinds = {ours.rotation, theirs.rotation}
  if pair.controls[0] == pair.controls[1] and len(kinds) == 1:
    return block * (_factor(ours) / _factor(theirs))
  factor = 1 / _factor(theirs)
  return rotations.from_quaternion(theirs.rotation, moved, factor, near)


def _compose(control: str, p: Any, q: Any, p0: Any, q0: Any) -> tuple[Any, Any]:
  """Returns absolute positions and rotations of relative ones; either may be None."""
  is_local = control.startswith("tool")
  if control == ABSOLUTE:
    return p, q
  if control.endswith("delta"):
    if q is not None:
      steps = rotations.accumulate(q, is_local)
      last, q = q, rotations.multiply(*((q0, steps) if is_local else (steps, q0)))
    if p is not None:
      if is_local:
        before = rotations.multiply(q, rotations.inverse(last))
        p = rotations.rotate(before, p)
      xp = array_module(p)
      p = p0 + xp.cumsum(p, axis=-2)
    return p, q
  if p is not None:
    p = p0 + (rotations.rotate(q0, p) if is_local else p)
  if q is not None:
    q = rotations.multiply(*((q0, q) if is_local else (q, q0)))
  return p, q


def _decompose(control: str, p: Any, q: Any, p0: Any, q0: Any) -> tuple[Any, Any]:
  """Returns relative positions and rotations of absolute ones; undoes `_compose`."""
  is_local = control.startswith("tool")
  if control == ABSOLUTE:
    return p, q
  if control.endswith("delta"):
    if p is not None:
      xp = array_module(p)
      before = xp.zeros_like(p) + p0
      stack = functools.partial(array_module(p).stack, axis=-2)
      p0 = stack([before[..., 0, :], *(p[..., i, :] for i in range(p.shape[-2] - 1))])
    if q is not None:
      q0 = tuple(
        concat([each[..., :1] * 0 + first, each[..., :-1]])
        for each, first in zip(q, q0, strict=True)
      )
  if p is not None:
    p = p - p0
    p = rotations.rotate(rotations.inverse(q0), p) if is_local else p
  if q is not None:
    back = rotations.inverse(q0)
    q = rotations.multiply(*((back, q) if is_local else (q, back)))
  return p, q


def check_declared(
  operation: str, declared: Mapping[str, Any], stored: Mapping[str, Any]
) -> None:
  """Compares declared conventions with those of the data.

  Warns, once for each path, of fields that only one side declares.

  Args:
    operation: name of the called function, for errors.
    declared: specs by path, each named after the path that it reads.
    stored: specs of the data by path.
  Raises:
    SpecError: conventions differ; all paths are listed.
  """
  mismatches = []
  for path, spec in declared.items():
    data = stored.get(spec.name)
    ours, theirs = (getattr(each, "convention", None) for each in (data, spec))
    if data is None or (ours is None and theirs is None):
      continue
    size, target_size = (
      int((each.shape[-1] if each.shape.rank else 1) or 0) for each in (data, spec)
    )
    if (ours is None or theirs is None) and size != target_size:
      continue  # The shapes differ, which is another error.
    if explain(ours, theirs, size, target_size):
      hint = (
        "Convert it in the model's preprocessor: preprocessors.ConvertConventions "
        "with the data's as `data`."
      )
      mismatches.append(errors.Mismatch(path, f"{theirs}", f"{ours}", hint))
    else:
      Converter(ours, theirs, size, target_size, f"{operation}: {path}").warn()
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)


def explain(
  source: Convention | None, target: Convention | None, size: int, target_size: int
) -> list[str]:
  """Describes the differences of the fields that both conventions declare; or []."""
  try:
    converter = Converter(source, target, size, target_size, state=(source, size))
  except errors.SpecError as error:
    return [str(error)]
  return converter.changes_by_part()
