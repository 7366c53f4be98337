"""What lies in a store's folder and is no part of it: harmless, but told."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from t2r_seq import errors
from t2r_seq.store import layout
from t2r_seq.store.layout import Columns
from t2r_seq.store.manifest import Commit
from t2r_seq.store.reports import StoreProblem

_MERGE_HINT = "The next append or merge removes it."


def find_leftovers(
  folder: str, columns: Columns | None, commits: Mapping[str, Commit]
) -> list[StoreProblem]:
  """Lists what is no part of a store.

  Args:
    folder: of the store.
    columns: of the store; None where they are not known.
    commits: of its segments.
  Returns:
    What there is; empty for most stores.
  """
  return [
    *_beside_the_manifest(folder),
    *_merged_segments(folder, commits),
    *(
      problem
      for name, commit in commits.items()
      for problem in _in_segment(folder, name, columns, commit)
    ),
  ]


def _beside_the_manifest(folder: str) -> Iterator[StoreProblem]:
  known = {layout.MANIFEST, layout.SEGMENTS, layout.STATISTICS}
  for name in sorted({*os.listdir(folder)} - known):
    yield _leftover("", name, _what(name))


def _merged_segments(
  folder: str, commits: Mapping[str, Commit]
) -> Iterator[StoreProblem]:
  segments = os.path.join(folder, layout.SEGMENTS)
  names = {*os.listdir(segments)} if os.path.isdir(segments) else set()
  replaced = {name for commit in commits.values() for name in commit.replaces}
  for name in sorted(names & replaced):
    got = "one that a merge took over before it was interrupted"
    yield _leftover("", f"{layout.SEGMENTS}/{name}", got, _MERGE_HINT)
  for name in sorted(names - replaced - {*commits}):
    is_removed = name.startswith(".removed.")
    got = "the rest of a merge" if is_removed else _what(name)
    yield _leftover("", f"{layout.SEGMENTS}/{name}", got, _MERGE_HINT * is_removed)


def _in_segment(
  folder: str, name: str, columns: Columns | None, commit: Commit
) -> Iterator[StoreProblem]:
  place = layout.segment_folder(folder, name)
  own = {layout.COMMIT, layout.LOCK, *layout.INDEX_FILES, *commit.sizes}
  own |= {*layout.file_names(columns)} if columns else set()
  for entry in sorted({*os.listdir(place)} - own if columns else set()):
    yield _leftover(name, entry, _what(entry))


def _what(name: str) -> str:
  is_temporary = name.startswith(".") and name.endswith(".tmp")
  return "the rest of a write that did not finish" if is_temporary else "another file"


def _leftover(segment: str, name: str, got: str, hint: str = "") -> StoreProblem:
  return StoreProblem(segment, errors.Mismatch(name, "no such file", got, hint))
