"""`t2r_seq inspect`: shows what record files or a store hold, and whether specs fit."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Any

from t2r_seq.cli import failures, quiet, show_store, spec_sources

SUMMARY = "show what is in TFRecord files or a store, and whether specs fit"
DESCRIPTION = """Shows the features of TFRecord files, and a spec that would parse them.
Of the folder of an EpisodeStore, shows columns, lengths and bytes.

With --spec it checks every record against specs instead, and exits with 1 at the first
that doesn't fit, naming file, record and feature. A store is checked against specs of
windows: how many it has, and what storing them stacked would take.

  t2r_seq inspect 'data/train*.tfrecord'
  t2r_seq inspect data/train.tfrecord --spec my_project.specs:episode_spec
  t2r_seq inspect data/my_store --spec my_project.specs:window_spec"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  parser.add_argument(
    "files", metavar="FILE", help="TFRecord file, a pattern, or the folder of a store"
  )
  parser.add_argument("--spec", metavar="SPEC", help=spec_sources.FORMS)
  parser.add_argument(
    "--max_records",
    type=int,
    metavar="N",
    help="show the first N records only; a check is of all",
  )


def run(args: argparse.Namespace) -> int:
  """Prints the table; with a spec also what became of the check."""
  if args.max_records is not None and args.max_records < 1:
    raise failures.UsageError(f"--max_records must be >= 1, got {args.max_records}.")
  quiet.load_tensorflow()
  if os.path.isdir(args.files):
    return _show_store(args)
  from t2r_seq import records

  expected = spec_sources.load_specs(args.spec) if args.spec else None
  summary = records.inspect_records(args.files, args.max_records)
  if not summary.num_records:
    raise failures.UsageError(f"there are no records in {args.files}.")
  print(records.format_table(summary))
  print()
  if expected is None:
    print(render_spec(records.propose_spec(summary)))
    return 0
  return _check(args.files, args.spec, expected)


def _show_store(args: argparse.Namespace) -> int:
  """Prints what a store holds."""
  from t2r_seq import store

  if args.max_records is not None:
    raise failures.UsageError("--max_records is for TFRecord files; this is a folder.")
  spec = spec_sources.load_store_specs(args.spec) if args.spec else None
  print(show_store.render_summary(store.summarize_store(args.files, spec), args.spec))
  return 0


def _check(file_patterns: str, source: str, expected: tuple[Any, Any]) -> int:
  """Checks all records against the specs."""
  from t2r_seq import records

  found = records.find_bad_record(file_patterns, *expected)
  if found is not None:
    # On stderr, after the table.
    sys.stdout.flush()
    print(f"t2r_seq inspect: {found}", file=sys.stderr)
    return 1
  print(f"All records fit {source}.")
  return 0


def render_spec(spec: Mapping[str, Any]) -> str:
  """Returns Python that builds the spec structure, to be pasted into a project."""
  lines = [f"    ({path!r}, {leaf!r})," for path, leaf in spec.items()]
  return "\n".join(
    [
      "A spec that parses them:",
      "",
      "import tensorflow as tf",
      "from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct",
      "",
      "SPEC = TensorSpecStruct(",
      "  [",
      *lines,
      "  ]",
      ")",
    ]
  )
