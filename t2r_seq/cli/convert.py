"""`t2r_seq convert`: data sets of any format to one of another format."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from t2r_seq.cli import console, sources

SUMMARY = "convert data sets: stores, LeRobot, TFRecord, RLDS, zarr, HDF5; from MCAP"
DESCRIPTION = """Converts episodes from any format that is read to any that is written.

  t2r_seq convert 'data/train*.tfrecord' my_store --spec my_project.specs:episode_spec
  t2r_seq convert steps.tfrecord my_store --episode_key episode_id
  t2r_seq convert my_store out/train.tfrecord.gz --num_shards 10
  t2r_seq convert pusht my_store               (LeRobot v3 or v2.1, with videos)
  t2r_seq convert my_store out.lerobot --video_gop 2 --video_quality 25
  t2r_seq convert pusht.zarr low_dim.hdf5      (to robomimic's layout)
  t2r_seq convert bags my_store --layout layout.json        (MCAP of ROS 2)
  t2r_seq convert 'bridge-train.tfrecord*' my_store         (RLDS, as TFDS writes it)
  t2r_seq convert monday tuesday week.lerobot --drop debug --rename arm=state
  t2r_seq convert low_dim.hdf5 my_store --filter successful --split train=0.9,eval=0.1

Several sources are joined. A killed conversion to a store or to TFRecord shards resumes
when the command is given again; others start again. --verify reads both sides of a
complete conversion, and compares every value."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  add = parser.add_argument
  add("sources", metavar="SRC", nargs="+", help="data sets to read; may be patterns")
  add("destination", metavar="DST", help="path of the data set to write")
  kinds = (("from", "SRC", sources.SOURCE_KINDS), ("to", "DST", sources.KINDS))
  for name, where, choices in kinds:
    add(
      f"--{name}",
      dest=f"{name}_format",
      choices=choices,
      help=f"the format of {where}, if its name and contents do not show it",
    )
  add("--spec", metavar="SPEC", help=console.FORMS)
  sources.add_bounds(parser)
  add(
    "--drop",
    metavar="PATH",
    nargs="+",
    action="extend",
    help="paths to leave out, with all paths below them",
  )
  add(
    "--rename",
    metavar="OLD=NEW",
    nargs="+",
    action="extend",
    help="rename a path, and all paths below it",
  )
  add(
    "--decode_images",
    action="store_true",
    help="decode images to pixels; otherwise their encoded bytes are copied",
  )
  add(
    "--cast",
    metavar="NAME=DTYPE",
    nargs="+",
    action="extend",
    help="a dtype and its replacement, float64=float32; or a path and its new dtype",
  )
  add(
    "--allow_nan",
    action="store_true",
    help="accept NaN and infinity in values for a store",
  )
  add("--num_shards", type=int, metavar="N", help="TFRecord files to write (1)")
  add(
    "--compression",
    choices=("GZIP", "ZLIB", "gzip"),
    help="of TFRecord files, if their suffixes do not show it (.gz, .zz); "
    "gzip: of the observations in an HDF5 file to write",
  )
  add(
    "--split",
    metavar="SPLIT",
    help="train=0.9,eval=0.1 assigns episodes to splits at random, which DST stores; "
    "a name reads only that split of SRC",
  )
  add("--seed", type=console.seed, help="seed of the random split (0)")
  add("--layout", metavar="JSON", help=sources.LAYOUT_HELP)
  sources.add_clocks(parser)
  add(
    "--resample",
    choices=("hold", "nearest"),
    help="value of columns on other clocks at a step: the last (hold) or the nearest",
  )
  add(
    "--filter",
    metavar="KEY",
    help="read only this split of SRC, also with shares in --split",
  )
  sources.add_episodes(parser)
  sources.add_frames(parser)
  _add_writing(parser)
  add(
    "--keep_videos",
    action="store_true",
    help="copy LeRobot's videos to a store without decoding them",
  )
  add(
    "--verify",
    action="store_true",
    help="convert nothing: compare all values of SRC, by its recorded options, and DST",
  )


def _add_writing(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("options for writing LeRobot")
  add = group.add_argument
  add("--fps", type=float, help="steps per second; a rate of the source must equal it")
  add("--task", metavar="TEXT", help="task text for episodes without one")
  add(
    "--video_codec",
    metavar="NAME",
    help="video encoder: libsvtav1 (default), libx264, libx265; or png (lossless)",
  )
  add(
    "--video_gop",
    type=int,
    metavar="N",
    help="frames from one key frame to the next; by default 2, as in LeRobot",
  )
  add(
    "--video_quality",
    type=int,
    metavar="N",
    help="the codec's crf, by default 30; lower means better quality and larger files",
  )


# Arguments that are options of `convert.convert`. Those not given are left out, as not
# every format has them.
_OPTIONS = (
  *("episode_key", "first_key", "last_key", "episode_per_file", "layout"),
  *("drop", "rename", "cast", "decode_images", "split", "filter", "seed"),
  *("allow_nan", "keep_videos", "num_shards", "compression"),
  *("clocks", "resample", "frames_by", "frame_tolerance", "fps", "task"),
  *("video_codec", "video_gop", "video_quality"),
)


def run(args: argparse.Namespace) -> int:
  """Converts, or verifies; prints the result."""
  console.load_tensorflow()
  from t2r_seq import convert, windows
  from t2r_seq.convert.conversion import verify_conversion
  from t2r_seq.progress import Progress

  progress = Progress()
  if args.verify:
    report = verify_conversion(args.sources, args.destination, progress)
    print(f"{_counts(report)}: both sides have the same values.")
    return 0
  if args.num_shards is not None and args.num_shards < 1:
    raise console.UsageError(f"--num_shards must be >= 1, got {args.num_shards}.")
  if args.seed is not None and "=" not in (args.split or ""):
    raise console.UsageError("--seed: no effect without --split NAME=SHARE,...")
  spec = console.load_store_specs(args.spec) if args.spec else None
  options = {name: getattr(args, name) for name in _OPTIONS}
  report = convert.convert(
    args.sources,
    args.destination,
    spec=windows.flat_specs(spec) if spec is not None else None,
    source_format=args.from_format,
    format=args.to_format,
    progress=progress,
    episodes=sources.parse_episodes(args.episodes),
    **sources.drop_absent(options),
  )
  if report.resumed_at == report.num_episodes:
    print(f"{_counts(report)} were converted before; --verify compares them.")
    return 0
  for note in report.notes:
    console.show(note)
  if report.resumed_at:
    print(f"Resumed after {report.resumed_at} episodes of an earlier run.")
  print(
    f"Converted {_counts(report)}, {report.num_bytes / 1e6:.1f} MB, from "
    f"{report.source_format} to {report.destination_format}. To compare them: --verify."
  )
  console.show(f"Wrote {_files(report.files)}")
  return 0


def _files(names: Sequence[str]) -> str:
  """Renders the names of files; if they are many, the first and the last."""
  if len(names) <= 2:
    return " and ".join(names)
  return f"{names[0]} .. {names[-1]} ({len(names)} files)"


def _counts(report: Any) -> str:
  episodes, steps = report.num_episodes, report.num_steps
  return f"{episodes} episode{'' if episodes == 1 else 's'} ({steps} steps)"
