"""Reads HDF5 files: layouts of Minari, ALOHA and D4RL, and layouts in a JSON file.

An episode is a group or a whole file (`Layout.episodes`), or the steps up to an end
flag in a longer file (`Layout.ends`). A row of a dataset is a step. If a dataset has
one row more than the episode has steps, as Minari's observations have, the last row
becomes 'final_<path>', a value of the episode. For robomimic's layout see `robomimic`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors, imports
from t2r_seq.episodes import reading
from t2r_seq.episodes.episodes import Fields, Values
from t2r_seq.episodes.views import Dropped, Episodes
from t2r_seq.formats import hdf5_probe, minari

SUFFIXES = (".hdf5", ".h5")
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
FINAL = "final_"
_MINARI = os.path.join("data", "main_data.hdf5")
_ACTIONS = ("actions", "action")
DATA = "data"
# Robomimic's number of the steps of a group.
NUM_SAMPLES = "num_samples"
# Lines of a rendered tree; a group with more than 12 members shows the first 3.
_MAX_SHOWN, _MAX_ALIKE, _NUM_ALIKE = 40, 12, 3
# Images in rows of one size are padded with zeros, which can be removed: these formats
# never end with a zero.
_PADDED = ("jpeg", "png")
TERMINALS, TIMEOUTS = "terminals", "timeouts"
# D4RL's group of values of the whole file, such as the weights of the policy.
_NO_STEPS = "metadata"


def load_h5py() -> Any:
  """Imports h5py; an ImportError names the extra."""
  return imports.load_extra("h5py", "hdf5")


def open_file(path: str) -> Any:
  try:
    return load_h5py().File(path, "r")
  except OSError as error:
    raise reading.fault(path, "an HDF5 file", error) from error


Foreign = list[tuple[str, str]]
"""Places in a file, each with a description of the link or external data there."""


# Cache of `find_foreign` by path, size and time of change: it starts a subprocess.
_walked: dict[tuple[str, int, int], Foreign] = {}


def find_foreign(paths: Sequence[str]) -> dict[str, Foreign]:
  """Finds links, and data stored outside the files; libhdf5 runs in a subprocess.

  Raises:
    ConversionError: a file is missing, or libhdf5 crashes on it or does not return.
    ImportError: h5py is not installed.
  """
  load_h5py()
  keys = {}
  for path in paths:
    with reading.explain_errors(path, "an HDF5 file"):
      status = os.stat(path)
      keys[path] = (os.path.abspath(path), status.st_size, status.st_mtime_ns)
  new = [path for path in paths if keys[path] not in _walked]
  for path, foreign in zip(new, _walk(new) if new else (), strict=True):
    _walked[keys[path]] = foreign
  return {path: _walked[keys[path]] for path in paths}


def _walk(paths: Sequence[str]) -> list[Foreign]:
  done = subprocess.run(
    [sys.executable, "-I", hdf5_probe.__file__, json.dumps([*filter(None, sys.path)])],
    input=json.dumps([os.path.abspath(path) for path in paths]),
    capture_output=True,
    text=True,
    check=False,
  )
  entries = [json.loads(line) for line in done.stdout.splitlines()]
  if not done.returncode:
    return [[(place, what) for place, what in pairs] for pairs in entries]
  if done.returncode == -signal.SIGXCPU:
    got = f"one that keeps libhdf5 busy for more than {hdf5_probe.MAX_SECONDS} s"
  elif done.returncode < 0:
    got = f"one that libhdf5 crashes on ({signal.Signals(-done.returncode).name})"
  else:
    got = done.stderr.strip().rpartition("\n")[2]
  want = "an HDF5 file that can be walked through"
  raise reading.fault(paths[len(entries)], want, got, "The file is damaged.")


def datasets(group: Any) -> list[tuple[str, Any]]:
  """Lists the datasets below a group by path; links are not followed."""
  h5py = load_h5py()
  items: list[tuple[str, Any]] = []

  def visit(name: str, item: Any) -> None:
    if isinstance(item, h5py.Dataset):
      items.append((name, item))

  group.visititems(visit)
  return sorted(items)


def read_attributes(group: Any) -> dict[str, np.ndarray]:
  """Reads an episode's attributes except `num_samples`; text as bytes objects."""
  h5py = load_h5py()
  return {
    name: _to_array(group, value)
    for name, value in sorted(group.attrs.items())
    if name != NUM_SAMPLES and not isinstance(value, h5py.Empty)
  }


def _to_array(group: Any, value: Any) -> np.ndarray:
  if isinstance(value, np.void):  # Opaque: bytes that are not text.
    return reading.scalar(value.tobytes())
  array = np.asarray(value)
  if array.dtype.kind not in "SUO":
    return array
  items = array.ravel().tolist()
  if others := [item for item in items if not isinstance(item, (bytes, str))]:
    place = f"an attribute of {group.name}"
    raise reading.fault(place, "numbers or text", type(others[0]).__name__)
  texts = [item.encode() if isinstance(item, str) else item for item in items]
  return reading.objects(texts).reshape(array.shape)


def get_own(group: Any, name: str) -> Any:
  """Returns an item of a group itself; None if it is missing, or a link."""
  link = group.get(name, getlink=True)
  return group[name] if isinstance(link, load_h5py().HardLink) else None


@dataclasses.dataclass(frozen=True)
class Layout:
  """Maps datasets of a file to paths, and declares how episodes end.

  Attributes:
    name: name for messages; for a JSON file its path.
    episodes: pattern of the groups that are episodes, such as 'runs/*'; '/' if each
      file is an episode; '' if `ends` marks them.
    ends: datasets of flags, one per step; an episode ends after a step whose flag is
      set.
    paths: name of the dataset in the group of an episode, by the path of its values;
      None reads all datasets, and their names are the paths.
    clocks: path of the time stamps, by the path of values that have another rate than
      the steps.
  """

  name: str
  episodes: str = ""
  ends: tuple[str, ...] = ()
  paths: Mapping[str, str] | None = None
  clocks: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @classmethod
  def read(cls, path: str) -> Layout:
    """Reads a JSON file: {"episodes": "runs/*", "paths": {"obs/pos": "state/pos"}}."""
    keys = ("episodes", "ends", "paths", "clocks")
    values = reading.read_json_object(path, keys=keys)
    groups, ends = values.get("episodes", ""), values.get("ends", [])
    paths, clocks = values.get("paths"), values.get("clocks", {})
    is_text = isinstance(groups, str) and (paths is None or isinstance(paths, dict))
    if not is_text or not isinstance(ends, list) or bool(groups) == bool(ends):
      want = (
        '"episodes", a pattern of groups such as "runs/*" or "/" for a file, or '
        '"ends", a list of datasets of flags'
      )
      raise reading.fault(path, want, json.dumps(values)[:200])
    is_named = isinstance(clocks, dict) and all(
      isinstance(c, str) for c in clocks.values()
    )
    if not is_named or (clocks and ends):
      want = '"clocks": {"force": "force_time"}, with "episodes"'
      raise reading.fault(path, want, json.dumps(values)[:200])
    return cls(path, groups, tuple(map(str, ends)), paths, clocks)

  def to_json_dict(self) -> dict[str, Any]:
    paths = None if self.paths is None else dict(self.paths)
    clocks = {"clocks": dict(self.clocks)} if self.clocks else {}
    return {"episodes": self.episodes, "ends": [*self.ends], "paths": paths, **clocks}


ROBOMIMIC = Layout("robomimic", f"{DATA}/*")


def list_files(path: str) -> list[str]:
  """Returns the HDF5 files of a dataset: the file, or those of a folder, in order."""
  if not os.path.isdir(path):
    return [path]
  if os.path.isfile(os.path.join(path, _MINARI)):
    return [os.path.join(path, _MINARI)]
  files = [n for n in os.listdir(path) if n.lower().endswith(SUFFIXES)]
  return [os.path.join(path, n) for n in sorted(files, key=reading.natural_order)]


def recognises(path: str) -> bool:
  """Whether a path is an HDF5 file, or a folder with some."""
  if os.path.isdir(path):
    return bool(list_files(path))
  with open(path, "rb") as file:
    is_hdf5 = file.read(len(_SIGNATURE)) == _SIGNATURE
  return is_hdf5 or path.lower().endswith(SUFFIXES)


def find_layout(path: str) -> Layout:
  """Returns the layout of a file; the error for an unknown one shows its datasets."""
  with open_file(path) as file, reading.explain_errors(path, "an HDF5 file"):
    h5py = load_h5py()
    top = {name: get_own(file, name) for name in file}
    groups = {name for name, item in top.items() if isinstance(item, h5py.Group)}
    data: Any = top.get(DATA)
    # The reader of robomimic's layout reports the link.
    if DATA in top and data is None:
      return ROBOMIMIC
    if DATA in groups and any(isinstance(get_own(data, n), h5py.Group) for n in data):
      return ROBOMIMIC
    if groups and all(re.fullmatch(r"episode_\d+", name) for name in top):
      return Layout("Minari", "episode_*")
    flags = tuple(name for name in (TERMINALS, TIMEOUTS) if name in top)
    if flags and _ACTIONS[0] in top:
      return Layout("D4RL", ends=flags)
    if _ACTIONS[1] in top and "observations" in top:
      return Layout("ALOHA", "/")
    hint = (
      "Say what an episode is with --layout layout.json, such as "
      '{"episodes": "runs/*"} for a group of each, {"episodes": "/"} if each file is '
      'one, or {"ends": ["done"]} if flags end them; "paths": {"obs/pos": '
      '"state/position"} picks and names datasets.'
    )
    want = "the layout of robomimic, Minari, ALOHA or D4RL"
    raise reading.fault(path, want, f"\n{render_tree(file)}", hint)


def render_tree(file: Any) -> str:
  """Renders the groups and datasets of a file; shortens long lists."""
  lines: list[str] = []

  def add(group: Any, depth: int) -> None:
    names = sorted(group, key=reading.natural_order)
    first = names if len(names) <= _MAX_ALIKE else names[:_NUM_ALIKE]
    for name in first:
      item = get_own(group, name)
      if hasattr(item, "keys"):
        lines.append(f"{'  ' * depth}{name}/")
        add(item, depth + 1)
      elif item is not None:
        shape, dtype = tuple(item.shape or ()), item.dtype
        lines.append(f"{'  ' * depth}{name}  {shape} {dtype}")
    if len(first) < len(names):
      lines.append(f"{'  ' * depth}... {len(names) - len(first)} more")

  add(file, 1)
  more = len(lines) - _MAX_SHOWN
  rest = [f"  ... {more} lines more"] if more > 0 else []
  return "\n".join(lines[:_MAX_SHOWN] + rest)


@dataclasses.dataclass(frozen=True)
class Place:
  """Place of an episode.

  Attributes:
    file: path of the HDF5 file.
    group: name of its group; '/' for the whole file.
    start: row of its first step in the datasets.
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
class PathOnDisk:
  """One path over all episodes.

  Attributes:
    dataset: name of the dataset in the group of an episode; '' for an attribute.
    dtype: dtype on disk.
    shape: shape of a row, or of a value of the episode; of images after decoding.
    is_step: whether there is a row for each step.
    has_final: whether one more row follows: the value after the last step.
    image_format: format of encoded images; None for other values.
    is_text: whether rows are text.
    has_clock: whether the rows have time stamps of their own, and are not steps.
    count: number of episodes that have it.
  """

  dataset: str
  dtype: np.dtype
  shape: tuple[int, ...]
  is_step: bool
  has_final: bool = False
  image_format: str | None = None
  is_text: bool = False
  has_clock: bool = False
  count: int = 0

  def form(self) -> tuple[Any, ...]:
    """Returns the properties that must be equal in all episodes."""
    return tuple(vars(self)[n] for n in vars(self) if n not in ("dataset", "count"))

  def describe(self) -> str:
    per = "a step" if self.is_step else "a stamp" if self.has_clock else "an episode"
    what = f"{self.image_format} images of " if self.image_format else ""
    final = ", with one after the last step" if self.has_final else ""
    return f"{what}{reading.describe(self.dtype, self.shape)} {per}{final}"


class _Unwritten:
  """Counts the chunks of a path that were never written to the files."""

  def __init__(self) -> None:
    self.num_chunks = self.num_missing = 0
    self._form: tuple[tuple[int, ...], np.dtype] = ((), np.dtype(np.float64))
    self._fill: Any = None
    self._first = ""

  def add(self, dataset: Any, place: str) -> None:
    """Adds the chunks of a dataset; a contiguous one is a single chunk."""
    if not dataset.size:
      return
    chunks = dataset.chunks or dataset.shape
    grid = [math.ceil(n / size) for n, size in zip(dataset.shape, chunks, strict=True)]
    num_chunks, missing = math.prod(grid), 0
    if dataset.chunks:
      missing = num_chunks - dataset.id.get_num_chunks()
    elif dataset.id.get_space_status() == load_h5py().h5d.SPACE_STATUS_NOT_ALLOCATED:
      missing = num_chunks
    if missing and not self._first:
      stored: set[tuple[int, ...]] = set()
      if dataset.chunks and missing < num_chunks:
        infos = map(dataset.id.get_chunk_info, range(dataset.id.get_num_chunks()))
        stored = {info.chunk_offset for info in infos}
      offsets = itertools.product(
        *(range(0, n, size) for n, size in zip(dataset.shape, chunks, strict=True))
      )
      first = next((each for each in offsets if each not in stored), (0,))
      row = first[0] if first else 0
      self._fill = dataset.fillvalue
      self._first = f"first in {place}, from row {row}"
    self.num_chunks += num_chunks
    self.num_missing += missing
    self._form = (dataset.shape, dataset.dtype)

  def describe(self, path: str) -> tuple[str, bool]:
    """Describes the missing chunks, and returns whether they are a problem."""
    counts = (self.num_missing, self.num_chunks)
    return reading.unwritten(path, *counts, self._fill, self._first, *self._form)


class LayoutEpisodes(Episodes):
  """Reads the episodes of HDF5 files by a layout."""

  def __init__(
    self, path: str, foreign: Mapping[str, Foreign], layout: Layout, dropped: Dropped
  ) -> None:
    """Checks every file and episode; reads flags, and the first rows of images or text.

    Args:
      path: file or folder, for messages.
      foreign: links and external data by file; see `find_foreign`.
      layout, dropped: how the episodes are found; paths to leave out.
    """
    self.path, self._names, self._layout = path, [*foreign], layout
    self._dropped = dropped
    # Time stamps have themselves as their clock.
    named = layout.clocks.items()
    clocks = {c: c for p, c in named if not dropped.has(p)} | dict(named)
    self._clocks = {path: c for path, c in clocks.items() if not dropped.has(path)}
    self._episodes: list[Place] = []
    self._paths: dict[str, PathOnDisk] = {}
    self._faults: dict[str, errors.Mismatch] = {}
    self._left_out: set[str] = set()
    self._empty: list[str] = []
    self._unwritten: dict[str, _Unwritten] = {}
    self.notes: list[str] = []
    self.problems: list[str] = []
    self._open: tuple[str, Any] = ("", None)
    self._lock = threading.Lock()  # Threads share the open file.
    self._check_foreign(foreign)
    for name in self._names:
      with reading.explain_errors(name, "an HDF5 file"):
        self._scan(name, self._file(name))
    if not self._episodes:
      tree = render_tree(self._file(self._names[0]))
      raise reading.fault(path, f"episodes at '{layout.episodes}'", f"\n{tree}")
    with reading.explain_errors(path, "an HDF5 file"):
      self._spec_fields = self._make_fields()
      self.metadata = self._read_metadata()
    for name in {**self._clocks, **dict.fromkeys(self._clocks.values())}:
      if name not in self._spec_fields:
        near = errors.nearest(name, self._spec_fields)
        fault = errors.Mismatch(name, "values and their clock", "no dataset", near)
        self._faults.setdefault(name, fault)
    if self._faults:
      raise reading.faults(path, self._faults.values())
    self.clocks = dict(self._clocks)
    lengths = [place.stop - place.start for place in self._episodes]
    self.lengths = np.asarray(lengths, np.int64)
    self.notes.insert(0, f"Read in the layout of {layout.name}.")
    for name, each in self._unwritten.items():
      if name in self._spec_fields and each.num_missing:
        text, is_problem = each.describe(name)
        (self.problems if is_problem else self.notes).append(text)
    self.notes += reading.left_out(self._empty)
    if self._left_out:
      listed = errors.listing(self._left_out, 8)
      self.notes.append(f"{listed} have no row for each step, and are left out.")

  def fingerprint(self) -> dict[str, Any]:
    return reading.file_fingerprint(self._names, layout=self._layout.to_json_dict())

  def _read_metadata(self) -> Mapping[str, Any]:
    """Returns the metadata.json beside Minari's file, or {}."""
    metadata = minari.read_metadata(os.path.dirname(os.path.abspath(self._names[0])))
    is_minari = os.path.basename(self._names[0]) == os.path.basename(_MINARI)
    return {"minari": metadata} if metadata and is_minari else {}

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    place = self._episodes[episode]
    steps = range(place.stop - place.start)[start:stop]
    names = self._spec_fields if paths is None else paths
    with self._lock, reading.explain_errors(str(place), "an episode"):
      return self._read(place, names, steps.start, max(steps.start, steps.stop))

  def place(self, episode: int) -> str:
    return f"episode {episode}, {self._episodes[episode]}"

  def _file(self, name: str) -> Any:
    """Returns the open file, which stays open until another one is requested."""
    if self._open[0] != name:
      if self._open[1] is not None:
        self._open[1].close()
      self._open = (name, open_file(name))
    return self._open[1]

  # The paths and episodes of the files.

  def _check_foreign(self, foreign: Mapping[str, Foreign]) -> None:
    """Raises ConversionError if data to read is behind a link or in another file."""
    mismatches = []
    for name, links in foreign.items():
      for place, what in links:
        path = self._path_at(place)
        if path is None or (path and not self._is_read(path)):
          continue
        is_within = what.startswith(hdf5_probe.WITHIN)
        want = "data" if is_within else "data in this file"
        hint = reading.leave_out(path) if path else ""
        got = f"{what} at {place} of {name}"
        mismatches.append(errors.Mismatch(path or place, want, got, hint))
    if mismatches:
      raise reading.faults(self.path, mismatches)

  def _path_at(self, place: str) -> str | None:
    """Returns the path within an episode; '' for its groups, None for other places."""
    pattern, parts = self._layout.episodes.strip("/"), place.strip("/").split("/")
    groups = pattern.split("/") if pattern else []
    if not all(map(fnmatch.fnmatch, parts, groups)):
      return None
    return "/".join(parts[len(groups) :])

  def _is_read(self, path: str) -> bool:
    """Whether a dataset is read, or any dataset below a group."""
    read = [path]
    if self._layout.paths is not None:
      read = [n for p, n in self._layout.paths.items() if not self._dropped.has(p)]
    elif self._dropped.has(path):
      read = []
    return any(f"{n}/".startswith(f"{path}/") for n in (*read, *self._layout.ends))

  def _scan(self, name: str, file: Any) -> None:
    pattern = self._layout.episodes.strip("/")
    if self._layout.ends:
      self._scan_flat(name, file)
    elif not pattern:
      self._scan_group(name, "/", file)
    else:
      groups = _groups(file, pattern.count("/") + 1)
      matching = [group for group in groups if fnmatch.fnmatch(group, pattern)]
      for group in sorted(matching, key=reading.natural_order):
        self._scan_group(name, group, file[group])

  def _scan_flat(self, name: str, file: Any) -> None:
    """Finds the episodes of a file in which flags mark their ends."""
    if missing := [flag for flag in self._layout.ends if flag not in file]:
      want = f"the flags {errors.listing(missing)}"
      raise reading.fault(name, want, f"\n{render_tree(file)}")
    flags = {flag: np.asarray(file[flag][()]) for flag in self._layout.ends}
    num_steps = len(next(iter(flags.values())))
    is_end = np.zeros(num_steps, bool)
    for flag, values in flags.items():
      if values.shape[:1] != (num_steps,) or values.size != num_steps:
        want = f"a flag for each of {num_steps} steps"
        raise reading.fault(f"{name}: {flag}", want, errors.describe(values))
      is_end |= values.reshape(-1) != 0
    ends = np.flatnonzero(is_end) + 1
    self._note_ends(name, ends, num_steps)
    if num_steps and (not len(ends) or ends[-1] != num_steps):
      ends = np.append(ends, num_steps)  # The last one was cut off.
    for start, stop in itertools.pairwise([0, *ends.tolist()]):
      self._episodes.append(Place(name, "/", start, stop))
    for path, dataset in self._datasets_to_read(file):
      if path.split("/")[0] == _NO_STEPS or dataset.shape[:1] != (num_steps,):
        self._left_out.add(path)
        continue
      on_disk = PathOnDisk(path, dataset.dtype, dataset.shape[1:], True)
      self._add_data(path, dataset, name, on_disk)
      self._paths[path].count += len(ends) - 1

  def _note_ends(self, name: str, ends: np.ndarray, num_steps: int) -> None:
    """Adds notes on missing end flags."""
    flags = self._layout.ends
    if num_steps and not len(ends):
      self.notes.append(
        f"{name}: no flag of {errors.listing(flags)} is set: all {num_steps:,} steps "
        "are read as one episode. Name other flags with --layout."
      )
    elif num_steps and ends[-1] != num_steps:
      self.notes.append(
        f"{name}: the last episode, of {num_steps - ends[-1]:,} steps, has no end "
        "flag: the recording stopped early."
      )
    if flags == (TERMINALS,):
      self.notes.append(
        f"{name}: there are no {TIMEOUTS}: an episode that ran into its time limit is "
        "joined to the next one."
      )

  def _scan_group(self, name: str, group: str, item: Any) -> None:
    """Checks the datasets and attributes of one episode."""
    listed = self._datasets_to_read(item)
    rows = {p: d.shape[0] for p, d in listed if d.shape and p not in self._clocks}
    num_steps = self._count_steps(item, rows)
    place = Place(name, group, 0, num_steps)
    if not num_steps:
      self._empty.append(str(place))
      return
    self._episodes.append(place)
    for path, dataset in listed:
      self._add_data(path, dataset, str(place), self._describe(path, dataset, place))
    if self._layout.paths is None:
      for path, value in read_attributes(item).items():
        if not self._dropped.has(path):
          is_text = value.dtype == object
          form = PathOnDisk("", value.dtype, value.shape, False, is_text=is_text)
          self._add_path(path, str(place), form)

  def _count_steps(self, group: Any, rows: dict[str, int]) -> int:
    """Returns `num_samples`, the rows of the actions, or the fewest of a dataset."""
    given = group.attrs.get(NUM_SAMPLES)
    if given is None:
      of_actions = [rows[a] for a in _ACTIONS if a in rows]
      return (of_actions or sorted(rows.values()) or [0])[0]
    if int(given) < 0:
      place = f"{self.path}: {group.name}"
      raise reading.fault(place, "a number of steps", int(given))
    return int(given)

  def _describe(self, path: str, dataset: Any, place: Place) -> PathOnDisk:
    """Returns the form of a dataset: whether its rows are steps of the episode."""
    num_steps, shape = place.stop - place.start, dataset.shape
    if path in self._clocks and shape:
      return PathOnDisk(path, dataset.dtype, shape[1:], False, has_clock=True)
    is_step = shape[:1] in ((num_steps,), (num_steps + 1,))
    has_final = shape[:1] == (num_steps + 1,)
    shape = shape[1:] if is_step else shape
    return PathOnDisk(path, dataset.dtype, shape, is_step, has_final)

  def _datasets_to_read(self, group: Any) -> list[tuple[str, Any]]:
    """Lists the datasets to read, by path; adds those without a shape to `_left_out`.

    Raises:
      ConversionError: a dataset of the layout is missing.
    """
    listed = datasets(group)
    if self._layout.paths is not None:
      by_name = dict(listed)
      missing = [n for n in self._layout.paths.values() if n not in by_name]
      if missing:
        place = f"{group.name} of {group.file.filename}"
        near = errors.nearest(missing[0], by_name).strip()
        want = f"the datasets {errors.listing(missing)}"
        raise reading.fault(place, want, errors.listing(by_name), near)
      listed = [(path, by_name[name]) for path, name in self._layout.paths.items()]
    # ALOHA's lengths of padded JPEGs: unused, as JPEGs mark their end.
    listed = [(path, dataset) for path, dataset in listed if path != "compress_len"]
    listed = [
      (path, dataset) for path, dataset in listed if not self._dropped.has(path)
    ]
    # A null dataspace (h5py.Empty) has no shape, and no rows.
    self._left_out.update(path for path, dataset in listed if dataset.shape is None)
    return [(path, dataset) for path, dataset in listed if dataset.shape is not None]

  def _add_data(self, path: str, dataset: Any, place: str, on_disk: PathOnDisk) -> None:
    """Adds a dataset; checks the first row for images or text."""
    if self._layout.paths is not None:
      on_disk.dataset = self._layout.paths[path]
    self._unwritten.setdefault(path, _Unwritten()).add(dataset, place)
    earlier = self._paths.get(path)
    if earlier is not None and earlier.dtype == on_disk.dtype:
      is_padded = (
        earlier.image_format and len(on_disk.shape) == 1 and not earlier.is_text
      )
      if earlier.image_format or earlier.is_text:
        # `_rows` checks the format and the shape of each image.
        on_disk.image_format, on_disk.is_text = earlier.image_format, earlier.is_text
        on_disk.shape = (
          earlier.shape if is_padded or not on_disk.shape else on_disk.shape
        )
    elif (on_disk.is_step or on_disk.has_clock) and len(dataset):
      _detect_content(on_disk, dataset)
    self._add_path(path, place, on_disk)

  def _add_path(self, path: str, place: str, on_disk: PathOnDisk) -> None:
    earlier = self._paths.setdefault(path, on_disk)
    if earlier.form() != on_disk.form():
      self._fault(path, f"{earlier.describe()}, as before", on_disk.describe(), place)
    earlier.count += 1

  def _fault(self, path: str, want: str, got: str, place: str) -> None:
    """Records the first fault of a path."""
    fault = errors.Mismatch(path, want, f"{got} in {place}", reading.leave_out(path))
    self._faults.setdefault(path, fault)

  def _make_fields(self) -> dict[str, Fields]:
    fields: dict[str, Fields] = {}
    for path, on_disk in sorted(self._paths.items()):
      is_step, image = on_disk.is_step, on_disk.image_format
      shape: Any = (None, *on_disk.shape) if on_disk.has_clock else on_disk.shape
      fields_or_error: Fields | errors.Mismatch
      if image or on_disk.is_text:
        dtype = "uint8" if image else "string"
        fields_or_error = reading.make_fields(
          path, dtype, shape, is_step, data_format=image
        )
      else:
        fields_or_error = reading.array_fields(path, on_disk.dtype, shape, is_step)
      if isinstance(fields_or_error, errors.Mismatch):
        self._faults.setdefault(path, fields_or_error)
        continue
      leaf = fields_or_error
      if on_disk.count < len(self._episodes):
        leaf["is_optional"] = True
      fields[path] = leaf
      # A dataset with T + 1 rows also stores the observation after the last action.
      if on_disk.has_final and not self._dropped.has(FINAL + path):
        fields[FINAL + path] = reading.final_fields(leaf, FINAL + path)
    return dict(sorted(fields.items()))

  # Values.

  def _read(
    self, place: Place, paths: Collection[str], start: int, stop: int
  ) -> Values:
    group = self._file(place.file)[place.group]
    attributes = read_attributes(group)
    values: Values = {}
    for path, on_disk in self._paths.items():
      final = FINAL + path
      if path not in paths and final not in paths:
        continue
      if not on_disk.dataset:
        if path in attributes:
          values[path] = attributes[path]
        continue
      if on_disk.dataset not in group:
        continue
      dataset = group[on_disk.dataset]
      if on_disk.has_clock:
        values[path] = self._rows(place, path, dataset, 0, len(dataset))
        continue
      if not on_disk.is_step:
        values[path] = np.asarray(dataset[()])
        continue
      if path in paths:
        bounds = place.start + start, place.start + stop
        values[path] = self._rows(place, path, dataset, *bounds)
      if on_disk.has_final and final in paths:
        row = self._rows(place, path, dataset, place.stop, place.stop + 1)
        values[final] = row.reshape(row.shape[1:])
    return values

  def _rows(
    self, place: Place, path: str, dataset: Any, start: int, stop: int
  ) -> np.ndarray:
    """Reads rows of a dataset; images and text as byte strings."""
    rows, on_disk = dataset[start:stop], self._paths[path]
    if len(rows) != stop - start:
      got = f"{start + len(rows)}. The file was changed"
      raise reading.fault(f"{place}: {path}", f"{stop} rows", got)
    if not on_disk.image_format and not on_disk.is_text:
      return np.asarray(rows)
    data = [_to_bytes(row) for row in rows]
    if on_disk.image_format:
      if on_disk.image_format in _PADDED:
        data = [each.rstrip(b"\0") for each in data]
      want = (on_disk.image_format, on_disk.shape)
      for step, each in enumerate(data, start - place.start):
        form = reading.image_form(each)
        if form != want:
          got = f"{each[:8]!r}" if form is None else f"{form[0]} {form[1]}"
          where = f"{place}: {path}: step {step}"
          raise reading.fault(where, f"an image, {want[0]} {want[1]}", got)
    return reading.objects(data)


def _groups(group: Any, depth: int, prefix: str = "") -> Iterator[str]:
  """Yields the names of the groups at a depth; links are not followed."""
  for name in group:
    item = get_own(group, name)
    if hasattr(item, "keys"):
      if depth == 1:
        yield prefix + name
      else:
        yield from _groups(item, depth - 1, f"{prefix}{name}/")


def _detect_content(on_disk: PathOnDisk, dataset: Any) -> None:
  """Detects from the first row whether rows are encoded images or text."""
  h5py = load_h5py()
  is_text = h5py.check_string_dtype(on_disk.dtype) is not None
  is_bytes = is_text or h5py.check_vlen_dtype(on_disk.dtype) == np.uint8
  is_object = is_bytes and not on_disk.shape
  is_padded = (
    on_disk.dtype == np.uint8 and len(on_disk.shape) == 1 and on_disk.shape[0] > 64
  )
  if not is_object and not is_padded:
    return  # Numbers, or rows with variable numbers of them.
  form = reading.image_form(_to_bytes(dataset[0]))
  # Rows of numbers may begin like a BMP image; the signatures of these two are longer.
  if form is not None and (is_object or form[0] in _PADDED):
    on_disk.image_format, on_disk.shape = form
  else:
    on_disk.is_text = is_object and is_text


def _to_bytes(row: Any) -> bytes:
  if isinstance(row, str):
    return row.encode()
  return row.tobytes() if isinstance(row, (np.ndarray, np.void)) else bytes(row)
