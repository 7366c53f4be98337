"""`t2r_seq index`: writes an index beside each TFRecord file, or checks it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from t2r_seq.cli import console

SUMMARY = "index TFRecord files: exact counts, and records in any order"
DESCRIPTION = """Writes an index, FILE.t2ri, beside each TFRecord file.

With it records are counted without reading, read at random, and shuffled over all
files. Each file is read once and its checksums are verified; files whose index is fresh
are skipped. If a file cannot be indexed, it indexes the others and exits with 1.

  t2r_seq index 'data/train*.tfrecord'
  t2r_seq index 'data/*.tfrecord' --spec my_project.specs:episode_spec
  t2r_seq index 'data/*.tfrecord' --check

With --check it writes nothing, and exits with 1 if an index is missing, stale or
damaged."""
_MAX_LINES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  add = parser.add_argument
  add("files", metavar="FILES", nargs="+", help="TFRecord files, or patterns")
  add(
    "--spec",
    metavar="SPEC",
    help=f"specs of the records, which the index keeps: {console.FORMS}",
  )
  add(
    "--check",
    action="store_true",
    help="write nothing; report missing, stale and damaged indices",
  )
  add("--force", action="store_true", help="also index files whose index is fresh")
  add("--num_parallel", type=int, metavar="N", help="files at a time (one per core)")


def run(args: argparse.Namespace) -> int:
  """Writes or checks indices; prints the counts."""
  if args.num_parallel is not None and args.num_parallel < 1:
    raise console.UsageError(f"--num_parallel must be >= 1, got {args.num_parallel}.")
  if args.check:
    console.reject_options(args, ("check", "spec"), "with --check, which only reads")
  spec = _load_spec(args.spec) if args.spec else None
  if args.check:
    return _check(args.files, spec)
  return _write(args.files, spec, args.num_parallel, args.force)


def _load_spec(source: str) -> Any:
  console.load_tensorflow()
  from t2r_seq import specs

  features, labels = console.load_specs(source)
  if not labels:
    return features
  all_specs = specs.TensorSpecStruct()
  for prefix, structure in (("features", features), ("labels", labels)):
    for path, spec in structure.items():
      all_specs[f"{prefix}/{path}"] = spec
  return all_specs


def _write(patterns: Sequence[str], spec: Any, num_parallel: int, force: bool) -> int:
  from t2r_seq import records
  from t2r_seq.progress import Progress

  progress = Progress(noun="files")
  progress.start("indexed", 0, None)
  results = records.write_index(
    patterns, spec, num_parallel, force, lambda _: progress.advance(0)
  )
  progress.stop()
  failed = [result for result in results if result.index is None]
  _print_problems([result.error for result in failed])
  good = [result for result in results if result.index is not None]
  num_new = sum(result.is_new for result in good)
  line = f"{len(results)} files: {num_new} indexed, {len(good) - num_new} fresh"
  print(line + (f", {len(failed)} failed." if failed else "."))
  console.show(describe([result.index for result in good]))
  return 1 if failed else 0


def _check(patterns: Sequence[str], spec: Any) -> int:
  from t2r_seq.records.index import check_index

  states = check_index(patterns, spec)
  bad = [state for state in states if state.state != "fresh"]
  _print_problems(
    [f"{state.state}: {state.filename}: {state.reason}." for state in bad]
  )
  kinds = dict.fromkeys(state.state for state in states)
  counts = [f"{sum(s.state == kind for s in states)} {kind}" for kind in kinds]
  print(f"{len(states)} files: {', '.join(counts)}.")
  if bad:
    print(f"Run: t2r_seq index {' '.join(repr(p) for p in patterns)}")
  else:
    console.show(describe([state.index for state in states]))
  return 1 if bad else 0


def describe(indices: Sequence[Any]) -> str:
  """Returns a line with the numbers of records and steps of indexed files."""
  num_records = sum(index.num_records for index in indices)
  by_name: dict[str, int] = {}
  for index in indices:
    for name, steps in index.steps.items():
      by_name[name] = by_name.get(name, 0) + int(steps.sum())
  line = f"{num_records:,} records"
  for count in sorted(set(by_name.values()), reverse=True):
    names = ", ".join(sorted(name for name in by_name if by_name[name] == count))
    line += f"; {count:,} steps of {names}"
  compressed = sum(bool(index.compression) for index in indices)
  if compressed:
    line += (
      f". {compressed} compressed files: counted, but their records cannot be read in "
      "any order"
    )
  return f"{line}."


def _print_problems(problems: Sequence[str]) -> None:
  for problem in problems[:_MAX_LINES]:
    print(f"t2r_seq index: {console.printable(problem)}", file=sys.stderr)
  if len(problems) > _MAX_LINES:
    rest = len(problems) - _MAX_LINES
    print(f"t2r_seq index: ... and {rest} more", file=sys.stderr)
