"""Converts between layouts of rotations, to find which one is in use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from t2r_seq.specs import rotations

_LEAST_TURN = 0.05  # Degrees.
_EULER = [word for word in rotations.EULER if len({*word.split("_")[1]}) == 3]


def convert(values: np.ndarray, source: str, target: str) -> np.ndarray:
  """Converts rotations, [N, size], between two layouts of `rotations.SIZES`."""
  quaternion = rotations.to_quaternion(source, values[:, np.newaxis])
  return np.asarray(rotations.from_quaternion(target, quaternion)[:, 0])


def _name(word: str) -> str:
  """Returns 'xyz' for intrinsic Euler angles, 'xyz, fixed axes' for extrinsic ones."""
  _, order, kind = word.split("_")
  return order + (kind == "extrinsic") * ", fixed axes"


def _are_rotations(values: np.ndarray) -> bool:
  """Whether vectors of 6 elements are two columns, or rows, of a rotation."""
  first, second = values[:, :3], values[:, 3:]
  errors = np.stack(
    [(first * first).sum(1) - 1, (second * second).sum(1) - 1, (first * second).sum(1)]
  )
  return bool((np.abs(errors) < 1e-3).all())


def other_layouts(values: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields (kind, text, values in another layout) of the same rotations.

  Args:
    values: rotations in an unknown layout, [N, 3], [N, 4] or [N, 6].
  """
  size = values.shape[1]
  if size == 3:
    yield from _of_three(values)
  elif size == 4 and (np.abs((values * values).sum(1) - 1) < 1e-3).all():
    inverse = np.array([-1, -1, -1, 1.0])
    for name, signs in (("last", inverse), ("first", -inverse[::-1])):
      text = f"the inverse rotation, of quaternions with w {name}"
      yield "the inverse rotation", text, values * signs
  elif size == 6 and _are_rotations(values):
    text = "a 6D rotation of rows for columns of the matrix, or the inverse rotation"
    yield text, text, convert(values, "rot6d_columns", "rot6d_rows")


def _of_three(values: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
  for new in _EULER:
    kind = "Euler angles for an axis-angle vector"
    angles = convert(values, "axis_angle", new)
    yield kind, f"Euler angles ({_name(new)}) for an axis-angle vector", angles
    text = f"Euler angles ({_name(new)}) in degrees for an axis-angle vector"
    yield kind, text, np.rad2deg(angles)
  for old in _EULER:
    text = f"an axis-angle vector for Euler angles ({_name(old)})"
    kind = "an axis-angle vector for Euler angles"
    yield kind, text, convert(values, old, "axis_angle")
    for new in _EULER:
      # A cyclic renaming of the axes (x to y to z to x) does not change a conversion,
      # so conversions from an order that begins with x cover all pairs.
      if new is not old and _name(old)[0] == "x":
        text = "Euler angles in another convention"
        yield text, text, convert(values, old, new)


def other_frame(before: np.ndarray, after: np.ndarray) -> tuple[str, np.ndarray] | None:
  """Fits a rotation and a translation to points, [N, 3], by Kabsch's method.

  Returns:
    (description of the frame, `before` in that frame); None for points on a line, or
    without a rotation.
  """
  centers = before.mean(0), after.mean(0)
  left, spread, right = np.linalg.svd((before - centers[0]).T @ (after - centers[1]))
  if spread[1] <= 1e-6 * spread[0]:
    return None
  sign = np.sign(np.linalg.det(left @ right))
  matrix = left * np.array([1, 1, sign]) @ right
  vector = convert(matrix.reshape(1, 9), "matrix", "axis_angle")
  angle = np.rad2deg(np.linalg.norm(vector))
  if angle < _LEAST_TURN:
    return None  # A translation alone is an offset, which `diagnoses` also finds.
  moved = np.linalg.norm(centers[1] - centers[0] @ matrix)
  text = f"in another coordinate frame: turned by {angle:.3g} degrees"
  text += f" and moved by {moved:.3g}" if moved > 1e-4 * np.abs(after).max() else ""
  return text, (before - centers[0]) @ matrix + centers[1]
