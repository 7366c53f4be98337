"""Rotations in every layout, through quaternions, for numpy and TensorFlow.

A quaternion is a tuple of four arrays (w, x, y, z) here: LiteRT has all the elementwise
ops that this needs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from t2r_seq import imports
from t2r_seq.imports import tf

Quaternion = tuple[Any, Any, Any, Any]

_EULER = "euler_{}_{}"
_INTRINSIC, _EXTRINSIC = "intrinsic", "extrinsic"
_ORDERS = [
  "".join(order)
  for order in itertools.product("xyz", repeat=3)
  if order[0] != order[1] != order[2]
]
EULER = tuple(
  _EULER.format(order, kind) for order in _ORDERS for kind in (_INTRINSIC, _EXTRINSIC)
)
SIZES = {
  "quaternion_wxyz": 4,
  "quaternion_xyzw": 4,
  "rot6d_rows": 6,
  "rot6d_columns": 6,
  "matrix": 9,
  "axis_angle": 3,
  **dict.fromkeys(EULER, 3),
}
"""Number of elements of each layout, by its name."""

_TINY = 1e-30  # Squared length below which a vector has no direction.
_SMALL = 1e-12  # Squared angle below which the series of the sine is exact.


def array_module(*values: Any) -> Any:
  """Returns the array module: TensorFlow if one is a tensor, otherwise numpy."""
  return tf if any(map(imports.is_tensor, values)) else np


def concat(values: Sequence[Any]) -> Any:
  """Concatenates along the last axis."""
  return (
    tf.concat(values, -1)
    if array_module(*values) is tf
    else np.concatenate(values, axis=-1)
  )


def _atan2(y: Any, x: Any) -> Any:
  return tf.atan2(y, x) if array_module(y) is tf else np.arctan2(y, x)


def has_angles(rotation: str | None) -> bool:
  """Whether a layout has angles, which have a unit."""
  return rotation in ("axis_angle", *EULER)


def multiply(p: Quaternion, q: Quaternion) -> Quaternion:
  """Returns the rotation by `q`, and then by `p`."""
  a, b, c, d = p
  w, x, y, z = q
  return (
    a * w - b * x - c * y - d * z,
    a * x + b * w + c * z - d * y,
    a * y - b * z + c * w + d * x,
    a * z + b * y - c * x + d * w,
  )


def inverse(q: Quaternion) -> Quaternion:
  """Returns the inverse rotation."""
  return q[0], -q[1], -q[2], -q[3]


def rotate(q: Quaternion, vectors: Any) -> Any:
  """Rotates vectors, [..., 3]."""
  zero = vectors[..., 0] * 0
  pure = (zero, vectors[..., 0], vectors[..., 1], vectors[..., 2])
  turned = multiply(multiply(q, pure), inverse(q))[1:]
  return array_module(vectors).stack(turned, axis=-1)


def accumulate(steps: Quaternion, is_local: bool) -> Quaternion:
  """Returns the products of the first 1, 2, ... rotations of the last axis.

  Each rotation is applied after those before it. A local one is about the axes that
  those before it have rotated.
  """
  # A parallel prefix product: each round doubles the number of factors.
  shift, length = 1, steps[0].shape[-1]
  ones = array_module(steps[0]).ones_like(steps[0])
  while shift < length:
    before = tuple(
      concat([fill[..., :shift], each[..., :-shift]])
      for fill, each in zip((ones, ones * 0, ones * 0, ones * 0), steps, strict=True)
    )
    steps = multiply(before, steps) if is_local else multiply(steps, before)  # type: ignore[arg-type]
    shift *= 2
  return steps


def _unit(parts: Sequence[Any]) -> tuple[Any, ...]:
  """Normalizes; zeros become the unit vector of the first axis."""
  xp = array_module(parts[0])
  squares = sum(part * part for part in parts)
  is_zero = squares < _TINY
  length = xp.sqrt(xp.where(is_zero, xp.ones_like(squares), squares))
  first, *others = [part / length for part in parts]
  return xp.where(is_zero, xp.ones_like(squares), first), *others


def to_quaternion(rotation: str, values: Any, factor: float = 1.0) -> Quaternion:
  """Reads rotations of a layout.

  Matrices are made orthonormal and quaternions normalized: a network's outputs are not.

  Args:
    rotation: layout of the values, a key of `SIZES`.
    values: [..., size].
    factor: factor from the unit of their angles to radians.
  """
  parts = [values[..., i] for i in range(SIZES[rotation])]
  if rotation == "quaternion_wxyz":
    return _unit(parts)  # type: ignore[return-value]
  if rotation == "quaternion_xyzw":
    return _unit([parts[3], *parts[:3]])  # type: ignore[return-value]
  if rotation == "axis_angle":
    return _from_vector([part * factor for part in parts])
  if rotation in EULER:
    angles = [part * factor for part in parts]
    *_, order, kind = rotation.split("_")
    turns = [
      _about("xyz".index(a), angle) for a, angle in zip(order, angles, strict=True)
    ]
    return functools.reduce(multiply, turns if kind == _INTRINSIC else turns[::-1])
  first = _unit(parts[:3])
  along = sum(a * b for a, b in zip(first, parts[3:6], strict=True))
  second = _unit([b - along * a for a, b in zip(first, parts[3:6], strict=True)])
  third = [
    first[i - 2] * second[i - 1] - first[i - 1] * second[i - 2] for i in range(3)
  ]
  rows = [first, second, third]
  if rotation == "rot6d_columns":
    rows = [*zip(*rows, strict=True)]
  return _from_matrix(rows)


def from_quaternion(
  rotation: str, q: Quaternion, factor: float = 1.0, near: Quaternion | None = None
) -> Any:
  """Writes rotations in a layout; the inverse of `to_quaternion`.

  Args:
    rotation: layout of the result, a key of `SIZES`.
    q: unit quaternions; the last axis of each array is time.
    factor: factor from radians to the unit of its angles.
    near: for quaternions; the first step gets their signs, [..., 1]. None: w >= 0. A
      later step gets the sign of the step before.
  """
  stack = functools.partial(array_module(q[0]).stack, axis=-1)
  if rotation.startswith("quaternion"):
    w, *vector = _continuous(q, near)
    return stack([w, *vector] if rotation == "quaternion_wxyz" else [*vector, w])
  if rotation == "axis_angle":
    return stack([part * factor for part in _to_vector(q)])
  if rotation in EULER:
    return stack([angle * factor for angle in _to_angles(rotation, q)])
  rows = _to_matrix(q)
  if rotation == "rot6d_columns":
    rows = [*zip(*rows, strict=True)]
  return stack([part for row in rows[: SIZES[rotation] // 3] for part in row])


def _continuous(q: Quaternion, near: Quaternion | None) -> Sequence[Any]:
  xp = array_module(q[0])
  pairs: Any = zip(q, near, strict=True) if near is not None else [(q[0], 1.0)]
  first = sum(a[..., :1] * b for a, b in pairs) < 0
  steps = sum(part[..., 1:] * part[..., :-1] for part in q) < 0
  if xp is tf:
    flips = tf.cumsum(tf.cast(tf.concat([first, steps], -1), tf.int32), -1)
    signs = tf.cast(1 - 2 * (flips % 2), q[0].dtype)
  else:
    flips = np.cumsum(np.concatenate([first, steps], -1), -1)
    signs = (1 - 2 * (flips % 2)).astype(q[0].dtype)
  return [part * signs for part in q]


def _from_vector(vector: Sequence[Any]) -> Quaternion:
  xp = array_module(vector[0])
  squares = sum(part * part for part in vector)
  is_small = squares < _SMALL
  angle = xp.sqrt(xp.where(is_small, xp.ones_like(squares), squares))
  scale = xp.where(is_small, 0.5 - squares / 48, xp.sin(angle / 2) / angle)
  w = xp.where(is_small, 1 - squares / 8, xp.cos(angle / 2))
  return w, vector[0] * scale, vector[1] * scale, vector[2] * scale


def _to_vector(q: Quaternion) -> list[Any]:
  xp = array_module(q[0])
  sign = xp.where(q[0] < 0, -xp.ones_like(q[0]), xp.ones_like(q[0]))
  w, x, y, z = (part * sign for part in q)
  squares = x * x + y * y + z * z
  is_small = squares < _SMALL
  sine = xp.sqrt(xp.where(is_small, xp.ones_like(squares), squares))
  scale = xp.where(is_small, 2 + squares / 3, 2 * _atan2(sine, w) / sine)
  return [part * scale for part in (x, y, z)]


def _about(axis: int, angle: Any) -> Quaternion:
  xp = array_module(angle)
  sine, zero = xp.sin(angle / 2), angle * 0
  vector = [sine if i == axis else zero for i in range(3)]
  return xp.cos(angle / 2), vector[0], vector[1], vector[2]


def _to_angles(rotation: str, q: Quaternion) -> list[Any]:
  """Returns Euler angles, by https://doi.org/10.1371/journal.pone.0276302.

  Computes the sum and the difference of the first and the last angle. If the middle
  angle is singular, one of them is arbitrary, and the rotation is still exact.
  """
  *_, order, kind = rotation.split("_")
  axes = ["xyz".index(axis) for axis in (order if kind == _EXTRINSIC else order[::-1])]
  i, j, k = axes
  is_proper = i == k
  k = 3 - i - j if is_proper else k
  sign = (i - j) * (j - k) * (k - i) // 2
  a, b, c, d = q[0], q[1 + i], q[1 + j], q[1 + k] * sign
  if not is_proper:
    a, b, c, d = a - c, b + d, c + a, d - b
  xp = array_module(a)
  middle = 2 * _atan2(xp.sqrt(c * c + d * d), xp.sqrt(a * a + b * b))
  half_sum, half_difference = _atan2(b, a), _atan2(d, c)
  first, third = half_sum - half_difference, half_sum + half_difference
  if not is_proper:
    middle, third = middle - np.pi / 2, third * sign
  angles = [_wrap_angle(first), middle, _wrap_angle(third)]
  return angles if kind == _EXTRINSIC else angles[::-1]


def _wrap_angle(angle: Any) -> Any:
  xp = array_module(angle)
  angle = xp.where(angle > np.pi, angle - 2 * np.pi, angle)
  return xp.where(angle < -np.pi, angle + 2 * np.pi, angle)


def _from_matrix(rows: Sequence[Sequence[Any]]) -> Quaternion:
  (a, b, c), (d, e, f), (g, h, i) = rows
  # Each is the quaternion times 4 w, 4 x, 4 y or 4 z: the largest factor is accurate.
  candidates = [
    (1 + a + e + i, h - f, c - g, d - b),
    (h - f, 1 + a - e - i, b + d, c + g),
    (c - g, b + d, 1 - a + e - i, f + h),
    (d - b, c + g, f + h, 1 - a - e + i),
  ]
  xp = array_module(a)
  best, largest = candidates[0], candidates[0][0]
  for place, candidate in enumerate(candidates[1:], 1):
    is_larger = candidate[place] > largest
    largest = xp.where(is_larger, candidate[place], largest)
    best = tuple(
      xp.where(is_larger, new, old) for new, old in zip(candidate, best, strict=True)
    )
  return _unit(best)  # type: ignore[return-value]


def _to_matrix(q: Quaternion) -> list[Sequence[Any]]:
  w, x, y, z = q
  return [
    (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
    (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
    (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
  ]
