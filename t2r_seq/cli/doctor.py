"""`t2r_seq doctor`: finds damage in data sets, and salvages what is good."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from t2r_seq import errors
from t2r_seq.cli import console, sources

if TYPE_CHECKING:
  from t2r_seq.errors import Problem, Report, Salvaged

SUMMARY = "find what is damaged in a store or in TFRecord files, and salvage the rest"
DESCRIPTION = """Finds damage in a store, in TFRecord files, or in another data set.

It verifies the lengths, offsets and checksums of a store; the frames and checksums of
TFRecord files, and whether each record can be parsed: shapes, image sizes, lengths that
disagree. In every format it reports NaN, infinities and time stamps that run backwards.
It exits with 1 if it finds a problem, and names the place; otherwise with 0. The data
is only read; --salvage copies what is good.

  t2r_seq doctor data/my_store
  t2r_seq doctor data/my_store --salvage data/saved_store
  t2r_seq doctor 'data/train*.tfrecord' --spec my_project.specs:episode_spec
  t2r_seq doctor 'data/train*.tfrecord' --salvage data/saved"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  add = parser.add_argument
  add("sources", metavar="SOURCE", nargs="+", help=sources.SOURCE_HELP)
  add(
    "--spec",
    metavar="SPEC",
    help="specs that records must fit (by default those of most records); or those of "
    f"a store whose store.json is damaged: {console.FORMS}",
  )
  add(
    "--schema",
    type=int,
    metavar="N",
    help="of TFRecord files without --spec: compare records with the Nth most frequent "
    "schema (1)",
  )
  sources.add_opening(parser)
  add("--salvage", metavar="OUT", help="copy what is good to a new store or folder")
  add(
    "--lenient",
    action="store_true",
    help="store: also salvage readable episodes without a valid checksum",
  )
  add("--allow_nan", action="store_true", help="accept NaN and infinity")
  add(
    "--time_key",
    action="append",
    default=[],
    metavar="NAME",
    help="a feature, or path, of time stamps, which must not run backwards; can be "
    "repeated. Those with such a name (time, timestamp, stamp_ns ...), and "
    "clocks/<topic> of MCAP, are always checked",
  )
  add(
    "--max_shown",
    type=int,
    default=20,
    metavar="N",
    help="number of bad records, episodes or files of a kind to show (20)",
  )


def run(args: argparse.Namespace) -> int:
  """Prints the problems, and what was salvaged."""
  folders = [source for source in args.sources if os.path.isdir(source)]
  if folders and len(args.sources) > 1:
    raise console.UsageError(
      f"expected one store, or TFRecord files, got {' '.join(args.sources)}; "
      f"{folders[0]} is a folder."
    )
  # By its segments: a store without store.json can be checked and salvaged.
  is_store = any(os.path.isdir(os.path.join(name, "segments")) for name in folders)
  _check_options(args, bool(folders))
  if not is_store:
    console.load_tensorflow()
  saved = None if args.salvage is None else _salvage(args, is_store)
  report = _check(args, is_store) if saved is None else saved.source
  console.show("\n\n".join(_render(report, args.max_shown)))
  if saved is not None:
    console.show("\n" + "\n".join(_describe_salvage(saved, args.max_shown)))
  elif is_store:
    total = sum(report.counts.values())
    if unfinished := sources.unfinished_conversion(args.sources[0], total):
      console.show(f"\n{unfinished}")
      return 1
  return 0 if report.is_good else 1


def _check_options(args: argparse.Namespace, is_folder: bool) -> None:
  if not is_folder and args.lenient:
    raise console.UsageError("--lenient is for a store; this is not a folder.")
  if args.lenient and not args.salvage:
    raise console.UsageError("--lenient: no effect without --salvage OUT.")
  if args.schema is not None and (is_folder or args.spec):
    raise console.UsageError("--schema is for TFRecord files without --spec.")
  if args.salvage == "":
    raise console.UsageError("--salvage: expected a path, got ''.")
  if args.salvage:  # Checked before the data is read, which may take hours.
    from t2r_seq import files

    files.check_vacant("--salvage", args.salvage, console.UsageError)
  if args.max_shown < 0:
    raise console.UsageError(f"--max_shown must be >= 0, got {args.max_shown}.")


def _check(args: argparse.Namespace, is_store: bool) -> Report:
  from t2r_seq import checks

  options = sources.opening_options(args)
  spec = labels = None
  if is_store:
    spec = _store_spec(args)
  elif sources.are_records(args.sources, args):
    spec, labels = console.load_specs(args.spec) if args.spec else (None, None)
  elif args.salvage or args.spec or args.lenient:
    raise console.UsageError(
      "--salvage, --spec and --lenient are for stores and TFRecord files."
    )
  options |= {"allow_nan": args.allow_nan, "time_keys": args.time_key}
  schema = 1 if args.schema is None else args.schema
  paths = ",".join(args.sources)
  report = checks.check(paths, spec, labels, schema=schema, **options)
  if report.unit == "record" and not any(report.counts.values()):
    raise console.UsageError(f"there are no records in {' '.join(args.sources)}.")
  return report


def _store_spec(args: argparse.Namespace) -> Any:
  from t2r_seq import windows

  return windows.flat_specs(console.load_store_specs(args.spec)) if args.spec else None


def _salvage(args: argparse.Namespace, is_store: bool) -> Salvaged:
  from t2r_seq.records.check import salvage_records
  from t2r_seq.store.salvage import salvage_store

  if not is_store:
    return salvage_records(_check(args, is_store), args.salvage)
  allowed = ("spec", "salvage", "lenient", "max_shown")
  console.reject_options(args, allowed, "with --salvage, which copies a whole store")
  (folder,) = args.sources
  return salvage_store(folder, args.salvage, _store_spec(args), args.lenient)


def _describe_salvage(saved: Salvaged, max_shown: int) -> Iterator[str]:
  """Yields how much was copied, and what was left out, and why."""
  kept, unit = sum(saved.num_kept.values()), saved.source.unit
  total = console.count(kept + len(saved.left_out), unit)
  yield f"Salvaged {kept:,} of {total} to {saved.path}"
  groups: dict[tuple[str, str], list[int]] = {}
  for (source, number), reason in saved.left_out.items():
    groups.setdefault((source, reason), []).append(number)
  for (source, reason), numbers in [*groups.items()][:max_shown]:
    word = unit if len(numbers) == 1 else f"{unit}s"
    text = f"left out {word} {errors.ranges(numbers)} of {source}: {reason}"
    yield console.fill(text)
  yield from _rest([*groups], max_shown)


def _render(report: Report, max_shown: int) -> Iterator[str]:
  total = console.count(sum(report.counts.values()), report.unit)
  heading = f"{report.path}: {total}, {report.num_bad:,} bad"
  if report.num_bytes:
    heading += f"; {report.num_bytes:,} bytes compared with checksums"
  yield heading
  for kind, label in errors.KINDS.items():
    problems = [problem for problem in report.problems if problem.kind == kind]
    if problems:
      title = f"{console.count(len(problems), 'problem')} ({label}):"
      yield "\n".join([title, *_problems(problems, max_shown)])
  bad = {source: report.bad(source) for source in report.counts}
  lines = [
    f"{source}: {len(bad[source]):,} of {console.count(count, report.unit)} bad "
    f"({errors.ranges(bad[source])})"
    for source, count in report.counts.items()
    if bad[source]
  ]
  if lines:
    head = [*map(console.fill, lines[:max_shown])]
    yield "\n".join([*head, *_rest(lines, max_shown)])
  if report.paths:
    numbers = ["bad", "absent", "NaN"]
    rows = [
      [p.path, p.described, *map(str, (p.num_problems, p.num_absent, p.num_nan))]
      for p in report.paths
    ]
    header = ["path", "spec", *numbers]
    yield console.format_table(header, rows, numbers, is_narrow=True)
  if report.notes:
    yield "\n".join(["Worth a look:", *map(console.fill, report.notes)])
  if report.is_good:
    yield f"No problems in {total}."


def _rest(items: Sequence[object], max_shown: int) -> list[str]:
  rest = len(items) - max_shown
  return [f"  and {rest:,} more; --max_shown shows them"] if rest > 0 else []


def _problems(found: Sequence[Problem], max_shown: int) -> Iterator[str]:
  """Yields the lines of problems of one kind, each under its place."""
  places = [
    [*alike] for _, alike in itertools.groupby(found, lambda p: p.place or p.text)
  ]
  for alike in places[:max_shown]:
    if alike[0].place:
      yield f"  {alike[0].place}:"
    for problem in alike:
      for line in problem.text.split("\n"):
        yield console.fill(line, 4, 6)
      if problem.source and problem.episodes:
        yield console.fill(f"damaged episodes: {errors.ranges(problem.episodes)}", 4, 4)
  yield from _rest(places, max_shown)
