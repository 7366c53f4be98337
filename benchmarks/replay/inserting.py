"""The work of inserting: transitions one by one, or of several environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

_NUM_DIFFERENT = 64
_SHAPES: dict[str, tuple[int, ...]] = {"obs": (17,), "act": (6,), "rew": (), "done": ()}


@dataclasses.dataclass(frozen=True)
class InsertWork:
  """Transitions to append to a buffer that is full from the second round on.

  Attributes:
    num_episodes: in a round.
    num_steps: of an episode.
    num_environments: that go in step, where several do.
  """

  num_episodes: int = 40
  num_steps: int = 500
  num_environments: int = 16

  @property
  def capacity(self) -> int:
    """Steps that the buffer holds."""
    return self.num_episodes * self.num_steps

  def steps(self) -> Iterator[dict[str, np.ndarray]]:
    """Yields different steps."""
    rng = np.random.default_rng(0)
    for _ in range(_NUM_DIFFERENT):
      yield {name: _numbers(rng, shape) for name, shape in _SHAPES.items()}

  def batches(self) -> Iterator[dict[str, np.ndarray]]:
    """Yields different steps of all environments, [N, ...]."""
    rng = np.random.default_rng(0)
    for _ in range(_NUM_DIFFERENT):
      yield {
        name: _numbers(rng, (self.num_environments, *shape))
        for name, shape in _SHAPES.items()
      }


def _numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
  return np.asarray(rng.random(shape, np.float32))
