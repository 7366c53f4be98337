"""Which episodes of a dataset a generator reads: a split, or a list of numbers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors

Episodes = Sequence[int] | np.ndarray | str | os.PathLike[str]
"""Numbers of episodes; or a file that lists them, one a line, `#` for comments."""


def choose_episodes(
  where: str,
  num_episodes: int,
  episodes: Episodes | None = None,
  split: str | None = None,
  splits: Mapping[str, Iterable[int]] | None = None,
) -> np.ndarray | None:
  """Finds the episodes that are to be read.

  Args:
    where: who reads, for the error.
    num_episodes: of the dataset.
    episodes: their numbers, or a file of them; None for all.
    split: its name; None for all. With both, those of the split that are in the list.
    splits: numbers by name, as the dataset has them.
  Returns:
    int64, rising, each once; None where all are meant.
  Raises:
    SpecError: no such split, a number that is none of an episode, or none is left.
  """
  if episodes is None and split is None:
    return None
  chosen = np.arange(num_episodes)
  if split is not None:
    known = dict(splits or {})
    if split not in known:
      raise errors.SpecError(
        f"{where}: split: expected one of those of the dataset, "
        f"{errors.listing(known)}, got '{split}'.{errors.nearest(split, known)}"
      )
    chosen = _check(f"{where}: split '{split}'", list(known[split]), num_episodes)
  if episodes is not None:
    name = f"{where}: episodes"
    if isinstance(episodes, (str, os.PathLike)):
      name, episodes = f"{name}: {os.fspath(episodes)}", _read_list(where, episodes)
    chosen = np.intersect1d(chosen, _check(name, episodes, num_episodes))
  if not len(chosen):
    both = (
      f" that are in split '{split}', too" if episodes is not None and split else ""
    )
    raise errors.SpecError(f"{where}: episodes: expected some{both}, got none.")
  return chosen


def _check(where: str, numbers: Any, num_episodes: int) -> np.ndarray:
  found = np.asarray(numbers)
  if not found.size:
    found = found.astype(np.int64)
  if found.ndim != 1 or found.dtype.kind not in "iu":
    raise errors.SpecError(
      f"{where}: expected numbers of episodes, got {errors.describe(found)}."
    )
  outside = found[(found < 0) | (found >= num_episodes)]
  if len(outside):
    raise errors.SpecError(
      f"{where}: expected numbers from 0 to {num_episodes - 1}, got {outside[0]}."
    )
  return np.unique(found.astype(np.int64))


def _read_list(where: str, path: str | os.PathLike[str]) -> list[int]:
  """Reads a file of numbers, one a line."""
  found, number, text = [], 0, ""
  try:
    with open(path, encoding="utf-8") as file:
      for line in file:
        number, text = number + 1, line.partition("#")[0].strip()
        if text:
          found.append(int(text))
  except OSError as error:
    raise errors.SpecError(
      f"{where}: episodes: {os.fspath(path)}: expected a file that lists episodes, got "
      f"{error.strerror}."
    ) from error
  except ValueError as error:
    raise errors.SpecError(
      f"{where}: episodes: {os.fspath(path)}: line {number}: expected the number of an "
      f"episode, got {text:.40!r}."
    ) from error
  return found
