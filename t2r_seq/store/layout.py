"""Which files a store has and what their rows are: derived from the specs, always."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.videos import VideoOptions

MANIFEST = "store.json"
SEGMENTS = "segments"
# What `t2r_seq stats` writes beside the others; no part of the store.
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

_MAX_NAME = 200
_DTYPES = (
  *(tf.bool, tf.int8, tf.int16, tf.int32, tf.int64),
  *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
  *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
  tf.string,
)


@dataclasses.dataclass(frozen=True)
class Column:
  """One path's data on disk.

  Attributes:
    path: where the tensor is in the spec structure.
    spec: without time offsets, of a fully defined shape.
    video: how frames are kept, where `is_video`.
  """

  path: str
  spec: specs.ExtendedTensorSpec
  video: VideoOptions | None = None

  @functools.cached_property
  def is_video(self) -> bool:
    """Whether a row is a video of all frames of an episode."""
    return specs.is_video_spec(self.spec)

  @functools.cached_property
  def is_bytes(self) -> bool:
    """Whether rows are byte strings: strings, encoded images and videos."""
    is_string = self.spec.dtype == tf.string or self.is_video
    return is_string or specs.is_encoded_image_spec(self.spec)

  @property
  def is_timed(self) -> bool:
    """Whether there is a value for each step; otherwise for each episode."""
    return self.spec.is_sequence

  @property
  def is_per_step(self) -> bool:
    """Whether there is a row for each step; otherwise for each episode."""
    return self.spec.is_sequence and not self.is_video

  @functools.cached_property
  def row_shape(self) -> tuple[int, ...]:
    """The shape of one row; of byte strings, where `is_bytes`."""
    shape = tuple(self.spec.shape.as_list())
    is_image = self.is_video or specs.is_encoded_image_spec(self.spec)
    return shape[:-3] if is_image else shape

  @functools.cached_property
  def items_per_row(self) -> int:
    """How many numbers or byte strings one row has."""
    return math.prod(self.row_shape)

  @functools.cached_property
  def dtype(self) -> np.dtype:
    """The little-endian dtype of the data file."""
    if self.is_bytes:
      return np.dtype(np.uint8)
    return np.dtype(self.spec.dtype.as_numpy_dtype).newbyteorder("<")

  @functools.cached_property
  def data_file(self) -> str:
    """The raw rows, one after the other."""
    return _file_stem(self.path) + ".data"

  @functools.cached_property
  def offsets_file(self) -> str:
    """Where in the data file each byte string starts; only where `is_bytes`."""
    return _file_stem(self.path) + ".offsets"

  @functools.cached_property
  def present_file(self) -> str:
    """Which episodes have the path; only where the spec is optional."""
    return _file_stem(self.path) + ".present"

  @functools.cached_property
  def files(self) -> tuple[str, ...]:
    """The names of the column's files."""
    names = [self.data_file]
    if self.is_bytes:
      names.append(self.offsets_file)
    if self.spec.is_optional:
      names.append(self.present_file)
    return tuple(names)

  def to_json_dict(self) -> dict[str, Any]:
    """Describes the files for readers that know no specs."""
    described: dict[str, Any] = {
      "data": self.data_file,
      "dtype": "bytes" if self.is_bytes else self.spec.dtype.name,
      "shape": list(self.row_shape),
      "rows": "steps" if self.is_per_step else "episodes",
    }
    if self.is_bytes:
      described["offsets"] = self.offsets_file
    if self.spec.is_optional:
      described["present"] = self.present_file
    if self.video is not None:
      described["video"] = {"format": self.spec.data_format, **vars(self.video)}
    return described


Columns = dict[str, Column]


Videos = VideoOptions | Mapping[str, VideoOptions] | None
"""How frames are kept as videos: of all paths, or by path; None: as by default."""


def make_columns(
  operation: str, spec_structure: specs.SpecStructure, videos: Videos = None
) -> Columns:
  """Lays out the columns of a flat spec structure.

  Args:
    operation: for the error.
    spec_structure: specs without time offsets.
    videos: how the frames of specs of 'mp4' and 'mkv' are kept.
  Returns:
    Columns by path, in the order of the structure.
  Raises:
    SpecError: with every spec that cannot be stored.
  """
  default = videos if isinstance(videos, VideoOptions) else VideoOptions()
  by_path = videos if isinstance(videos, Mapping) else {}
  flat = specs.flatten_spec_structure(spec_structure)
  found = []
  columns: Columns = {}
  for path, leaf in flat.items():
    if not isinstance(leaf, tf.TensorSpec):
      found.append(errors.Mismatch(path, "a spec", errors.describe(leaf)))
      continue
    is_video = specs.is_video_spec(leaf)
    video = by_path.get(path, default) if is_video else None
    columns[path] = Column(path, specs.ExtendedTensorSpec.to_spec(leaf), video)
    problem = _check_path(path) or _check_spec(path, columns[path].spec)
    if problem:
      found.append(problem)
  found += [
    errors.Mismatch(f"videos: {path}", "a spec of mp4 or mkv", "none of that path")
    for path in by_path
    if path not in columns or not columns[path].is_video
  ]
  if found:
    raise errors.mismatch_error(operation, found)
  if not any(column.is_timed for column in columns.values()):
    raise errors.SpecError(
      f"{operation}: the specs: expected at least one path with a time axis, got "
      f"{errors.listing(columns)}. Declare what there is once per step with "
      "is_sequence=True, or store windows.flat_specs(specs)."
    )
  return columns


def segment_folder(store: str, segment: str) -> str:
  """Returns the folder of a segment."""
  return os.path.join(store, SEGMENTS, segment)


def file_names(columns: Columns) -> list[str]:
  """Lists the column files of a segment in the order of their checksums."""
  return [name for column in columns.values() for name in column.files]


def _file_stem(path: str) -> str:
  # One file per path in one folder, and back: '/' and all that is odd is escaped.
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


def _check_spec(path: str, spec: specs.ExtendedTensorSpec) -> errors.Mismatch | None:
  if spec.time_offsets is not None:
    return errors.Mismatch(
      path,
      "a spec without time offsets",
      f"time_offsets={spec.time_offsets}",
      "Stores are flat, every step once: store windows.flat_specs(specs).",
    )
  if not spec.shape.is_fully_defined():
    want, got = "a fully defined shape", f"shape {spec.shape}"
    return errors.Mismatch(
      path, want, got, "Use is_sequence=True for the axis of steps."
    )
  if spec.dtype not in _DTYPES:
    names = errors.listing(dtype.name for dtype in _DTYPES)
    return errors.Mismatch(path, f"a dtype of {names}", f"dtype {spec.dtype.name}")
  if specs.is_encoded_image_spec(spec) and (spec.shape.rank or 0) < 3:
    want = "a shape [..., height, width, channels]"
    return errors.Mismatch(path, want, f"shape {spec.shape}")
  return _check_video(path, spec) if specs.is_video_spec(spec) else None


def _check_video(path: str, spec: specs.ExtendedTensorSpec) -> errors.Mismatch | None:
  shape = spec.shape.as_list()
  kind = (spec.dtype.name, shape[-1]) if len(shape) == 3 and spec.is_sequence else None
  if str(spec.data_format).lower() == "mp4":
    is_fit = kind == ("uint8", 3) and not shape[0] % 2 and not shape[1] % 2
    want = "[height, width, 3] uint8 of each step, of even sizes"
  else:
    is_fit = kind in (("uint8", 3), ("uint8", 1), ("uint16", 1))
    want = "[height, width, 3 or 1] uint8 of each step, or uint16 of one channel"
  if is_fit and 0 not in shape:
    return None
  got = f"{errors.describe(spec)}{'' if spec.is_sequence else ' of an episode'}"
  hint = "Lossless, of any size: data_format='mkv'; or leave the data_format out."
  return errors.Mismatch(path, want, got, hint)
