"""What names in specs stand for: known without TensorFlow."""

from __future__ import annotations

import re

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
