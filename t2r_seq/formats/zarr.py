"""Reads and writes zarr groups in diffusion_policy's layout.

`data/<key>` arrays [total_steps, ...], `meta/episode_ends` int64 [episodes], and
further arrays [episodes, ...] in `meta` for values of an episode.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import stat
import threading
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, imports, specs
from t2r_seq.episodes import reading
from t2r_seq.episodes.episodes import EpisodeWriter, Fields, Values
from t2r_seq.episodes.registry import register_format
from t2r_seq.episodes.splits import check_splits, renumber
from t2r_seq.episodes.views import Dropped, Episodes
from t2r_seq.episodes.writing import Staging

ENDS = "episode_ends"
# Attributes of the root: specs and metadata, so that a round trip gives the same ones.
SPEC_ATTRIBUTE = "t2r_seq_spec"
METADATA_ATTRIBUTE = "t2r_seq_metadata"
_IMAGE_CODECS = "imagecodecs_"
_ROOT_FILES = (".zgroup", "zarr.json", ".zmetadata")
_METADATA_FILES, _ATTRIBUTES = (".zarray", "zarr.json"), ".zattrs"
# Size of a Blosc chunk's header, whose last 4 bytes are the chunk's length.
_BLOSC_BYTES = 16
# Chunks of new arrays: bytes and steps at most; episodes, for values of episodes.
_CHUNK_BYTES = 1 << 20
_MAX_CHUNK_STEPS = 1024
_CHUNK_EPISODES = 64


def load_zarr() -> Any:
  """Imports zarr; an ImportError names the extra."""
  return imports.load_extra("zarr", "zarr")


def _is_v3_api(zarr: Any) -> bool:
  return int(zarr.__version__.split(".")[0]) >= 3


def open_group(path: str) -> Any:
  """Opens a group for reading: a folder, or a .zip file of one."""
  zarr = load_zarr()
  store: Any = path
  if os.path.isfile(path):
    store = zarr.storage.ZipStore(path, mode="r")
  # `read_arrays` checks the metadata of each array: a consolidated copy may differ.
  options = {"use_consolidated": False} if _is_v3_api(zarr) else {}
  try:
    return zarr.open_group(store, mode="r", **options)
  except Exception as error:
    got = f"{type(error).__name__}: {error}"
    raise reading.fault(path, "a zarr group", got) from error


def create_group(path: str) -> Any:
  """Makes a group of zarr format 2, which every version of zarr reads."""
  zarr = load_zarr()
  options = {"zarr_format": 2} if _is_v3_api(zarr) else {}
  return zarr.open_group(path, mode="a", **options)


def create_array(
  group: Any, name: str, shape: tuple[int, ...], dtype: Any, chunk: tuple[int, ...]
) -> Any:
  """Makes an array, compressed with Zstandard; chunks of zeros are written, too."""
  import numcodecs

  zarr = load_zarr()
  codec = numcodecs.Zstd(level=3)
  options = {"shape": shape, "dtype": dtype, "chunks": chunk, "fill_value": 0}
  if not _is_v3_api(zarr):
    return group.create_dataset(name, compressor=codec, **options)
  # Then a missing chunk means lost data. The older API does this by default.
  with zarr.config.set({"array.write_empty_chunks": True}):
    return group.create_array(name, compressors=codec, **options)


def read_arrays(path: str, folder: str) -> dict[str, dict[str, Any]]:
  """Reads the metadata of the arrays in 'data' or 'meta', by name.

  zarr itself might load a codec that unpickles: such an array is a ConversionError.
  """
  mismatches = []
  arrays: dict[str, dict[str, Any]] = {}
  names, read = _files(path)
  for name in names:
    parts = name.split("/")
    if len(parts) < 3 or parts[0] != folder or parts[-1] not in _METADATA_FILES:
      continue
    metadata = json.loads(read(name))
    if metadata.get("node_type", "array") != "array":
      continue
    key = "/".join(parts[1:-1])
    arrays[key] = metadata
    if _has_pickle(metadata):
      hint = f"Unpickling runs code: it is not done. {reading.leave_out(key)}"
      want = "an array of numbers"
      mismatches.append(errors.Mismatch(key, want, "pickled objects", hint))
  if mismatches:
    raise reading.faults(path, mismatches)
  return dict(sorted(arrays.items()))


def _files(path: str) -> tuple[list[str], Callable[[str], bytes]]:
  """Returns names of a folder's metadata files, or of all in a .zip, and a reader."""
  if os.path.isfile(path):
    archive = zipfile.ZipFile(path)
    return archive.namelist(), archive.read

  def read(name: str) -> bytes:
    with open(os.path.join(path, name), "rb") as file:
      return file.read()

  return list(_metadata_files(path)), read


def _metadata_files(path: str) -> Iterator[str]:
  for folder, folders, names in os.walk(path):
    for name in names:
      if name in _METADATA_FILES:
        yield os.path.relpath(os.path.join(folder, name), path).replace(os.sep, "/")
        if name == ".zarray":
          folders.clear()  # Below an array there are only chunks.


def list_files(path: str) -> set[str]:
  """Lists the files of a group, relative to it: a folder, or a .zip file."""
  if os.path.isfile(path):
    with zipfile.ZipFile(path) as archive:
      return set(archive.namelist())
  files = set()
  for folder, _, names in os.walk(path):
    start = os.path.relpath(folder, path).replace(os.sep, "/")
    files |= {f"{start}/{name}" for name in names}
  return files


def chunk_names(metadata: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
  """Yields the first row and the file name of each chunk, or shard, of an array."""
  if "chunk_grid" in metadata:  # Format 3.
    chunk = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    encoding = metadata["chunk_key_encoding"]
    is_default = encoding["name"] == "default"
    separator = encoding.get("configuration", {}).get(
      "separator", "/" if is_default else "."
    )
    start = f"c{separator}" if is_default else ""
  else:
    chunk, start = metadata["chunks"], ""
    separator = metadata.get("dimension_separator", ".")
  sizes = zip(metadata["shape"], chunk, strict=True)
  for place in np.ndindex(*(-(-size // max(length, 1)) for size, length in sizes)):
    yield place[0] * chunk[0], start + separator.join(map(str, place))


def check_own_files(path: str) -> None:
  """Checks that a folder has no links, and that its Blosc chunks are whole.

  A link may lead to any file of the machine. Blosc decodes a truncated chunk of
  uncompressed data without an error: it reads memory beyond the end. A .zip file needs
  no such check: it has checksums, and its links are not followed.
  """
  blosc: set[str] = set()
  for folder, folders, names in os.walk(path):
    for name in sorted((*folders, *names)):
      place = os.path.join(folder, name)
      mode = os.lstat(place).st_mode
      if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        is_link = stat.S_ISLNK(mode)
        got = f"a link to {os.readlink(place)}" if is_link else "another kind"
        hint = "Put a copy of what it leads to in its place."
        raise reading.fault(place, "a file or folder of the zarr group", got, hint)
    if os.path.dirname(folder) in blosc or _is_blosc(folder, names):
      blosc.add(folder)
      for name in {*names} - {*_METADATA_FILES, _ATTRIBUTES}:
        _check_blosc(os.path.join(folder, name))


def _is_blosc(folder: str, names: list[str]) -> bool:
  """Whether a folder is an array with Blosc chunks."""
  for name in {*names} & {*_METADATA_FILES}:
    # Opening the array reports damaged metadata.
    with contextlib.suppress(Exception), open(os.path.join(folder, name), "rb") as file:
      metadata = json.loads(file.read())
      if name == "zarr.json":
        return bool(metadata["codecs"][-1]["name"] == "blosc")
      return bool(metadata["compressor"]["id"] == "blosc")
  return False


def _check_blosc(place: str) -> None:
  """Raises ConversionError if a chunk is shorter than its header states."""
  with open(place, "rb") as file:
    header = file.read(_BLOSC_BYTES)
    size = os.fstat(file.fileno()).st_size
  want = int.from_bytes(header[-4:], "little")
  if size < max(want, _BLOSC_BYTES):
    expected = f"a chunk of {want} bytes, as its header says"
    raise reading.fault(place, expected, f"{size}: the file was cut")


def _has_pickle(value: Any) -> bool:
  """Whether the name of any codec in the metadata contains 'pickle'."""
  if isinstance(value, dict):
    names = [str(value.get(field, "")) for field in ("id", "name")]
    is_pickle = any("pickle" in name.lower() for name in names)
    return is_pickle or any(_has_pickle(item) for item in value.values())
  return isinstance(value, list) and any(_has_pickle(item) for item in value)


def array_keys(operation: str, fields: Mapping[str, Fields]) -> dict[str, str]:
  """Returns the array's name by path: the spec's name or the path, with _ for /."""
  keys: dict[str, str] = {}
  mismatches = []
  arrays: dict[str, str] = {ENDS: f"meta/{ENDS}"}
  for path, leaf in fields.items():
    keys[path] = key = (leaf.get("name") or path).replace("/", "_")
    if key in arrays:
      want, got = "another name in the zarr group", f"'{key}', as {arrays[key]} has"
      hint = "Give the specs other names, or leave one out with --drop."
      mismatches.append(errors.Mismatch(path, want, got, hint))
    arrays[key] = path
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)
  return keys


class ZarrRows:
  """Reads rows of an array; caches the last chunk, where the next rows begin.

  A chunk may have the rows of thousands of episodes, and zarr decodes all of it to read
  any row.
  """

  def __init__(self, array: Any) -> None:
    self._array = array
    self._chunk = max(int(array.chunks[0]), 1)
    self._start = 0
    self._kept: np.ndarray | None = None
    self._lock = threading.Lock()

  def read(self, start: int, stop: int) -> np.ndarray:
    """Returns rows [start, stop); none if `stop` is not above `start`."""
    if stop <= start:
      return np.asarray(self._array[0:0])
    with self._lock:
      kept = self._kept
      if kept is None or not self._start <= start < self._start + len(kept):
        self._start = start // self._chunk * self._chunk
        kept = None
      parts = [] if kept is None else [kept]
      first = self._start + (0 if kept is None else len(kept))
      if first < stop:
        end = min(-(-stop // self._chunk) * self._chunk, self._array.shape[0])
        parts.append(np.asarray(self._array[first:end]))
      rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
      part = rows[start - self._start : stop - self._start]
      last = (self._start + len(rows) - 1) // self._chunk * self._chunk
      # A copy, which does not hold the chunks before it in memory.
      self._kept = rows[last - self._start :].copy() if last > self._start else rows
      self._start = max(last, self._start)
      return part


def _is_group(path: str) -> bool:
  if os.path.isfile(path):
    return path.lower().endswith(".zarr.zip")
  names = set(os.listdir(path))
  return bool(names & set(_ROOT_FILES)) or {"data", "meta"} <= names


class ZarrWriter(EpisodeWriter):
  """Writes a group in a temporary folder."""

  def __init__(self, path: str, episodes: Episodes) -> None:
    load_zarr()
    self._source, self._spec = episodes, episodes.spec
    operation = f"write: {path}"
    reading.check_numbers(operation, self._spec)
    keys = array_keys(operation, episodes.fields)
    reading.check_present(operation, self._spec)
    self._staging = Staging(path)
    self._group = create_group(self._staging.place("zarr"))
    folders = {
      True: self._group.create_group("data"),
      False: self._group.create_group("meta"),
    }
    self._ends: list[int] = []
    self._columns: dict[str, _Column] = {}
    for name, leaf in self._spec.items():
      shape = tuple(leaf.shape.as_list())
      dtype = np.dtype(leaf.dtype.as_numpy_dtype).newbyteorder("<")
      rows = _chunk_rows(leaf)
      chunk = (rows, *(max(size, 1) for size in shape))
      folder = folders[leaf.is_sequence]
      array = create_array(folder, keys[name], (0, *shape), dtype, chunk)
      self._columns[name] = _Column(array, rows)

  def append(self, values: Values) -> None:
    """Appends to every array; a value of the episode is one row."""
    num_steps = 0
    for path, array in values.items():
      is_sequence = self._spec[path].is_sequence
      num_steps = len(array) if is_sequence else num_steps
      self._columns[path].append(array if is_sequence else array[None])
    self._ends.append(num_steps + (self._ends[-1] if self._ends else 0))

  def finish(self) -> None:
    """Writes pending rows, the ends of episodes, and the metadata."""
    for column in self._columns.values():
      column.flush()
    shape = (len(self._ends),)
    ends = create_array(self._group["meta"], ENDS, shape, np.dtype("<i8"), shape)
    ends[...] = np.asarray(self._ends, np.int64)
    splits = {
      name: [*map(int, episodes)] for name, episodes in self._source.splits.items()
    }
    metadata = {**self._source.metadata, **({"splits": splits} if splits else {})}
    self._group.attrs[SPEC_ATTRIBUTE] = json.loads(self._spec.to_json())
    self._group.attrs[METADATA_ATTRIBUTE] = metadata
    self._staging.publish("zarr")

  def close(self) -> None:
    self._staging.close()


class _Column:
  """Buffers the rows of an array, to write whole chunks."""

  def __init__(self, array: Any, chunk_rows: int) -> None:
    self._array = array
    self._chunk_rows = chunk_rows
    self._row = 0
    self._pending: list[np.ndarray] = []
    self._num_pending = 0

  def append(self, rows: np.ndarray) -> None:
    """Adds rows; writes them when they fill chunks."""
    self._pending.append(rows)
    self._num_pending += len(rows)
    if self._num_pending >= self._chunk_rows:
      self._write(self._num_pending // self._chunk_rows * self._chunk_rows)

  def flush(self) -> None:
    """Writes pending rows, and trims the array to its rows."""
    self._write(self._num_pending)
    self._resize(self._row)

  def _write(self, count: int) -> None:
    if not count:
      return
    rows = np.concatenate(self._pending)
    end = self._row + count
    if end > self._array.shape[0]:
      self._resize(2 * end)
    self._array[self._row : end] = rows[:count]
    self._row = end
    self._pending = [rows[count:].copy()]
    self._num_pending -= count

  def _resize(self, rows: int) -> None:
    shape = (rows, *self._array.shape[1:])
    if shape != self._array.shape:
      self._array.resize(shape)


def _chunk_rows(leaf: specs.ExtendedTensorSpec) -> int:
  if not leaf.is_sequence:
    return _CHUNK_EPISODES
  row_bytes = max(math.prod(leaf.shape.as_list()) * leaf.dtype.size, 1)
  rows = max(_CHUNK_BYTES // row_bytes, 1)
  return min(1 << (rows.bit_length() - 1), _MAX_CHUNK_STEPS)


@register_format(
  "zarr",
  suffixes=(".zarr",),
  recognises=_is_group,
  description="a zarr group",
  writer=ZarrWriter,
)
class ZarrEpisodes(Episodes):
  """Reads the episodes of a zarr group."""

  def __init__(self, path: str, dropped: Dropped | None = None) -> None:
    """Opens the group, and checks the metadata and the lengths of its arrays."""
    self.path = path
    check_own_files(path)
    self._arrays: dict[str, Any] = {}
    self.notes: list[str] = []
    self.problems: list[str] = []
    with reading.explain_errors(path, "a zarr group"):
      self._group = open_group(path)
      self._ends = self._read_ends()
      lengths = np.diff(self._ends, prepend=0)
      self._episodes = np.flatnonzero(lengths).tolist()
      self.lengths = lengths[self._episodes]
      empty = np.flatnonzero(lengths == 0).tolist()
      self.notes += reading.left_out([f"episode {number}" for number in empty])
      attributes = dict(self._group.attrs)
      spec_json = attributes.pop(SPEC_ATTRIBUTE, None)
      # Groups that `ZarrWriter` did not write have attributes instead of metadata.
      stored = attributes.pop(METADATA_ATTRIBUTE, None)
      if not isinstance(stored, dict):
        stored = {"zarr": attributes} if attributes else {}
      splits = check_splits(path, stored.pop("splits", {}), len(lengths))
      self.splits = renumber(splits, np.asarray(self._episodes))
      self.metadata = stored
      by_key: dict[str, tuple[str, Fields]] = {}
      if spec_json is not None:
        declared = reading.fields_from_json(spec_json)
        keys = array_keys(reading.OPERATION, declared)
        by_key = {keys[path]: (path, fields) for path, fields in declared.items()}
      self._spec_fields = self._collect(by_key, dropped or Dropped())
    self._columns = {path: ZarrRows(array) for path, array in self._arrays.items()}

  def fingerprint(self) -> dict[str, Any]:
    return reading.folder_fingerprint(self.path)

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    index = self._episodes[episode]
    first = self._ends[index - 1] if index else 0
    begin, end, _ = slice(start, stop).indices(self._ends[index] - first)
    values: Values = {}
    for path in self._spec_fields if paths is None else paths:
      is_sequence = self._spec_fields[path].get("is_sequence", False)
      rows = (first + begin, first + end) if is_sequence else (index, index + 1)
      with reading.explain_errors(f"{self.place(episode)}: {path}", "chunks"):
        rows_read = self._columns[path].read(*rows)
      values[path] = (
        rows_read if is_sequence else rows_read.reshape(rows_read.shape[1:])
      )
    return values

  def place(self, episode: int) -> str:
    """Returns where an episode is stored: its number among all, empty ones included."""
    return f"episode {self._episodes[episode]} of {self.path}"

  def _read_ends(self) -> list[int]:
    """Reads the ends of episodes; raises ConversionError if they fall."""
    names = read_arrays(self.path, "meta")
    if ENDS not in names:
      want = f"an array meta/{ENDS}, as diffusion_policy has it"
      raise reading.fault(self.path, want, f"{errors.listing(names)} in meta")
    place = f"{self.path}: meta/{ENDS}"
    stored = list_files(self.path)
    for _, name in chunk_names(names[ENDS]):
      if f"meta/{ENDS}/{name}" not in stored:
        got = "no file: only it has the ends of the episodes"
        raise reading.fault(place, f"its chunk {name}", got)
    ends = np.asarray(self._group[f"meta/{ENDS}"][...])
    is_rising = ends.ndim == 1 and ends.dtype.kind in "iu"
    if not is_rising or not (np.diff(ends.astype(np.int64), prepend=0) >= 0).all():
      got = f"{errors.describe(ends)} {ends.ravel()[:8].tolist()}"
      raise reading.fault(place, "integers that rise from 0", got)
    return ends.tolist()

  def _collect(
    self, declared: Mapping[str, tuple[str, Fields]], dropped: Dropped
  ) -> dict[str, Fields]:
    """Opens the arrays, and returns the fields of their specs by path."""
    mismatches: list[errors.Mismatch] = []
    collected: dict[str, Fields] = {}
    names = list_files(self.path)
    for folder, num_rows in (("data", sum(self._ends[-1:])), ("meta", len(self._ends))):
      for key, metadata in read_arrays(self.path, folder).items():
        path, leaf = declared.get(key, (key, None))
        if (folder == "meta" and key == ENDS) or dropped.has(path):
          continue
        array: Any = self._open_array(folder, key)
        if isinstance(array, errors.Mismatch):
          mismatches.append(array)
          continue
        if array.shape[:1] != (num_rows,):
          want = f"{num_rows} rows, as meta/{ENDS} says"
          got = reading.describe(array.dtype, array.shape)
          mismatches.append(errors.Mismatch(path, want, got, reading.leave_out(path)))
          continue
        form = array.shape[1:], folder == "data"
        described = reading.array_fields(path, array.dtype, *form)
        if isinstance(described, errors.Mismatch):
          mismatches.append(described)
          continue
        self._arrays[path] = array
        self._check_chunks(f"{folder}/{key}", path, metadata, names)
        is_same = leaf is not None and reading.is_same_array(leaf, described)
        collected[path] = leaf if leaf is not None and is_same else described
    if mismatches:
      raise reading.faults(self.path, mismatches)
    return dict(sorted(collected.items()))

  def _check_chunks(
    self, place: str, path: str, metadata: Mapping[str, Any], names: Collection[str]
  ) -> None:
    """Adds a note or a problem about missing chunks, read as the fill value."""
    chunks = [*chunk_names(metadata)]
    missing = [(row, name) for row, name in chunks if f"{place}/{name}" not in names]
    if missing:
      array, (row, name) = self._arrays[path], missing[0]
      first = f"first {place}/{name}, from row {row}"
      counts = len(missing), len(chunks)
      text, is_problem = reading.unwritten(
        path, *counts, array.fill_value, first, array.shape, array.dtype
      )
      (self.problems if is_problem else self.notes).append(text)

  def _open_array(self, folder: str, key: str) -> Any:
    try:
      try:
        return self._group[f"{folder}/{key}"]
      except Exception as error:
        # UMI's datasets have frames in JPEG XL, a codec of imagecodecs.
        if _IMAGE_CODECS not in str(error) or not _register_image_codecs():
          raise
        return self._group[f"{folder}/{key}"]
    except Exception as error:
      # zarr has a separate error for each unknown dtype and codec.
      hint, got = reading.leave_out(key), f"{type(error).__name__}: {error}"
      if _IMAGE_CODECS in got:
        hint = f"pip install imagecodecs, which has this codec. {hint}"
      elif "codec" in got.lower():
        hint = (
          "Install the package of its codec (imagecodecs has those of images) and "
          f"register it with numcodecs, or leave it out: --drop {key}."
        )
      return errors.Mismatch(key, "an array of numbers", got[:200], hint)


def _register_image_codecs() -> bool:
  """Registers the codecs of imagecodecs with zarr, if it is installed."""
  try:
    numcodecs = importlib.import_module("imagecodecs.numcodecs")
  except ImportError:
    return False
  numcodecs.register_codecs(verbose=False)
  return True
