"""Which figures a path has: one per element, per channel, or one for all."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

MAX_ELEMENTS = 2048
ELEMENT, CHANNEL, TENSOR = "element", "channel", "tensor"


@dataclasses.dataclass(frozen=True)
class FigureLayout:
  """How the values of one step are told apart.

  Small vectors and matrices have figures for each element, images and what is too
  large for that for each index of the last axis, and what is too large even so has one
  figure. Figures have the shape of the last axes, so they broadcast against the values.

  Attributes:
    row_shape: shape of one step.
  """

  row_shape: tuple[int, ...]

  @property
  def per(self) -> str:
    """'element', 'channel' or 'tensor'."""
    if len(self.row_shape) < 3 and math.prod(self.row_shape) <= MAX_ELEMENTS:
      return ELEMENT
    return CHANNEL if self.row_shape[-1] <= MAX_ELEMENTS else TENSOR

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the figures."""
    axes = {ELEMENT: len(self.row_shape), CHANNEL: 1, TENSOR: 0}[self.per]
    return self.row_shape[len(self.row_shape) - axes :]

  @property
  def size(self) -> int:
    """How many figures there are of a kind."""
    return math.prod(self.shape)

  def to_columns(self, rows: np.ndarray) -> np.ndarray:
    """Views rows [n, *row_shape] as [m, size]: a column for each figure."""
    if not self.size:
      return np.zeros((0, 0), rows.dtype)
    return rows.reshape(-1, self.size)
