"""What stands in for a manifest or a commit that is damaged."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.store import layout, scanning
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.manifest import Commit, NewerVersionError, StoreManifest
from t2r_seq.store.reports import StoreProblem
from t2r_seq.store.spec_checks import check_spec

_NO_MANIFEST = (
  "Nothing else can be checked without it: give the specs that the store was created "
  "with (--spec of `t2r_seq doctor`)."
)
_AS_IT_READS = "The rest is checked as it reads."
_AS_GIVEN = "The rest is checked with the specs that were given."
_NO_COMMIT = (
  "How much of the segment was committed is lost; the rest is checked by its index."
)


def read_manifest(
  folder: str, spec: specs.SpecStructure | None
) -> tuple[StoreManifest | None, StoreProblem | None]:
  """Reads the manifest of a store, damaged or not.

  Args:
    folder: of the store.
    spec: the flat specs that the store was created with, or None.
  Returns:
    The manifest, or what stands in for it: the specs, or else what can be read of it;
    None where that is nothing. And what is wrong with it.
  Raises:
    StoreError: no store, or one of a newer version.
    SpecError: a whole store has not these specs.
  """
  try:
    store = StoreManifest.read(folder)
  except NewerVersionError:
    raise
  except errors.StoreError as error:
    if not os.path.isdir(os.path.join(folder, layout.SEGMENTS)):
      raise  # No store at all.
    stand_in, hint = _stand_in(folder, spec)
    mismatch = _to_mismatch(layout.MANIFEST, error, hint)
    if not os.path.exists(os.path.join(folder, layout.MANIFEST)):
      mismatch = errors.Mismatch(layout.MANIFEST, "a manifest", "no such file", hint)
    return stand_in, StoreProblem("", mismatch)
  if spec is not None:
    check_spec(f"EpisodeStore: {folder}", spec, store.columns, False)
  return store, None


def fit_to_commits(
  store: StoreManifest, commits: dict[str, Commit]
) -> StoreManifest | None:
  """Sorts the columns of a stand-in as the commits have their files.

  Checksums are kept in that order.

  Args:
    store: the stand-in.
    commits: of the store.
  Returns:
    The manifest; None where its files are others than those of the commits.
  """
  known = next((commit.sizes for commit in commits.values() if commit.sizes), None)
  if known is None:
    return store
  if {*layout.file_names(store.columns), *layout.INDEX_FILES} != {*known}:
    return None
  places = {name: place for place, name in enumerate(known)}
  order = sorted(store.columns.items(), key=lambda item: places[item[1].data_file])
  flat = specs.TensorSpecStruct((path, column.spec) for path, column in order)
  return StoreManifest(flat, dict(order), store.metadata)


def read_commits(folder: str) -> tuple[dict[str, Commit], dict[str, StoreProblem]]:
  """Reads all commits of a store, damaged or not.

  Args:
    folder: of the store.
  Returns:
    Commits by segment, empty ones for the damaged; and what is wrong with those.
  Raises:
    StoreError: one is of a newer version.
  """
  try:
    return scanning.read_commits(folder), {}
  except NewerVersionError:
    raise
  except errors.StoreError:
    pass
  commits: dict[str, Commit] = {}
  broken: dict[str, StoreProblem] = {}
  for name in scanning.list_segments(folder):
    try:
      commits[name] = Commit.read(layout.segment_folder(folder, name))
    except errors.StoreError as error:
      commits[name] = Commit()
      mismatch = _to_mismatch(layout.COMMIT, error, _NO_COMMIT)
      broken[name] = StoreProblem(name, mismatch)
  replaced = {name for commit in commits.values() for name in commit.replaces}
  commits = {name: c for name, c in commits.items() if name not in replaced}
  return commits, {name: p for name, p in broken.items() if name in commits}


def commit_of_index(folder: str, columns: Columns) -> Commit:
  """Makes the commit that the files of a segment would fit, where it is lost.

  Args:
    folder: of the segment.
    columns: of the store.
  Returns:
    A commit of all episodes that the index has, without checksums of the index.
  """
  names = layout.file_names(columns)
  sizes = {
    name: _size(os.path.join(folder, name)) for name in (*names, *layout.INDEX_FILES)
  }
  count = min(sizes[layout.ENDS] // 8, sizes[layout.CHECKSUMS] // (4 * len(names)))
  if not count:
    return Commit()
  ends = np.fromfile(os.path.join(folder, layout.ENDS), "<i8", count)
  # Damaged ends can be anything: there are no more steps than files have room for.
  room = max(_room_for_steps(column, sizes) for column in columns.values())
  return Commit(count, min(max(int(ends.max()), 0), room), sizes)


def _stand_in(
  folder: str, spec: specs.SpecStructure | None
) -> tuple[StoreManifest | None, str]:
  """Makes a manifest of given specs, or of what can be read; and says which."""
  if spec is not None:
    columns = layout.make_columns(f"EpisodeStore: {folder}", spec)
    flat = specs.TensorSpecStruct((p, column.spec) for p, column in columns.items())
    return StoreManifest(flat, columns, {}), _AS_GIVEN
  try:
    return StoreManifest.read(folder, is_sealed=False), _AS_IT_READS
  except errors.StoreError:
    return None, _NO_MANIFEST


def _room_for_steps(column: Column, sizes: Mapping[str, int]) -> int:
  """Returns how many rows a column's file can have; 0 where it does not tell."""
  if not column.is_per_step or not column.items_per_row:
    return 0
  if column.is_bytes:
    return sizes[column.offsets_file] // 8 // column.items_per_row
  return sizes[column.data_file] // (column.items_per_row * column.dtype.itemsize)


def _size(path: str) -> int:
  return os.path.getsize(path) if os.path.exists(path) else 0


def _to_mismatch(name: str, error: errors.StoreError, hint: str) -> errors.Mismatch:
  text = str(error).partition(": expected ")[2] or f"a whole file, got {error}"
  expected, _, got = text.partition(", got ")
  return errors.Mismatch(name, expected, got.split("\n")[0].rstrip("."), hint)
