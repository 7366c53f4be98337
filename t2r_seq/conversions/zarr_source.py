"""Zarr groups in diffusion_policy's layout as sources."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.conversions import arrays, zarr_group
from t2r_seq.conversions.episodes import (
  EpisodeSource,
  ResumePoint,
  SourceEpisode,
  Values,
)
from t2r_seq.conversions.selection import Dropped
from t2r_seq.conversions.zarr_rows import ZarrRows


class ZarrSource(EpisodeSource):
  """Reads the episodes of a zarr group."""

  def __init__(self, path: str, dropped: Dropped | None = None) -> None:
    """Opens the group and compares the lengths of its arrays.

    Args:
      path: of the folder, or of a .zip file of one.
      dropped: paths to leave out.
    Raises:
      ImportError: zarr is not installed.
      ConversionError: with every array that does not fit the layout.
    """
    self._path = path
    self._group = zarr_group.open_group(path)
    self._notes: list[str] = []
    dropped = dropped or Dropped()
    self._ends = self._read_ends()
    known = self._known_spec()
    self._arrays: dict[str, Any] = {}
    self._spec = self._collect(known, dropped)

  @property
  def spec(self) -> specs.TensorSpecStruct:
    """The specs that were given, or those of the arrays."""
    return self._spec

  @property
  def num_episodes(self) -> int | None:
    """The entries of `meta/episode_ends`."""
    return len(self._ends)

  @property
  def notes(self) -> list[str]:
    """What was left out, and why."""
    return self._notes

  @property
  def metadata(self) -> Mapping[str, Any]:
    """The group's attributes, or the metadata that a conversion left there."""
    attributes = dict(self._group.attrs)
    attributes.pop(zarr_group.SPEC_ATTRIBUTE, None)
    metadata = attributes.pop(zarr_group.METADATA_ATTRIBUTE, None)
    if isinstance(metadata, dict):
      return metadata
    return {"zarr": attributes} if attributes else {}

  def fingerprint(self) -> dict[str, Any]:
    """Returns the files' number, sizes and newest time."""
    if os.path.isfile(self._path):
      stat = os.stat(self._path)
      return {"files": 1, "bytes": stat.st_size, "newest": stat.st_mtime_ns}
    count, size, newest = 0, 0, 0
    for folder, _, names in os.walk(self._path):
      for name in names:
        stat = os.stat(os.path.join(folder, name))
        count, size = count + 1, size + stat.st_size
        newest = max(newest, stat.st_mtime_ns)
    return {"files": count, "bytes": size, "newest": newest}

  def episodes(self, start: ResumePoint) -> Iterator[SourceEpisode]:
    """Yields the episodes from a point on; see `EpisodeSource.episodes`."""
    columns = {path: ZarrRows(array) for path, array in self._arrays.items()}
    for index in range(start.episode, len(self._ends)):
      first = self._ends[index - 1] if index else 0
      place = f"episode {index} of {self._path}"
      values: Values = {}
      for path, column in columns.items():
        is_sequence = self._spec[path].is_sequence
        rows = (first, self._ends[index]) if is_sequence else (index, index + 1)
        found = _read(column, path, rows, place)
        values[path] = found if is_sequence else found.reshape(found.shape[1:])
      yield SourceEpisode(values, place)

  def _read_ends(self) -> list[int]:
    """Reads where episodes end; they must rise."""
    names = zarr_group.array_names(self._path, "meta")
    if zarr_group.ENDS not in names:
      raise errors.ConversionError(
        f"convert: {self._path}: expected an array meta/{zarr_group.ENDS}, as "
        f"diffusion_policy has it, got {errors.listing(names)} in meta."
      )
    array = self._group[f"meta/{zarr_group.ENDS}"]
    ends = np.asarray(array[...])
    is_rising = ends.ndim == 1 and ends.dtype.kind in "iu"
    if not is_rising or not (np.diff(ends.astype(np.int64), prepend=0) > 0).all():
      raise errors.ConversionError(
        f"convert: {self._path}: meta/{zarr_group.ENDS}: expected integers that rise "
        f"from above 0, got {errors.describe(ends)} {ends.ravel()[:8].tolist()}."
      )
    return ends.tolist()

  def _known_spec(self) -> dict[str, tuple[str, specs.ExtendedTensorSpec]]:
    """Returns path and spec by key, where a conversion left them."""
    text = dict(self._group.attrs).get(zarr_group.SPEC_ATTRIBUTE)
    if text is None:
      return {}
    spec = specs.TensorSpecStruct.from_json(json.dumps(text))
    keys = zarr_group.array_keys(spec)
    return {keys[path]: (path, leaf) for path, leaf in spec.items()}

  def _collect(
    self, known: Mapping[str, tuple[str, specs.ExtendedTensorSpec]], dropped: Dropped
  ) -> specs.TensorSpecStruct:
    found: list[errors.Mismatch] = []
    collected: dict[str, specs.ExtendedTensorSpec] = {}
    for folder, rows in (("data", self._ends[-1:]), ("meta", [len(self._ends)])):
      for key in zarr_group.array_names(self._path, folder):
        path, leaf = known.get(key, (key, None))
        if (folder == "meta" and key == zarr_group.ENDS) or dropped.has(path):
          continue
        array = self._open_array(folder, key, found)
        if array is None:
          continue
        if list(array.shape[:1]) != rows:
          want = f"{rows[0] if rows else 0} rows, as meta/{zarr_group.ENDS} says"
          got = arrays.describe(array.dtype, array.shape)
          hint = f"Leave it out: --drop {path}."
          found.append(errors.Mismatch(path, want, got, hint))
          continue
        described = arrays.array_spec(
          path, array.dtype, array.shape[1:], folder == "data"
        )
        if isinstance(described, errors.Mismatch):
          found.append(described)
          continue
        self._arrays[path] = array
        is_same = leaf is not None and (leaf.shape, leaf.dtype) == (
          described.shape,
          described.dtype,
        )
        collected[path] = leaf if leaf is not None and is_same else described
    if found:
      operation = f"convert: {self._path}"
      raise errors.mismatch_error(operation, found, errors.ConversionError)
    return specs.TensorSpecStruct(sorted(collected.items()))

  def _open_array(self, folder: str, key: str, found: list[errors.Mismatch]) -> Any:
    try:
      return self._group[f"{folder}/{key}"]
    except Exception as error:
      # zarr has an error of its own for each dtype and codec that it does not know.
      want, hint = "an array of numbers", f"Leave it out: --drop {key}."
      got = f"{type(error).__name__}: {error}"
      found.append(errors.Mismatch(key, want, got[:200], hint))
      return None


def _read(column: ZarrRows, path: str, rows: tuple[int, int], place: str) -> np.ndarray:
  try:
    return column.read(*rows)
  except Exception as error:
    # Codecs raise what they like on damaged chunks.
    raise errors.ConversionError(
      f"convert: {place}: {path}: expected chunks that can be read, got "
      f"{type(error).__name__}: {error}."
    ) from error
