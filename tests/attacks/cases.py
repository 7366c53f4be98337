"""The base of attacks whose cases are small: counts, random numbers, reports."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any


class Attack:
  """Counts outcomes; a case is a function of the seed and its number."""

  kind = ""

  def __init__(self, seed: int, folder: str, say: Callable[[str, Any], None]) -> None:
    self._seed = seed
    self._folder = folder
    self._say = say
    self.counts: collections.Counter[str] = collections.Counter()

  def run(self, number: int, count: int) -> None:
    """Runs so many cases."""
    for i in range(count):
      where = f"case {i} of round {number} of seed {self._seed}"
      self._say("at", where)
      rng = random.Random(f"{self.kind}/{self._seed}/{number}/{i}")
      for wrong in self._attack(rng):
        self._say("wrong", f"{where}: {wrong}")

  def _attack(self, rng: random.Random) -> list[str]:
    raise NotImplementedError
