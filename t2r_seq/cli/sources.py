"""What commands say of episodes that are neither in a store nor in TFRecord files."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from t2r_seq import files
from t2r_seq.cli import console

if TYPE_CHECKING:
  from t2r_seq.episodes.episodes import Episodes


# As `convert.opening` has them, which would take TensorFlow along.
KINDS = ("store", "tfrecord", "zarr", "hdf5", "lerobot")
SOURCE_KINDS = (*KINDS, "rlds", "minari", "mcap")
LAYOUT_HELP = (
  'what an episode of HDF5 files is: {"episodes": "runs/*"}, {"episodes": "/"} or '
  '{"ends": ["done"]}; "paths" names datasets. Of MCAP files: {"clock": "/arm", '
  '"paths": {"position": "/arm:position"}}'
)
SPLIT_HELP = (
  "only this split: of a store, of LeRobot's info.json, a filter key of HDF5, or of "
  "the names of TFRecord files (NAME-train.tfrecord-00000-of-00010)"
)


def add_bounds(parser: argparse.ArgumentParser) -> None:
  """Adds the ways of saying how episodes end where a record is a step."""
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
  """Adds a choice of episodes."""
  parser.add_argument(
    "--episodes",
    metavar="LIST",
    help="only these: 3,17, or a file with a number a line, as `view` saves it",
  )


def add_frames(parser: argparse.ArgumentParser) -> None:
  """Adds how the frames of a LeRobot dataset are found."""
  parser.add_argument(
    "--frames_by",
    choices=("timestamp", "index"),
    help="of LeRobot's videos: the frame at a step's time stamp (timestamp, the "
    "default), or frame i of the episode at step i (index)",
  )
  parser.add_argument(
    "--frame_tolerance",
    type=float,
    default=1e-4,
    metavar="SECONDS",
    help="how far the nearest frame may be from a time stamp (0.0001)",
  )


def frame_options(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the options of `add_frames`, as `ConversionOptions` has them."""
  return {"frames_by": args.frames_by, "frame_tolerance": args.frame_tolerance}


def parse_episodes(text: str | None) -> Any:
  """Returns the numbers of '3,17', or the name of a file; None for None."""
  parts = [] if text is None else [part.strip() for part in text.split(",")]
  if parts and all(map(str.isdecimal, parts)) and not os.path.exists(str(text)):
    return [int(part) for part in parts]
  return text


def is_store(paths: Sequence[str]) -> bool:
  """Whether this is one store: what it holds is read without TensorFlow."""
  return len(paths) == 1 and os.path.isfile(os.path.join(paths[0], "store.json"))


def unfinished_conversion(path: str, num_episodes: int) -> str | None:
  """Says that a store is not all of what it is converted from.

  Args:
    path: of the store.
    num_episodes: that it has by now.
  Returns:
    Lines, joined; None where no conversion is unfinished.
  """
  # As `convert.conversion` writes it, which would take TensorFlow along.
  folder = f"{os.path.abspath(path)}.conversion"
  try:
    with open(os.path.join(folder, "conversion.json"), "rb") as file:
      plan = json.load(file)
    if plan["is_finished"]:
      return None
    command = shlex.join(["t2r_seq", "convert", plan["source"], path])
  except (OSError, KeyError, TypeError, ValueError):
    return None  # There is none; of one that is damaged `convert` has more to say.
  so_far = console.count(num_episodes, "episode")
  if files.is_locked(os.path.join(folder, "lock")):
    return console.fill(f"A conversion into it is under way: {so_far} by now.", 0, 2)
  told = (
    f"A conversion into it stopped after {so_far}, before it was complete. With the "
    "options that it began with this goes on:"
  )
  return f"{console.fill(told, 0, 2)}\n  {command}"


def files_of_split(patterns: list[str], split: str | None) -> list[str]:
  """Returns the TFRecord files of a split; without one the patterns as they are."""
  from t2r_seq import records
  from t2r_seq.records import files

  if split is None:
    return patterns
  names = records.get_data_format_and_filenames(patterns)[1]
  return files.files_of_split(" ".join(patterns), names, split)


def open_source(
  paths: Sequence[str],
  leaves_out_videos: bool = False,
  split: str | None = None,
  with_stores: bool = False,
  layout: str | None = None,
  episodes: Any = None,
  frames: Mapping[str, Any] | None = None,
) -> Any:
  """Opens episodes of LeRobot, zarr, HDF5 or MCAP.

  Args:
    paths: what the command was given.
    leaves_out_videos: leaves out what has to be decoded from videos.
    split: the only one to be read; None for all.
    with_stores: opens a store, too, if a split or some episodes of it are wanted.
    layout: a JSON file of the layout of HDF5 or MCAP files; None finds out.
    episodes: the only ones to be read; None for all.
    frames: of `frame_options`.
  Returns:
    The source; None where this is something else.
  """
  from t2r_seq import convert
  from t2r_seq.convert import opening

  kind = opening.foreign_kind(paths[0]) if len(paths) == 1 else None
  is_part = split is not None or episodes is not None
  if kind is None and with_stores and is_part and os.path.isdir(paths[0]):
    kind = opening.STORE
  if kind is None:
    if episodes is not None:
      raise console.UsageError(
        "--episodes needs a dataset whose episodes have numbers. Convert the files "
        f"first: t2r_seq convert {' '.join(paths)} a_store"
      )
    return None
  options = convert.ConversionOptions(
    filter=split, layout=layout, episodes=episodes, **(frames or {})
  )
  source = opening.open_source(kind, paths[0], options)
  if leaves_out_videos and source.videos:
    source = source.drop(source.videos)
  return source


def render(path: str, source: Episodes) -> list[str]:
  """Renders what is known of a source before its episodes are read.

  Args:
    path: of it.
    source: to describe.
  Returns:
    Parts of a text: what it is, its columns, notes.
  """
  from t2r_seq import specs
  from t2r_seq.convert import opening
  from t2r_seq.episodes import splits

  count = (
    "" if source.num_episodes is None else console.count(source.num_episodes, "episode")
  )
  lengths = source.lengths
  steps = "" if lengths is None else f", {console.count(int(lengths.sum()), 'step')}"
  rows = []
  for name, leaf in source.spec.items():
    dtype = leaf.dtype.name
    if specs.is_encoded_image_spec(leaf):
      dtype = f"{leaf.data_format} {dtype}"
    if name in source.videos:
      dtype = f"video {dtype}"
    shape = "x".join(map(str, leaf.shape.as_list())) or "scalar"
    per = "step" if leaf.is_sequence else "episode"
    rows.append([name, dtype, shape, per, "yes" if leaf.is_optional else ""])
  header = ["path", "dtype", "row", "per", "optional"]
  table = console.format_table(header, rows, ())
  notes = [console.fill(note) for note in source.notes]
  if source.splits:
    notes.append(console.fill(splits.describe_splits(source.splits)))
  return [f"{path}: {opening.source_kind(path)}\n{count}{steps}", table, *notes]


def time_paths(
  leaves: Mapping[str, Any], is_number: Callable[[Any], bool], named: Sequence[str]
) -> list[str]:
  """Returns the paths of time stamps: those that are called so, and those named.

  Args:
    leaves: flat specs, or columns, by path.
    is_number: whether one of them is a number for each step.
    named: paths, what --time_key was given.
  Raises:
    UsageError: a path that is not there, or is no number for each step.
  """
  from t2r_seq import errors
  from t2r_seq.specs import names

  for path in named:
    if path not in leaves:
      near = errors.nearest(path, leaves)
      raise console.UsageError(
        f"--time_key: expected a path of {errors.listing(leaves)}, got '{path}'.{near}"
      )
    if not is_number(leaves[path]):
      raise console.UsageError(
        f"--time_key: {path}: expected a number for each step, got "
        f"{errors.describe(leaves[path])}."
      )
  return [
    path
    for path, leaf in leaves.items()
    if path in named or (is_number(leaf) and names.is_time(path))
  ]


def rising_paths(metadata: Mapping[str, Any], paths: Sequence[str]) -> list[str]:
  """Returns the time stamps that differ from step to step: those that give the steps.

  Args:
    metadata: of the episodes.
    paths: of time stamps.
  """
  from t2r_seq.specs import names

  clocks = [path for path in paths if path.startswith(f"{names.CLOCKS}/")]
  recorded = metadata.get("mcap")
  if isinstance(recorded, Mapping):
    topic = str(recorded.get("layout", {}).get("clock"))
    return [p for p in clocks if p == f"{names.CLOCKS}/{topic.strip('/')}"]
  return clocks if len(clocks) == 1 else []


def misplaced(
  path: str, times: np.ndarray, ends: np.ndarray, is_rising: bool
) -> Iterator[tuple[int, str]]:
  """Yields the episodes whose time stamps run backwards, each with a sentence.

  Args:
    path: of the time stamps.
    times: one for each step of all episodes, [n] or [n, 1].
    ends: the step after each episode's last one, int64 [episodes].
    is_rising: equal time stamps are misplaced, too.
  """
  times = np.asarray(times).reshape(len(times))
  # A NaN is in no order.
  in_order = times[1:] > times[:-1] if is_rising else times[1:] >= times[:-1]
  back = np.flatnonzero(~in_order) + 1
  back = back[~np.isin(back, ends)]
  expected = "rise" if is_rising else "do not run backwards"
  episodes = np.searchsorted(ends, back, side="right")
  for episode, at in zip(*np.unique(episodes, return_index=True), strict=True):
    row = back[at]
    step = row - (ends[episode - 1] if episode else 0)
    yield (
      int(episode),
      f"{path}: expected time stamps that {expected}, got {times[row]} at step "
      f"{step}, after {times[row - 1]}.",
    )


def _count_nan(values: np.ndarray) -> str:
  """Says where an array has NaN; '' if it has none."""
  # bfloat16 is of kind 'V'.
  is_nan: Any = np.isnan(values) if values.dtype.kind in "fcV" else np.zeros(0, bool)
  if not is_nan.any():
    return ""
  place = tuple(int(i) for i in np.unravel_index(int(np.argmax(is_nan)), is_nan.shape))
  where = place if len(place) != 1 else place[0]
  share = f"{int(is_nan.sum()):,} of {is_nan.size:,}"
  return f"NaN at {where}, {share}. To accept it: --allow_nan."


def check(
  source: Episodes, time_keys: Sequence[str] = (), allow_nan: bool = False
) -> Iterator[str]:
  """Reads every episode, and yields what is wrong; a sentence each.

  Args:
    source: that says how many episodes it has.
    time_keys: paths of time stamps, beside those that are called so.
    allow_nan: accepts NaN.
  """
  from t2r_seq import errors
  from t2r_seq.records import features
  from t2r_seq.statistics import accumulators
  from t2r_seq.statistics.statistics import MEASURES

  yield from source.problems
  seen: dict[str, accumulators.Accumulator] = {}
  number, total, is_whole = 0, source.num_episodes or 0, True
  timed = time_paths(source.spec, features.is_number_a_step, time_keys)
  rising = rising_paths(source.metadata, timed)
  while number < total:
    try:
      for episode in source.iterate(number):
        for path in [path for path in timed if path in episode.values]:
          times = episode.values[path]
          ends = np.asarray([len(times)])
          for _, problem in misplaced(path, times, ends, path in rising):
            yield f"{episode.place}: {problem}"
        for path, values in episode.values.items():
          if not allow_nan and (nan := _count_nan(values)):
            yield f"{episode.place}: {path}: expected numbers, got {nan}"
          if values.dtype.kind in "biuf" and values.ndim < 4:
            spec = source.spec[path]
            if path not in seen:
              seen[path] = accumulators.create_accumulator(spec, is_counted=False)
            seen[path].add(values if spec.is_sequence else values[None])
        number += 1
      break
    except errors.SpecError as error:
      yield str(error)
      number, is_whole = number + 1, False
  yield from source.check_files()
  if is_whole:
    found = {path: accumulator.finish() for path, accumulator in seen.items()}
    yield from source.compare_statistics(
      {
        path: {name: figures.measure(name) for name in MEASURES}
        for path, figures in found.items()
        if figures.per == accumulators.ELEMENT
      }
    )
