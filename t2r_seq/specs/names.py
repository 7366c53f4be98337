"""What names stand for, of modes and in specs: known without TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any, Final

from t2r_seq import errors


class ModeKeys:
  """Names of the modes, as in Tensor2Robot's (and Estimator's) `ModeKeys`.

  `PREDICT` is the old name of `INFER`; both have the same value.
  """

  TRAIN: Final = "train"
  EVAL: Final = "eval"
  INFER: Final = "infer"
  PREDICT: Final = "infer"
  ALL: Final = ("train", "eval", "infer")


def check_mode(operation: str, mode: str) -> None:
  """Raises SpecError, in the name of the operation, unless `mode` is a mode."""
  if mode not in ModeKeys.ALL:
    raise errors.SpecError(
      f"{operation}: mode: expected one of {errors.listing(ModeKeys.ALL)}, got "
      f"{mode!r}.{errors.nearest(str(mode), ModeKeys.ALL)}"
    )


IMAGE_FORMATS = ("jpeg", "png", "bmp", "gif")
# Of the frames of an episode together: lossy, and lossless.
VIDEO_FORMATS = ("mp4", "mkv")
RAW_FORMAT = "raw"
# A whole tensor in one byte string: its bytes, those compressed, a serialized proto.
PACKED_FORMATS = (RAW_FORMAT, "zlib", "tensor")

_TIME = re.compile(r"((.*_)?time_?stamps?|times?)(_(s|sec|ms|us|ns))?")


def is_image_format(data_format: str | None) -> bool:
  """Whether a `data_format` is that of an encoded image."""
  return data_format is not None and data_format.lower() in IMAGE_FORMATS


def is_video_format(data_format: str | None) -> bool:
  """Whether a `data_format` is that of the frames of an episode as a video."""
  return data_format is not None and data_format.lower() in VIDEO_FORMATS


def is_time(path: str) -> bool:
  """Whether a path, or the name of a feature, is called as time stamps are."""
  return _TIME.fullmatch(path.rpartition("/")[2].lower()) is not None


def source_path(path: str, spec: Any, given: Container[str]) -> Any:
  """Returns where data has what a spec reads: its own path, or else its name.

  Args:
    path: of the spec.
    spec: has a name, which may be None.
    given: the paths that the data has.
  """
  return path if path in given else getattr(spec, "name", None)


def data_paths(flat: Mapping[str, Any]) -> dict[str, str]:
  """Returns whose data each spec of a structure shows, by path.

  That is its own, unless it is named after another path, which keeps that name: then it
  shows that one's, at other times. `next_obs` with name='obs' and time_offsets=1 is the
  next step of `obs`, whatever else the data has.

  Args:
    flat: specs by path.
  """
  # A spec without a name is called as its path.
  names = {path: getattr(spec, "name", None) or path for path, spec in flat.items()}
  return {
    path: name if names.get(name) == name else path for path, name in names.items()
  }
