"""Converts between layouts of rotations, to find which one is in use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

_LEAST_TURN = 0.05  # Degrees.


def _about(axis: int, angles: np.ndarray) -> np.ndarray:
  """Returns rotations about an axis, [N, 3, 3]."""
  matrices = np.zeros([len(angles), 3, 3])
  i, j = (axis + 1) % 3, (axis + 2) % 3
  matrices[:, axis, axis] = 1
  matrices[:, i, i] = matrices[:, j, j] = np.cos(angles)
  matrices[:, j, i] = np.sin(angles)
  matrices[:, i, j] = -np.sin(angles)
  return matrices


def _from_vector(vector: np.ndarray) -> np.ndarray:
  """Rodrigues' formula."""
  angle = np.linalg.norm(vector, axis=1)[:, np.newaxis, np.newaxis]
  skew = np.zeros([len(vector), 3, 3])
  for axis in range(3):
    i, j = (axis + 1) % 3, (axis + 2) % 3
    skew[:, j, i], skew[:, i, j] = vector[:, axis], -vector[:, axis]
  first, second = np.sinc(angle / np.pi), 0.5 * np.sinc(angle / (2 * np.pi)) ** 2
  return np.eye(3) + first * skew + second * skew @ skew


def _to_vector(matrix: np.ndarray) -> np.ndarray:
  x, y, z, w = np.moveaxis(_to_quaternion(matrix), 1, 0)
  axis, sine = np.stack([x, y, z], 1), np.sqrt(x * x + y * y + z * z)
  angle = 2 * np.arctan2(sine, w)
  scale = np.where(sine > 1e-12, angle / np.maximum(sine, 1e-12), 2.0)
  return axis * scale[:, np.newaxis]


def _to_quaternion(matrix: np.ndarray) -> np.ndarray:
  """Returns x, y, z, w, with w >= 0."""
  m = matrix
  trace = m[:, 0, 0] + m[:, 1, 1] + m[:, 2, 2]
  # The symmetric matrix of which the quaternion is an eigenvector is rank one.
  outer = np.empty([len(m), 4, 4])
  for i in range(3):
    j, k = (i + 1) % 3, (i + 2) % 3
    outer[:, i, i] = 1 + 2 * m[:, i, i] - trace
    outer[:, i, j] = outer[:, j, i] = m[:, i, j] + m[:, j, i]
    outer[:, i, 3] = outer[:, 3, i] = m[:, k, j] - m[:, j, k]
  outer[:, 3, 3] = 1 + trace
  largest = np.argmax(np.diagonal(outer, axis1=1, axis2=2), axis=1)
  rows = outer[np.arange(len(m)), largest]
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return np.where(rows[:, 3:] < 0, -rows, rows)


class Euler:
  """Euler angles, listed in the order in which the rotations are applied.

  Attributes:
    name: 'xyz' for axes of the body, 'xyz, fixed axes' for those of the world.
  """

  def __init__(self, axes: tuple[int, int, int], is_fixed: bool) -> None:
    """Creates the convention for three different axes."""
    self._axes, self._is_fixed = axes, is_fixed
    self.name = "".join("xyz"[axis] for axis in axes) + (is_fixed * ", fixed axes")

  def to_matrix(self, angles: np.ndarray) -> np.ndarray:
    """Maps angles, [N, 3], to matrices."""
    parts = [_about(axis, angles[:, i]) for i, axis in enumerate(self._axes)]
    first, second, third = parts[::-1] if self._is_fixed else parts
    return first @ second @ third

  def from_matrix(self, matrix: np.ndarray) -> np.ndarray:
    """Maps matrices to angles in -pi ... pi."""
    i, j, k = self._axes[::-1] if self._is_fixed else self._axes
    sign = 1.0 if (j - i) % 3 == 1 else -1.0
    second = np.arcsin(np.clip(sign * matrix[:, i, k], -1, 1))
    first = np.arctan2(-sign * matrix[:, j, k], matrix[:, k, k])
    third = np.arctan2(-sign * matrix[:, i, j], matrix[:, i, i])
    angles = np.stack([first, second, third], 1)
    return angles[:, ::-1] if self._is_fixed else angles


_EULER = [
  Euler((first, second, third), is_fixed)
  for first, second, third in itertools.permutations(range(3))
  for is_fixed in (False, True)
]


def _orthonormal(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns matrices with these columns, by Gram and Schmidt."""
  with np.errstate(invalid="ignore", divide="ignore"):
    first = first / np.linalg.norm(first, axis=1, keepdims=True)
    second = second - (first * second).sum(1, keepdims=True) * first
    second = second / np.linalg.norm(second, axis=1, keepdims=True)
  return np.stack([first, second, np.cross(first, second)], axis=2)


def _are_rotations(values: np.ndarray) -> bool:
  """Whether vectors of 6 elements are two columns, or rows, of a rotation."""
  first, second = values[:, :3], values[:, 3:]
  found = np.stack(
    [(first * first).sum(1) - 1, (second * second).sum(1) - 1, (first * second).sum(1)]
  )
  return bool((np.abs(found) < 1e-3).all())


def _are_unit(values: np.ndarray) -> bool:
  return bool((np.abs((values * values).sum(1) - 1) < 1e-3).all())


def other_layouts(values: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields (kind, text, values in another layout) of the same rotations.

  Args:
    values: rotations in an unknown layout, [N, 3], [N, 4] or [N, 6].
  """
  size = values.shape[1]
  if size == 3:
    yield from _of_three(values)
  elif size == 4 and _are_unit(values):
    inverse = np.array([-1, -1, -1, 1.0])
    for name, signs in (("last", inverse), ("first", -inverse[::-1])):
      text = f"the inverse rotation, of quaternions with w {name}"
      yield "the inverse rotation", text, values * signs
  elif size == 6 and _are_rotations(values):
    columns = _orthonormal(values[:, :3], values[:, 3:])
    rows = columns.transpose(0, 2, 1)
    text = "a 6D rotation of rows for columns of the matrix, or the inverse rotation"
    yield text, text, np.concatenate([rows[:, :, 0], rows[:, :, 1]], 1)


def _of_three(values: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
  vector = _from_vector(values)
  for new in _EULER:
    kind, angles = "Euler angles for an axis-angle vector", new.from_matrix(vector)
    yield kind, f"Euler angles ({new.name}) for an axis-angle vector", angles
    text = f"Euler angles ({new.name}) in degrees for an axis-angle vector"
    yield kind, text, np.rad2deg(angles)
  for old in _EULER:
    matrix = old.to_matrix(values)
    text = f"an axis-angle vector for Euler angles ({old.name})"
    yield "an axis-angle vector for Euler angles", text, _to_vector(matrix)
    for new in _EULER:
      # The names of the axes may be exchanged in turn, so that these are all pairs.
      if new is not old and old.name[0] == "x":
        text = "Euler angles in another convention"
        yield text, text, new.from_matrix(matrix)


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
  angle = np.rad2deg(np.linalg.norm(_to_vector(matrix[np.newaxis])))
  if angle < _LEAST_TURN:
    return None  # An offset.
  moved = np.linalg.norm(centers[1] - centers[0] @ matrix)
  text = f"in another coordinate frame: turned by {angle:.3g} degrees"
  text += f" and moved by {moved:.3g}" if moved > 1e-4 * np.abs(after).max() else ""
  return text, (before - centers[0]) @ matrix + centers[1]
