"""Is every length, offset and checksum of a store right? Says what is not."""

from __future__ import annotations

import dataclasses
import os

from t2r_seq import errors, specs
from t2r_seq.store import layout, recovery
from t2r_seq.store.findings import SegmentFindings
from t2r_seq.store.leftovers import find_leftovers
from t2r_seq.store.manifest import StoreManifest
from t2r_seq.store.reports import StoreProblem, StoreReport
from t2r_seq.store.segment_check import check_segment

_MAX_LOOKS = 3


@dataclasses.dataclass(frozen=True)
class StoreFindings:
  """All that is known of a store after a look at it.

  Attributes:
    report: for the user.
    manifest: of the store, or what stands in for it; None where there is nothing.
    is_sealed: whether the manifest is the one that was written, or was given.
    segments: in the order in which they are the store.
  """

  report: StoreReport
  manifest: StoreManifest | None
  is_sealed: bool
  segments: tuple[SegmentFindings, ...]


def verify_store(
  path: str | os.PathLike[str],
  checksums: bool = True,
  spec: specs.SpecStructure | None = None,
) -> StoreReport:
  """Checks the lengths, offsets and checksums of a store.

  Args:
    path: of the folder.
    checksums: reads every byte; False looks at lengths and the index only.
    spec: the flat specs that the store was created with, needed only where its
      `store.json` is damaged; a whole store must have them.
  Returns:
    What is wrong, and which episodes that concerns.
  Raises:
    StoreError: no store, or one of a newer version.
    SpecError: the store has not these specs; all differences are named.
    OSError: the folder cannot be read.
  """
  return examine(os.path.abspath(os.fspath(path)), checksums, spec).report


def examine(
  folder: str, checksums: bool, spec: specs.SpecStructure | None
) -> StoreFindings:
  """Looks at a store; see `verify_store`."""
  for _ in range(_MAX_LOOKS):
    found = _examine_once(folder, checksums, spec)
    seen = found.report.num_episodes.keys()
    # What is missing may only have been merged away in between.
    if found.report.is_whole or recovery.read_commits(folder)[0].keys() == seen:
      break
  return found


def _examine_once(
  folder: str, checksums: bool, spec: specs.SpecStructure | None
) -> StoreFindings:
  store, broken_manifest = recovery.read_manifest(folder, spec)
  commits, broken_commits = recovery.read_commits(folder)
  if store is not None and broken_manifest is not None:
    store = recovery.fit_to_commits(store, commits)
    if store is None:
      broken_manifest = _misfit(broken_manifest, spec is not None)
  found = []
  for name, commit in commits.items():
    segment = layout.segment_folder(folder, name)
    if store is None:
      unverified = {*range(commit.episodes)}
      found.append(SegmentFindings(segment, commit, unverified=unverified))
      continue
    if name in broken_commits:
      commit = recovery.commit_of_index(segment, store.columns)
    found.append(check_segment(segment, store.columns, commit, checksums))
  problems = [p for p in (broken_manifest,) if p] + [*broken_commits.values()]
  leftovers = find_leftovers(folder, store.columns if store else None, commits)
  report = StoreReport(
    path=folder,
    num_episodes={segment.name: segment.commit.episodes for segment in found},
    num_bytes=sum(segment.num_bytes for segment in found),
    problems=(*problems, *(p for segment in found for p in segment.problems)),
    leftovers=(*(p for segment in found for p in segment.leftovers), *leftovers),
    unverified={s.name: tuple(sorted(s.unverified)) for s in found if s.unverified},
  )
  is_sealed = broken_manifest is None or spec is not None
  return StoreFindings(report, store, is_sealed, tuple(found))


def _misfit(problem: StoreProblem, is_given: bool) -> StoreProblem:
  """Says that what should stand in for the manifest is of another store."""
  what = "The specs that were given" if is_given else "Its columns"
  hint = f"{what} are not those of the segments' files, so nothing else was checked."
  mismatch = dataclasses.replace(problem.mismatch, hint=hint)
  return dataclasses.replace(problem, mismatch=mismatch)


def salvage_problem(findings: StoreFindings) -> errors.Mismatch | None:
  """Says why nothing can be salvaged from a store, if so."""
  if findings.manifest is not None and findings.is_sealed:
    return None
  hint = "Give the flat specs that the store was created with: spec=..., or --spec."
  return errors.Mismatch(layout.MANIFEST, "a whole manifest", "a damaged one", hint)
