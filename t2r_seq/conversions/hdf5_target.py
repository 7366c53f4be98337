"""HDF5 files in robomimic's layout as targets."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.conversions import arrays, hdf5_files
from t2r_seq.conversions.episodes import EpisodeTarget, Values

_MAX_ATTRIBUTE_BYTES = 60_000


def check_spec(
  path: str, spec: specs.TensorSpecStruct, compression: str | None
) -> None:
  """Checks that a file in robomimic's layout can hold the episodes.

  Args:
    path: of the file, for the error.
    spec: of the episodes.
    compression: of the observations.
  Raises:
    ImportError: h5py is not installed.
    SpecError: with every path that datasets of numbers cannot hold; text is fine where
      there is one a episode.
  """
  hdf5_files.load_h5py()
  if (compression or "gzip").lower() != "gzip":
    raise errors.ConversionError(
      f"convert: {path}: expected the compression 'gzip' or none, got '{compression}'."
    )
  is_text = {
    p: leaf.dtype == tf.string and not leaf.is_sequence for p, leaf in spec.items()
  }
  arrays.check_numbers(
    f"convert: {path}",
    specs.TensorSpecStruct((p, leaf) for p, leaf in spec.items() if not is_text[p]),
  )


class Hdf5Target(EpisodeTarget):
  """Writes parts, and in the end one file of them.

  An HDF5 file whose writer was killed may be unreadable as a whole. So each commit
  closes a file of its own; `finish` copies their demos, as they are, into one.
  """

  def __init__(
    self,
    path: str,
    work_folder: str,
    spec: specs.TensorSpecStruct,
    metadata: Mapping[str, Any],
    num_episodes: int,
    compression: str | None = None,
  ) -> None:
    """Finds the parts that are there.

    Args:
      path: of the file that appears in the end.
      work_folder: where the parts are, on the same file system.
      spec: of the episodes.
      metadata: JSON values, `robomimic` among them as `Hdf5Source` gives it.
      num_episodes: that will be written.
      compression: of the observations: 'gzip' or none.
    Raises:
      ImportError: h5py is not installed.
    """
    self._h5py = hdf5_files.load_h5py()
    self._path, self._work = path, work_folder
    self._spec = spec
    self._metadata = dict(metadata)
    self._robomimic = dict(self._metadata.pop("robomimic", {}))
    self._compression = "gzip" if compression else None
    self._finals = hdf5_files.final_paths(spec)
    names = self._robomimic.get("demos") or []
    self._names = (
      names
      if len(names) == num_episodes
      else [f"demo_{index}" for index in range(num_episodes)]
    )
    os.makedirs(work_folder, exist_ok=True)
    self._committed = num_episodes if os.path.exists(path) else self._find_parts()
    self._episodes = self._committed
    self._part: Any = None

  @property
  def num_committed(self) -> int:
    """The demos in finished parts."""
    return self._committed

  def append(self, values: Values) -> None:
    """Writes a demo to the part in progress; see `EpisodeTarget.append`."""
    if self._part is None:
      self._part = self._h5py.File(self._part_file(), "w")
    name = self._names[self._episodes]
    demo = self._part.create_group(name)
    try:
      self._write(demo, values)
    except BaseException:
      del self._part[name]
      raise
    self._episodes += 1

  def commit(self) -> None:
    """Finishes the part: HDF5 files do not survive a kill while they are open."""
    if self._part is not None and self._episodes > self._committed:
      self._part.close()
      self._part = None
      name = f"part-{self._committed:09d}-{self._episodes:09d}.hdf5"
      os.replace(self._part_file(), os.path.join(self._work, name))
      self._committed = self._episodes

  def finish(self) -> None:
    """Puts the parts together into one file."""
    self.commit()
    if os.path.exists(self._path):
      return
    whole = os.path.join(self._work, "whole.hdf5")
    with self._h5py.File(whole, "w") as file:
      data = file.create_group(hdf5_files.DATA)
      total = 0
      order = {name: index for index, name in enumerate(self._names)}
      for part in self._parts():
        with self._h5py.File(part, "r") as source:
          for name in sorted(source, key=order.__getitem__):
            source.copy(source[name], data, name)
            total += int(data[name].attrs[hdf5_files.NUM_SAMPLES])
      self._write_metadata(file, data, total)
    with open(whole, "rb") as written:
      os.fsync(written.fileno())
    os.replace(whole, self._path)

  def close(self) -> None:
    """Closes the part in progress, which is written anew next time."""
    if self._part is not None:
      self._part.close()
      self._part = None

  def _part_file(self) -> str:
    return os.path.join(self._work, "unfinished.hdf5")

  def _parts(self) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(self._work), "part-*.hdf5")))

  def _find_parts(self) -> int:
    """Returns how many episodes the parts have, one after the other."""
    count = 0
    for part in self._parts():
      first, last = map(int, os.path.basename(part)[5:-5].split("-"))
      if first != count:
        break
      count = last
    return count

  def _write(self, demo: Any, values: Values) -> None:
    num_steps = 0
    for path, array in values.items():
      if self._spec[path].is_sequence:
        num_steps = len(array)
        self._write_steps(demo, path, array)
      elif path not in self._finals:
        _write_attribute(demo, path, array)
    for path, source in self._finals.items():
      next_path = hdf5_files.NEXT_OBS + path.removeprefix(hdf5_files.FINAL_OBS)
      if path in values and source in values:
        rows = np.concatenate([values[source][1:], values[path][None]])
        self._write_steps(demo, next_path, rows)
    demo.attrs[hdf5_files.NUM_SAMPLES] = num_steps

  def _write_steps(self, demo: Any, path: str, array: np.ndarray) -> None:
    is_obs = path.startswith((hdf5_files.OBS, hdf5_files.NEXT_OBS))
    compression = self._compression if is_obs and array.size else None
    demo.create_dataset(path, data=array, compression=compression)

  def _write_metadata(self, file: Any, data: Any, total: int) -> None:
    data.attrs[hdf5_files.TOTAL] = total
    for name, value in self._robomimic.get("attrs", {}).items():
      data.attrs[name] = value
    data.attrs[hdf5_files.SPEC_ATTRIBUTE] = self._spec.to_json()
    if self._metadata:
      data.attrs[hdf5_files.METADATA_ATTRIBUTE] = json.dumps(self._metadata)
    for name, demos in self._robomimic.get("mask", {}).items():
      value = np.asarray([demo.encode() for demo in demos], "S")
      file.create_dataset(f"{hdf5_files.MASK}/{name}", data=value)


def _write_attribute(demo: Any, name: str, array: np.ndarray) -> None:
  """Writes what there is once per episode; text as text, other bytes as opaque."""
  if array.dtype != object and array.nbytes <= _MAX_ATTRIBUTE_BYTES:
    demo.attrs[name] = array
    return
  if array.dtype == object:
    texts = [_to_text(item) for item in array.ravel().tolist()]
    if None not in texts:
      h5py = hdf5_files.load_h5py()
      value = np.asarray(texts, object).reshape(array.shape)
      demo.attrs.create(name, value, dtype=h5py.string_dtype())
      return
    if not array.ndim:
      demo.attrs[name] = np.void(bytes(array[()]))
      return
  raise errors.ConversionError(
    f"convert: {demo.name}: {name}: expected text, or at most {_MAX_ATTRIBUTE_BYTES} "
    f"bytes of numbers, as an attribute of a demo, got {errors.describe(array)}. Leave "
    f"it out: --drop {name}."
  )


def _to_text(item: bytes) -> str | None:
  try:
    text = item.decode()
  except UnicodeDecodeError:
    return None
  return None if "\0" in text else text
