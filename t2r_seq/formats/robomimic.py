"""HDF5 files in robomimic's layout, as sources and as targets.

`data/demo_0/{obs/<key>, next_obs/<key>, actions, rewards, dones, states}` datasets
[steps, ...], the attribute `num_samples` of each demo, the attribute `env_args` of
`data`, and `mask/<filter>` lists of demos.

Of `next_obs/<key>` only the last row is news where the others are the next rows of
`obs/<key>`: it becomes `final_obs/<key>`, once per episode, and turns into the whole
`next_obs/<key>` again on the way out.
"""

from __future__ import annotations

import glob
import json
import math
import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, files, specs
from t2r_seq.episodes import reading
from t2r_seq.episodes.episodes import EpisodeWriter, Values
from t2r_seq.episodes.views import Dropped
from t2r_seq.formats import hdf5
from t2r_seq.formats.hdf5 import DATA, NUM_SAMPLES

MASK, TOTAL = "mask", "total"
OBS, NEXT_OBS, FINAL_OBS = "obs/", "next_obs/", "final_obs/"
# Attributes of `data`: specs and metadata, so that a round trip gives the same ones.
SPEC_ATTRIBUTE = "t2r_seq_spec"
METADATA_ATTRIBUTE = "t2r_seq_metadata"


def final_paths(spec: specs.TensorSpecStruct) -> dict[str, str]:
  """Finds the paths that stand for a whole `next_obs/<key>`.

  Args:
    spec: of the episodes.
  Returns:
    'final_obs/<key>' to 'obs/<key>', where both are there and fit.
  """
  found = {}
  for path, leaf in spec.items():
    source = OBS + path.removeprefix(FINAL_OBS)
    if not path.startswith(FINAL_OBS) or leaf.is_sequence or source not in spec:
      continue
    obs = spec[source]
    if obs.is_sequence and (obs.shape, obs.dtype) == (leaf.shape, leaf.dtype):
      found[path] = source
  return found


_COMPARED_BYTES = 1 << 24


def is_shifted(obs: Any, next_obs: Any) -> bool:
  """Whether next_obs[t] is obs[t + 1], bit for bit, for all steps but the last."""
  rows = len(obs)
  row_bytes = max(math.prod(obs.shape[1:]) * obs.dtype.itemsize, 1)
  step = max(_COMPARED_BYTES // row_bytes, 1)
  for start in range(0, rows - 1, step):
    stop = min(start + step, rows - 1)
    if obs[start + 1 : stop + 1].tobytes() != next_obs[start:stop].tobytes():
      return False
  return True


class RobomimicEpisodes(hdf5.LayoutEpisodes):
  """Reads the demos of a file, or of a folder of them, demo_2 before demo_10."""

  def __init__(
    self,
    path: str,
    foreign: Mapping[str, hdf5.Foreign],
    dropped: Dropped,
  ) -> None:
    """Looks at every demo; reads masks, and next_obs; see `hdf5.LayoutEpisodes`."""
    super().__init__(path, foreign, hdf5.ROBOMIMIC, dropped)
    self._finals = final_paths(self.spec)
    with reading.explained(path, "masks"):
      self.splits = self._read_splits()

  def _path_at(self, place: str) -> str | None:
    is_mask = place.strip("/").split("/")[0] == MASK
    return "" if is_mask else super()._path_at(place)

  def _describe(self, path: str, dataset: Any, place: hdf5.Place) -> hdf5.PathOnDisk:
    """All datasets of a demo have a row for each step."""
    num_steps, shape = place.stop - place.start, dataset.shape
    if shape[:1] != (num_steps,):
      got = reading.describe(dataset.dtype, shape)
      self._problem(path, f"{num_steps} rows", got, str(place))
    return hdf5.PathOnDisk(path, dataset.dtype, shape[1:], True)

  def _make_spec(self) -> specs.TensorSpecStruct:
    spec = super()._make_spec()
    if self._problems:
      return spec
    return self._with_known(self._derive_next_obs(spec))

  def _derive_next_obs(self, spec: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
    """Replaces each next_obs whose rows are the next obs by its last row."""
    derived = specs.TensorSpecStruct()
    for path, leaf in spec.items():
      key = path.removeprefix(NEXT_OBS)
      if not path.startswith(NEXT_OBS) or not leaf.is_sequence:
        derived[path] = leaf
      elif self._is_next(spec.get(OBS + key), leaf, key):
        derived[FINAL_OBS + key] = specs.ExtendedTensorSpec.from_spec(
          leaf, name=FINAL_OBS + key, is_sequence=False
        )
      else:
        derived[path] = leaf
        self.notes.append(
          f"{path} is kept as a column: it is not everywhere the next {OBS}{key}."
        )
    count = len({*derived} - {*spec})
    if count:
      self.notes.append(
        f"{count} next_obs are the next obs: of each only the last row of an episode "
        "is stored, as final_obs."
      )
    return specs.TensorSpecStruct(sorted(derived.items()))

  def _is_next(
    self,
    obs: specs.ExtendedTensorSpec | None,
    next_obs: specs.ExtendedTensorSpec,
    key: str,
  ) -> bool:
    """Whether the rows of a next_obs are the next ones of its obs, in all demos."""
    if next_obs.is_optional or obs is None or not _fits(obs, next_obs):
      return False
    demos = (self._file(place.file)[place.group] for place in self._places)
    return all(is_shifted(demo[OBS + key], demo[NEXT_OBS + key]) for demo in demos)

  def _with_known(self, found: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
    """Takes the specs that a conversion left, where they fit what was found."""
    text = self._file(self._names[0])[DATA].attrs.get(SPEC_ATTRIBUTE)
    if not isinstance(text, str):
      return found
    known = specs.TensorSpecStruct.from_json(text)
    return specs.TensorSpecStruct(
      (path, known[path] if _fits(known.get(path), leaf) else leaf)
      for path, leaf in found.items()
    )

  def _demo_names(self) -> list[str]:
    return [place.group.rpartition("/")[2] for place in self._places]

  def _read_metadata(self) -> Mapping[str, Any]:
    """`env_args`, other attributes of `data`, unusual names of demos; of one file."""
    if len(self._names) > 1:
      return {}
    attributes = self._file(self._names[0])[DATA].attrs
    found = {name: _to_json(value) for name, value in attributes.items()}
    found.pop(TOTAL, None)
    found.pop(SPEC_ATTRIBUTE, None)
    with reading.explained(self._names[0], f"JSON in {METADATA_ATTRIBUTE}"):
      metadata = dict(json.loads(found.pop(METADATA_ATTRIBUTE, "{}")))
    return _with_names(metadata, {"attrs": found} if found else {}, self._demo_names())

  def metadata_of(self, episodes: np.ndarray) -> Mapping[str, Any]:
    """See the base class: some of the demos have fewer names."""
    if len(self._names) > 1:
      return {}
    names = self._demo_names()
    robomimic = dict(self.metadata.get("robomimic", {}))
    return _with_names(self.metadata, robomimic, [names[n] for n in episodes.tolist()])

  def _read_splits(self) -> dict[str, list[int]]:
    """The filter keys of all files, as numbers of demos."""
    found: dict[str, list[int]] = {}
    names = self._demo_names()
    for file_name in self._names:
      numbers = {
        names[number]: number
        for number, place in enumerate(self._places)
        if place.file == file_name
      }
      file = self._file(file_name)
      for key, demos in read_masks(file).items():
        missing = [demo for demo in demos if demo not in file[DATA]]
        if missing:
          self.notes.append(
            f"{MASK}/{key} names demos that are not there: "
            f"{errors.listing(missing, 5)}."
          )
        own = sorted(numbers[demo] for demo in demos if demo in numbers)
        found.setdefault(key, []).extend(own)
    return found

  def _read(
    self, place: hdf5.Place, paths: Collection[str], start: int, stop: int
  ) -> Values:
    stored = [path for path in paths if path not in self._finals]
    values = super()._read(place, stored, start, stop)
    demo = self._file(place.file)[place.group]
    for path in self._finals:
      if path in paths:
        next_path = NEXT_OBS + path.removeprefix(FINAL_OBS)
        values[path] = np.asarray(demo[next_path][place.stop - 1])
    return values


def read_masks(file: Any) -> dict[str, list[str]]:
  """Returns names of demos by filter key."""
  masks = hdf5.own(file, MASK)
  found = {name: hdf5.own(masks, name) for name in masks} if masks is not None else {}
  return {n: _to_json(mask[()]) for n, mask in found.items() if mask is not None}


def _with_names(
  metadata: Mapping[str, Any], robomimic: dict[str, Any], names: list[str]
) -> dict[str, Any]:
  """Returns metadata with what is robomimic's, the names of demos if unusual."""
  robomimic = {name: value for name, value in robomimic.items() if name != "demos"}
  if names != _usual_names(len(names)):
    robomimic["demos"] = names
  found = {name: value for name, value in metadata.items() if name != "robomimic"}
  return {**found, **({"robomimic": robomimic} if robomimic else {})}


def _usual_names(count: int) -> list[str]:
  return [f"demo_{index}" for index in range(count)]


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
  hdf5.load_h5py()
  if (compression or "gzip").lower() != "gzip":
    raise errors.ConversionError(
      f"convert: {path}: expected the compression 'gzip' or none, got '{compression}'."
    )
  is_text = {
    p: leaf.dtype == tf.string and not leaf.is_sequence for p, leaf in spec.items()
  }
  reading.check_numbers(
    f"convert: {path}",
    specs.TensorSpecStruct((p, leaf) for p, leaf in spec.items() if not is_text[p]),
  )


class RobomimicWriter(EpisodeWriter):
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
      metadata: JSON values, `robomimic` among them as the source gives it, and
        `splits`, which become filter keys.
      num_episodes: that will be written.
      compression: of the observations: 'gzip' or none.
    Raises:
      ImportError: h5py is not installed.
    """
    self._h5py = hdf5.load_h5py()
    self._path, self._work = path, work_folder
    self._spec = spec
    self._metadata = dict(metadata)
    self._robomimic = dict(self._metadata.pop("robomimic", {}))
    self._splits = dict(self._metadata.pop("splits", {}))
    self._compression = "gzip" if compression else None
    self._finals = final_paths(spec)
    names = self._robomimic.get("demos") or []
    self._names = names if len(names) == num_episodes else _usual_names(num_episodes)
    files.make_folders(work_folder)
    self._committed = num_episodes if os.path.exists(path) else self._find_parts()
    self._episodes = self._committed
    self._part: Any = None

  @property
  def num_committed(self) -> int:
    """The demos in finished parts."""
    return self._committed

  def append(self, values: Values) -> None:
    """Writes a demo to the part in progress; see `EpisodeWriter.append`."""
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
      files.publish(self._part_file(), os.path.join(self._work, name))
      self._committed = self._episodes

  def finish(self) -> None:
    """Puts the parts together into one file."""
    self.commit()
    if os.path.exists(self._path):
      return
    whole = os.path.join(self._work, "whole.hdf5")
    with self._h5py.File(whole, "w") as file:
      data = file.create_group(DATA)
      total = 0
      order = {name: index for index, name in enumerate(self._names)}
      for part in self._parts():
        with self._h5py.File(part, "r") as source:
          for name in sorted(source, key=order.__getitem__):
            source.copy(source[name], data, name)
            total += int(data[name].attrs[NUM_SAMPLES])
      self._write_metadata(file, data, total)
    files.publish(whole, self._path)

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
      next_path = NEXT_OBS + path.removeprefix(FINAL_OBS)
      if path in values and source in values:
        rows = np.concatenate([values[source][1:], values[path][None]])
        self._write_steps(demo, next_path, rows)
    demo.attrs[NUM_SAMPLES] = num_steps

  def _write_steps(self, demo: Any, path: str, array: np.ndarray) -> None:
    is_obs = path.startswith((OBS, NEXT_OBS))
    compression = self._compression if is_obs and array.size else None
    demo.create_dataset(path, data=array, compression=compression)

  def _write_metadata(self, file: Any, data: Any, total: int) -> None:
    data.attrs[TOTAL] = total
    for name, value in self._robomimic.get("attrs", {}).items():
      data.attrs[name] = value
    data.attrs[SPEC_ATTRIBUTE] = self._spec.to_json()
    if self._metadata:
      data.attrs[METADATA_ATTRIBUTE] = json.dumps(self._metadata)
    masks = dict(self._robomimic.get("mask", {}))  # As stores had them.
    for name, numbers in self._splits.items():
      masks[name] = [self._names[number] for number in numbers]
    for name, demos in masks.items():
      value = np.asarray([demo.encode() for demo in demos], "S")
      file.create_dataset(f"{MASK}/{name}", data=value)


def _write_attribute(demo: Any, name: str, array: np.ndarray) -> None:
  """Writes what there is once per episode; text as text, other bytes as opaque."""
  if array.dtype != object and array.nbytes <= _MAX_ATTRIBUTE_BYTES:
    demo.attrs[name] = array
    return
  if array.dtype == object:
    texts = [_to_text(item) for item in array.ravel().tolist()]
    if None not in texts:
      h5py = hdf5.load_h5py()
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
