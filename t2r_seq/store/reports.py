"""What checking a store found: problems, and leavings that harm nobody."""

from __future__ import annotations

import dataclasses

from t2r_seq import errors


@dataclasses.dataclass(frozen=True)
class StoreProblem:
  """One thing that is not as it should be.

  Attributes:
    segment: its name; '' for the store itself.
    mismatch: which file, what was expected, what is there, what to do.
    episodes: the episodes of the segment that are not as they were written.
  """

  segment: str
  mismatch: errors.Mismatch
  episodes: tuple[int, ...] = ()

  @property
  def place(self) -> str:
    """The segment and the file."""
    return "/".join(part for part in (self.segment, self.mismatch.path) if part)

  def __str__(self) -> str:
    return str(dataclasses.replace(self.mismatch, path=self.place))


@dataclasses.dataclass(frozen=True)
class StoreReport:
  """What `verify_store` found.

  Attributes:
    path: of the store.
    num_episodes: episodes by segment: the committed ones; where the commit itself is
      damaged, those that the index has.
    num_bytes: how many bytes were compared with their checksums.
    problems: empty where all is right.
    leftovers: what harms nobody: the rest of writers that were killed, of merges that
      were interrupted, and files that are none of the store's.
    unverified: by segment, episodes that can be read, but not compared with anything:
      their checksums are damaged or lost.
  """

  path: str
  num_episodes: dict[str, int]
  num_bytes: int
  problems: tuple[StoreProblem, ...]
  leftovers: tuple[StoreProblem, ...] = ()
  unverified: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

  @property
  def is_whole(self) -> bool:
    """Whether nothing is wrong; leftovers are not."""
    return not self.problems

  def broken_episodes(self, segment: str) -> list[int]:
    """Lists the episodes of a segment that are not as they were written."""
    found = [p.episodes for p in self.problems if p.segment == segment]
    return sorted({episode for episodes in found for episode in episodes})

  def check(self) -> None:
    """Raises StoreError with every problem, if there is one."""
    if self.problems:
      found = [dataclasses.replace(p.mismatch, path=p.place) for p in self.problems]
      raise errors.mismatch_error("verify_store", found, errors.StoreError)
