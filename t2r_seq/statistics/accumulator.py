"""The contract of what is kept of a path while its values pass by."""

from __future__ import annotations

import abc
from typing import TypeVar

import numpy as np

from t2r_seq import specs
from t2r_seq.statistics.figures import PathStatistics

Arrays = dict[str, np.ndarray]
_Self = TypeVar("_Self", bound="Accumulator")


class Accumulator(abc.ABC):
  """Takes in rows of one path; subclasses say what they keep of them."""

  def __init__(self, spec: specs.ExtendedTensorSpec) -> None:
    """Creates an empty one.

    Args:
      spec: of one row.
    """
    self.spec = spec
    self.rows = 0

  @abc.abstractmethod
  def add(self, values: np.ndarray) -> None:
    """Takes in values [rows, *shape]; they must not change afterwards."""

  def add_rows(self, count: int) -> None:
    """Counts rows that nobody has read."""
    self.rows += count

  @abc.abstractmethod
  def merge(self: _Self, other: _Self) -> None:
    """Takes in what another of the same kind and spec has seen."""

  @abc.abstractmethod
  def finish(self) -> PathStatistics:
    """Returns the figures."""

  @abc.abstractmethod
  def to_arrays(self) -> Arrays:
    """Returns the state by name."""

  @abc.abstractmethod
  def restore(self, arrays: Arrays) -> None:
    """Takes the state that `to_arrays` gave."""
