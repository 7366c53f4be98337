"""HDF5 files in robomimic's layout, as sources and as targets.

`data/demo_0/{obs/<key>, next_obs/<key>, actions, rewards, dones, states}` datasets
[steps, ...], the attribute `num_samples` of each demo, the attribute `env_args` of
`data`, and `mask/<filter>` lists of demos.

Of `next_obs/<key>` only the last row is news where the others are the next rows of
`obs/<key>`: it becomes `final_obs/<key>`, once per episode, and turns into the whole
`next_obs/<key>` again on the way out.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, files, specs
from t2r_seq.convert import episodes, hdf5_probe
from t2r_seq.convert.episodes import (
  Dropped,
  EpisodeSource,
  EpisodeTarget,
  SourceEpisode,
  Values,
)

DATA, MASK = "data", "mask"
NUM_SAMPLES, ENV_ARGS, TOTAL = "num_samples", "env_args", "total"
OBS, NEXT_OBS, FINAL_OBS = "obs/", "next_obs/", "final_obs/"
# Attributes of `data`: specs and metadata, so that a round trip gives the same ones.
SPEC_ATTRIBUTE = "t2r_seq_spec"
METADATA_ATTRIBUTE = "t2r_seq_metadata"


def load_h5py() -> Any:
  """Imports h5py; an ImportError names the extra."""
  return errors.load_extra("h5py", "hdf5")


def open_file(path: str) -> Any:
  """Opens a file for reading.

  Raises:
    ImportError: h5py is not installed.
    ConversionError: it is no HDF5 file, or a damaged one.
  """
  h5py = load_h5py()
  try:
    return h5py.File(path, "r")
  except OSError as error:
    raise errors.ConversionError(
      f"convert: {path}: expected an HDF5 file, got {error}."
    ) from error


Foreign = list[tuple[str, str]]


def find_foreign(paths: Sequence[str]) -> dict[str, Foreign]:
  """Looks for what is not in files themselves, in one process of its own.

  Args:
    paths: of the files.
  Returns:
    By file pairs of a place in it and of what is there.
  Raises:
    ConversionError: libhdf5 crashes on a file, or does not come back.
  """
  load_h5py()
  imports = json.dumps([place for place in sys.path if place])
  done = subprocess.run(
    [sys.executable, "-I", hdf5_probe.__file__, imports],
    input=json.dumps([os.path.abspath(path) for path in paths]),
    capture_output=True,
    text=True,
    check=False,
  )
  found = [json.loads(line) for line in done.stdout.splitlines()]
  if not done.returncode:
    there = [[(place, what) for place, what in pairs] for pairs in found]
    return dict(zip(paths, there, strict=True))
  if done.returncode == -signal.SIGXCPU:
    got = f"one that keeps libhdf5 busy for more than {hdf5_probe.MAX_SECONDS} s"
  elif done.returncode < 0:
    got = f"one that libhdf5 crashes on ({signal.Signals(-done.returncode).name})"
  else:
    got = done.stderr.strip().rpartition("\n")[2]
  raise errors.ConversionError(
    f"convert: {paths[len(found)]}: expected an HDF5 file that can be walked through, "
    f"got {got}. The file is damaged."
  )


def demo_order(name: str) -> tuple[int, str]:
  """Sorts demo_2 before demo_10."""
  digits = re.search(r"\d+$", name)
  return (int(digits[0]) if digits else -1, name)


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


@dataclasses.dataclass
class _Found:
  """One path over all demos.

  Attributes:
    dtype: of the dataset, or of the attribute.
    shape: of a step, or of the attribute.
    is_sequence: it is a dataset.
    demos: how many demos have it.
  """

  dtype: np.dtype
  shape: tuple[int, ...]
  is_sequence: bool
  demos: int = 0


class DemoScan:
  """Looks at every demo's datasets and attributes; reads no data but next_obs."""

  def __init__(self, path: str, dropped: Dropped) -> None:
    """Starts with nothing.

    Args:
      path: of the file, for errors.
      dropped: paths to leave out.
    """
    self._path = path
    self._dropped = dropped
    self._by_path: dict[str, _Found] = {}
    self._problems: list[errors.Mismatch] = []
    self.notes: list[str] = []

  def run(self, demos: list[Any]) -> specs.TensorSpecStruct:
    """Finds the specs of the demos.

    Args:
      demos: HDF5 groups.
    Returns:
      Specs by path, sorted; optional where some demos lack them.
    Raises:
      ConversionError: with every dataset that cannot be taken over.
    """
    for demo in demos:
      num_steps = count_steps(self._path, demo)
      for path, dataset in datasets(demo):
        if not self._dropped.has(path):
          self._add_dataset(demo, path, dataset, num_steps)
      for name, value in read_attributes(demo).items():
        if not self._dropped.has(name):
          self._add(demo, name, _Found(value.dtype, value.shape, False))
    spec = self._make_spec(len(demos))
    if self._problems:
      raise errors.mismatch_error(
        f"convert: {self._path}", self._problems, errors.ConversionError
      )
    return self._derive_next_obs(spec, demos)

  def _add_dataset(self, demo: Any, path: str, dataset: Any, num_steps: int) -> None:
    if (dataset.shape or ())[:1] != (num_steps,):
      got = episodes.describe(dataset.dtype, dataset.shape)
      self._problem(path, f"{num_steps} rows", f"{got} in {demo.name}")
    else:
      self._add(demo, path, _Found(dataset.dtype, dataset.shape[1:], True))

  def _add(self, demo: Any, path: str, found: _Found) -> None:
    known = self._by_path.setdefault(path, found)
    if (known.dtype, known.shape, known.is_sequence) != (
      found.dtype,
      found.shape,
      found.is_sequence,
    ):
      want = f"{episodes.describe(known.dtype, known.shape)}, as other demos have"
      got = episodes.describe(found.dtype, found.shape)
      self._problem(path, want, f"{got} in {demo.name}")
    known.demos += 1

  def _problem(self, path: str, want: str, got: str) -> None:
    if all(problem.path != path for problem in self._problems):
      hint = f"Leave it out: --drop {path}."
      self._problems.append(errors.Mismatch(path, want, got, hint))

  def _make_spec(self, num_demos: int) -> specs.TensorSpecStruct:
    spec = specs.TensorSpecStruct()
    for path, found in sorted(self._by_path.items()):
      leaf: specs.ExtendedTensorSpec | errors.Mismatch
      if not found.is_sequence and found.dtype == object:
        leaf = specs.ExtendedTensorSpec(found.shape, tf.string, path)
      else:
        leaf = episodes.array_spec(path, found.dtype, found.shape, found.is_sequence)
      if isinstance(leaf, errors.Mismatch):
        self._problems.append(leaf)
        continue
      is_optional = found.demos < num_demos
      spec[path] = specs.ExtendedTensorSpec.from_spec(leaf, is_optional=is_optional)
    return spec

  def _derive_next_obs(
    self, spec: specs.TensorSpecStruct, demos: list[Any]
  ) -> specs.TensorSpecStruct:
    """Replaces each next_obs whose rows are the next obs by its last row."""
    derived: list[str] = []
    for path, leaf in spec.items():
      key = path.removeprefix(NEXT_OBS)
      source = spec.get(OBS + key)
      if not path.startswith(NEXT_OBS) or not leaf.is_sequence:
        continue
      is_pair = source is not None and (source.shape, source.dtype) == (
        leaf.shape,
        leaf.dtype,
      )
      if (
        is_pair
        and not leaf.is_optional
        and all(is_shifted(demo[OBS + key], demo[path]) for demo in demos)
      ):
        derived.append(path)
      else:
        self.notes.append(
          f"{path} is kept as a column: it is not everywhere the next {OBS}{key}."
        )
    for path in derived:
      fields = {**spec[path].fields(), "is_sequence": False}
      key = path.removeprefix(NEXT_OBS)
      final = FINAL_OBS + key
      fields["name"] = final
      del spec[path]
      spec[final] = specs.ExtendedTensorSpec(**fields)
    if derived:
      self.notes.append(
        f"{len(derived)} next_obs are the next obs: of each only the last row of an "
        "episode is stored, as final_obs."
      )
    return specs.TensorSpecStruct(sorted(spec.items()))


def datasets(demo: Any) -> list[tuple[str, Any]]:
  """Lists the datasets of a demo by path; links to other places are not followed."""
  h5py = load_h5py()
  found: list[tuple[str, Any]] = []

  def visit(name: str, item: Any) -> None:
    if isinstance(item, h5py.Dataset):
      found.append((name, item))

  demo.visititems(visit)
  return sorted(found)


def read_attributes(demo: Any) -> dict[str, np.ndarray]:
  """Reads what a demo has besides its datasets: numbers, and text as bytes objects."""
  h5py = load_h5py()
  found = {}
  for name, value in demo.attrs.items():
    if name != NUM_SAMPLES and not isinstance(value, h5py.Empty):
      found[name] = _to_array(value)
  return dict(sorted(found.items()))


def count_steps(path: str, demo: Any) -> int:
  """Returns the steps of a demo: `num_samples`, or the rows of its actions."""
  count = demo.attrs.get(NUM_SAMPLES)
  if count is None:
    rows = [len(dataset) for name, dataset in datasets(demo) if dataset.shape]
    count = rows[0] if rows else 0
  if int(count) < 0:
    raise errors.ConversionError(
      f"convert: {path}: {demo.name}: expected a number of steps, got {int(count)}."
    )
  return int(count)


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


def _to_array(value: Any) -> np.ndarray:
  array = np.asarray(value)
  if isinstance(value, np.void):  # Opaque: bytes that are no text.
    array = np.empty((), object)
    array[()] = value.tobytes()
    return array
  if array.dtype.kind not in "SUO":
    return array
  items = np.empty(array.shape, object)
  for index in np.ndindex(*array.shape):
    item = array[index]
    if not isinstance(item, (bytes, str)):
      raise errors.ConversionError(
        f"convert: an attribute of a demo: expected numbers or text, got "
        f"{type(item).__name__}."
      )
    items[index] = item.encode() if isinstance(item, str) else bytes(item)
  return items


class Hdf5Source(EpisodeSource):
  """Reads the demos of a file, demo_2 before demo_10."""

  def __init__(
    self,
    path: str,
    foreign: Foreign,
    dropped: Dropped | None = None,
    spec: specs.TensorSpecStruct | None = None,
  ) -> None:
    """Opens the file and looks at every demo.

    Args:
      path: of the file.
      foreign: what is not in the file itself; see `find_foreign`.
      dropped: paths to leave out.
      spec: what an earlier look has found; None looks.
    Raises:
      ImportError: h5py is not installed.
      ConversionError: another layout, or datasets that cannot be taken over.
    """
    self._path = path
    _check_foreign(path, foreign, dropped or Dropped(), spec)
    self._file = open_file(path)
    with episodes.reading(path, "an HDF5 file"):
      self._open(dropped or Dropped(), spec)

  def _open(self, dropped: Dropped, spec: specs.TensorSpecStruct | None) -> None:
    path = self._path
    data = own(self._file, DATA)
    if data is None or not hasattr(data, "keys") or not len(data):
      raise errors.ConversionError(
        f"convert: {path}: expected a group data with a group for each demo, as "
        f"robomimic has it, got {errors.listing(self._file)}."
      )
    self._data = data
    demos = [own(data, name) for name in sorted(data, key=demo_order)]
    there = [demo for demo in demos if demo is not None]
    self._demos = [demo for demo in there if count_steps(path, demo)]
    self.num_episodes = len(self._demos)
    self.notes: list[str] = []
    empty = [demo.name for demo in there if not count_steps(path, demo)]
    self._empty = {name.rpartition("/")[2] for name in empty}
    if empty:
      self.notes.append(episodes.left_out(len(empty), empty[0]))
    if spec is None:
      scan = DemoScan(path, dropped)
      spec = self._with_known(scan.run(self._demos))
      self.notes += scan.notes
    self.spec = spec
    self._finals = final_paths(spec)
    self._names = [demo.name.rpartition("/")[2] for demo in self._demos]
    self.metadata = self._read_metadata()
    self.splits = self._read_splits()

  def _read_metadata(self) -> Mapping[str, Any]:
    """`env_args`, other attributes of `data`, and unusual names of demos."""
    found = {name: _to_json(value) for name, value in self._data.attrs.items()}
    found.pop(TOTAL, None)
    found.pop(SPEC_ATTRIBUTE, None)
    metadata = json.loads(found.pop(METADATA_ATTRIBUTE, "{}"))
    robomimic: dict[str, Any] = {}
    if found:
      robomimic["attrs"] = found
    if self._names != _usual_names(len(self._names)):
      robomimic["demos"] = self._names
    return {**metadata, **({"robomimic": robomimic} if robomimic else {})}

  def _read_splits(self) -> dict[str, list[int]]:
    """The filter keys, as numbers of demos."""
    numbers = {name: number for number, name in enumerate(self._names)}
    found: dict[str, list[int]] = {}
    for name, demos in read_masks(self._file).items():
      missing = [demo for demo in demos if demo not in {*numbers, *self._empty}]
      if missing:
        self.notes.append(
          f"{MASK}/{name} names demos that are not there: {errors.listing(missing, 5)}."
        )
      found[name] = sorted(numbers[demo] for demo in demos if demo in numbers)
    return found

  def metadata_of(self, chosen: np.ndarray) -> Mapping[str, Any]:
    """See the base class: some of the demos have fewer names."""
    robomimic = {
      name: value
      for name, value in self.metadata.get("robomimic", {}).items()
      if name != "demos"
    }
    names = [self._names[number] for number in chosen.tolist()]
    if names != _usual_names(len(names)):
      robomimic["demos"] = names
    return {**self.metadata, **({"robomimic": robomimic} if robomimic else {})}

  def fingerprint(self) -> dict[str, Any]:
    """Returns the file's size and time."""
    stat = os.stat(self._path)
    return {"bytes": stat.st_size, "time": stat.st_mtime_ns}

  def episodes(self, start: int = 0) -> Iterator[SourceEpisode]:
    """Yields the demos from a number on; see `EpisodeSource.episodes`."""
    for demo in self._demos[start:]:
      place = f"{demo.name} of {self._path}"
      with episodes.reading(place, "a demo"):
        values = self._read(demo, place)
      yield SourceEpisode(values, place)

  def _read(self, demo: Any, place: str) -> Values:
    values: Values = {}
    attributes = read_attributes(demo)
    for path, leaf in self.spec.items():
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
    next_path = NEXT_OBS + path.removeprefix(FINAL_OBS)
    next_obs = demo[next_path]
    if not is_shifted(obs, next_obs):
      raise errors.ConversionError(
        f"convert: {place}: {next_path}: expected the next rows of obs, as the rest of "
        "the file has them, got others. The file was changed: start anew."
      )
    return np.asarray(next_obs[len(obs) - 1])

  def _with_known(self, found: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
    """Takes the specs that a conversion left, where they fit what was found."""
    text = self._data.attrs.get(SPEC_ATTRIBUTE)
    if not isinstance(text, str):
      return found
    known = specs.TensorSpecStruct.from_json(text)
    return specs.TensorSpecStruct(
      (path, known[path] if _fits(known.get(path), leaf) else leaf)
      for path, leaf in found.items()
    )


def _usual_names(count: int) -> list[str]:
  return [f"demo_{index}" for index in range(count)]


def own(group: Any, name: str) -> Any:
  """Returns what is in a group itself; None where there is nothing, or a link."""
  link = group.get(name, getlink=True)
  return group[name] if isinstance(link, load_h5py().HardLink) else None


def read_masks(file: Any) -> dict[str, list[str]]:
  """Returns names of demos by filter key."""
  masks = own(file, MASK)
  found = {name: own(masks, name) for name in masks} if masks is not None else {}
  return {n: _to_json(mask[()]) for n, mask in found.items() if mask is not None}


def check_foreign(path: str, foreign: Foreign) -> None:
  """Checks that all of a file lies in it, but for links to other places of it.

  Args:
    path: of the file, for the error.
    foreign: see `find_foreign`.
  Raises:
    ConversionError: with every place that is in another file.
  """
  found = [
    errors.Mismatch(place, "data in this file", f"{what} at {place}")
    for place, what in foreign
    if not what.startswith(hdf5_probe.WITHIN)
  ]
  if found:
    raise errors.mismatch_error(f"convert: {path}", found, errors.ConversionError)


def _check_foreign(
  path: str,
  foreign: Foreign,
  dropped: Dropped,
  spec: specs.TensorSpecStruct | None,
) -> None:
  """Checks that all that is read lies in the file; others may be anybody's.

  Raises:
    ConversionError: with every path that is in another file.
  """
  found: dict[str, errors.Mismatch] = {}
  is_read = [*(spec or ())]
  is_read += [NEXT_OBS + final.removeprefix(FINAL_OBS) for final in is_read]
  for place, what in foreign:
    top, _, rest = place.strip("/").partition("/")
    name = rest.partition("/")[2] if top == DATA else ""
    if top not in (DATA, MASK) or (name and spec is None and dropped.has(name)):
      continue
    is_there = any(f"{each}/".startswith(f"{name}/") for each in is_read)
    if name and spec is not None and not is_there:
      continue
    hint = f"Leave it out: --drop {name}." if name else ""
    got = f"{what} at {place}"
    is_within = what.startswith(hdf5_probe.WITHIN)
    expected = "data" if is_within else "data in this file"
    found[name or place] = errors.Mismatch(name or place, expected, got, hint)
  if found:
    raise errors.mismatch_error(
      f"convert: {path}", [*found.values()], errors.ConversionError
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
  load_h5py()
  if (compression or "gzip").lower() != "gzip":
    raise errors.ConversionError(
      f"convert: {path}: expected the compression 'gzip' or none, got '{compression}'."
    )
  is_text = {
    p: leaf.dtype == tf.string and not leaf.is_sequence for p, leaf in spec.items()
  }
  episodes.check_numbers(
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
      metadata: JSON values, `robomimic` among them as `Hdf5Source` gives it, and
        `splits`, which become filter keys.
      num_episodes: that will be written.
      compression: of the observations: 'gzip' or none.
    Raises:
      ImportError: h5py is not installed.
    """
    self._h5py = load_h5py()
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
      h5py = load_h5py()
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
