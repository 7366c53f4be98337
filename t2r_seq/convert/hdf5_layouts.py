"""HDF5 files of other layouts: Minari, ALOHA, D4RL, and those that a JSON file tells.

Three things say what an episode is: a group of each (`episodes`), the file as a whole,
or flags in one long file (`ends`). Of an episode the rows of every dataset are steps.
Where a dataset has one row more, as the observations of Minari have, it is what the
last step led to, and becomes 'final_<path>', a value of the episode.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.convert import episodes, hdf5, minari
from t2r_seq.convert.episodes import (
  Dropped,
  EpisodeSource,
  SourceEpisode,
  Values,
)
from t2r_seq.specs.validation import read_image_header

SUFFIXES = (".hdf5", ".h5")
FINAL = "final_"
_MINARI = os.path.join("data", "main_data.hdf5")
_ACTIONS = ("actions", "action")
_ROBOMIMIC = "robomimic"
_MAX_SHOWN = 40
# Of rows of one size the end is zeros; these formats end with other bytes.
_PADDED = ("jpeg", "png")
# D4RL keeps the policy and other things of the whole file beside the steps.
_NO_STEPS = "metadata"


@dataclasses.dataclass(frozen=True)
class Layout:
  """Which datasets of a file are which paths, and how episodes end.

  Attributes:
    name: for people.
    episodes: a pattern of the groups that are an episode each, such as 'runs/*'; '/'
      where each file is one; '' where `ends` tells.
    ends: datasets of flags, one a step; an episode ends after a step where one is set.
    paths: datasets by the path that they become, from the group of an episode on; None
      takes all, by their own names.
  """

  name: str
  episodes: str = ""
  ends: tuple[str, ...] = ()
  paths: Mapping[str, str] | None = None

  @classmethod
  def read(cls, path: str) -> Layout:
    """Reads a JSON file: {"episodes": "runs/*", "paths": {"obs/pos": "state/pos"}}.

    Raises:
      ConversionError: it is none.
    """
    where = f"convert: layout: {path}"
    values = episodes.read_json_object(where, path)
    known = ("episodes", "ends", "paths")
    found = [
      errors.Mismatch(
        name, f"one of {errors.listing(known)}", repr(name), errors.nearest(name, known)
      )
      for name in values
      if name not in known
    ]
    if found:
      raise errors.mismatch_error(where, found, errors.ConversionError)
    groups, ends = values.get("episodes", ""), values.get("ends", [])
    paths = values.get("paths")
    is_text = isinstance(groups, str) and (paths is None or isinstance(paths, dict))
    if not is_text or not isinstance(ends, list) or bool(groups) == bool(ends):
      raise errors.ConversionError(
        f'{where}: expected "episodes", a pattern of groups such as "runs/*" or "/" '
        'for a file, or "ends", a list of datasets of flags, got '
        f"{json.dumps(values)[:200]}."
      )
    return cls(path, groups, tuple(map(str, ends)), paths)

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the fields as JSON has them."""
    paths = None if self.paths is None else dict(self.paths)
    return {"episodes": self.episodes, "ends": list(self.ends), "paths": paths}


def list_files(path: str) -> list[str]:
  """Returns the HDF5 files of a dataset: the one, or all of a folder, in order."""
  if not os.path.isdir(path):
    return [path]
  minari = os.path.join(path, _MINARI)
  if os.path.isfile(minari):
    return [minari]
  found = [n for n in os.listdir(path) if n.lower().endswith(SUFFIXES)]
  found.sort(key=episodes.natural_order)
  return [os.path.join(path, name) for name in found]


def is_hdf5_folder(path: str) -> bool:
  """Whether a folder has HDF5 files, or is one of Minari's."""
  return bool(list_files(path))


def open_hdf5(
  path: str,
  dropped: Dropped | None = None,
  spec: specs.TensorSpecStruct | None = None,
  layout: str | None = None,
) -> EpisodeSource:
  """Opens an HDF5 file, or a folder of them, by the layout that it has.

  Args:
    path: of the file, or of a folder.
    dropped: paths to leave out.
    spec: what an earlier look has found; None looks.
    layout: a JSON file of the layout; None finds out.
  Raises:
    ImportError: h5py is not installed.
    ConversionError: an unknown layout, which is shown; or data that cannot be taken
      over.
  """
  names = list_files(path)
  if not names:
    raise errors.ConversionError(
      f"convert: {path}: expected files of {errors.listing(SUFFIXES)}, got none."
    )
  known = Layout.read(layout) if layout else None
  foreign = hdf5.find_foreign(names)
  if known is None:
    with hdf5.open_file(names[0]) as file, episodes.reading(names[0], "an HDF5 file"):
      known = _detect(file, names[0])
  if known is None and len(names) == 1:
    return hdf5.Hdf5Source(names[0], foreign[names[0]], dropped, spec)
  if known is None:
    known = Layout(_ROBOMIMIC, f"{hdf5.DATA}/*")
  return LayoutSource(path, foreign, known, dropped or Dropped(), spec)


def _detect(file: Any, path: str) -> Layout | None:
  """Finds the layout of a file; None for robomimic's.

  Raises:
    ConversionError: it is none of those that are known.
  """
  h5py = hdf5.load_h5py()
  top = {name: hdf5.own(file, name) for name in file}
  if hdf5.DATA in top and top[hdf5.DATA] is None:
    return None  # A link, which its source refuses.
  groups = {name for name, item in top.items() if isinstance(item, h5py.Group)}
  if hdf5.DATA in groups and any(
    isinstance(hdf5.own(top[hdf5.DATA], name), h5py.Group) for name in top[hdf5.DATA]
  ):
    return None
  if groups and all(re.fullmatch(r"episode_\d+", name) for name in top):
    return Layout("Minari", "episode_*")
  flags = tuple(name for name in ("terminals", "timeouts") if name in top)
  if flags and _ACTIONS[0] in top:
    return Layout("D4RL", ends=flags)
  if _ACTIONS[1] in top and "observations" in top:
    return Layout("ALOHA", "/")
  raise errors.ConversionError(
    f"convert: {path}: expected the layout of robomimic, Minari, ALOHA or D4RL, got\n"
    f"{render_tree(file)}\n"
    "Say what an episode is with --layout layout.json, such as "
    '{"episodes": "runs/*"} for a group of each, {"episodes": "/"} where each file is '
    'one, or {"ends": ["done"]} where flags end them; "paths": {"obs/pos": '
    '"state/position"} picks and names datasets.'
  )


def render_tree(file: Any) -> str:
  """Renders groups and datasets of a file; of many that look alike the first."""
  lines: list[str] = []

  def add(group: Any, depth: int) -> None:
    names = sorted(group, key=episodes.natural_order)
    shown = names if len(names) <= 12 else names[:3]
    for name in shown:
      item = hdf5.own(group, name)
      if hasattr(item, "keys"):
        lines.append(f"{'  ' * depth}{name}/")
        add(item, depth + 1)
      elif item is not None:
        shape, dtype = tuple(item.shape or ()), item.dtype
        lines.append(f"{'  ' * depth}{name}  {shape} {dtype}")
    if len(shown) < len(names):
      lines.append(f"{'  ' * depth}... {len(names) - len(shown)} more")

  add(file, 1)
  rest = len(lines) - _MAX_SHOWN
  return "\n".join(
    lines[:_MAX_SHOWN] + ([f"  ... {rest} lines more"] if rest > 0 else [])
  )


@dataclasses.dataclass(frozen=True)
class _Place:
  """Where an episode is.

  Attributes:
    file: its name.
    group: in the file; '/' for the file itself.
    start: first row of its datasets.
    stop: row after its last step.
  """

  file: str
  group: str
  start: int
  stop: int

  def __str__(self) -> str:
    if self.group == "/":
      return f"steps {self.start} to {self.stop - 1} of {self.file}"
    return f"{self.group} of {self.file}"


@dataclasses.dataclass
class _Path:
  """One path over all episodes.

  Attributes:
    dataset: its name in the group of an episode; '' for an attribute.
    dtype: on disk.
    shape: of a step, or of a value of the episode.
    is_step: there is a row for each step.
    has_final: and one more.
    image_format: of encoded images.
    is_text: rows are text.
    count: episodes that have it.
  """

  dataset: str
  dtype: np.dtype
  shape: tuple[int, ...]
  is_step: bool
  has_final: bool = False
  image_format: str | None = None
  is_text: bool = False
  count: int = 0

  def form(self) -> tuple[Any, ...]:
    """What has to be the same in all episodes."""
    return (
      *(self.dtype, self.shape, self.is_step),
      *(self.has_final, self.image_format, self.is_text),
    )

  def describe(self) -> str:
    """Renders it for messages."""
    per = "a step" if self.is_step else "an episode"
    what = f"{self.image_format} images of " if self.image_format else ""
    final = ", with one after the last step" if self.has_final else ""
    return f"{what}{episodes.describe(self.dtype, self.shape)} {per}{final}"


class LayoutSource(EpisodeSource):
  """Reads the episodes of HDF5 files by a layout."""

  def __init__(
    self,
    path: str,
    foreign: Mapping[str, hdf5.Foreign],
    layout: Layout,
    dropped: Dropped,
    spec: specs.TensorSpecStruct | None = None,
  ) -> None:
    """Looks at every file and episode; reads flags, and first rows of images.

    Args:
      path: what the user named.
      foreign: the files, and what is not in them; see `hdf5.find_foreign`.
      layout: of all of them.
      dropped: paths to leave out.
      spec: what an earlier look has found; only these paths are read.
    Raises:
      ImportError: h5py is not installed.
      ConversionError: a file that is none or damaged, or episodes that differ; with
        every path.
    """
    names = [*foreign]
    self._path, self._names, self._layout = path, names, layout
    self._dropped = dropped
    self._places: list[_Place] = []
    self._paths: dict[str, _Path] = {}
    self._problems: list[errors.Mismatch] = []
    self._left_out: set[str] = set()
    self._empty: list[str] = []
    self._open: tuple[str, Any] = ("", None)
    for name in names:
      hdf5.check_foreign(name, foreign[name])
      self._check_links(name, foreign[name])
      with episodes.reading(name, "an HDF5 file"):
        self._scan(name)
    if not self._places:
      raise errors.ConversionError(
        f"convert: {path}: expected episodes at '{layout.episodes}', got\n"
        f"{render_tree(self._file(names[0]))}"
      )
    found = self._make_spec()
    if self._problems:
      raise errors.mismatch_error(
        f"convert: {path}", self._problems, errors.ConversionError
      )
    paths = found if spec is None else spec
    self.spec = specs.TensorSpecStruct((p, found[p]) for p in paths if p in found)
    self.num_episodes = len(self._places)
    lengths = [place.stop - place.start for place in self._places]
    self.episode_ends = np.cumsum(lengths).tolist()
    self.metadata = self._read_metadata()
    if layout.name == _ROBOMIMIC:
      self.splits = self._read_splits()
    self.notes = [f"Read in the layout of {layout.name}."]
    if self._empty:
      self.notes.append(episodes.left_out(len(self._empty), self._empty[0]))
    if self._left_out:
      self.notes.append(
        f"{errors.listing(self._left_out, 8)} have no row for each step, and are left "
        "out."
      )

  def fingerprint(self) -> dict[str, Any]:
    """Returns sizes and times of the files, and the layout."""
    stats = [os.stat(name) for name in self._names]
    return {
      "files": [[s.st_size, s.st_mtime_ns] for s in stats],
      "layout": self._layout.to_json_dict(),
    }

  def _read_splits(self) -> dict[str, list[int]]:
    """Returns the filter keys of all files, as numbers of episodes."""
    found: dict[str, list[int]] = {}
    for name in self._names:
      for key, demos in hdf5.read_masks(self._file(name)).items():
        groups = {f"{hdf5.DATA}/{demo}" for demo in demos}
        found.setdefault(key, []).extend(
          number
          for number, place in enumerate(self._places)
          if place.file == name and place.group in groups
        )
    return found

  def _read_metadata(self) -> Mapping[str, Any]:
    """Returns what Minari keeps beside its file."""
    known = minari.read_metadata(os.path.dirname(os.path.abspath(self._names[0])))
    is_minari = os.path.basename(self._names[0]) == os.path.basename(_MINARI)
    return {"minari": known} if known and is_minari else {}

  def episodes(self, start: int = 0) -> Iterator[SourceEpisode]:
    """Yields the episodes from a number on; see `EpisodeSource.episodes`."""
    for number in range(start, len(self._places)):
      place = self._places[number]
      with episodes.reading(str(place), "an episode"):
        values = self._read(place)
      yield SourceEpisode(values, f"episode {number}, {place}")

  def _file(self, name: str) -> Any:
    """Opens a file, and keeps the last one open."""
    if self._open[0] != name:
      if self._open[1] is not None:
        self._open[1].close()
      self._open = (name, hdf5.open_file(name))
    return self._open[1]

  # What there is.

  def _check_links(self, name: str, links: list[tuple[str, str]]) -> None:
    """Finds what links within a file would stand for: no walk follows them."""
    pattern = self._layout.episodes.strip("/")
    depth = pattern.count("/") + 1 if pattern else 0
    for place, what in links:
      parts = place.strip("/").split("/")
      group, path = "/".join(parts[:depth]), "/".join(parts[depth:])
      is_named = path and self._layout.paths is not None  # Then a missing one is, too.
      is_mask = self._layout.name == _ROBOMIMIC and parts[0] == hdf5.MASK
      is_met = is_mask or fnmatch.fnmatch(group, pattern)
      if is_named or not is_met or self._dropped.has(path):
        continue
      hint = f"Leave it out: --drop {path}." if path else ""
      got = f"{what} at {place} of {name}"
      self._problems.append(errors.Mismatch(path or place, "data", got, hint))

  def _scan(self, name: str) -> None:
    file = self._file(name)
    if self._layout.ends:
      self._scan_flat(name, file)
      return
    pattern = self._layout.episodes.strip("/")
    if not pattern:
      self._scan_group(name, "/", file)
      return
    depth = pattern.count("/") + 1
    groups = [g for g in _groups(file, depth) if fnmatch.fnmatch(g, pattern)]
    for group in sorted(groups, key=episodes.natural_order):
      self._scan_group(name, group, file[group])

  def _scan_flat(self, name: str, file: Any) -> None:
    """Finds the episodes of a file whose flags end them."""
    missing = [flag for flag in self._layout.ends if flag not in file]
    if missing:
      raise errors.ConversionError(
        f"convert: {name}: expected the flags {errors.listing(missing)}, got\n"
        f"{render_tree(file)}"
      )
    flags = [np.asarray(file[flag][()]) for flag in self._layout.ends]
    num_steps = len(flags[0])
    is_end = np.zeros(num_steps, bool)
    for flag, values in zip(self._layout.ends, flags, strict=True):
      if values.shape[:1] != (num_steps,) or values.size != num_steps:
        want, got = f"a flag for each of {num_steps} steps", errors.describe(values)
        raise errors.ConversionError(
          f"convert: {name}: {flag}: expected {want}, got {got}."
        )
      is_end |= values.reshape(-1) != 0
    ends = np.flatnonzero(is_end) + 1
    if num_steps and (not len(ends) or ends[-1] != num_steps):
      ends = np.append(ends, num_steps)  # The last one was cut off.
    starts = np.append(0, ends)[:-1]
    for start, stop in zip(starts.tolist(), ends.tolist(), strict=True):
      self._places.append(_Place(name, "/", start, stop))
    for path, dataset in self._datasets(file):
      if path.split("/")[0] == _NO_STEPS or dataset.shape[:1] != (num_steps,):
        self._left_out.add(path)
        continue
      self._add(
        path, dataset, name, _Path(path, dataset.dtype, dataset.shape[1:], True)
      )
      self._paths[path].count += len(ends) - 1

  def _scan_group(self, name: str, group: str, item: Any) -> None:
    """Looks at the datasets and attributes of one episode."""
    datasets = self._datasets(item)
    rows = {path: dataset.shape[0] for path, dataset in datasets if dataset.shape}
    of_actions = [rows[a] for a in _ACTIONS if a in rows]
    num_steps = (of_actions or sorted(rows.values()) or [0])[0]
    place = _Place(name, group, 0, num_steps)
    if not num_steps:
      self._empty.append(str(place))
      return
    self._places.append(place)
    for path, dataset in datasets:
      count = rows.get(path)
      is_step = count in (num_steps, num_steps + 1)
      shape = dataset.shape[1:] if is_step else dataset.shape
      found = _Path(path, dataset.dtype, shape, is_step, count == num_steps + 1)
      self._add(path, dataset, str(place), found)
    for path, value in hdf5.read_attributes(item).items():
      if not self._dropped.has(path) and self._layout.paths is None:
        found = _Path(
          "", value.dtype, value.shape, False, is_text=value.dtype == object
        )
        self._note(path, str(place), found)

  def _datasets(self, group: Any) -> list[tuple[str, Any]]:
    """Lists the datasets of an episode by path, those that are wanted."""
    found = hdf5.datasets(group)
    if self._layout.paths is not None:
      by_name = dict(found)
      missing = [n for n in self._layout.paths.values() if n not in by_name]
      if missing:
        near = errors.nearest(missing[0], by_name)
        raise errors.ConversionError(
          f"convert: {group.name} of {group.file.filename}: expected the datasets "
          f"{errors.listing(missing)}, got {errors.listing(by_name)}.{near}"
        )
      found = [(path, by_name[name]) for path, name in self._layout.paths.items()]
    # ALOHA's lengths of padded JPEGs: their own ends tell.
    found = [each for each in found if each[0] != "compress_len"]
    found = [each for each in found if not self._dropped.has(each[0])]
    self._left_out.update(path for path, dataset in found if dataset.shape is None)
    return [each for each in found if each[1].shape is not None]

  def _add(self, path: str, dataset: Any, place: str, found: _Path) -> None:
    """Takes note of a dataset; looks at the first row of what may be images or text."""
    if self._layout.paths is not None:
      found.dataset = self._layout.paths[path]
    if path in self._paths and self._paths[path].dtype == found.dtype:
      known = self._paths[path]
      is_padded = known.image_format and len(found.shape) == 1 and not known.is_text
      if known.image_format or known.is_text:
        # Their rows are checked as they are read: images by their headers.
        found.image_format, found.is_text = known.image_format, known.is_text
        found.shape = known.shape if is_padded or not found.shape else found.shape
    elif found.is_step and len(dataset):
      _look_at(found, dataset)
    self._note(path, place, found)

  def _note(self, path: str, place: str, found: _Path) -> None:
    known = self._paths.setdefault(path, found)
    if known.form() != found.form() and all(p.path != path for p in self._problems):
      want, hint = f"{known.describe()}, as before", f"Leave it out: --drop {path}."
      got = f"{found.describe()} in {place}"
      self._problems.append(errors.Mismatch(path, want, got, hint))
    known.count += 1

  def _make_spec(self) -> specs.TensorSpecStruct:
    spec = specs.TensorSpecStruct()
    for path, found in sorted(self._paths.items()):
      leaf: specs.ExtendedTensorSpec | errors.Mismatch
      if found.image_format or found.is_text:
        dtype = tf.uint8 if found.image_format else tf.string
        leaf = specs.ExtendedTensorSpec(
          *(found.shape, dtype, path),
          is_sequence=found.is_step,
          data_format=found.image_format,
        )
      else:
        leaf = episodes.array_spec(path, found.dtype, found.shape, found.is_step)
      if isinstance(leaf, errors.Mismatch):
        self._problems.append(leaf)
        continue
      is_optional = found.count < len(self._places)
      spec[path] = specs.ExtendedTensorSpec.from_spec(leaf, is_optional=is_optional)
      if found.has_final and not self._dropped.has(FINAL + path):
        spec[FINAL + path] = specs.ExtendedTensorSpec.from_spec(
          spec[path], name=FINAL + path, is_sequence=False
        )
    return specs.TensorSpecStruct(sorted(spec.items()))

  # Reading.

  def _read(self, place: _Place) -> Values:
    group = self._file(place.file)[place.group]
    attributes = hdf5.read_attributes(group)
    values: Values = {}
    for path, found in self._paths.items():
      final = FINAL + path
      if path not in self.spec and final not in self.spec:
        continue
      if not found.dataset:
        if path in attributes:
          values[path] = attributes[path]
        continue
      if found.dataset not in group:
        continue
      dataset, extra = group[found.dataset], int(found.has_final)
      if not found.is_step:
        values[path] = np.asarray(dataset[()])
        continue
      rows, count = dataset[place.start : place.stop + extra], place.stop - place.start
      if len(rows) != count + extra:
        raise errors.ConversionError(
          f"convert: {place}: {path}: expected {count + extra} rows, got {len(rows)}. "
          "The file was changed."
        )
      rows = self._as_rows(place, path, found, rows)
      if path in self.spec:
        values[path] = rows[: len(rows) - extra]
      if found.has_final and final in self.spec:
        values[final] = _item(rows, -1)
    return values

  def _as_rows(self, place: _Place, path: str, found: _Path, rows: Any) -> np.ndarray:
    """Makes byte strings of rows that are images or text."""
    if not found.image_format and not found.is_text:
      return np.asarray(rows)
    result = np.empty(len(rows), object)
    for step, row in enumerate(rows):
      data = _to_bytes(row)
      if found.image_format:
        data = data.rstrip(b"\0") if found.image_format in _PADDED else data
        header = read_image_header(data)
        shape = (
          None if header is None else (header.height, header.width, header.channels)
        )
        if header is None or (header.format, shape) != (
          found.image_format,
          found.shape,
        ):
          got = f"{data[:8]!r}" if header is None else f"{header.format} {shape}"
          raise errors.ConversionError(
            f"convert: {place}: {path}: step {step}: expected an image, "
            f"{found.image_format} {found.shape}, got {got}."
          )
      result[step] = data
    return result


def _groups(group: Any, depth: int, prefix: str = "") -> Iterator[str]:
  """Yields the names of the groups at a depth; links are not followed."""
  for name in group:
    item = hdf5.own(group, name)
    if hasattr(item, "keys"):
      if depth == 1:
        yield prefix + name
      else:
        yield from _groups(item, depth - 1, f"{prefix}{name}/")


def _look_at(found: _Path, dataset: Any) -> None:
  """Finds out, by the first row, whether rows are encoded images or text."""
  h5py = hdf5.load_h5py()
  is_text = h5py.check_string_dtype(found.dtype) is not None
  is_bytes = is_text or h5py.check_vlen_dtype(found.dtype) == np.uint8
  is_object = is_bytes and not found.shape
  is_padded = found.dtype == np.uint8 and len(found.shape) == 1 and found.shape[0] > 64
  if not is_object and not is_padded:
    return  # Rows of any number of numbers among them: they are no bytes.
  data = _to_bytes(dataset[0])
  header = read_image_header(data)
  # Numbers may begin as a bitmap does: only two formats are told among them.
  if header is not None and (is_object or header.format in _PADDED):
    found.image_format = header.format
    found.shape = (header.height, header.width, header.channels)
  else:
    found.is_text = is_object and is_text


def _to_bytes(row: Any) -> bytes:
  if isinstance(row, str):
    return row.encode()
  return row.tobytes() if isinstance(row, (np.ndarray, np.void)) else bytes(row)


def _item(rows: np.ndarray, index: int) -> np.ndarray:
  """Returns a row as an array, also where it is an object."""
  if rows.dtype != object:
    return np.asarray(rows[index])
  item = np.empty((), object)
  item[()] = rows[index]
  return item
