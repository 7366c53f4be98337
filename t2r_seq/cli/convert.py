"""`t2r_seq convert`: stores from and to other formats of robot data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from t2r_seq.cli import console, sources

SUMMARY = "convert between stores and LeRobot, TFRecord, zarr, HDF5; from MCAP"
DESCRIPTION = """Converts episodes; one of the two sides is a store.

  t2r_seq convert 'data/train*.tfrecord' my_store --spec my_project.specs:episode_spec
  t2r_seq convert steps.tfrecord my_store --episode_key episode_id
  t2r_seq convert my_store out/train.tfrecord.gz --num_shards 10
  t2r_seq convert pusht my_store               (LeRobot v3 or v2.1, with videos)
  t2r_seq convert my_store out.lerobot --video_gop 2 --video_quality 25
  t2r_seq convert pusht.zarr my_store          (diffusion_policy's layout)
  t2r_seq convert my_store low_dim.hdf5        (robomimic's layout)
  t2r_seq convert bags my_store --layout layout.json        (MCAP of ROS 2)
  t2r_seq convert 'bridge-train.tfrecord*' my_store                 (RLDS, without TFDS)
  t2r_seq convert bridge my_store --from tfds --split 'train[:100]'
  t2r_seq convert low_dim.hdf5 my_store --filter successful --split train=0.9,eval=0.1

A conversion that was killed goes on when the command is given again: DST.conversion
says what was asked for. --verify reads both sides of a finished one, and compares
every value."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  parser.add_argument("source", metavar="SRC", help="what there is; may be a pattern")
  parser.add_argument("destination", metavar="DST", help="what to make")
  kinds = (("from", "SRC", sources.SOURCE_KINDS), ("to", "DST", sources.KINDS))
  for name, where, choices in kinds:
    parser.add_argument(
      f"--{name}",
      dest=f"{name}_kind",
      choices=choices,
      help=f"what {where} is, where its contents or its name don't tell",
    )
  parser.add_argument("--spec", metavar="SPEC", help=console.FORMS)
  sources.add_bounds(parser)
  parser.add_argument(
    "--drop",
    metavar="PATH",
    nargs="+",
    action="extend",
    default=[],
    help="paths to leave out, with all that is below them",
  )
  parser.add_argument(
    "--decode_images",
    action="store_true",
    help="turn encoded images into pixels; otherwise their bytes are kept",
  )
  parser.add_argument(
    "--cast",
    metavar="NAME=DTYPE",
    nargs="+",
    action="extend",
    default=[],
    help="float64=float32 for all numbers of a dtype, or a path and another dtype",
  )
  parser.add_argument(
    "--allow_nan",
    action="store_true",
    help="accept NaN and infinity in what goes into a store",
  )
  parser.add_argument(
    "--num_shards", type=int, default=1, metavar="N", help="TFRecord files to write"
  )
  parser.add_argument(
    "--compression",
    choices=("GZIP", "ZLIB", "gzip"),
    help="of TFRecord files, where their suffixes don't tell (.gz, .zz); "
    "gzip: of the observations in an HDF5 file",
  )
  parser.add_argument(
    "--split",
    metavar="SPLIT",
    help="train=0.9,eval=0.1 deals the episodes to splits by chance, which are kept; "
    "a name reads that split of SRC alone; of a TFDS dataset by default train",
  )
  parser.add_argument("--seed", type=int, default=0, help="of the dealing (0)")
  parser.add_argument(
    "--layout",
    metavar="JSON",
    help=sources.LAYOUT_HELP,
  )
  parser.add_argument(
    "--filter",
    metavar="KEY",
    help="read this split of SRC alone, such as a filter key of robomimic's",
  )
  sources.add_episodes(parser)
  sources.add_frames(parser)
  _add_writing(parser)
  parser.add_argument(
    "--keep_videos",
    action="store_true",
    help="a store made of a dataset of LeRobot's has its videos as they are",
  )
  parser.add_argument(
    "--verify",
    action="store_true",
    help="convert nothing: read both sides and compare every value",
  )


def _add_writing(parser: argparse.ArgumentParser) -> None:
  """Adds how a dataset of LeRobot's is written."""
  group = parser.add_argument_group("of a dataset of LeRobot's that is written")
  group.add_argument(
    "--fps", type=float, help="steps a second, where the store doesn't know them"
  )
  group.add_argument(
    "--task", metavar="TEXT", help="the text of episodes that have no path of it"
  )
  group.add_argument(
    "--video_codec",
    metavar="NAME",
    help="what encodes pixels: libsvtav1, by default, libx264, libx265; or png, which "
    "keeps them exactly",
  )
  group.add_argument(
    "--video_gop",
    type=int,
    metavar="N",
    help="frames from one key frame to the next; by default 2, as LeRobot has it",
  )
  group.add_argument(
    "--video_quality",
    type=int,
    metavar="N",
    help="the codec's crf, by default 30; lower is better, and larger",
  )


def run(args: argparse.Namespace) -> int:
  """Converts, or verifies; prints what was done."""
  console.load_tensorflow()
  from t2r_seq import convert, windows
  from t2r_seq.progress import Progress

  progress = Progress()
  if args.verify:
    report = convert.verify_conversion(args.source, args.destination, progress)
    print(f"{_counts(report)}: both sides have the same values.")
    return 0
  spec = console.load_store_specs(args.spec) if args.spec else None
  report = convert.convert(
    args.source,
    args.destination,
    spec=windows.flat_specs(spec) if spec is not None else None,
    options=_options(args),
    source_kind=args.from_kind,
    destination_kind=args.to_kind,
    progress=progress,
  )
  if report.resumed_at == report.num_episodes:
    print(f"{_counts(report)} were converted before; --verify compares them.")
    return 0
  for note in report.notes:
    console.show(note)
  if report.resumed_at:
    print(f"Went on after {report.resumed_at} episodes of an earlier run.")
  print(
    f"Converted {_counts(report)}, {report.num_bytes / 1e6:.1f} MB, from "
    f"{report.source_kind} to {report.destination_kind}. To compare them: --verify."
  )
  console.show(f"Wrote {_files(report.files)}")
  return 0


def _options(args: argparse.Namespace) -> Any:
  from t2r_seq import convert

  if args.num_shards < 1:
    raise console.UsageError(f"--num_shards must be >= 1, got {args.num_shards}.")
  names = ("fps", "task", "video_codec", "video_gop", "video_quality")
  writing = {n: getattr(args, n) for n in names if getattr(args, n) is not None}
  return convert.ConversionOptions(
    **writing,
    episode_key=args.episode_key,
    first_key=args.first_key,
    last_key=args.last_key,
    episode_per_file=args.episode_per_file,
    drop=tuple(args.drop),
    decode_images=args.decode_images,
    keep_videos=args.keep_videos,
    cast=tuple(args.cast),
    allow_nan=args.allow_nan,
    num_shards=args.num_shards,
    compression=args.compression,
    split=args.split,
    filter=args.filter,
    seed=args.seed,
    episodes=sources.parse_episodes(args.episodes),
    layout=args.layout,
    **sources.frame_options(args),
  )


def _files(names: Sequence[str]) -> str:
  """Renders the names of files; of many, the first and the last."""
  if len(names) <= 2:
    return " and ".join(names)
  return f"{names[0]} .. {names[-1]} ({len(names)} files)"


def _counts(report: Any) -> str:
  episodes, steps = report.num_episodes, report.num_steps
  return f"{episodes} episode{'' if episodes == 1 else 's'} ({steps} steps)"
