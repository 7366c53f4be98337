"""`t2r_seq doctor`: finds what is damaged, and saves what is not."""

from __future__ import annotations

import argparse

from t2r_seq.cli import quiet, show_damage, spec_sources

SUMMARY = "find what is damaged in a store, and salvage what is not"
DESCRIPTION = """Verifies every length, offset and checksum of an EpisodeStore.

Exits with 0 when all is right, and with 1 when something is not: it names the files,
episodes and bytes. The store is only read; with --salvage every good episode is copied
to a new one.

  t2r_seq doctor data/my_store
  t2r_seq doctor data/my_store --salvage data/saved_store"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  parser.add_argument("source", metavar="STORE", help="folder of an EpisodeStore")
  parser.add_argument(
    "--spec",
    metavar="SPEC",
    help=f"the specs of a store whose store.json is damaged: {spec_sources.FORMS}",
  )
  parser.add_argument(
    "--salvage", metavar="OUT", help="copy every good episode to a new store"
  )
  parser.add_argument(
    "--lenient",
    action="store_true",
    help="salvage what can be read but has no checksum to compare with, too",
  )


def run(args: argparse.Namespace) -> int:
  """Prints what is wrong, and what became of the episodes."""
  quiet.load_tensorflow()
  from t2r_seq import store, windows

  spec = None
  if args.spec:
    spec = windows.flat_specs(spec_sources.load_store_specs(args.spec))
  if args.salvage is None:
    report = store.verify_store(args.source, spec=spec)
    print(show_damage.render_report(report))
    return 0 if report.is_whole else 1
  salvaged = store.salvage_store(args.source, args.salvage, spec, args.lenient)
  print(show_damage.render_report(salvaged.source))
  print()
  print(show_damage.render_salvage(salvaged))
  return 0 if salvaged.source.is_whole else 1
