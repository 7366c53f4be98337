"""`t2r_seq inspect`: shows what record files or a store hold, and whether specs fit."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from t2r_seq.cli import failures, quiet, show_store, spec_sources, spec_texts

if TYPE_CHECKING:
  from t2r_seq import errors, records

SUMMARY = "show what is in TFRecord files or a store, and whether specs fit"
DESCRIPTION = """Shows the features of TFRecord files, and a spec that would parse them.
Of the folder of an EpisodeStore, shows columns, lengths and bytes. --output writes the
spec to a file that --spec takes, here and elsewhere; --format prints it alone. Of a
damaged file it shows the records before the damage, names the place, and exits with 1.

With --spec it checks every record against specs instead, and exits with 1 at the first
that doesn't fit, naming file, record and feature. A store is checked against specs of
windows: how many it has, and what storing them stacked would take.

  t2r_seq inspect 'data/train*.tfrecord'
  t2r_seq inspect 'data/train*.tfrecord' --output spec.json
  t2r_seq inspect data/train.tfrecord --spec my_project.specs:episode_spec
  t2r_seq inspect data/my_store --spec my_project.specs:window_spec"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  parser.add_argument(
    "files",
    metavar="FILES",
    nargs="+",
    help="TFRecord files or patterns, or the folder of a store",
  )
  parser.add_argument("--spec", metavar="SPEC", help=spec_sources.FORMS)
  parser.add_argument(
    "--max_records",
    type=int,
    metavar="N",
    help="show the first N records only; a check is of all",
  )
  parser.add_argument(
    "--format",
    choices=spec_texts.FORMATS,
    help="print the spec, and nothing else, as this",
  )
  parser.add_argument(
    "--output",
    metavar="OUT",
    help="write the spec to a file; .py, .pbtxt or .json, if --format doesn't say",
  )


def run(args: argparse.Namespace) -> int:
  """Prints the table; with a spec also what became of the check."""
  if args.max_records is not None and args.max_records < 1:
    raise failures.UsageError(f"--max_records must be >= 1, got {args.max_records}.")
  text_format = _text_format(args)
  quiet.load_tensorflow()
  if _is_folder(args):
    return _show_store(args)
  from t2r_seq import records

  expected = spec_sources.load_specs(args.spec) if args.spec else None
  summary = records.inspect_records(args.files, args.max_records, allow_damage=True)
  if not summary.num_records:
    raise failures.UsageError(f"there are no records in {' '.join(args.files)}.")
  if text_format is None or args.output:
    print(records.format_table(summary))
    print()
  if expected is not None:
    return _check(args.files, args.spec, expected, summary)
  _show_spec(records.propose_spec(summary), text_format, args.output)
  _show_damages(summary)
  return 1 if summary.damages else 0


def _is_folder(args: argparse.Namespace) -> bool:
  return len(args.files) == 1 and os.path.isdir(args.files[0])


def _text_format(args: argparse.Namespace) -> str | None:
  """Returns what to write the proposed spec as; None prints it for people."""
  if not args.format and not args.output:
    return None
  if args.spec or _is_folder(args):
    raise failures.UsageError(
      "--format and --output are for the spec that is proposed for TFRecord files; "
      "there is none with --spec, nor for a folder."
    )
  folder = os.path.dirname(os.path.abspath(args.output or ""))
  if args.output and not os.path.isdir(folder):
    raise failures.UsageError(
      f"--output {args.output}: expected a file in a folder that is there, got no "
      f"folder {folder}. Make it first."
    )
  return args.format or spec_texts.format_of(args.output)


def _show_spec(spec: Any, text_format: str | None, output: str | None) -> None:
  if text_format is None:
    print(f"A spec that parses them:\n\n{spec_texts.to_python(spec)}", end="")
    return
  text = spec_texts.to_text(spec, text_format)
  if output is None:
    print(text, end="")
    return
  with open(output, "w", encoding="utf-8") as file:
    file.write(text)
  print(f"Wrote a spec that parses them to {output}; {spec_texts.use_of(output)}")


def _show_store(args: argparse.Namespace) -> int:
  """Prints what a store holds."""
  from t2r_seq import store

  if args.max_records is not None:
    raise failures.UsageError("--max_records is for TFRecord files; this is a folder.")
  spec = spec_sources.load_store_specs(args.spec) if args.spec else None
  (folder,) = args.files
  print(show_store.render_summary(store.summarize_store(folder, spec), args.spec))
  return 0


def _check(
  file_patterns: list[str],
  source: str,
  expected: tuple[Any, Any],
  summary: records.RecordSummary,
) -> int:
  """Checks all records against the specs."""
  from t2r_seq import records

  found = records.find_bad_record(file_patterns, *expected)
  if found is None:
    print(f"All records fit {source}.")
  elif _place(found) not in map(_place, summary.damages.values()):
    _print_error(str(found))
  _show_damages(summary)
  return 0 if found is None else 1


def _show_damages(summary: records.RecordSummary) -> None:
  """Says where files are damaged, a line each, and what can be done about it."""
  for name, damage in summary.damages.items():
    salvage = f"t2r_seq doctor {shlex.quote(name)} --salvage OUT"
    _print_error(f"{damage} Copy what is good: {salvage}")


def _place(error: errors.RecordError) -> str:
  """Returns which record of which file an error is about."""
  return str(error).partition(": ")[0]


def _print_error(message: str) -> None:
  """Prints on stderr, after the table."""
  sys.stdout.flush()
  print(f"t2r_seq inspect: {message}", file=sys.stderr)
