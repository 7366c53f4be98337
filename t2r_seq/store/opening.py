"""Stores are made, and opened for writing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from t2r_seq import errors, specs
from t2r_seq.files import left_behind, make_folders, sync_folder
from t2r_seq.store import files, layout, manifest, merging, scanning
from t2r_seq.store.spec_checks import check_spec
from t2r_seq.store.writer import EpisodeWriter, check_commit_every

DEFAULT_SEGMENT = "main"


def create(
  folder: str,
  spec: specs.SpecStructure,
  metadata: Mapping[str, Any] | None,
  segment: str,
  commit_every: int,
  allow_nan: bool,
) -> EpisodeWriter:
  """Makes a new store; see `EpisodeStore.create`."""
  columns = layout.make_columns("EpisodeStore.create", spec)
  flat = specs.TensorSpecStruct((p, column.spec) for p, column in columns.items())
  created = manifest.StoreManifest(flat, columns, manifest.check_metadata(metadata))
  _check_segment_name(segment)
  check_commit_every(commit_every)
  _check_vacant(folder)
  try:
    make_folders(os.path.join(folder, layout.SEGMENTS))
    created.write(folder)
    sync_folder(os.path.dirname(folder))
  except OSError as error:
    hint = "A store needs a folder that it may write to, with room on the disk."
    raise files.explain(error, folder, hint) from error
  return EpisodeWriter(
    layout.segment_folder(folder, segment), created, commit_every, allow_nan
  )


def append(
  folder: str,
  segment: str | None,
  spec: specs.SpecStructure | None,
  commit_every: int,
  allow_nan: bool,
) -> EpisodeWriter:
  """Opens a store for writing; see `EpisodeStore.append`."""
  check_commit_every(commit_every)
  store = manifest.StoreManifest.read(folder)
  if spec is not None:
    check_spec(f"EpisodeStore: {folder}", spec, store.columns, True)
  if segment is None:
    segment = _only_segment(folder)
  _check_segment_name(segment)
  while True:
    merging.finish(folder, segment)
    place = layout.segment_folder(folder, segment)
    writer = EpisodeWriter(place, store, commit_every, allow_nan)
    if not merging.is_replaced(folder, segment):
      return writer
    writer.close()  # A merge took the segment over before this writer held it.


def _check_segment_name(segment: str) -> None:
  if not isinstance(segment, str) or not layout.SEGMENT_NAME.fullmatch(segment):
    raise errors.SpecError(
      "EpisodeStore: segment: expected a name of at most 100 ASCII letters, digits, "
      f"'.', '_' and '-', the first of them a letter or a digit, got {segment!r}."
    )


def _check_vacant(folder: str) -> None:
  """A create that crashed may go on: its leavings are no store yet."""
  if not os.path.lexists(folder):
    return
  names = set(os.listdir(folder)) if os.path.isdir(folder) else {"a file"}
  leavings = {layout.SEGMENTS}
  if os.path.isdir(folder):
    killed = left_behind(os.path.join(folder, layout.MANIFEST))
    leavings |= {os.path.basename(path) for path in killed}
  segments = os.path.join(folder, layout.SEGMENTS)
  has_data = os.path.isdir(segments) and bool(os.listdir(segments))
  if has_data or not names <= leavings:
    hint = "Choose another folder, or continue a store with EpisodeStore.append."
    raise errors.StoreError(
      f"EpisodeStore.create: {folder}: expected nothing there or an empty folder, got "
      f"{errors.listing(names, limit=5)}. {hint}"
    )


def _only_segment(folder: str) -> str:
  names = scanning.segment_names(folder)
  if len(names) > 1:
    raise errors.StoreError(
      f"EpisodeStore: {folder}: expected one segment to append to, got "
      f"{errors.listing(names)}. Name one: EpisodeStore.append(path, segment=...)."
    )
  return names[0] if names else DEFAULT_SEGMENT
