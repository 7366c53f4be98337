"""Options of commands that open data sets, and functions that open them."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from t2r_seq import files
from t2r_seq.cli import console

if TYPE_CHECKING:
  from t2r_seq.episodes import Episodes

# Copies of the registry's names, as its import would load TensorFlow. A test compares
# them.
KINDS = ("store", "tfrecord", "zarr", "hdf5", "lerobot")
SOURCE_KINDS = (*KINDS, "rlds", "minari", "mcap")
SOURCE_HELP = "a data set of any format; several TFRecord files, or patterns of them"
LAYOUT_HELP = (
  'layout of HDF5 files, e.g. what an episode is: {"episodes": "runs/*"}, '
  '{"episodes": "/"} or {"ends": ["done"]}; "paths" names datasets. Of MCAP files: '
  '{"clock": "/arm", "paths": {"position": "/arm:position"}}'
)
SPLIT_HELP = (
  "read only this split: of a store, of LeRobot's info.json, a filter key of HDF5, or "
  "of the names of TFRecord files (NAME-train.tfrecord-00000-of-00010)"
)

BOUNDS = ("episode_key", "first_key", "last_key", "episode_per_file")
_OPENING = ("split", "layout", "clocks", "frames_by", "frame_tolerance", *BOUNDS)
OPENING = (*_OPENING, "source_format", "drop")


def add_bounds(parser: argparse.ArgumentParser) -> None:
  """Adds the options that mark the bounds of episodes if a record is a step."""
  group = parser.add_mutually_exclusive_group()
  group.add_argument(
    "--episode_key",
    metavar="NAME",
    help="a record is a step; this feature changes from episode to episode",
  )
  for name in ("first", "last"):
    group.add_argument(
      f"--{name}_key",
      metavar="NAME[=VALUE]",
      help=f"this feature is 1, or VALUE, in the {name} step of an episode; records "
      "are steps, or sequences that are cut and joined",
    )
  group.add_argument(
    "--episode_per_file",
    action="store_true",
    help="a record is a step; each file is an episode",
  )


def add_episodes(parser: argparse.ArgumentParser) -> None:
  """Adds the option for single episodes."""
  parser.add_argument(
    "--episodes",
    metavar="LIST",
    help="only these episodes: 3,17, or a file with one number per line, as `view` "
    "saves it",
  )


def add_clocks(parser: argparse.ArgumentParser) -> None:
  """Adds the option for MCAP topics to keep their rates."""
  parser.add_argument(
    "--clocks",
    choices=("steps", "own"),
    help="MCAP files: read topics at each step (steps, the default), or every message "
    "with its time (own)",
  )


def add_frames(parser: argparse.ArgumentParser) -> None:
  """Adds the options for finding the video frames of LeRobot."""
  parser.add_argument(
    "--frames_by",
    choices=("timestamp", "index"),
    help="LeRobot's videos: read the frame at a step's time stamp (timestamp, the "
    "default), or frame i of the episode at step i (index)",
  )
  parser.add_argument(
    "--frame_tolerance",
    type=float,
    metavar="SECONDS",
    help="maximum distance of a frame from a time stamp (0.0001)",
  )


def add_opening(parser: argparse.ArgumentParser) -> None:
  """Adds the options of `open_episodes`."""
  parser.add_argument(
    "--from",
    dest="source_format",
    metavar="FORMAT",
    help="format of the data set, if its path does not show it",
  )
  parser.add_argument("--split", metavar="NAME", help=SPLIT_HELP)
  parser.add_argument("--layout", metavar="JSON", help=LAYOUT_HELP)
  add_clocks(parser)
  add_frames(parser)
  add_bounds(parser)
  parser.add_argument(
    "--drop", metavar="PATH", nargs="+", action="extend", default=[],
    help="paths to leave out, with all paths below them",
  )  # fmt: skip


def opening_options(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the given options of `open_episodes`, `format` included."""
  options = {name: getattr(args, name) for name in _OPENING}
  return drop_absent(
    options | {"format": args.source_format, "drop": args.drop or None}
  )


def drop_absent(options: dict[str, Any]) -> dict[str, Any]:
  """Returns the options that are neither None nor False."""
  return {k: v for k, v in options.items() if v is not None and v is not False}


def open_source(
  paths: str | Sequence[str], args: argparse.Namespace, spec: Any = None
) -> Episodes:
  """Opens a data set with the options of `add_opening`; or several TFRecord files."""
  from t2r_seq.episodes import registry

  return registry.as_episodes(
    paths if isinstance(paths, str) else ",".join(paths),
    spec=spec,
    episodes=parse_episodes(getattr(args, "episodes", None)),
    **opening_options(args),
  )


def has_specs(paths: Sequence[str], args: argparse.Namespace) -> bool:
  """Whether the format stores specs, so that TensorFlow is not needed."""
  return _find_format(paths, args).has_specs


def are_records(paths: Sequence[str], args: argparse.Namespace) -> bool:
  """Whether to read single records of TFRecord files.

  False for other formats, and with options that make episodes of the records.
  """
  given = {*opening_options(args)} - {"format"}
  return not (has_specs(paths, args) or given - {"split"})


def _find_format(paths: Sequence[str], args: argparse.Namespace) -> Any:
  from t2r_seq.episodes import registry

  return registry.find_format(",".join(paths), args.source_format)


def record_files(paths: Sequence[str], split: str | None) -> list[str]:
  """Returns patterns of TFRecord files unchanged, or the files of a split."""
  from t2r_seq.records import files
  from t2r_seq.records.files import get_data_format_and_filenames

  if split is None:
    return [*paths]
  names = get_data_format_and_filenames([*paths])[1]
  return files.files_of_split(" ".join(paths), names, split)


def parse_episodes(text: str | None) -> Any:
  """Returns the numbers of a text such as '3,17'; any other text, a file, unchanged."""
  parts = [] if text is None else [part.strip() for part in text.split(",")]
  if parts and all(map(str.isdecimal, parts)) and not os.path.exists(str(text)):
    return [int(part) for part in parts]
  return text


def is_store(paths: Sequence[str]) -> bool:
  """Whether the paths are one store, which is read without TensorFlow."""
  return len(paths) == 1 and os.path.isfile(os.path.join(paths[0], "store.json"))


def unfinished_conversion(path: str, num_episodes: int) -> str | None:
  """Describes an unfinished conversion into a store, as lines; None without one.

  Args:
    path: path of the store.
    num_episodes: number of episodes so far.
  """
  # The names are those of `convert.conversion`, whose import would load TensorFlow.
  folder = f"{os.path.abspath(path)}.conversion"
  try:
    with open(os.path.join(folder, "conversion.json"), "rb") as file:
      plan = json.load(file)
    if plan["is_finished"]:
      return None
    command = shlex.join(["t2r_seq", "convert", plan["source"], path])
  except (OSError, KeyError, TypeError, ValueError):
    return None  # It is missing, or damaged, which `convert` reports.
  so_far = console.count(num_episodes, "episode")
  if files.is_locked(os.path.join(folder, "lock")):
    return console.fill(f"A conversion into it is under way: {so_far} by now.", 0, 2)
  text = (
    f"A conversion into it stopped after {so_far}, before it was complete. This "
    "resumes it, with the options that it started with:"
  )
  return f"{console.fill(text, 0, 2)}\n  {command}"
