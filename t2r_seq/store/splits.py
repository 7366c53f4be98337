"""The splits of a store: a file beside its manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, files
from t2r_seq.store import layout

_FORMAT, _VERSION = "t2r_seq.splits", 1


def read_splits(folder: str, segments: Mapping[str, int]) -> dict[str, list[int]]:
  """Reads the splits of a store; of one that has none, none.

  An episode's number grows where a segment before its own does. So splits say of which
  segments, and how many episodes of each, they number the episodes.

  Args:
    folder: of the store.
    segments: how many episodes each has now, by name, one after the other.
  Returns:
    Numbers of episodes as the store has them now, by the name of the split.
  Raises:
    StoreError: the file is damaged, or newer, or of segments that are gone.
  """
  place = os.path.join(folder, layout.SPLITS)
  try:
    with open(place, encoding="utf-8") as file:
      values = json.load(file)
    if (values["format"], values["version"]) != (_FORMAT, _VERSION):
      raise ValueError(f"{values['format']} of version {values['version']}")
    known = {
      str(name): [_whole(number) for number in numbers]
      for name, numbers in dict(values["splits"]).items()
    }
    # Earlier versions did not say it.
    dealt = {str(n): _whole(count) for n, count in values.get("segments", ())}
  except FileNotFoundError:
    return {}
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise errors.StoreError(
      f"EpisodeStore: {place}: expected splits, '{_FORMAT}' of version {_VERSION}, got "
      f"{error}. {_ANEW}"
    ) from error
  places = _places(place, dealt or segments, segments)
  for name, numbers in known.items():
    outside = [number for number in numbers if not 0 <= number < len(places)]
    if outside:
      raise errors.StoreError(
        f"EpisodeStore: {place}: split '{name}': expected numbers from 0 to "
        f"{len(places) - 1}, got {outside[0]}. {_ANEW}"
      )
  return {name: places[numbers].tolist() for name, numbers in known.items()}


_ANEW = "Write them anew: EpisodeStore.write_splits, or delete the file."


def _whole(number: Any) -> int:
  if type(number) is not int or not 0 <= number < 1 << 62:
    raise ValueError(f"{number!r:.40} is no number of an episode")
  return number


def _places(
  place: str, dealt: Mapping[str, int], segments: Mapping[str, int]
) -> np.ndarray:
  """Returns the present number of each episode that there was.

  Args:
    place: of the file.
    dealt: how many episodes the segments had then; a merge, too, has splits written.
    segments: and now.
  """
  ends = np.cumsum([0, *segments.values()]).tolist()
  starts = dict(zip(segments, ends, strict=False))
  if {name for name, count in dealt.items() if count} - {*segments}:
    # They were merged to the first.
    dealt = {next(iter(dealt)): sum(dealt.values())}
  if any(segments.get(name, 0) < count for name, count in dealt.items()):
    raise errors.StoreError(
      f"EpisodeStore: {place}: expected the segments that they were dealt of, "
      f"{errors.listing(dealt)}, got {errors.listing(segments)}. {_ANEW}"
    )
  parts = [starts[name] + np.arange(count) for name, count in dealt.items() if count]
  return np.concatenate([np.zeros(0, np.int64), *parts])


def write_splits(
  folder: str, splits: Mapping[str, list[int]], segments: Mapping[str, int]
) -> None:
  """Writes the splits of a store, whole or not at all.

  Args:
    folder: of the store.
    splits: numbers of episodes as the store has them now, by the name of the split.
    segments: how many episodes each has now, by name, one after the other.
  """
  values = {
    "format": _FORMAT,
    "version": _VERSION,
    "segments": [*map(list, segments.items())],
    "splits": dict(splits),
  }
  text = json.dumps(values) + "\n"
  files.replace_file(os.path.join(folder, layout.SPLITS), text.encode())
