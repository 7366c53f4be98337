"""Splits: named lists of episodes, and the selection of episodes by them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors

EpisodeNumbers = Sequence[int] | np.ndarray | str | os.PathLike[str]
"""Numbers of episodes; or a file that lists them, one per line, `#` for comments."""

Splits = Mapping[str, Iterable[int]]
"""Numbers of episodes by the name of the split."""


def choose_episodes(
  where: str,
  num_episodes: int,
  episodes: EpisodeNumbers | None = None,
  split: str | None = None,
  splits: Splits | None = None,
) -> np.ndarray | None:
  """Finds the episodes to read.

  Args:
    where: the reader, for the error.
    num_episodes: number of episodes of the dataset.
    episodes: numbers of episodes, or a file that lists them; None for all.
    split: name of a split; None for all. With both, the listed episodes of that split.
    splits: the dataset's splits, numbers by name.
  Returns:
    Numbers of episodes, int64, rising, each once; None for all.
  Raises:
    SpecError: a split, an episode or the file is missing or invalid, or no episode is
      left.
  """
  if episodes is None and split is None:
    return None
  chosen = np.arange(num_episodes)
  if split is not None:
    all_splits = dict(splits or {})
    if split not in all_splits:
      want = f"one of those of the dataset, {errors.listing(all_splits)}"
      want = want if all_splits else "none: the dataset has none"
      raise errors.SpecError(
        f"{where}: split: expected {want}, got "
        f"'{split}'.{errors.nearest(split, all_splits)}"
      )
    chosen = _check(f"{where}: split '{split}'", list(all_splits[split]), num_episodes)
  if episodes is not None:
    name = f"{where}: episodes"
    if isinstance(episodes, (str, os.PathLike)):
      name = f"{name}: {os.fspath(episodes)}"
    numbers = read_episodes(where, episodes)
    chosen = np.intersect1d(chosen, _check(name, numbers, num_episodes))
  if not len(chosen):
    both = (
      f" that are in split '{split}', too" if episodes is not None and split else ""
    )
    raise errors.SpecError(f"{where}: episodes: expected some{both}, got none.")
  return chosen


def read_episodes(where: str, episodes: EpisodeNumbers) -> Any:
  """Returns numbers, or reads a file of them; SpecError if it cannot be read."""
  if not isinstance(episodes, (str, os.PathLike)):
    return np.asarray(episodes).tolist()
  place = f"{where}: episodes: {os.fspath(episodes)}"
  numbers, number, text = [], 0, ""
  try:
    with open(episodes, encoding="utf-8") as file:
      for line in file:
        number, text = number + 1, line.partition("#")[0].strip()
        if text:
          numbers.append(int(text))
  except OSError as error:
    raise errors.SpecError(
      f"{place}: expected a file that lists episodes, got {error.strerror}."
    ) from error
  except ValueError as error:
    raise errors.SpecError(
      f"{place}: line {number}: expected the number of an episode, got {text[:40]!r}."
    ) from error
  return numbers


def _check(where: str, numbers: Any, num_episodes: int) -> np.ndarray:
  array = np.asarray(numbers)
  if not array.size:
    array = array.astype(np.int64)
  if array.ndim != 1 or array.dtype.kind not in "iu":
    raise errors.SpecError(
      f"{where}: expected numbers of episodes, got {errors.describe(array)}."
    )
  outside = array[(array < 0) | (array >= num_episodes)]
  if len(outside):
    raise errors.SpecError(
      f"{where}: expected numbers from 0 to {num_episodes - 1}, got {outside[0]}."
    )
  return np.unique(array.astype(np.int64))


def parse_shares(where: str, text: str) -> dict[str, float]:
  """Reads shares by name, above 0 and with a sum of 1 at most: 'train=0.9,eval=0.1'."""
  shares: dict[str, float] = {}
  for part in text.split(","):
    name, _, given = (piece.strip() for piece in part.partition("="))
    try:
      share = float(given)
    except ValueError:
      share = 0.0
    if not name or name in shares or not 0 < share <= 1:
      raise errors.SpecError(
        f"{where}: expected names and shares, such as train=0.9,eval=0.1, got "
        f"'{part.strip()}' in '{text}'."
      )
    shares[name] = share
  _check_shares(f"{where}: '{text}'", shares)
  return shares


def _check_shares(where: str, shares: Mapping[str, float]) -> None:
  total = sum(shares.values())
  # Sums of floats may be a little over 1.
  if min(shares.values(), default=1) < 0 or total > 1 + 1e-9:
    raise errors.SpecError(
      f"{where}: expected shares >= 0 with a sum of 1 at most, got {total:g}."
    )


def make_splits(
  shares: Mapping[str, float], num_episodes: int, seed: int = 0
) -> dict[str, list[int]]:
  """Assigns episodes to splits at random, each to one split at most.

  >>> from t2r_seq import episodes
  >>> splits = episodes.make_splits({"train": 0.8, "eval": 0.2}, num_episodes=10)
  >>> len(splits["train"]), len(splits["eval"])
  (8, 2)

  Args:
    shares: share of the episodes of each split, by name; their sum may be below 1.
    num_episodes: number of episodes to assign.
    seed: equal seeds give equal splits.
  Returns:
    Numbers of episodes by name, rising; sizes are rounded.
  Raises:
    SpecError: a share is negative, their sum is > 1, or a split has no episode.
  """
  _check_shares("split", shares)
  order = np.random.default_rng(seed).permutation(num_episodes)
  ends = np.rint(np.cumsum(list(shares.values())) * num_episodes).astype(np.int64)
  parts = np.split(order, ends)[: len(shares)]
  for name, part in zip(shares, parts, strict=True):
    if not len(part):
      raise errors.SpecError(
        f"split: {name}: expected a share that gives it an episode of {num_episodes}, "
        f"got {shares[name]:g}."
      )
  return {
    name: np.sort(part).tolist() for name, part in zip(shares, parts, strict=True)
  }


def check_splits(where: str, splits: Splits, num_episodes: int) -> dict[str, list[int]]:
  """Returns the splits as lists of rising numbers; SpecError if one is invalid."""
  return {
    str(name): _check(f"{where}: split '{name}'", list(episodes), num_episodes).tolist()
    for name, episodes in splits.items()
  }


def renumber(splits: Splits, chosen: np.ndarray) -> dict[str, list[int]]:
  """Returns the splits of a selection, by its numbers; leaves out empty ones."""
  renumbered = {
    name: np.flatnonzero(np.isin(chosen, list(numbers))).tolist()
    for name, numbers in splits.items()
  }
  return {name: numbers for name, numbers in renumbered.items() if numbers}


def describe_splits(splits: Splits) -> str:
  """Renders the names of splits, and their numbers of episodes."""
  sizes = {name: len(list(episodes)) for name, episodes in splits.items()}
  return "splits: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items())


# Names of splits of training data, and of data that training must not see.
_TRAINED = re.compile(r"(^|[^a-z])train(ing)?($|[^a-z])")
_HELD_OUT = re.compile(r"(^|[^a-z])(val|valid(ation)?|eval(uation)?|test)($|[^a-z])")


def describe_overlaps(splits: Splits) -> list[str]:
  """Returns a sentence for each training split with episodes of a held-out one.

  Other splits may overlap, such as `train` and its part `20_percent`. So only names
  with the word train are compared with names with val, valid, eval or test.
  """
  overlaps = []
  sets = {name: set(numbers) for name, numbers in splits.items()}
  for name, numbers in sets.items():
    for other, held_out in sets.items():
      is_trained = [bool(_TRAINED.search(each.lower())) for each in (name, other)]
      is_pair = is_trained == [True, False] and _HELD_OUT.search(other.lower())
      if is_pair and (shared := numbers & held_out):
        overlaps.append(
          f"The splits {name} and {other} share episodes, {len(shared):,} in all, such "
          f"as {min(shared)}: evaluation sees what training saw."
        )
  return overlaps
