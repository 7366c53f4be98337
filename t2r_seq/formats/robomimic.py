"""Reads and writes HDF5 files in robomimic's layout; opens all HDF5 files.

`data/demo_0/{obs/<key>, next_obs/<key>, actions, rewards, dones, states}` datasets
[steps, ...], the attribute `num_samples` of each demo, the attribute `env_args` of
`data`, and `mask/<filter>` lists of demos.

If the rows of `next_obs/<key>` are the next rows of `obs/<key>`, only the last one is
new: it becomes `final_obs/<key>`, once per episode. The writer restores
`next_obs/<key>` from both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.episodes import reading
from t2r_seq.episodes.episodes import EpisodeWriter, Fields, Values
from t2r_seq.episodes.registry import register_format
from t2r_seq.episodes.views import Dropped, Episodes
from t2r_seq.episodes.writing import Staging
from t2r_seq.formats import hdf5
from t2r_seq.formats.hdf5 import DATA, NUM_SAMPLES
from t2r_seq.imports import tf

MASK, TOTAL = "mask", "total"
OBS, NEXT_OBS, FINAL_OBS = "obs/", "next_obs/", "final_obs/"
# Attributes of `data`: specs and metadata, so that a round trip gives the same ones.
SPEC_ATTRIBUTE = "t2r_seq_spec"
METADATA_ATTRIBUTE = "t2r_seq_metadata"
_COMPARED_BYTES = 1 << 24
_MAX_ATTRIBUTE_BYTES = 60_000


def _final_paths(fields: Mapping[str, Fields]) -> dict[str, str]:
  """Maps 'final_obs/x' to 'obs/x', if both together give the whole 'next_obs/x'."""
  finals = {}
  for path, leaf in fields.items():
    source = OBS + path.removeprefix(FINAL_OBS)
    obs, is_final = fields.get(source, {}), path.startswith(FINAL_OBS)
    if not is_final or leaf.get("is_sequence") or not obs.get("is_sequence"):
      continue
    if reading.is_same_array(obs, leaf):
      finals[path] = source
  return finals


def _next_path(final: str) -> str:
  return NEXT_OBS + final.removeprefix(FINAL_OBS)


def _is_shifted(obs: Any, next_obs: Any) -> bool:
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
  """Reads the demos of a file, or of the files of a folder; demo_2 precedes demo_10."""

  def __init__(
    self, path: str, foreign: Mapping[str, hdf5.Foreign], dropped: Dropped
  ) -> None:
    """Checks every demo; reads masks, and next_obs; see `hdf5.LayoutEpisodes`."""
    super().__init__(path, foreign, hdf5.ROBOMIMIC, dropped)
    self._finals = _final_paths(self._spec_fields)
    with reading.explain_errors(path, "masks"):
      self.splits = self._read_splits()

  def _path_at(self, place: str) -> str | None:
    is_mask = place.strip("/").split("/")[0] == MASK
    return "" if is_mask else super()._path_at(place)

  def _describe(self, path: str, dataset: Any, place: hdf5.Place) -> hdf5.PathOnDisk:
    """Records a fault if a dataset of a demo has not one row for each step."""
    num_steps, shape = place.stop - place.start, dataset.shape
    if shape[:1] != (num_steps,):
      got = reading.describe(dataset.dtype, shape)
      self._fault(path, f"{num_steps} rows", got, str(place))
    return hdf5.PathOnDisk(path, dataset.dtype, shape[1:], True)

  def _make_fields(self) -> dict[str, Fields]:
    fields = super()._make_fields()
    if self._faults:
      return fields
    derived = self._derive_next_obs(fields)
    # Specs that `RobomimicWriter` stored keep what HDF5 cannot hold, if they fit.
    text = self._file(self._names[0])[DATA].attrs.get(SPEC_ATTRIBUTE)
    declared: Mapping[str, Fields] = {}
    if isinstance(text, str):
      declared = reading.fields_from_json(json.loads(text))
    return {
      path: declared[path] if _fits(declared.get(path), leaf) else leaf
      for path, leaf in derived.items()
    }

  def _derive_next_obs(self, fields: Mapping[str, Fields]) -> dict[str, Fields]:
    """Replaces each next_obs whose rows are the next obs by its last row."""
    derived: dict[str, Fields] = {}
    count = 0
    for path, leaf in fields.items():
      key = path.removeprefix(NEXT_OBS)
      if not path.startswith(NEXT_OBS) or not leaf.get("is_sequence"):
        derived[path] = leaf
      elif self._is_next(fields.get(OBS + key), leaf, key):
        count += 1
        derived[FINAL_OBS + key] = reading.final_fields(leaf, FINAL_OBS + key)
      else:
        derived[path] = leaf
        self.notes.append(
          f"{path} is kept as a column: some of its rows are not the next {OBS}{key}."
        )
    if count:
      self.notes.append(
        f"{count} next_obs are the next obs: of each only the last row of an episode "
        "is stored, as final_obs."
      )
    return dict(sorted(derived.items()))

  def _is_next(self, obs: Fields | None, next_obs: Fields, key: str) -> bool:
    """Whether the rows of a next_obs are the next ones of its obs, in all demos."""
    if next_obs.get("is_optional") or not _fits(obs, next_obs):
      return False
    demos = (self._file(place.file)[place.group] for place in self._episodes)
    return all(_is_shifted(demo[OBS + key], demo[NEXT_OBS + key]) for demo in demos)

  def _demo_names(self) -> list[str]:
    return [place.group.rpartition("/")[2] for place in self._episodes]

  def _read_metadata(self) -> Mapping[str, Any]:
    """Returns attributes and unusual names of demos of one file; {} for several."""
    if len(self._names) > 1:
      return {}
    attributes = self._file(self._names[0])[DATA].attrs
    others = {name: _to_json(value) for name, value in attributes.items()}
    others.pop(TOTAL, None)
    others.pop(SPEC_ATTRIBUTE, None)
    with reading.explain_errors(self._names[0], f"JSON in {METADATA_ATTRIBUTE}"):
      metadata = dict(json.loads(others.pop(METADATA_ATTRIBUTE, "{}")))
    return _with_names(
      metadata, {"attrs": others} if others else {}, self._demo_names()
    )

  def metadata_of(self, episodes: np.ndarray) -> Mapping[str, Any]:
    """Returns the metadata with the names of the selected demos only."""
    if len(self._names) > 1:
      return {}
    names = self._demo_names()
    robomimic = dict(self.metadata.get("robomimic", {}))
    return _with_names(self.metadata, robomimic, [names[n] for n in episodes.tolist()])

  def _read_splits(self) -> dict[str, list[int]]:
    """Reads the filter keys of all files as indices of episodes."""
    splits: dict[str, list[int]] = {}
    indices = {(p.file, p.group): index for index, p in enumerate(self._episodes)}
    for file_name in self._names:
      file = self._file(file_name)
      masks = hdf5.get_own(file, MASK)
      for key in masks if masks is not None else ():
        if (mask := hdf5.get_own(masks, key)) is None:
          continue
        demos = _to_json(mask[()])
        if missing := [demo for demo in demos if demo not in file[DATA]]:
          self.notes.append(
            f"{MASK}/{key} names missing demos: {errors.listing(missing, 5)}."
          )
        demo_keys = [(file_name, f"{DATA}/{demo}") for demo in demos]
        split = sorted(indices[demo] for demo in demo_keys if demo in indices)
        splits.setdefault(key, []).extend(split)
    return splits

  def _read(
    self, place: hdf5.Place, paths: Collection[str], start: int, stop: int
  ) -> Values:
    stored = [path for path in paths if path not in self._finals]
    values = super()._read(place, stored, start, stop)
    demo = self._file(place.file)[place.group]
    for path in self._finals:
      if path in paths:
        values[path] = np.asarray(demo[_next_path(path)][place.stop - 1])
    return values


def _with_names(
  metadata: Mapping[str, Any], robomimic: dict[str, Any], names: list[str]
) -> dict[str, Any]:
  """Returns metadata with robomimic's, and the names of demos if unusual."""
  robomimic = {name: value for name, value in robomimic.items() if name != "demos"}
  if names != [f"demo_{index}" for index in range(len(names))]:
    robomimic["demos"] = names
  others = {name: value for name, value in metadata.items() if name != "robomimic"}
  return {**others, **({"robomimic": robomimic} if robomimic else {})}


def _fits(declared: Fields | None, leaf: Fields) -> bool:
  if declared is None or not reading.is_same_array(declared, leaf):
    return False
  return declared.get("is_sequence", False) == leaf.get("is_sequence", False)


def _to_json(value: Any) -> Any:
  if isinstance(value, bytes):
    return value.decode("utf-8", "backslashreplace")
  if isinstance(value, np.ndarray) and value.dtype.kind in "SUO":
    return [_to_json(item) for item in value.tolist()]
  return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


class RobomimicWriter(EpisodeWriter):
  """Writes a file in robomimic's layout."""

  def __init__(
    self, path: str, episodes: Episodes, compression: str | None = None
  ) -> None:
    """Makes the file under a temporary name.

    Args:
      path: path of the new file.
      episodes: episodes to write. The 'robomimic' of their metadata, as
        `RobomimicEpisodes` reads it, gives attributes and names of demos. Their splits
        become filter keys.
      compression: 'gzip' compresses the observations; None for no compression.
    """
    h5py = hdf5.load_h5py()
    if (compression or "gzip").lower() != "gzip":
      raise errors.ConversionError(
        f"write: {path}: expected the compression 'gzip' or none, got '{compression}'."
      )
    self._source, self._spec = episodes, episodes.spec
    numbers = {
      name: leaf
      for name, leaf in self._spec.items()
      if leaf.dtype != tf.string or leaf.is_sequence
    }
    reading.check_numbers(f"write: {path}", specs.TensorSpecStruct(numbers))
    self._compression = "gzip" if compression else None
    self._finals = _final_paths(episodes.fields)
    self._metadata = dict(episodes.metadata)
    self._robomimic = dict(self._metadata.pop("robomimic", {}))
    names = self._robomimic.get("demos") or []
    self._demos = names if len(names) == episodes.num_episodes else []
    self._names: list[str] = []
    self._total = 0
    self._staging = Staging(path)
    self._file = h5py.File(self._staging.place("data.hdf5"), "w")
    self._data = self._file.create_group(DATA)

  def append(self, values: Values) -> None:
    count, num_steps = len(self._names), 0
    name = self._demos[count] if self._demos else f"demo_{count}"
    demo = self._data.create_group(name)
    for path, array in values.items():
      if self._spec[path].is_sequence:
        num_steps = len(array)
        self._write_steps(demo, path, array)
      elif path not in self._finals:
        _write_attribute(demo, path, array)
    for path, source in self._finals.items():
      if path in values and source in values:
        rows = np.concatenate([values[source][1:], values[path][None]])
        self._write_steps(demo, _next_path(path), rows)
    demo.attrs[NUM_SAMPLES] = num_steps
    self._total += num_steps
    self._names.append(name)

  def finish(self) -> None:
    """Writes the metadata and the filter keys, and publishes the file."""
    attributes = self._data.attrs
    attributes[TOTAL] = self._total
    for name, value in self._robomimic.get("attrs", {}).items():
      attributes[name] = value
    attributes[SPEC_ATTRIBUTE] = self._spec.to_json()
    if self._metadata:
      attributes[METADATA_ATTRIBUTE] = json.dumps(self._metadata)
    # Metadata of stores that an earlier version converted has the filter keys.
    masks = dict(self._robomimic.get("mask", {}))
    for name, numbers in self._source.splits.items():
      masks[name] = [self._names[number] for number in numbers]
    for name, demos in masks.items():
      value = np.asarray([demo.encode() for demo in demos], "S")
      self._file.create_dataset(f"{MASK}/{name}", data=value)
    self._file.close()
    self._staging.publish("data.hdf5")

  def close(self) -> None:
    """Closes the file; removes it if `finish` did not complete it."""
    self._file.close()
    self._staging.close()

  def _write_steps(self, demo: Any, path: str, array: np.ndarray) -> None:
    is_obs = path.startswith((OBS, NEXT_OBS))
    compression = self._compression if is_obs and array.size else None
    demo.create_dataset(path, data=array, compression=compression)


def _write_attribute(demo: Any, name: str, array: np.ndarray) -> None:
  """Writes a value of an episode: numbers, text, or a byte string as opaque data."""
  if array.dtype != object and array.nbytes <= _MAX_ATTRIBUTE_BYTES:
    demo.attrs[name] = array
    return
  if array.dtype == object:
    texts = [_to_text(item) for item in array.ravel().tolist()]
    if None not in texts:
      value = np.asarray(texts, object).reshape(array.shape)
      demo.attrs.create(name, value, dtype=hdf5.load_h5py().string_dtype())
      return
    if not array.ndim:
      demo.attrs[name] = np.void(bytes(array[()]))
      return
  raise errors.ConversionError(
    f"write: {demo.name}: {name}: expected text, or at most {_MAX_ATTRIBUTE_BYTES} "
    f"bytes of numbers, as an attribute of a demo, got {errors.describe(array)}. "
    f"{reading.leave_out(name)}"
  )


def _to_text(item: bytes) -> str | None:
  try:
    text = item.decode()
  except UnicodeDecodeError:
    return None
  return None if "\0" in text else text


@register_format(
  "hdf5",
  suffixes=hdf5.SUFFIXES,
  recognises=hdf5.recognises,
  description="HDF5 files",
  writer=RobomimicWriter,
)
def open_hdf5(
  path: str, dropped: Dropped | None = None, layout: str | None = None
) -> Episodes:
  """Opens an HDF5 file, or a folder of them, by its layout.

  Args:
    path: path of the file or the folder.
    dropped: paths to leave out; None for none.
    layout: a JSON file with the layout; None recognises robomimic, Minari, ALOHA and
      D4RL.
  """
  dropped = dropped or Dropped()
  names = hdf5.list_files(path)
  if not names:
    raise reading.fault(path, f"files of {errors.listing(hdf5.SUFFIXES)}", "none")
  given = hdf5.Layout.read(layout) if layout else None
  foreign = hdf5.find_foreign(names)
  hdf5_layout = given or hdf5.find_layout(names[0])
  if hdf5_layout is hdf5.ROBOMIMIC:
    return RobomimicEpisodes(path, foreign, dropped)
  return hdf5.LayoutEpisodes(path, foreign, hdf5_layout, dropped)
