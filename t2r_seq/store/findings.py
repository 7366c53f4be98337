"""What is known of one segment after a look at it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection

import numpy as np

from t2r_seq import errors
from t2r_seq.store import spans
from t2r_seq.store.file_check import FileFailures
from t2r_seq.store.manifest import Commit
from t2r_seq.store.reports import StoreProblem

_CHANGED_HINT = "They changed after they were written; restore the file from a copy."
_SHOWN = 4


@dataclasses.dataclass
class SegmentFindings:
  """What is known of one segment after a look at it.

  Attributes:
    folder: of the segment.
    commit: how much counts.
    problems: what is wrong.
    leftovers: what harms nobody.
    unverified: episodes that can be read, but that no checksum vouches for.
    file_spans: where each episode is in each column file.
    steps: where each episode is in a column with a row per step.
    sums: CRC-32 of each episode's bytes by file, uint32 [n]; as far as there are any.
    num_bytes: how many were compared with checksums.
  """

  folder: str
  commit: Commit
  problems: list[StoreProblem] = dataclasses.field(default_factory=list)
  leftovers: list[StoreProblem] = dataclasses.field(default_factory=list)
  unverified: set[int] = dataclasses.field(default_factory=set)
  file_spans: dict[str, spans.Spans] = dataclasses.field(default_factory=dict)
  steps: spans.Spans = dataclasses.field(default_factory=lambda: spans.episode_spans(0))
  sums: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  num_bytes: int = 0

  @property
  def name(self) -> str:
    """Name of the segment."""
    return os.path.basename(self.folder)

  @property
  def broken(self) -> dict[int, list[StoreProblem]]:
    """The problems of each episode that is not as it was written."""
    by_episode: dict[int, list[StoreProblem]] = {}
    for problem in self.problems:
      for episode in problem.episodes:
        by_episode.setdefault(episode, []).append(problem)
    return by_episode

  def add(
    self, mismatch: errors.Mismatch, episodes: Collection[int] = (), first: bool = False
  ) -> None:
    """Notes a problem of a file, and the episodes that it breaks."""
    problem = StoreProblem(self.name, mismatch, tuple(sorted(episodes)))
    self.problems.insert(0 if first else len(self.problems), problem)

  def add_leftover(self, mismatch: errors.Mismatch) -> None:
    """Notes something that harms nobody."""
    self.leftovers.append(StoreProblem(self.name, mismatch))

  def add_failures(
    self,
    name: str,
    failures: FileFailures,
    causes: Collection[str],
    rows: spans.Spans,
  ) -> None:
    """Notes which episodes are broken in a file.

    Args:
      name: of the file.
      failures: of its episodes.
      causes: the files whose problems explain that bytes cannot be found.
      rows: of each episode in the file's column.
    """
    if failures.lost and not self._blame(causes, {*failures.lost}):
      got = f"less for {listing(failures.lost)}: {next(iter(failures.lost.values()))}"
      want = "the bytes of every episode"
      self.add(errors.Mismatch(name, want, got), failures.lost)
    if failures.changed:
      first = [*failures.changed.items()][:_SHOWN]
      shown = ", ".join(
        f"episode {e} (rows {rows.starts[e]:,} to {rows.stops[e] - 1:,}, {text})"
        for e, text in first
      )
      rest = len(failures.changed) - len(first)
      got = f"others for {len(failures.changed)} of {self.commit.episodes}: {shown}"
      got += f" and {rest} more" if rest else ""
      want = "the checksums of every episode"
      mismatch = errors.Mismatch(name, want, got, _CHANGED_HINT)
      self.add(mismatch, failures.changed)

  def _blame(self, causes: Collection[str], episodes: set[int]) -> bool:
    """Adds episodes to the problem that explains them, if one does."""
    for index, problem in enumerate(self.problems):
      if problem.mismatch.path in causes:
        merged = tuple(sorted({*problem.episodes, *episodes}))
        self.problems[index] = dataclasses.replace(problem, episodes=merged)
        return True
    return False


def listing(episodes: Collection[int]) -> str:
  """Names episodes, the first few of them."""
  shown = ", ".join(map(str, sorted(episodes)[:8]))
  rest = len(episodes) - 8
  word = "episode" if len(episodes) == 1 else "episodes"
  return f"{word} {shown}" + (f" and {rest} more" if rest > 0 else "")
