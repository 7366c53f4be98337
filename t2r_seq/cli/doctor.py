"""`t2r_seq doctor`: finds what is damaged, and saves what is not."""

from __future__ import annotations

import argparse
import os

from t2r_seq.cli import (
  failures,
  quiet,
  show_bad_records,
  show_damage,
  spec_sources,
)

SUMMARY = "find what is damaged in a store or in TFRecord files, and salvage the rest"
DESCRIPTION = """Looks for all that is wrong with a store or with TFRecord files.

Of a store it verifies every length, offset and checksum, of TFRecord files the frames
and checksums, and whether each record can be parsed: shapes, image sizes, lengths that
disagree, NaN. It exits with 0 when all is right, and with 1 when something is not: it
names the place. The data is only read; --salvage copies what is good.

  t2r_seq doctor data/my_store
  t2r_seq doctor data/my_store --salvage data/saved_store
  t2r_seq doctor 'data/train*.tfrecord' --spec my_project.specs:episode_spec
  t2r_seq doctor 'data/train*.tfrecord' --salvage data/saved"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  parser.add_argument(
    "sources",
    metavar="SOURCE",
    nargs="+",
    help="folder of an EpisodeStore, or TFRecord files or patterns",
  )
  parser.add_argument(
    "--spec",
    metavar="SPEC",
    help="what records must fit (by default what most seem to have); of a store, what "
    f"it was created with, if its store.json is damaged: {spec_sources.FORMS}",
  )
  parser.add_argument(
    "--salvage", metavar="OUT", help="copy what is good to a new store, or folder"
  )
  parser.add_argument(
    "--lenient",
    action="store_true",
    help="of a store: salvage what has no checksum to compare with, too",
  )
  parser.add_argument(
    "--allow_nan", action="store_true", help="of TFRecord files: a NaN is no problem"
  )
  parser.add_argument(
    "--max_shown",
    type=int,
    default=20,
    metavar="N",
    help="of TFRecord files: how many bad records are shown (20)",
  )


def run(args: argparse.Namespace) -> int:
  """Prints what is wrong, and what was salvaged."""
  folders = [source for source in args.sources if os.path.isdir(source)]
  if folders and len(args.sources) > 1:
    raise failures.UsageError(
      f"expected one store, or TFRecord files, got {' '.join(args.sources)}; "
      f"{folders[0]} is a folder."
    )
  is_store = bool(folders)
  _check_options(args, is_store)
  quiet.load_tensorflow()
  return _check_store(args) if is_store else _check_records(args)


def _check_options(args: argparse.Namespace, is_store: bool) -> None:
  if is_store and args.allow_nan:
    raise failures.UsageError("--allow_nan is for TFRecord files; this is a folder.")
  if not is_store and args.lenient:
    raise failures.UsageError("--lenient is for a store; this is no folder.")
  if args.salvage == "":
    raise failures.UsageError("--salvage: expected a path, got ''.")
  if args.salvage and os.path.lexists(args.salvage):
    # Before all is read, which may take hours.
    kind = "folder" if os.path.isdir(args.salvage) else "file"
    raise failures.UsageError(
      f"--salvage {args.salvage}: expected nothing there, got a {kind}. Name a new "
      "folder."
    )
  if args.max_shown < 0:
    raise failures.UsageError(f"--max_shown must be >= 0, got {args.max_shown}.")


def _check_store(args: argparse.Namespace) -> int:
  from t2r_seq import store, windows

  spec = None
  if args.spec:
    spec = windows.flat_specs(spec_sources.load_store_specs(args.spec))
  if args.salvage is None:
    report = store.verify_store(args.sources[0], spec=spec)
    print(show_damage.render_report(report))
    return 0 if report.is_whole else 1
  salvaged = store.salvage_store(args.sources[0], args.salvage, spec, args.lenient)
  print(show_damage.render_report(salvaged.source))
  print()
  print(show_damage.render_salvage(salvaged))
  return 0 if salvaged.source.is_whole else 1


def _check_records(args: argparse.Namespace) -> int:
  from t2r_seq import records

  features, labels = spec_sources.load_specs(args.spec) if args.spec else (None, None)
  report = records.examine_records(
    args.sources, features, labels, allow_nan=args.allow_nan
  )
  if not any(report.num_records.values()):
    raise failures.UsageError(f"there are no records in {' '.join(args.sources)}.")
  print(show_bad_records.render_report(report, args.max_shown))
  if args.salvage is not None:
    print()
    salvaged = records.salvage_records(report, args.salvage)
    print(show_bad_records.render_salvage(salvaged))
  return 0 if report.is_good else 1
