"""Files of a store and their rows, derived from the specs."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from t2r_seq import errors, specs
from t2r_seq.imports import tf
from t2r_seq.specs import names
from t2r_seq.store.videos import VideoOptions

MANIFEST = "store.json"
SEGMENTS = "segments"
# Written by `t2r_seq stats` beside the others; not a part of the store.
STATISTICS = "statistics.json"
# Names of lists of episodes, which may be changed at any time.
SPLITS = "splits.json"
COMMIT = "commit.json"
LOCK = "lock"
# Per episode: the step after its last one (int64), and the checksums of its bytes.
ENDS = "episode_ends.index"
CHECKSUMS = "checksums.index"
INDEX_FILES = (ENDS, CHECKSUMS)
SEGMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# File systems allow 255 bytes; the name of a column gets the suffixes of its files.
_MAX_NAME = 200


@dataclasses.dataclass(frozen=True)
class Column:
  """The data of one path on disk, described without TensorFlow.

  Attributes:
    path: path of the tensor in the spec structure.
    fields: fields of its spec, as from `ExtendedTensorSpec.to_json_dict`.
    video: how frames are stored, if `is_video`.
  """

  path: str
  fields: Mapping[str, Any]
  video: VideoOptions | None = None

  @classmethod
  def of(
    cls, path: str, spec: specs.ExtendedTensorSpec, video: VideoOptions | None = None
  ) -> Column:
    """Makes the column of a spec; `check_columns` checks whether it can be stored."""
    column = cls(path, spec.to_json_dict(), video)
    vars(column)["spec"] = spec
    return column

  @functools.cached_property
  def spec(self) -> specs.ExtendedTensorSpec:
    """The spec; this loads TensorFlow."""
    return specs.ExtendedTensorSpec.from_json_dict(self.fields, self.path)

  @property
  def dtype_name(self) -> str:
    """The name of the dtype of the values."""
    return self.fields["dtype"]

  @functools.cached_property
  def shape(self) -> tuple[int, ...]:
    """The shape of the spec: of one step, or of the value of an episode."""
    return tuple(self.fields["shape"])

  @property
  def image_format(self) -> str | None:
    """The format of encoded images, in lower case; None for other values."""
    data_format = self.fields.get("data_format")
    return str(data_format).lower() if names.is_image_format(data_format) else None

  @property
  def video_format(self) -> str | None:
    """The format of videos, in lower case; None for other values."""
    data_format = self.fields.get("data_format")
    return str(data_format).lower() if names.is_video_format(data_format) else None

  @property
  def is_video(self) -> bool:
    """Whether a row is a video of all frames of an episode."""
    return self.video_format is not None

  @functools.cached_property
  def is_bytes(self) -> bool:
    """Whether rows are byte strings: strings, encoded images, videos, ragged rows."""
    is_encoded = self.image_format is not None or self.is_video or self.is_ragged
    return self.dtype_name == "string" or is_encoded

  @functools.cached_property
  def is_ragged(self) -> bool:
    """Whether a row has all values of an episode, on another clock than the steps."""
    return not self.is_timed and self.fields["shape"][:1] == [None]

  @functools.cached_property
  def as_steps(self) -> Column:
    """For a ragged column, the column of its values with a row for each value."""
    shape = list(self.shape[1:])
    return Column(self.path, {**self.fields, "shape": shape, "is_sequence": True})

  @property
  def is_timed(self) -> bool:
    """Whether there is a value for each step; if not, for each episode."""
    return self.fields.get("is_sequence", False)

  @property
  def is_per_step(self) -> bool:
    """Whether there is a row for each step; if not, for each episode."""
    return self.is_timed and not self.is_video

  @property
  def is_optional(self) -> bool:
    """Whether an episode may lack it."""
    return self.fields.get("is_optional", False)

  @property
  def is_number_a_step(self) -> bool:
    """Whether each step has one number, as time stamps have."""
    is_number = not self.is_bytes and self.dtype.kind not in "bc"
    return is_number and self.is_per_step and self.items_per_row == 1

  @functools.cached_property
  def row_shape(self) -> tuple[int, ...]:
    """The shape of one row: of its numbers or, if `is_bytes`, byte strings."""
    if self.is_ragged:
      return ()
    return self.shape[:-3] if self.image_format or self.is_video else self.shape

  @functools.cached_property
  def items_per_row(self) -> int:
    """Number of numbers or byte strings in one row."""
    return math.prod(self.row_shape)

  @functools.cached_property
  def dtype(self) -> np.dtype:
    """The little-endian dtype of the data file."""
    if self.is_bytes:
      return np.dtype(np.uint8)
    if self.dtype_name == "bfloat16":
      return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(self.dtype_name).newbyteorder("<")

  @functools.cached_property
  def data_file(self) -> str:
    """File of the raw rows, one after the other."""
    return _file_stem(self.path) + ".data"

  @functools.cached_property
  def offsets_file(self) -> str:
    """File of the offset of each byte string in the data file, if `is_bytes`."""
    return _file_stem(self.path) + ".offsets"

  @functools.cached_property
  def present_file(self) -> str:
    """File of flags for which episodes have the path, if it is optional."""
    return _file_stem(self.path) + ".present"

  @functools.cached_property
  def files(self) -> tuple[str, ...]:
    """The names of the column's files."""
    offsets = (self.offsets_file,) if self.is_bytes else ()
    present = (self.present_file,) if self.is_optional else ()
    return (self.data_file, *offsets, *present)

  def to_json_dict(self) -> dict[str, Any]:
    """Describes the files for readers without specs."""
    described: dict[str, Any] = {
      "data": self.data_file,
      "dtype": "bytes" if self.is_bytes else self.dtype_name,
      "shape": list(self.row_shape),
      "rows": "steps" if self.is_per_step else "episodes",
    }
    if self.is_bytes:
      described["offsets"] = self.offsets_file
    if self.is_optional:
      described["present"] = self.present_file
    if self.video is not None:
      video = self.video.to_json_dict()
      described["video"] = {"format": self.fields["data_format"], **video}
    return described


Columns = dict[str, Column]


Videos = VideoOptions | Mapping[str, VideoOptions] | None
"""Options of videos: for all paths, or by path; None for the defaults."""


def make_columns(
  operation: str,
  spec_structure: specs.SpecStructure,
  videos: Videos = None,
  clocks: Mapping[str, str] | None = None,
) -> Columns:
  """Returns the columns of specs, by path; raises as `check_columns` does."""
  default = videos if isinstance(videos, VideoOptions) else VideoOptions()
  by_path = videos if isinstance(videos, Mapping) else {}
  flat = specs.flatten_spec_structure(spec_structure)
  mismatches = [
    errors.Mismatch(path, "a spec", errors.describe(leaf))
    for path, leaf in flat.items()
    if not isinstance(leaf, tf.TensorSpec)
  ]
  listed = [
    Column.of(
      path,
      specs.ExtendedTensorSpec.to_spec(leaf),
      by_path.get(path, default)
      if specs.extended_tensor_spec.is_video_spec(leaf)
      else None,
    )
    for path, leaf in flat.items()
    if isinstance(leaf, tf.TensorSpec)
  ]
  mismatches += [
    errors.Mismatch(f"videos: {path}", "a spec of mp4 or mkv", "none at that path")
    for path in by_path
    if path not in {column.path for column in listed if column.is_video}
  ]
  return check_columns(operation, listed, mismatches, clocks)


def check_columns(
  operation: str,
  listed: Sequence[Column],
  mismatches: Sequence[errors.Mismatch] = (),
  clocks: Mapping[str, str] | None = None,
) -> Columns:
  """Returns columns by path; SpecError if one cannot be stored, or for `mismatches`.

  Args:
    operation: for errors.
    listed: the columns.
    mismatches: further faults.
    clocks: the path of the time stamps, by the path of each column on another clock.
  """
  columns, clocks = {column.path: column for column in listed}, clocks or {}
  problems = (_check_path(c.path) or _check_spec(c, c.path in clocks) for c in listed)
  mismatches = [*mismatches, *filter(None, problems), *_check_clocks(columns, clocks)]
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)
  if not any(column.is_timed for column in columns.values()):
    raise errors.SpecError(
      f"{operation}: the specs: expected at least one path with a time axis, got "
      f"{errors.listing(columns)}. Declare the paths with a value per step with "
      "is_sequence=True, or store windows.flat_specs(specs)."
    )
  return columns


def segment_folder(store: str, segment: str) -> str:
  return os.path.join(store, SEGMENTS, segment)


def file_names(columns: Columns) -> list[str]:
  """Lists the column files of a segment in the order of their checksums."""
  return [name for column in columns.values() for name in column.files]


def _file_stem(path: str) -> str:
  # Escapes '/' and special characters: a reversible map from paths to file names.
  return urllib.parse.quote(path, safe="")


def _check_path(path: str) -> errors.Mismatch | None:
  is_escape = any(part in ("", ".", "..") for part in path.split("/"))
  is_odd = any(ord(char) < 32 or char in "\\\x7f" for char in path)
  if not is_escape and not is_odd and len(_file_stem(path)) <= _MAX_NAME:
    return None
  hint = "No '.' or '..', no backslashes or control characters."
  if not is_escape and not is_odd:
    hint = f"At most {_MAX_NAME} characters once '/' and the like are escaped."
  want = "a path that can name a file inside of the store"
  return errors.Mismatch(repr(path)[1:-1], want, repr(path)[:80], hint)


def _check_clocks(
  columns: Columns, clocks: Mapping[str, str]
) -> Iterator[errors.Mismatch]:
  """Yields the faults of columns on other clocks than the steps."""
  for path, clock in clocks.items():
    column, stamps = columns.get(path), columns.get(clock)
    if column is None or not column.is_ragged:
      got = "no such column" if column is None else f"shape {column.shape}"
      hint = "Values on another clock have the shape (None, ...), and no is_sequence."
      yield errors.Mismatch(path, f"values on the clock {clock}", got, hint)
    is_clock = stamps is not None and stamps.is_ragged and clocks.get(clock) == clock
    if stamps is None or not (is_clock and stamps.as_steps.is_number_a_step):
      got = (
        "no such column" if stamps is None else f"{stamps.shape} {stamps.dtype_name}"
      )
      hint = "A clock is such a column of numbers, and its own clock."
      yield errors.Mismatch(clock, f"the time stamps of {path}", got, hint)


def _check_spec(column: Column, is_ragged: bool) -> errors.Mismatch | None:
  path, shape = column.path, column.fields["shape"]
  shape = shape[1:] if is_ragged and column.is_ragged else shape
  offsets = column.fields.get("time_offsets")
  if offsets is not None:
    return errors.Mismatch(
      path,
      "a spec without time offsets",
      f"time_offsets={tuple(offsets) if isinstance(offsets, list) else offsets}",
      "Stores are flat, every step once: store windows.flat_specs(specs).",
    )
  if shape is None or None in shape:
    got = "<unknown>" if shape is None else f"({', '.join(map(str, shape))})"
    return errors.Mismatch(
      path,
      "a fully defined shape",
      f"shape {got}",
      "Use is_sequence=True for the axis of steps.",
    )
  if column.dtype_name not in names.DTYPES:
    want = f"a dtype of {errors.listing(names.DTYPES)}"
    return errors.Mismatch(path, want, f"dtype {column.dtype_name}")
  if column.image_format and len(shape) < 3:
    want = "a shape [..., height, width, channels]"
    return errors.Mismatch(path, want, f"shape {column.shape}")
  return _check_video(column) if column.is_video else None


def _check_video(column: Column) -> errors.Mismatch | None:
  shape, is_timed = column.shape, column.is_timed
  kind = (column.dtype_name, shape[-1]) if len(shape) == 3 and is_timed else None
  if column.video is not None and column.video.depth is not None:
    is_fit = column.video_format == "mp4" and kind in (("float32", 1), ("uint16", 1))
    want = "mp4 of [height, width, 1] float32 or uint16 of each step, as depth"
  elif column.video_format == "mp4":
    is_fit = kind == ("uint8", 3) and not shape[0] % 2 and not shape[1] % 2
    want = "[height, width, 3] uint8 of each step, of even sizes"
  else:
    is_fit = kind in (("uint8", 3), ("uint8", 1), ("uint16", 1))
    want = "[height, width, 3 or 1] uint8 of each step, or uint16 of one channel"
  if is_fit and 0 not in shape:
    return None
  got = f"{shape} {column.dtype_name}{'' if is_timed else ' of an episode'}"
  hint = "Lossless, of any size: data_format='mkv'; or leave the data_format out."
  return errors.Mismatch(column.path, want, got, hint)
