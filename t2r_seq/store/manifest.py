"""The JSON files of a store: its manifest, the commits of segments, and splits."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, files, specs
from t2r_seq.specs.names import are_fields
from t2r_seq.store import layout
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.videos import VideoOptions

STORE_FORMAT = "t2r_seq.EpisodeStore"
SEGMENT_FORMAT = "t2r_seq.EpisodeStore.segment"
SPLITS_FORMAT = "t2r_seq.splits"
VERSION = 1


class NewerVersionError(errors.StoreError):
  """A file of a newer format version, which need not be damaged."""


@dataclasses.dataclass(frozen=True)
class StoreManifest:
  """Columns and metadata of a store: written once, when it is created.

  Attributes:
    columns: columns by path.
    metadata: metadata of the user.
    clocks: the path of the time stamps, by the path of each column on another clock.
  """

  columns: layout.Columns
  metadata: dict[str, Any]
  clocks: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def spec(self) -> specs.TensorSpecStruct:
    """Flat specs by path; this loads TensorFlow."""
    return specs.TensorSpecStruct(
      (p, column.spec) for p, column in self.columns.items()
    )

  def write(self, folder: str) -> None:
    described = {path: c.to_json_dict() for path, c in self.columns.items()}
    values = {
      "spec": [{"path": path, **c.fields} for path, c in self.columns.items()],
      "columns": described,
      "metadata": self.metadata,
      **({"clocks": dict(self.clocks)} if self.clocks else {}),
    }
    _write(os.path.join(folder, layout.MANIFEST), STORE_FORMAT, values)

  @classmethod
  def read(cls, folder: str) -> StoreManifest:
    """Reads the manifest of a store; StoreError if it is missing or damaged."""
    place = os.path.join(folder, layout.MANIFEST)
    try:
      values = _read(place, STORE_FORMAT)
    except (FileNotFoundError, NotADirectoryError):
      raise errors.StoreError(_no_store(folder)) from None
    try:
      described = dict(values["columns"])
      videos = _read_videos(described)
      listed = [_column(entry, videos) for entry in values["spec"]]
      clocks = {str(p): str(clock) for p, clock in values.get("clocks", {}).items()}
      columns = layout.check_columns("spec", listed, clocks=clocks)
      metadata = dict(values["metadata"])
    except errors.SpecError as error:
      raise errors.StoreError(f"EpisodeStore: {place}: {error}") from error
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
      raise errors.StoreError(
        f"EpisodeStore: {place}: expected the fields of a manifest, got {error!r}."
      ) from error
    _check_columns(place, columns, described)
    return cls(columns, metadata, clocks)


@dataclasses.dataclass(frozen=True)
class Commit:
  """The committed part of a segment; readers ignore later bytes of the files.

  Attributes:
    episodes: number of committed episodes.
    steps: number of their steps.
    sizes: number of committed bytes of every file by name.
    index_crc32: CRC-32 of the committed bytes of the two index files.
    replaces: segments that a merge has moved to this one.
  """

  episodes: int = 0
  steps: int = 0
  sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  index_crc32: Mapping[str, int] = dataclasses.field(default_factory=dict)
  replaces: tuple[str, ...] = ()

  def write(self, folder: str) -> None:
    values = dataclasses.asdict(self)
    _write(os.path.join(folder, layout.COMMIT), SEGMENT_FORMAT, values)

  @classmethod
  def read(cls, folder: str) -> Commit:
    """Reads a segment's commit, empty for a new segment; StoreError if damaged."""
    place = os.path.join(folder, layout.COMMIT)
    # Looked up before the commit: a writer makes its commit before the index.
    has_episodes = _has_episodes(folder)
    try:
      values = _read(place, SEGMENT_FORMAT)
    except FileNotFoundError:
      if has_episodes and _has_episodes(folder):  # False if it was just merged away.
        raise errors.StoreError(
          f"EpisodeStore: {place}: expected the commit of the segment's episodes, "
          "got no such file. Restore it from a copy, or salvage the store."
        ) from None
      return cls()
    try:
      commit = cls(
        episodes=_count(values["episodes"]),
        steps=_count(values["steps"]),
        sizes={str(name): _count(size) for name, size in values["sizes"].items()},
        index_crc32={str(n): _count(crc) for n, crc in values["index_crc32"].items()},
        replaces=tuple(map(str, list(values["replaces"]))),
      )
      _check_names(os.path.basename(folder), commit.replaces)
      missing = {*layout.INDEX_FILES} - {*commit.index_crc32} if commit.episodes else ()
      if missing:
        raise ValueError(f"no checksum of {errors.listing(missing)}")
      index_bytes = commit.sizes.get(layout.ENDS, 8 * commit.episodes)
      if index_bytes < 8 * commit.episodes:
        raise ValueError(f"an index of fewer than {commit.episodes} episodes")
      if index_bytes and not commit.episodes:  # Readers skip an empty segment.
        raise ValueError("an index of episodes, but no episodes")
      if commit.steps < commit.episodes or (commit.steps and not commit.episodes):
        raise ValueError(f"{commit.steps} steps of {commit.episodes} episodes")
      return commit
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
      raise errors.StoreError(
        f"EpisodeStore: {place}: expected the fields of a commit, got {error!r}."
      ) from error


def _has_episodes(folder: str) -> bool:
  # A single call: a merge may remove the segment between two.
  try:
    return os.stat(os.path.join(folder, layout.ENDS)).st_size > 0
  except (FileNotFoundError, NotADirectoryError):
    return False


def _count(value: Any) -> int:
  if type(value) is not int or not 0 <= value < 1 << 62:
    raise ValueError(f"{value!r:.40} is not a count")
  return value


def _check_names(segment: str, replaced: tuple[str, ...]) -> None:
  """Checks the names of segments to remove; ValueError if one is this, or no name."""
  for name in replaced:
    if name == segment:
      raise ValueError(f"{name!r} in the place of itself")
    if not layout.SEGMENT_NAME.fullmatch(name):
      raise ValueError(f"{name!r} is not a name of a segment")


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
  """Returns the metadata as it will be read back; SpecError if it is no JSON."""
  if not isinstance(metadata or {}, Mapping):
    raise errors.SpecError(
      "EpisodeStore: metadata: expected a mapping of JSON values, got "
      f"{errors.describe(metadata)}."
    )
  checked: dict[str, Any] = {}
  mismatches: list[errors.Mismatch] = []
  for key, value in (metadata or {}).items():
    if not isinstance(key, str):
      mismatches.append(
        errors.Mismatch(f"metadata[{key!r}]", "a string as key", repr(key))
      )
      continue
    try:
      checked[key] = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
      place = f"metadata[{key!r}]"
      mismatches.append(errors.Mismatch(place, "a JSON value", f"one with {error}"))
  if mismatches:
    raise errors.mismatch_error("EpisodeStore", mismatches)
  return checked


def checksum(values: Mapping[str, Any]) -> int:
  """Returns the CRC-32 of JSON values, written compactly with sorted keys."""
  text = json.dumps(values, sort_keys=True, separators=(",", ":"))
  return zlib.crc32(text.encode())


def _write(place: str, form: str, values: Mapping[str, Any]) -> None:
  # Through JSON first, so that the checksum is of the values that will be read.
  body = json.loads(json.dumps({"format": form, "version": VERSION, **values}))
  text = json.dumps({**body, "crc32": checksum(body)}, indent=2)
  files.replace_file(place, text.encode() + b"\n")


def _read(place: str, form: str) -> dict[str, Any]:
  with open(place, "rb") as file:
    data = file.read()
  try:
    values = json.loads(data)
  except (RecursionError, ValueError) as error:
    raise errors.StoreError(
      f"EpisodeStore: {place}: expected JSON, got {error}. The file is damaged."
    ) from error
  if not isinstance(values, dict) or values.get("format") != form:
    got = values.get("format") if isinstance(values, dict) else values
    raise errors.StoreError(
      f"EpisodeStore: {place}: expected format '{form}', got {got!r:.80}. The file is "
      "damaged, or another program wrote it."
    )
  version = values.get("version")
  if version != VERSION:
    is_newer = isinstance(version, int) and version > VERSION
    hint = "A newer t2r_seq wrote this store: upgrade t2r_seq to read it."
    raise (NewerVersionError if is_newer else errors.StoreError)(
      f"EpisodeStore: {place}: expected format version {VERSION}, got {version!r}. "
      f"{hint if is_newer else 'The file is damaged.'}"
    )
  crc = values.pop("crc32", None)
  if crc != checksum(values):
    raise errors.StoreError(
      f"EpisodeStore: {place}: expected the checksum {checksum(values)}, got {crc!r}. "
      "The file is damaged, or was edited by hand."
    )
  return values


def _read_videos(described: Mapping[str, Any]) -> dict[str, VideoOptions]:
  videos = {path: dict(of["video"]) for path, of in described.items() if "video" in of}
  return {
    path: VideoOptions.from_json_dict({k: v for k, v in video.items() if k != "format"})
    for path, video in videos.items()
  }


def _column(entry: Mapping[str, Any], videos: Mapping[str, VideoOptions]) -> Column:
  """Reads a column; if its fields are invalid, raises the error of its spec."""
  fields = dict(entry)
  path = fields.pop("path")
  if not are_fields(fields):
    spec = specs.ExtendedTensorSpec.from_json_dict(fields)
    return Column.of(path, spec, videos.get(path))
  column = Column(path, fields)
  if column.is_video:
    column = dataclasses.replace(column, video=videos.get(path, VideoOptions()))
  return column


def _check_columns(
  place: str, columns: layout.Columns, described: Mapping[str, Any]
) -> None:
  """Checks that the files are exactly those of the specs."""
  want = {path: column.to_json_dict() for path, column in columns.items()}
  mismatches = [
    errors.Mismatch(path, str(want.get(path, "no column")), str(described.get(path)))
    for path in {**want, **described}
    if want.get(path) != described.get(path)
  ]
  if mismatches:
    raise errors.mismatch_error(f"EpisodeStore: {place}", mismatches, errors.StoreError)


def _no_store(folder: str) -> str:
  message = f"EpisodeStore: {folder}: expected a folder with a {layout.MANIFEST}, got "
  if not os.path.isdir(folder):
    got = "a file" if os.path.exists(folder) else "nothing"
    return message + f"{got} there. Check the path; EpisodeStore.create makes a store."
  names = os.listdir(folder)
  got = errors.listing(names, limit=5)
  if any(".tfrecord" in name for name in names):
    pattern = os.path.join(folder, "*.tfrecord*")
    return message + f"{got}. TFRecord files are given by a pattern: '{pattern}'."
  if {"zarr.json", ".zgroup", ".zmetadata"} & {*names} or {"data", "meta"} <= {*names}:
    return (
      message + f"{got}. This is a zarr group: `t2r_seq convert` makes a store of it."
    )
  return message + f"{got}. This is not an EpisodeStore; EpisodeStore.create makes one."


def check_spec(
  operation: str, spec: specs.SpecStructure, columns: Columns, is_exact: bool
) -> None:
  """Raises SpecError if the columns of a store do not fit specs.

  Args:
    operation: for the error.
    spec: flat specs that the store must have.
    columns: columns of the store.
    is_exact: whether the store must have no other columns, and all optional ones.
  """
  videos = {
    path: columns[path].video
    for path, leaf in specs.flatten_spec_structure(spec).items()
    if specs.extended_tensor_spec.is_video_spec(leaf) and path in columns
  }
  kept = {path: video for path, video in videos.items() if video is not None}
  expected = layout.make_columns(operation, spec, kept)
  mismatches = []
  extra = [path for path in columns if path not in expected]
  for path, column in expected.items():
    got = columns.get(path)
    if got is None and (is_exact or not column.is_optional):
      hint = errors.nearest(path, extra)
      mismatches.append(errors.Mismatch(path, _describe(column), "nothing", hint))
    elif got is not None and _storage(column, is_exact) != _storage(got, is_exact):
      hint = specs.extended_tensor_spec.cast_hint(got.spec.dtype, column.spec.dtype)
      hint = hint or "The store was made with another spec."
      mismatches.append(errors.Mismatch(path, _describe(column), _describe(got), hint))
  if is_exact:
    hint = "The store was made with it: append that too, or begin another store."
    mismatches += [
      errors.Mismatch(path, "nothing", _describe(columns[path]), hint) for path in extra
    ]
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)


def _storage(column: Column, is_exact: bool) -> tuple[object, ...]:
  """Returns the properties in which the columns of a spec and a store must agree."""
  values = _values_of(column)
  if is_exact:
    return *values, column.is_timed, column.is_optional, column.video_format
  # For reading, the format of videos does not matter, nor () or (1,) for one number.
  shape = () if column.shape == (1,) else column.shape
  return shape, column.dtype_name, *values[1:], column.is_timed, column.is_optional


def _describe(column: Column) -> str:
  """Renders shape, dtype, encoding and time axis, without the name in records."""
  parts = _values_of(column)
  if column.is_video:
    parts.append(f"kept as {column.video_format}")
  parts.append("per step" if column.is_timed else "per episode")
  if column.is_optional:
    parts.append("optional")
  return ", ".join(parts)


def _values_of(column: Column) -> list[str]:
  """Renders shape, dtype and encoding of values; for videos those of their frames."""
  encoding = [f"encoded as {column.image_format}"] if column.image_format else []
  return [f"{column.shape} {column.dtype_name}", *encoding]


# Splits: a file beside the manifest, which may change at any time.


def read_splits(folder: str, segments: Mapping[str, int]) -> dict[str, list[int]]:
  """Returns the present numbers of the episodes of each split.

  The number of an episode grows if a segment before its own grows. So the file also has
  the number of episodes that each segment had when the splits were written. Raises
  StoreError if the file is damaged, or does not fit the segments.

  Args:
    folder: folder of the store.
    segments: present number of episodes of each segment by name, in order.
  """
  place = os.path.join(folder, layout.SPLITS)
  try:
    with open(place, encoding="utf-8") as file:
      values = json.load(file)
    if (values["format"], values["version"]) != (SPLITS_FORMAT, VERSION):
      raise ValueError(f"{values['format']} of version {values['version']}")
    stored = {
      str(name): [_count(number) for number in numbers]
      for name, numbers in dict(values["splits"]).items()
    }
    # Older files have no counts: their numbers are the present ones.
    earlier = {str(n): _count(count) for n, count in values.get("segments", ())}
  except FileNotFoundError:
    return {}
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise errors.StoreError(
      f"EpisodeStore: {place}: expected splits, '{SPLITS_FORMAT}' of version "
      f"{VERSION}, got {error}. {_AGAIN}"
    ) from error
  places = _places(place, earlier or segments, segments)
  for name, numbers in stored.items():
    outside = [number for number in numbers if not 0 <= number < len(places)]
    if outside:
      raise errors.StoreError(
        f"EpisodeStore: {place}: split '{name}': expected numbers from 0 to "
        f"{len(places) - 1}, got {outside[0]}. {_AGAIN}"
      )
  return {name: places[numbers].tolist() for name, numbers in stored.items()}


_AGAIN = "Write them again: EpisodeStore.write_splits, or delete the file."


def _places(
  place: str, earlier: Mapping[str, int], segments: Mapping[str, int]
) -> np.ndarray:
  """Returns the present number of each episode, by its number in the file.

  Args:
    place: place of the file, for messages.
    earlier: numbers of episodes of the segments when the file was written.
    segments: numbers of episodes of the segments now.
  """
  ends = np.cumsum([0, *segments.values()]).tolist()
  starts = dict(zip(segments, ends, strict=False))
  if {name for name, count in earlier.items() if count} - {*segments}:
    # A merge has moved all episodes to the first segment, in the same order.
    earlier = {next(iter(earlier)): sum(earlier.values())}
  if any(segments.get(name, 0) < count for name, count in earlier.items()):
    raise errors.StoreError(
      f"EpisodeStore: {place}: expected the segments that the splits were written for, "
      f"{errors.listing(earlier)}, got {errors.listing(segments)}. {_AGAIN}"
    )
  parts = [starts[name] + np.arange(count) for name, count in earlier.items() if count]
  return np.concatenate([np.zeros(0, np.int64), *parts])


def write_splits(
  folder: str, splits: Mapping[str, list[int]], segments: Mapping[str, int]
) -> None:
  """Writes the splits, atomically; see `read_splits`."""
  values = {
    "format": SPLITS_FORMAT,
    "version": VERSION,
    "segments": [*map(list, segments.items())],
    "splits": dict(splits),
  }
  text = json.dumps(values) + "\n"
  files.replace_file(os.path.join(folder, layout.SPLITS), text.encode())
