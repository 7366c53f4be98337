"""HDF5 files in robomimic's layout as sources."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.conversions import hdf5_files, hdf5_scan
from t2r_seq.conversions.episodes import (
  EpisodeSource,
  ResumePoint,
  SourceEpisode,
  Values,
)
from t2r_seq.conversions.selection import Dropped


class Hdf5Source(EpisodeSource):
  """Reads the demos of a file, demo_2 before demo_10."""

  def __init__(
    self,
    path: str,
    dropped: Dropped | None = None,
    spec: specs.TensorSpecStruct | None = None,
  ) -> None:
    """Opens the file and looks at every demo.

    Args:
      path: of the file.
      dropped: paths to leave out.
      spec: what an earlier look has found; None looks.
    Raises:
      ImportError: h5py is not installed.
      ConversionError: another layout, or datasets that cannot be taken over.
    """
    self._path = path
    self._file = hdf5_files.open_file(path)
    data = self._file.get(hdf5_files.DATA)
    if data is None or not hasattr(data, "keys") or not len(data):
      raise errors.ConversionError(
        f"convert: {path}: expected a group data with a group for each demo, as "
        f"robomimic has it, got {errors.listing(self._file)}."
      )
    self._data = data
    hard_link = hdf5_files.load_h5py().HardLink
    names = sorted(data, key=hdf5_files.demo_order)
    # Links to other places are not followed: a file is read, and not what it names.
    links = [data.get(name, getlink=True) for name in names]
    self._demos = [
      data[name]
      for name, link in zip(names, links, strict=True)
      if isinstance(link, hard_link)
    ]
    self._notes: list[str] = []
    if spec is None:
      scan = hdf5_scan.DemoScan(path, dropped or Dropped())
      spec = self._with_known(scan.run(self._demos))
      self._notes = scan.notes
    self._spec = spec
    self._finals = hdf5_files.final_paths(spec)

  @property
  def spec(self) -> specs.TensorSpecStruct:
    """The specs that were given, or those found in the demos."""
    return self._spec

  @property
  def num_episodes(self) -> int | None:
    """The demos that were chosen."""
    return len(self._demos)

  @property
  def notes(self) -> list[str]:
    """What was left out, and why."""
    return self._notes

  @property
  def metadata(self) -> Mapping[str, Any]:
    """`env_args`, the filter keys, other attributes of `data`, and unusual names."""
    found = {name: _to_json(value) for name, value in self._data.attrs.items()}
    found.pop(hdf5_files.TOTAL, None)
    found.pop(hdf5_files.SPEC_ATTRIBUTE, None)
    metadata = json.loads(found.pop(hdf5_files.METADATA_ATTRIBUTE, "{}"))
    robomimic: dict[str, Any] = {}
    if found:
      robomimic["attrs"] = found
    masks = self._file.get(hdf5_files.MASK)
    if masks is not None:
      robomimic["mask"] = {name: _to_json(masks[name][()]) for name in masks}
    names = [demo.name.rpartition("/")[2] for demo in self._demos]
    if names != [f"demo_{index}" for index in range(len(names))]:
      robomimic["demos"] = names
    return {**metadata, **({"robomimic": robomimic} if robomimic else {})}

  def fingerprint(self) -> dict[str, Any]:
    """Returns the file's size and time."""
    stat = os.stat(self._path)
    return {"bytes": stat.st_size, "time": stat.st_mtime_ns}

  def episodes(self, start: ResumePoint) -> Iterator[SourceEpisode]:
    """Yields the demos from a point on; see `EpisodeSource.episodes`."""
    for demo in self._demos[start.episode :]:
      place = f"{demo.name} of {self._path}"
      try:
        yield SourceEpisode(self._read(demo, place), place)
      except (OSError, KeyError, RuntimeError) as error:
        raise errors.ConversionError(
          f"convert: {place}: expected a demo that can be read, got {error}."
        ) from error

  def _read(self, demo: Any, place: str) -> Values:
    values: Values = {}
    attributes = hdf5_scan.attributes(demo)
    for path, leaf in self._spec.items():
      if path in self._finals:
        continue
      if not leaf.is_sequence and path in attributes:
        values[path] = attributes[path]
      elif leaf.is_sequence and path in demo:
        values[path] = np.asarray(demo[path][()])
    for path, source in self._finals.items():
      values[path] = self._last_row(demo, path, values[source], place)
    return values

  def _last_row(self, demo: Any, path: str, obs: np.ndarray, place: str) -> np.ndarray:
    """Returns the row of next_obs that is no row of obs; the others must be."""
    next_path = hdf5_files.NEXT_OBS + path.removeprefix(hdf5_files.FINAL_OBS)
    next_obs = demo[next_path]
    if not hdf5_scan.is_shifted(obs, next_obs):
      raise errors.ConversionError(
        f"convert: {place}: {next_path}: expected the next rows of obs, as the rest of "
        "the file has them, got others. The file was changed: start anew."
      )
    return np.asarray(next_obs[len(obs) - 1])

  def _with_known(self, found: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
    """Takes the specs that a conversion left, where they fit what was found."""
    text = self._data.attrs.get(hdf5_files.SPEC_ATTRIBUTE)
    if not isinstance(text, str):
      return found
    known = specs.TensorSpecStruct.from_json(text)
    return specs.TensorSpecStruct(
      (path, known[path] if _fits(known.get(path), leaf) else leaf)
      for path, leaf in found.items()
    )


def _fits(known: Any, leaf: specs.ExtendedTensorSpec) -> bool:
  return known is not None and (known.shape, known.dtype, known.is_sequence) == (
    leaf.shape,
    leaf.dtype,
    leaf.is_sequence,
  )


def _to_json(value: Any) -> Any:
  if isinstance(value, bytes):
    return value.decode("utf-8", "backslashreplace")
  if isinstance(value, np.ndarray) and value.dtype.kind in "SUO":
    return [_to_json(item) for item in value.tolist()]
  return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
