"""What names stand for, of modes and in specs: known without TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Mapping
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

# When the messages came that a step shows, by topic: 'clocks/camera/front'.
CLOCKS = "clocks"
_TIME = re.compile(r"((.*_)?(time_?)?stamps?|times?)(_(s|sec|ms|us|ns))?")


def is_image_format(data_format: str | None) -> bool:
  """Whether a `data_format` is that of an encoded image."""
  return data_format is not None and data_format.lower() in IMAGE_FORMATS


def is_video_format(data_format: str | None) -> bool:
  """Whether a `data_format` is that of the frames of an episode as a video."""
  return data_format is not None and data_format.lower() in VIDEO_FORMATS


def is_time(path: str) -> bool:
  """Whether a path, or the name of a feature, is called as time stamps are."""
  is_clock = path.startswith(f"{CLOCKS}/")
  return is_clock or _TIME.fullmatch(path.rpartition("/")[2].lower()) is not None


def source_path(path: str, spec: Any, given: Mapping[str, Any]) -> Any:
  """Returns where data has what a spec reads: its path, its name, or the path so named.

  Args:
    path: of the spec.
    spec: has a name, which may be None.
    given: what the data has by path, as specs; those may have names.
  Returns:
    A path of `given`; the spec's name, which may be None, if there is none.
  """
  name = getattr(spec, "name", None)
  if path in given or name is None:
    return path if path in given else None
  if name in given:
    return name
  named = (other for other, each in given.items() if getattr(each, "name", "") == name)
  return next(named, name)


def source_paths(flat: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
  """Returns where data has what each spec of a structure reads, by path.

  As `source_path`, but specs of one name are one feature:

  - A spec that is named after another path of the structure, which keeps that name and
    looks at other times, shows that one's data: `next_obs` with name='obs' and
    time_offsets=1 is the step after `obs`, also where transitions are stored, each with
    a `next_obs` of its own.
  - If the data has nothing at a spec's path or name, the spec shows the data of another
    one of that name: `next_state/obs` those of `state/obs`, both named 'obs'.

  Args:
    flat: specs by path.
    given: what the data has by path, as specs.
  """
  leaves, found = dict(flat.items()), {}
  of_name: dict[str, str] = {}
  for path, spec in leaves.items():
    if path in given:
      of_name.setdefault(getattr(spec, "name", None) or path, path)
  for path, spec in leaves.items():
    name = getattr(spec, "name", None) or path
    owner = leaves.get(name) if name != path else None
    times = [getattr(each, "time_offsets", None) for each in (spec, owner)]
    is_shown = (
      owner is not None
      and name in given
      and getattr(owner, "name", None) in (None, name)
      and None not in times
      and times[0] != times[1]
    )
    source = name if is_shown else source_path(path, spec, given)
    found[path] = source if source in given else of_name.get(name, source)
  return found
