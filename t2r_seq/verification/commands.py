"""Compares a robot code's commands, and declared conventions, with the data's."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.episodes import Episodes
from t2r_seq.episodes.registry import as_episodes
from t2r_seq.specs import Convention, Converter
from t2r_seq.specs.converter import explain
from t2r_seq.specs.names import source_paths
from t2r_seq.verification.comparison import Difference
from t2r_seq.verification.diagnoses import Case, find_causes

Act = Callable[[dict[str, np.ndarray], bool], Any]
"""Maps the outputs of a step, and whether an episode starts, to the robot's command.

Its attribute `convention`, if present, is that of the command; otherwise commands have
the convention of the recorded actions.
"""

OUTPUT = "inference_output"
_TOLERANCE = 1e-4


def find_command_differences(
  act: Act,
  dataset: str | os.PathLike[str] | Episodes,
  action: str = "action",
  *,
  output: str = OUTPUT,
  num_episodes: int | None = None,
  **options: Any,
) -> list[Difference]:
  """Runs robot code on recorded actions, and compares its commands with them.

  A policy that predicts the recorded actions perfectly must give the recorded commands.

  Args:
    act: maps outputs by name, and whether an episode starts, to a command.
    dataset: episodes, or a path.
    action: path of the recorded actions.
    output: name of the output that predicts them.
    num_episodes: number of episodes from the first; None for all.
    **options: options of `open_episodes`, for a path.
  Returns:
    A list of the first difference, with its likely cause; empty without a difference.
  Raises:
    SpecError: the dataset cannot be read or lacks `action`, or recorded actions cannot
      be converted to the command's convention.
  """
  episodes = as_episodes(dataset, **options)
  if action not in episodes.spec:
    raise errors.SpecError(
      f"verify: {episodes.path}: act: expected a path of actions, got '{action}'."
      f"{errors.nearest(action, episodes.spec)}"
    )
  convert = _create_converter(act, action, episodes)
  before = None
  for number, episode in enumerate(itertools.islice(episodes, num_episodes)):
    actions = np.asarray(episode.values[action])
    expected = actions if convert is None else convert(actions)
    got = np.stack(
      [
        np.asarray(act({output: row.copy()}, step == 0), expected.dtype)
        for step, row in enumerate(actions)
      ]
    )
    if got.shape == expected.shape:
      # The tolerance is relative to the largest value of an element in the episode.
      scale = np.abs(expected).max(axis=0, initial=1e-3)
      same = (np.abs(got - expected) <= _TOLERANCE * scale).reshape(len(got), -1).all(1)
    else:
      same = np.zeros(len(got), bool)
    if not same.all():
      row = int(np.flatnonzero(~same)[0])
      anchors = np.arange(len(got))
      causes = find_causes(Case(expected, got, anchors, False, (0,), expected, before))
      want, had = (np.array2string(each[row], precision=5) for each in (expected, got))
      count = int((~same).sum())
      return [
        Difference(action, "command", number, row, want, had, count, tuple(causes))
      ]
    before = expected
  return []


def _create_converter(act: Act, action: str, episodes: Episodes) -> Converter | None:
  """Returns the conversion from recorded actions to commands; None if not declared."""
  declared = Convention.of(getattr(act, "convention", None))
  spec = episodes.spec[action]
  if declared is None or spec.convention is None:
    return None
  size = int(spec.shape[-1])
  ends = [stop for _, stop, _ in declared.elements]
  return Converter(
    spec.convention, declared, size, max([*ends, 0]) or size, "verify: act"
  )


def declared_differences(
  declared: Mapping[str, Any], stored: Mapping[str, Any]
) -> Iterator[Difference]:
  """Yields the paths whose convention in the data set differs from the policy's.

  Args:
    declared: specs of the policy's features and labels by path.
    stored: specs of the data set by path.
  """
  columns = source_paths(declared, stored)
  for path, spec in declared.items():
    if columns[path] not in stored or not spec.shape.rank:
      continue
    data = stored[columns[path]]
    if data.convention is None or spec.convention is None or not data.shape.rank:
      continue
    sizes = [int(each.shape[-1] or 0) for each in (data, spec)]
    causes = explain(data.convention, spec.convention, *sizes)
    if causes:
      want, got = f"{spec.convention}", f"{data.convention}"
      yield Difference(path, "declaration", 0, 0, want, got, 0, tuple(causes))
