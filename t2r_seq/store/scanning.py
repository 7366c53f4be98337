"""Which segments a store has just now, while others write and merge them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from t2r_seq import errors
from t2r_seq.store import layout
from t2r_seq.store.layout import Columns
from t2r_seq.store.manifest import Commit
from t2r_seq.store.segment import Segment

_MAX_SCANS = 100


def segment_names(folder: str) -> list[str]:
  """Lists the segments that are not replaced by a merge, sorted by name."""
  return sorted(read_commits(folder))


def read_commits(folder: str) -> dict[str, Commit]:
  """Reads the commit of every segment that is not replaced by a merge.

  A merge replaces one commit and then removes the folders of the segments that it has
  taken over, so that a look at one moment sees every episode once; this looks again
  where the list has changed in between.

  Args:
    folder: of the store.
  Returns:
    Commits by name of the segment, sorted.
  """
  commits: dict[str, Commit] = {}
  for _ in range(_MAX_SCANS):
    seen = commits
    commits = {
      name: Commit.read(layout.segment_folder(folder, name))
      for name in list_segments(folder)
    }
    replaced = {name for commit in commits.values() for name in commit.replaces}
    commits = {name: c for name, c in commits.items() if name not in replaced}
    if _is_settled(seen, commits):
      break
  return commits


def read_segments(
  folder: str, columns: Columns, known: Sequence[Segment] = ()
) -> tuple[Segment, ...]:
  """Maps the segments that have episodes.

  Args:
    folder: of the store.
    columns: of the store.
    known: segments of an earlier look; those that have not grown are kept.
  Returns:
    The segments, by name.
  Raises:
    StoreError: the store is gone, or a segment is damaged.
  """
  _check_there(folder)
  for _ in range(_MAX_SCANS):
    commits = read_commits(folder)
    try:
      return _map_segments(folder, columns, commits, known)
    except (errors.StoreError, FileNotFoundError):
      if read_commits(folder) == commits:
        raise  # Damaged, and not just merged away in between.
  return _map_segments(folder, columns, commits, known)


def _check_there(folder: str) -> None:
  """A store that was deleted is not one that has lost its episodes."""
  if not os.path.exists(os.path.join(folder, layout.MANIFEST)):
    raise errors.StoreError(
      f"EpisodeStore: {folder}: expected the store that was opened, got nothing there "
      "any more. What is mapped already can still be read."
    )


def _map_segments(
  folder: str, columns: Columns, commits: dict[str, Commit], known: Sequence[Segment]
) -> tuple[Segment, ...]:
  kept = {segment.name: segment for segment in known}
  segments = []
  for name, commit in commits.items():
    if name in kept and kept[name].commit == commit:
      segments.append(kept[name])
    elif commit.episodes:
      segment = layout.segment_folder(folder, name)
      segments.append(Segment(segment, columns, commit))
  return tuple(segments)


def list_segments(folder: str) -> list[str]:
  """Lists the folders of segments, sorted; those that are replaced, too."""
  try:
    entries = list(os.scandir(os.path.join(folder, layout.SEGMENTS)))
  except FileNotFoundError:
    return []
  names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
  return sorted(names)


def _is_settled(seen: dict[str, Commit], commits: dict[str, Commit]) -> bool:
  """Whether no merge fell between two looks; that segments have grown is fine."""
  return seen.keys() == commits.keys() and all(
    seen[name].replaces == commit.replaces and seen[name].episodes <= commit.episodes
    for name, commit in commits.items()
  )
