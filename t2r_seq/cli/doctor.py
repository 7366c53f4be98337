"""`t2r_seq doctor`: finds what is damaged, and saves what is not."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from t2r_seq.cli import console, inspect, sources

if TYPE_CHECKING:
  from t2r_seq.errors import Problem
  from t2r_seq.records.check import RecordReport
  from t2r_seq.store.check import StoreReport
  from t2r_seq.store.salvage import SalvageReport

SUMMARY = "find what is damaged in a store or in TFRecord files, and salvage the rest"
DESCRIPTION = """Finds faults of a store, of TFRecord files, or of another data set.

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
  add = parser.add_argument
  add(
    "sources",
    metavar="SOURCE",
    nargs="+",
    help="folder of an EpisodeStore, or TFRecord files or patterns",
  )
  add(
    "--spec",
    metavar="SPEC",
    help="what records must fit (by default what most seem to have); of a store, what "
    f"it was created with, if its store.json is damaged: {console.FORMS}",
  )
  add(
    "--schema",
    type=int,
    metavar="N",
    help="of TFRecord files without --spec: judge by the records of the Nth schema (1)",
  )
  sources.add_opening(parser)
  add("--salvage", metavar="OUT", help="copy what is good to a new store, or folder")
  add(
    "--lenient",
    action="store_true",
    help="store: also salvage readable episodes without a valid checksum",
  )
  add("--allow_nan", action="store_true", help="a NaN is no problem; not of a store")
  add(
    "--time_key",
    action="append",
    default=[],
    metavar="NAME",
    help="a feature, or path, of time stamps, which must not run backwards; those that "
    "are called time or timestamp, and clocks/<topic> of MCAP, are looked at anyway",
  )
  add(
    "--max_shown",
    type=int,
    default=20,
    metavar="N",
    help="how many bad records or episodes are shown (20); all files of a store are",
  )


def run(args: argparse.Namespace) -> int:
  """Prints what is wrong, and what was salvaged."""
  folders = [source for source in args.sources if os.path.isdir(source)]
  if folders and len(args.sources) > 1:
    raise console.UsageError(
      f"expected one store, or TFRecord files, got {' '.join(args.sources)}; "
      f"{folders[0]} is a folder."
    )
  is_store = bool(folders)
  _check_options(args, is_store)
  # A store without its store.json can be salvaged, too.
  has_segments = is_store and os.path.isdir(os.path.join(folders[0], "segments"))
  if (has_segments or sources.is_store(args.sources)) and not args.drop:
    return _check_store(args)
  console.load_tensorflow()
  from t2r_seq.records import framing

  # The frames of ArrayRecord are its library's; the episodes are checked.
  is_array = framing.is_array_record(args.sources[0])
  if sources.are_records(args.sources, args) and not is_array:
    return _check_records(args)
  return _check_episodes(args)


def _check_options(args: argparse.Namespace, is_store: bool) -> None:
  if not is_store and args.lenient:
    raise console.UsageError("--lenient is for a store; this is no folder.")
  if args.schema is not None and (is_store or args.spec):
    raise console.UsageError("--schema is for TFRecord files without --spec.")
  if args.salvage == "":
    raise console.UsageError("--salvage: expected a path, got ''.")
  if args.salvage:  # Before all is read, which may take hours.
    from t2r_seq import files

    files.check_vacant("--salvage", args.salvage, console.UsageError)
  if args.max_shown < 0:
    raise console.UsageError(f"--max_shown must be >= 0, got {args.max_shown}.")


def show_problems(problems: Iterable[Problem], max_shown: int | None) -> int:
  """Prints problems when they are found; those of a record or file under its place.

  Args:
    problems: of any format.
    max_shown: places that are shown; the others are counted. None for all.
  Returns:
    The number of problems.
  """
  num_found = num_places = 0
  last: object = None
  for problem in problems:
    num_found += 1
    is_new = not problem.source or problem.place != last
    last = problem.place
    num_places += is_new
    if max_shown is not None and num_places > max_shown:
      continue
    if not problem.source:
      console.show(console.fill(str(problem)))
      continue
    if is_new:
      console.show(f"  {problem.place}")
    console.show(console.fill(problem.text, 4, 6 if problem.kind else 4))
    if problem.episodes:
      ranges = episode_ranges(problem.episodes)
      console.show(console.fill(f"damaged episodes: {ranges}", 4, 4))
  if max_shown is not None and num_places > max_shown:
    print(f"  and {num_places - max_shown:,} more; --max_shown shows them")
  return num_found


def _check_store(args: argparse.Namespace) -> int:
  from t2r_seq import store, windows
  from t2r_seq.checks.check import check_time_stamps
  from t2r_seq.episodes.splits import describe_overlaps, describe_splits
  from t2r_seq.store.manifest import read_splits
  from t2r_seq.store.salvage import salvage_store

  if args.allow_nan:
    raise console.UsageError(
      "--allow_nan is for TFRecord files and other formats; this is a store."
    )
  (folder,) = args.sources
  spec = None
  if args.spec:
    spec = windows.flat_specs(console.load_store_specs(args.spec))
  if args.salvage is not None:
    if args.split is not None:
      raise console.UsageError("--split and --salvage: a whole store is salvaged.")
    salvaged = salvage_store(folder, args.salvage, spec, args.lenient)
    _show_store(salvaged.source)
    console.show("\n" + "\n".join(_describe_salvage(salvaged)))
    return 0 if salvaged.source.is_whole else 1
  report = store.verify_store(folder, spec=spec)
  _show_store(report)
  splits = read_splits(os.path.abspath(folder), report.num_episodes)
  if splits:
    console.show(f"\n{describe_splits(splits)}")
    for shared in describe_overlaps(splits):
      console.show(console.fill(shared))
  total = sum(report.num_episodes.values())
  unfinished = sources.unfinished_conversion(folder, total)
  if unfinished:
    console.show(f"\n{unfinished}")
  if args.split is not None:
    return _check_split(report, args.split, splits)
  if not report.is_whole or unfinished:
    return 1
  problems = [*check_time_stamps(store.EpisodeStore(folder), args.time_key)]
  if problems:
    print(f"\n{console.count(len(problems), 'problem')} of time stamps:")
  return 1 if show_problems(problems, args.max_shown) else 0


def _show_store(report: StoreReport) -> None:
  """Prints what is wrong with a store."""
  total = sum(report.num_episodes.values())
  segments = console.count(len(report.num_episodes), "segment")
  console.show(
    f"{report.path}:\n{console.count(total, 'episode')} in {segments}; "
    f"{report.num_bytes:,} bytes compared with their checksums\n"
  )
  if report.is_whole:
    print("Every length, offset and checksum of what is committed is right.")
    return
  print(f"{console.count(len(report.problems), 'problem')}:")
  show_problems(report.problems, None)
  print()
  for segment, num_episodes in report.num_episodes.items():
    broken = report.broken_episodes(segment)
    ranges = f" ({episode_ranges(broken)})" if broken else ""
    of_all = console.count(num_episodes, "episode")
    console.show(f"{segment}: {len(broken):,} of {of_all} damaged{ranges}")
    unverified = sorted({*report.unverified.get(segment, ())} - {*broken})
    if unverified:
      unknown = f"{console.count(len(unverified), 'episode')} not compared with a"
      console.show(console.fill(f"{unknown} checksum ({episode_ranges(unverified)})"))


def _describe_salvage(report: SalvageReport) -> Iterator[str]:
  """Yields which episodes are in the new store, and why others are not."""
  kept, left_out = len(report.kept), len(report.left_out)
  total = console.count(kept + left_out, "episode")
  yield f"Salvaged {kept:,} of {total} to {report.path}"
  by_reason: dict[tuple[str, str], list[int]] = {}
  for (segment, episode), reason in report.left_out.items():
    by_reason.setdefault((segment, reason), []).append(episode)
  for (segment, reason), episodes in by_reason.items():
    word = "episode" if len(episodes) == 1 else "episodes"
    yield console.fill(
      f"left out {word} {episode_ranges(episodes)} of {segment}: {reason}"
    )


def _check_split(
  report: StoreReport, split: str, splits: Mapping[str, Sequence[int]]
) -> int:
  """Prints which episodes of a split are damaged."""
  from t2r_seq.episodes.splits import choose_episodes

  total = sum(report.num_episodes.values())
  chosen = choose_episodes(f"doctor: {report.path}", total, None, split, splits)
  broken, first = set(), 0
  for segment, num_episodes in report.num_episodes.items():
    broken |= {first + number for number in report.broken_episodes(segment)}
    first += num_episodes
  broken_chosen = sorted(broken & {*(chosen.tolist() if chosen is not None else ())})
  shown = f" ({episode_ranges(broken_chosen)})" if broken_chosen else ""
  of_all = console.count(len(splits[split]), "episode")
  print(f"split {split}: {len(broken_chosen):,} of {of_all} damaged{shown}")
  return 1 if broken_chosen else 0


_MAX_RANGES = 12


def episode_ranges(episodes: Sequence[int]) -> str:
  """Renders numbers as ranges: '0 to 2, 7, 9 to 11', the first dozen."""
  runs = []
  for _, run in itertools.groupby(enumerate(sorted(episodes)), lambda p: p[1] - p[0]):
    numbers = [number for _, number in run]
    if len(numbers) < 3:
      runs += [f"{number}" for number in numbers]
    else:
      runs.append(f"{numbers[0]} to {numbers[-1]}")
  rest = len(runs) - _MAX_RANGES
  more = f" and {rest} more ranges" if rest > 0 else ""
  return ", ".join(runs[:_MAX_RANGES]) + more


def _check_episodes(args: argparse.Namespace) -> int:
  """Prints a summary, checks every episode; returns the exit status."""
  from t2r_seq import checks

  if args.salvage or args.spec or args.lenient:
    raise console.UsageError(
      "--salvage, --spec and --lenient are for stores and TFRecord files."
    )
  source = sources.open_source(args.sources, args)
  console.show("\n\n".join(inspect.render_episodes(source)) + "\n")
  problems = checks.check_episodes(source, args.time_key, args.allow_nan)
  num_problems = show_problems(problems, args.max_shown)
  count = source.num_episodes
  total = "the episodes" if count is None else console.count(count, "episode")
  if num_problems:
    print(f"{console.count(num_problems, 'problem')} in {total}")
  else:
    print(f"No problems in {total}.")
  return 1 if num_problems else 0


# Damage comes first: it is rare, and nothing else explains it.
_KINDS = {
  "frame": "damaged bytes",
  "index": "index",
  "content": "other content",
  "lengths": "lengths that differ",
  "episodes": "parts of episodes",
  "times": "time stamps",
  "nan": "NaN",
}
_PLACE, _MAX_KINDS = 44, 20
_OF_SCHEMAS = (
  "Which is right is unknown: name the --spec, or judge by --schema N; --salvage "
  "copies the\nrecords that fit."
)


def _check_records(args: argparse.Namespace) -> int:
  from t2r_seq.records.check import examine_records, salvage_records

  patterns = sources.record_files(args.sources, args.split)
  features, labels = console.load_specs(args.spec) if args.spec else (None, None)
  report = examine_records(
    patterns,
    features,
    labels,
    allow_nan=args.allow_nan,
    time_keys=args.time_key,
    schema=1 if args.schema is None else args.schema,
  )
  if not any(report.num_records.values()):
    raise console.UsageError(f"there are no records in {' '.join(patterns)}.")
  _show_records(report, args.max_shown)
  if args.salvage is not None:
    salvaged = salvage_records(report, args.salvage)
    kept = sum(salvaged.num_kept.values())
    total = console.count(kept + salvaged.num_left_out, "record")
    files = console.count(len(salvaged.num_kept), "file")
    console.show(f"\nSalvaged {kept:,} of {total} to {files} in {salvaged.folder}")
  return 0 if report.is_good else 1


def _show_records(report: RecordReport, max_shown: int) -> None:
  """Prints what is wrong with record files."""
  total = sum(report.num_records.values())
  names = [*report.num_records]
  where = names[0] if len(names) == 1 else f"{len(names):,} files"
  console.show(f"{where}: {console.count(total, 'record')}, {report.num_bad:,} bad")
  order = [*_KINDS]
  problems = sorted(report.problems, key=lambda problem: order.index(problem.kind))
  if report.num_bad > 1:
    console.show(f"\n{_kinds(problems)}")
  if problems:
    print(f"\n{console.count(len(problems), 'problem')}:")
    show_problems(problems, max_shown)
  schemas = report.summary.describe_schemas() if report.summary else []
  if schemas:
    lines = [schemas[0] + ":", *map(console.fill, schemas[1:]), _OF_SCHEMAS]
    console.show("\n" + "\n".join(lines))
  if report.features:
    console.show(f"\n{_features(report)}")
  notes = [*_notes(report)]
  if notes:
    console.show("\nWorth a look:\n" + "\n".join(map(console.fill, notes)))
  if report.is_good:
    checked = "the specs" if report.summary is None else "the proposed spec"
    if not report.features:
      checked = "its frames, checksums and protos"
    print(f"\nEvery record is good: it fits {checked}.")


def _kinds(problems: Sequence[Problem]) -> str:
  """Renders a table of problems: by kind and feature, with the first of each."""
  header = ["kind", "feature", "records", "files", "first"]
  groups: dict[tuple[str, str], list[Problem]] = {}
  for problem in sorted(problems, key=lambda p: ([*_KINDS].index(p.kind), p.path)):
    groups.setdefault((problem.kind, problem.path), []).append(problem)
  rows = []
  for (kind, feature), alike in groups.items():
    first = os.path.basename(alike[0].source)
    if alike[0].record is not None:
      first += f", record {alike[0].record}"
    rows.append(
      [
        _KINDS[kind],
        console.shorten(feature, _PLACE // 2) or "-",
        f"{len({(each.source, each.record) for each in alike}):,}",
        f"{len({each.source for each in alike}):,}",
        console.shorten(first, _PLACE),
      ]
    )
  table = console.format_table(header, rows[:_MAX_KINDS], ("records", "files"))
  rest = len(rows) - _MAX_KINDS
  return table + (f"\nand {rest} more kinds" if rest > 0 else "")


def _features(report: RecordReport) -> str:
  header = ["feature", "proposed" if report.summary else "spec"]
  numbers = ["bad", "absent", "NaN"]
  rows = [
    [
      feature.path,
      feature.described,
      f"{feature.num_problems:,}",
      f"{feature.num_absent:,}",
      f"{feature.num_nan:,}",
    ]
    for feature in report.features
  ]
  return console.format_table([*header, *numbers], rows, numbers, is_narrow=True)


def _first(names: Sequence[object], limit: int) -> str:
  """Lists the first names, and how many others there are."""
  rest = len(names) - limit
  return ", ".join(map(str, names[:limit])) + (f" and {rest} more" if rest > 0 else "")


def _notes(report: RecordReport) -> Iterator[str]:
  """Yields what is no error, but may be a mistake."""
  empty = [name for name, count in report.num_records.items() if not count]
  if empty:
    yield f"{console.count(len(empty), 'file')} without a record: {_first(empty, 3)}"
  if report.num_empty:
    episodes = console.count(report.num_empty, "episode")
    yield f"{episodes} without a step: nothing is read of them"
  if report.unchecked:
    total = len(report.features) + len(report.unchecked)
    yield (
      f"{len(report.unchecked)} of {console.count(total, 'feature')} were not checked, "
      f"because no spec reads them: {_first(report.unchecked, 8)}"
    )
