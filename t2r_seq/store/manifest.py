"""The two JSON files: what a store holds, and how much of a segment is committed."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

from t2r_seq import errors, files, specs
from t2r_seq.store import layout
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.videos import VideoOptions

STORE_FORMAT = "t2r_seq.EpisodeStore"
SEGMENT_FORMAT = "t2r_seq.EpisodeStore.segment"
VERSION = 1


class NewerVersionError(errors.StoreError):
  """A file of a newer format: not damaged, but not to be judged here either."""


@dataclasses.dataclass(frozen=True)
class StoreManifest:
  """What a store holds: written once, when it is created.

  Attributes:
    columns: by path.
    metadata: the user's own, JSON values.
  """

  columns: layout.Columns
  metadata: dict[str, Any]

  @functools.cached_property
  def spec(self) -> specs.TensorSpecStruct:
    """Flat specs by path; TensorFlow is loaded."""
    return specs.TensorSpecStruct(
      (p, column.spec) for p, column in self.columns.items()
    )

  def write(self, folder: str) -> None:
    """Writes the manifest into the folder, whole or not at all."""
    described = {path: c.to_json_dict() for path, c in self.columns.items()}
    values = {
      "spec": [{"path": path, **c.fields} for path, c in self.columns.items()],
      "columns": described,
      "metadata": self.metadata,
    }
    _write(os.path.join(folder, layout.MANIFEST), STORE_FORMAT, values)

  @classmethod
  def read(cls, folder: str) -> StoreManifest:
    """Reads the manifest of a store.

    Args:
      folder: of the store.
    Returns:
      The manifest.
    Raises:
      StoreError: the folder is no store, or its manifest is damaged or newer.
    """
    place = os.path.join(folder, layout.MANIFEST)
    try:
      values = _read(place, STORE_FORMAT)
    except (FileNotFoundError, NotADirectoryError):
      raise errors.StoreError(_no_store(folder)) from None
    try:
      described = dict(values["columns"])
      videos = _read_videos(described)
      listed = [_column(entry, videos) for entry in values["spec"]]
      columns = layout.check_columns("spec", listed)
      metadata = dict(values["metadata"])
    except errors.SpecError as error:
      raise errors.StoreError(f"EpisodeStore: {place}: {error}") from error
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
      raise errors.StoreError(
        f"EpisodeStore: {place}: expected the fields of a manifest, got {error!r}."
      ) from error
    _check_columns(place, columns, described)
    return cls(columns, metadata)


@dataclasses.dataclass(frozen=True)
class Commit:
  """How much of a segment counts; what lies past it in the files does not.

  Attributes:
    episodes: committed episodes.
    steps: their steps.
    sizes: committed bytes of every file by name.
    index_crc32: CRC-32 of the committed bytes of the two index files.
    replaces: segments whose episodes this one has taken over.
  """

  episodes: int = 0
  steps: int = 0
  sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  index_crc32: Mapping[str, int] = dataclasses.field(default_factory=dict)
  replaces: tuple[str, ...] = ()

  def write(self, folder: str) -> None:
    """Writes the commit into a segment's folder, whole or not at all."""
    values = dataclasses.asdict(self)
    _write(os.path.join(folder, layout.COMMIT), SEGMENT_FORMAT, values)

  @classmethod
  def read(cls, folder: str) -> Commit:
    """Reads a segment's commit; one that is being made has none, and no episodes.

    Raises:
      StoreError: the commit is damaged, newer, or was lost.
    """
    place = os.path.join(folder, layout.COMMIT)
    # Looked up before: a writer makes its commit first, and then the index.
    has_episodes = _has_episodes(folder)
    try:
      values = _read(place, SEGMENT_FORMAT)
    except FileNotFoundError:
      if has_episodes and _has_episodes(folder):  # And was not just merged away.
        raise errors.StoreError(
          f"EpisodeStore: {place}: expected the commit of the episodes that are there, "
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
      room = commit.sizes.get(layout.ENDS, 8 * commit.episodes)
      if room < 8 * commit.episodes:
        raise ValueError(f"an index of fewer than {commit.episodes} episodes")
      if room and not commit.episodes:  # Readers pass an empty segment by.
        raise ValueError("an index of episodes, and none of them")
      if commit.steps < commit.episodes or (commit.steps and not commit.episodes):
        raise ValueError(f"{commit.steps} steps of {commit.episodes} episodes")
      return commit
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
      raise errors.StoreError(
        f"EpisodeStore: {place}: expected the fields of a commit, got {error!r}."
      ) from error


def _has_episodes(folder: str) -> bool:
  # One look: a merge may remove the segment between two.
  try:
    return os.stat(os.path.join(folder, layout.ENDS)).st_size > 0
  except (FileNotFoundError, NotADirectoryError):
    return False


def _count(value: Any) -> int:
  if type(value) is not int or not 0 <= value < 1 << 62:
    raise ValueError(f"{value!r:.40} is no count")
  return value


def _check_names(own: str, replaced: tuple[str, ...]) -> None:
  """They are removed: none may lead out of the store, or be the one that took over."""
  for name in replaced:
    if name == own:
      raise ValueError(f"{name!r} in the place of itself")
    if not layout.SEGMENT_NAME.fullmatch(name):
      raise ValueError(f"{name!r} is no name of a segment")


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
  """Returns a copy of the user's metadata as it will be read back.

  Raises:
    SpecError: it is not a mapping of JSON values.
  """
  if not isinstance(metadata or {}, Mapping):
    raise errors.SpecError(
      "EpisodeStore: metadata: expected a mapping of JSON values, got "
      f"{errors.describe(metadata)}."
    )
  checked: dict[str, Any] = {}
  found: list[errors.Mismatch] = []
  for key, value in (metadata or {}).items():
    if not isinstance(key, str):
      found.append(errors.Mismatch(f"metadata[{key!r}]", "a string as key", repr(key)))
      continue
    try:
      checked[key] = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
      place = f"metadata[{key!r}]"
      found.append(errors.Mismatch(place, "a JSON value", f"one with {error}"))
  if found:
    raise errors.mismatch_error("EpisodeStore", found)
  return checked


def checksum(values: Mapping[str, Any]) -> int:
  """Returns the CRC-32 of JSON values, written compactly with sorted keys."""
  text = json.dumps(values, sort_keys=True, separators=(",", ":"))
  return zlib.crc32(text.encode())


def _write(place: str, form: str, values: Mapping[str, Any]) -> None:
  # Through JSON first: what is summed is what will be read.
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
  """Reads a column; where it is none, the error is that of its spec."""
  fields = dict(entry)
  path = fields.pop("path")
  if not _is_spec(fields):
    spec = specs.ExtendedTensorSpec.from_json_dict(fields)
    return Column.of(path, spec, videos.get(path))
  column = Column(path, fields)
  if column.is_video:
    column = dataclasses.replace(column, video=videos.get(path, VideoOptions()))
  return column


def _is_spec(fields: Mapping[str, Any]) -> bool:
  """Whether the fields that say what is on disk are of their types."""
  shape, dtype = fields.get("shape"), fields.get("dtype")
  flags = [fields.get(flag, False) for flag in ("is_sequence", "is_optional")]
  return (
    isinstance(shape, list)
    and all(type(size) is int and size >= 0 for size in shape)
    and isinstance(dtype, str)
    and isinstance(fields.get("data_format"), (str, type(None)))
    and all(isinstance(flag, bool) for flag in flags)
  )


def _check_columns(
  place: str, columns: layout.Columns, described: Mapping[str, Any]
) -> None:
  """Checks that the files are those that the specs give, and no others."""
  want = {path: column.to_json_dict() for path, column in columns.items()}
  found = [
    errors.Mismatch(path, str(want.get(path, "no column")), str(described.get(path)))
    for path in {**want, **described}
    if want.get(path) != described.get(path)
  ]
  if found:
    raise errors.mismatch_error(f"EpisodeStore: {place}", found, errors.StoreError)


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
  return message + f"{got}. This is no EpisodeStore; EpisodeStore.create makes one."


def check_spec(
  operation: str, spec: specs.SpecStructure, columns: Columns, is_exact: bool
) -> None:
  """Checks specs against the columns of a store.

  Args:
    operation: for the error.
    spec: flat specs that the store must have.
    columns: of the store.
    is_exact: the store must not have further ones, nor lack optional ones.
  Raises:
    SpecError: with every difference.
  """
  videos = {
    path: columns[path].video
    for path, leaf in specs.flatten_spec_structure(spec).items()
    if specs.is_video_spec(leaf) and path in columns
  }
  kept = {path: video for path, video in videos.items() if video is not None}
  wanted = layout.make_columns(operation, spec, kept)
  found = []
  extra = [path for path in columns if path not in wanted]
  for path, column in wanted.items():
    got = columns.get(path)
    if got is None and (is_exact or not column.is_optional):
      hint = errors.nearest(path, extra)
      found.append(errors.Mismatch(path, _describe(column), "nothing", hint))
    elif got is not None and _storage(column, is_exact) != _storage(got, is_exact):
      hint = specs.extended_tensor_spec.cast_hint(got.spec.dtype, column.spec.dtype)
      hint = hint or "The store was made with another spec."
      found.append(errors.Mismatch(path, _describe(column), _describe(got), hint))
  if is_exact:
    hint = "The store was made with it: append that too, or begin another store."
    found += [
      errors.Mismatch(path, "nothing", _describe(columns[path]), hint) for path in extra
    ]
  if found:
    raise errors.mismatch_error(operation, found)


def _storage(column: Column, is_exact: bool) -> tuple[object, ...]:
  """What must agree: what rows are, and whether they may be absent."""
  values = _values_of(column)
  if is_exact:
    return *values, column.is_timed, column.is_optional, column.video_format
  # Frames are read in the same way however they are kept, and so is one number.
  shape = () if column.shape == (1,) else column.shape
  return shape, column.dtype_name, *values[1:], column.is_timed, column.is_optional


def _describe(column: Column) -> str:
  """Renders shape, dtype, encoding and time axis; the name in records is no matter."""
  parts = _values_of(column)
  if column.is_video:
    parts.append(f"kept as {column.video_format}")
  parts.append("per step" if column.is_timed else "per episode")
  if column.is_optional:
    parts.append("optional")
  return ", ".join(parts)


def _values_of(column: Column) -> list[str]:
  """Renders shape, dtype and encoding of values; of videos those of their frames."""
  encoding = [f"encoded as {column.image_format}"] if column.image_format else []
  return [f"{column.shape} {column.dtype_name}", *encoding]
