"""Names of modes and formats, and name lookup in data; without TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from t2r_seq import errors


class ModeKeys:
  """Names of the modes; `PREDICT` is `INFER`."""

  TRAIN: Final = "train"
  EVAL: Final = "eval"
  INFER: Final = "infer"
  PREDICT: Final = "infer"
  ALL: Final = ("train", "eval", "infer")


def check_mode(operation: str, mode: str) -> None:
  """Raises SpecError if `mode` is unknown."""
  if mode not in ModeKeys.ALL:
    raise errors.SpecError(
      f"{operation}: mode: expected one of {errors.listing(ModeKeys.ALL)}, got "
      f"{mode!r}.{errors.nearest(str(mode), ModeKeys.ALL)}"
    )


DTYPES = (
  *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
  *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "string"),
)
IMAGE_FORMATS = ("jpeg", "png", "bmp", "gif")
VIDEO_FORMATS = ("mp4", "mkv")  # Lossy and lossless.
RAW_FORMAT = "raw"
# A tensor in one byte string: its bytes, compressed bytes, a serialized proto.
PACKED_FORMATS = (RAW_FORMAT, "zlib", "tensor")

# Branch of the time stamps of each topic's messages: 'clocks/camera/front'.
CLOCKS = "clocks"
_TIME = re.compile(r"((.*_)?(time_?)?stamps?|times?)(_(s|sec|ms|us|ns))?")


def is_image_format(data_format: str | None) -> bool:
  """Whether a `data_format` is an image format, in any case."""
  return data_format is not None and data_format.lower() in IMAGE_FORMATS


def is_video_format(data_format: str | None) -> bool:
  """Whether a `data_format` is a video format, in any case."""
  return data_format is not None and data_format.lower() in VIDEO_FORMATS


def is_time(path: str) -> bool:
  """Whether a path, or the name of a feature, looks like that of time stamps."""
  is_clock = path.startswith(f"{CLOCKS}/")
  return is_clock or _TIME.fullmatch(path.rpartition("/")[2].lower()) is not None


def are_fields(values: Any) -> bool:
  """Whether JSON values describe data: with valid shape, dtype, format and flags."""
  if not isinstance(values, Mapping):
    return False
  shape, dtype = values.get("shape"), values.get("dtype")
  flags = [values.get(flag, False) for flag in ("is_sequence", "is_optional")]
  return (
    isinstance(shape, list)
    and all(type(size) is int and size >= 0 for size in shape)
    and isinstance(dtype, str)
    and isinstance(values.get("data_format"), (str, type(None)))
    and all(isinstance(flag, bool) for flag in flags)
  )


def source_path(path: str, spec: Any, given: Mapping[str, Any]) -> Any:
  """Returns the path of the data that a spec reads.

  That is its path; or else its name; or else the path of data with this name.

  Args:
    path: path of the spec.
    spec: the spec.
    given: specs of the data by path.
  Returns:
    The path; without such data, the name of the spec, which may be None.
  """
  name = getattr(spec, "name", None)
  if path in given or name is None:
    return path if path in given else None
  if name in given:
    return name
  named = (other for other, data in given.items() if getattr(data, "name", "") == name)
  return next(named, name)


def source_paths(flat: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the path of the data that each spec of a structure reads, by path.

  As `source_path`, and specs of one name read the same data:

  - A spec that is named after another path of the structure, with other time offsets,
    reads its data: `next_obs` with name='obs' and time_offsets=1 is the step after
    `obs`, even if the data has a `next_obs`.
  - If the data has nothing at a spec's path or name, the spec reads the data of another
    spec with that name: `next_state/obs` reads `state/obs`, both named 'obs'.

  Args:
    flat: specs by path.
    given: specs of the data by path.
  """
  leaves, sources = dict(flat.items()), {}
  by_name: dict[str, str] = {}
  for path, spec in leaves.items():
    if path in given:
      by_name.setdefault(getattr(spec, "name", None) or path, path)
  for path, spec in leaves.items():
    name = getattr(spec, "name", None) or path
    owner = leaves.get(name) if name != path else None
    times = [getattr(each, "time_offsets", None) for each in (spec, owner)]
    is_other_step = (
      owner is not None
      and name in given
      and getattr(owner, "name", None) in (None, name)
      and None not in times
      and times[0] != times[1]
    )
    source = name if is_other_step else source_path(path, spec, given)
    sources[path] = source if source in given else by_name.get(name, source)
  return sources
