"""`t2r_seq doctor`: finds what is damaged, and saves what is not."""

from __future__ import annotations

import argparse
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from t2r_seq.cli import console, inspect, sources

if TYPE_CHECKING:
  from t2r_seq.records.check import RecordReport
  from t2r_seq.records.explain import RecordProblem
  from t2r_seq.records.salvage import SalvagedRecords
  from t2r_seq.store.check import StoreProblem, StoreReport
  from t2r_seq.store.salvage import SalvageReport

_MAX_CONSTANT = 4
_MAX_EMPTY, _MAX_UNCHECKED = 3, 8
_OF_SCHEMAS = (
  "Which is right nobody has said: name the --spec, or judge by --schema N; --salvage "
  "copies\nthe records that fit."
)


def render_record_report(report: RecordReport, max_shown: int) -> str:
  """Renders what is wrong with record files.

  Args:
    report: of `examine_records`.
    max_shown: bad records that are shown; the others are counted.
  Returns:
    Lines of at most 100 columns, but for file names, joined.
  """
  from t2r_seq import records

  total = sum(report.num_records.values())
  names = [*report.num_records]
  where = names[0] if len(names) == 1 else f"{len(names):,} files"
  parts = [f"{where}: {console.count(total, 'record')}, {report.num_bad:,} bad"]
  problems = sorted(report.problems, key=lambda problem: _order(problem)[0])
  if report.num_bad > 1:
    parts.append(_kinds(problems))
  if problems:
    parts.append("\n".join(_problems(problems, max_shown)))
  schemas = records.describe_schemas(report.summary) if report.summary else []
  if schemas:
    parts.append(
      "\n".join([schemas[0] + ":", *map(console.fill, schemas[1:]), _OF_SCHEMAS])
    )
  if report.features:
    parts.append(_features(report))
  notes = [*_notes(report)]
  if notes:
    parts.append("\n".join(["Worth a look:", *notes]))
  if report.is_good:
    checked = (
      "its frames, checksums and protos"
      if not report.features
      else ("the specs" if report.summary is None else "the proposed spec")
    )
    parts.append(f"Every record is good: it fits {checked}.")
  return "\n\n".join(parts)


def render_record_salvage(salvaged: SalvagedRecords) -> str:
  """Renders what was salvaged.

  Args:
    salvaged: of `salvage_records`.
  Returns:
    Lines, joined.
  """
  kept = sum(salvaged.num_kept.values())
  total = kept + salvaged.num_left_out
  files = console.count(len(salvaged.num_kept), "file")
  records = console.count(total, "record")
  return f"Salvaged {kept:,} of {records} to {files} in {salvaged.folder}"


def _features(report: RecordReport) -> str:
  header = ["feature", "proposed" if report.summary else "spec"]
  numbers = ["bad", "absent", "NaN", "min", "max"]
  rows = [
    [
      feature.path,
      feature.described,
      f"{feature.num_problems:,}",
      f"{feature.num_absent:,}",
      f"{feature.num_nan:,}",
      "-" if feature.low is None else f"{feature.low:.5g}",
      "-" if feature.high is None else f"{feature.high:.5g}",
    ]
    for feature in report.features
  ]
  return console.format_table([*header, *numbers], rows, numbers, is_narrow=True)


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


def _order(problem: RecordProblem) -> tuple[int, str]:
  """Returns where a problem comes in a report, and the feature that it is about."""
  return [*_KINDS].index(problem.kind), problem.feature


def _short_place(problem: RecordProblem) -> str:
  name = os.path.basename(problem.filename)
  return name if problem.record is None else f"{name}, record {problem.record}"


def _kinds(problems: Sequence[RecordProblem]) -> str:
  """Renders a table of problems: by kind and feature, with the first of each."""
  header = ["kind", "feature", "records", "files", "first"]
  rows = []
  for (kind, feature), group in itertools.groupby(sorted(problems, key=_order), _order):
    alike = [*group]
    rows.append(
      [
        [*_KINDS.values()][kind],
        console.shorten(feature, _PLACE // 2) or "-",
        f"{len({(each.filename, each.record) for each in alike}):,}",
        f"{len({each.filename for each in alike}):,}",
        console.shorten(_short_place(alike[0]), _PLACE),
      ]
    )
  table = console.format_table(header, rows[:_MAX_KINDS], ("records", "files"))
  rest = len(rows) - _MAX_KINDS
  return table + (f"\nand {rest} more kinds" if rest > 0 else "")


def _problems(problems: Sequence[RecordProblem], max_shown: int) -> Iterator[str]:
  """Renders problems, those of a record together."""
  yield f"{console.count(len(problems), 'problem')}:"
  groups = itertools.groupby(problems, lambda problem: problem.place)
  for number, (place, group) in enumerate(groups):
    if number < max_shown:
      yield f"  {place}"
      for problem in group:
        yield console.fill(str(problem.mismatch), 4, 6)
  rest = number + 1 - max_shown
  if rest > 0:
    yield f"  and {rest:,} more; --max_shown shows them"


def _notes(report: RecordReport) -> Iterator[str]:
  """Says what is no error, but may be a mistake."""
  empty = [name for name, count in report.num_records.items() if not count]
  if empty:
    rest = len(empty) - _MAX_EMPTY
    shown = ", ".join(empty[:_MAX_EMPTY]) + (f" and {rest} more" if rest > 0 else "")
    yield console.fill(f"{console.count(len(empty), 'file')} without a record: {shown}")
  if report.num_empty:
    yield console.fill(
      f"{console.count(report.num_empty, 'episode')} without a step: nothing is read "
      "of them"
    )
  if report.unchecked:
    total = len(report.features) + len(report.unchecked)
    names = ", ".join(report.unchecked[:_MAX_UNCHECKED])
    rest = len(report.unchecked) - _MAX_UNCHECKED
    names += f" and {rest} more" if rest > 0 else ""
    yield console.fill(
      f"{len(report.unchecked)} of {console.count(total, 'feature')} were not checked, "
      f"for want of a spec: {names}"
    )
  for feature in report.features:
    if math.inf in (feature.high, -(feature.low or 0)):
      yield console.fill(f"{feature.path}: has infinite values")
    if not feature.constant:
      continue
    shown = ", ".join(map(str, feature.constant[:_MAX_CONSTANT]))
    if feature.num_values == 1:
      text = f"{feature.path}: never changes: it is always {feature.low:.6g}"
    elif len(feature.constant) == feature.num_values:
      text = f"{feature.path}: none of its {feature.num_values} values ever changes"
    else:
      rest = len(feature.constant) - _MAX_CONSTANT
      shown += f" and {rest} more" if rest > 0 else ""
      text = (
        f"{feature.path}: {len(feature.constant)} of its {feature.num_values} values "
        f"never change (number {shown})"
      )
    yield console.fill(text)


_MAX_RANGES = 12


def render_store_report(report: StoreReport) -> str:
  """Renders what is wrong with a store.

  Args:
    report: of `verify_store`.
  Returns:
    Lines of at most 100 columns, joined.
  """
  total = sum(report.num_episodes.values())
  segments = len(report.num_episodes)
  lines = [
    f"{report.path}:",
    f"{console.count(total, 'episode')} in {console.count(segments, 'segment')}; "
    f"{report.num_bytes:,} bytes compared with their checksums",
  ]
  if report.problems:
    lines += ["", f"{console.count(len(report.problems), 'problem')}:"]
    lines += [_item(problem) for problem in report.problems]
  lines += ["", *_verdict(report)]
  return "\n".join(lines)


def _verdict(report: StoreReport) -> Iterator[str]:
  if report.is_whole:
    yield "Every length, offset and checksum of what is committed is right."
    return
  for segment, num_episodes in report.num_episodes.items():
    broken = report.broken_episodes(segment)
    unverified = sorted({*report.unverified.get(segment, ())} - {*broken})
    yield (
      f"{segment}: {len(broken):,} of {console.count(num_episodes, 'episode')} damaged"
      + (f" ({episode_ranges(broken)})" if broken else "")
    )
    if unverified:
      yield console.fill(
        f"{console.count(len(unverified), 'episode')} not compared with a checksum "
        f"({episode_ranges(unverified)})"
      )


def render_store_salvage(report: SalvageReport) -> str:
  """Renders which episodes are in the new store, and why others are not.

  Args:
    report: of `salvage_store`.
  Returns:
    Lines of at most 100 columns, joined.
  """
  kept, left_out = len(report.kept), len(report.left_out)
  lines = [
    f"Salvaged {kept:,} of {console.count(kept + left_out, 'episode')} to {report.path}"
  ]
  by_reason: dict[tuple[str, str], list[int]] = {}
  for (segment, episode), reason in report.left_out.items():
    by_reason.setdefault((segment, reason), []).append(episode)
  for (segment, reason), episodes in by_reason.items():
    word = "episode" if len(episodes) == 1 else "episodes"
    lines.append(
      console.fill(f"left out {word} {episode_ranges(episodes)} of {segment}: {reason}")
    )
  return "\n".join(lines)


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
  return ", ".join(runs[:_MAX_RANGES]) + (
    f" and {rest} more ranges" if rest > 0 else ""
  )


def _item(problem: StoreProblem) -> str:
  mismatch = problem.mismatch
  lines = [f"expected {mismatch.expected}, got {mismatch.got}. {mismatch.hint}".strip()]
  if problem.episodes:
    lines.append(f"damaged episodes: {episode_ranges(problem.episodes)}")
  return "\n".join(
    [f"  {problem.place}", *(console.fill(line, 4, 4) for line in lines)]
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
    f"it was created with, if its store.json is damaged: {console.FORMS}",
  )
  parser.add_argument(
    "--schema",
    type=int,
    metavar="N",
    help="of TFRecord files without --spec: judge by the records of the Nth schema (1)",
  )
  sources.add_opening(parser)
  parser.add_argument(
    "--salvage", metavar="OUT", help="copy what is good to a new store, or folder"
  )
  parser.add_argument(
    "--lenient",
    action="store_true",
    help="of a store: salvage what has no checksum to compare with, too",
  )
  parser.add_argument(
    "--allow_nan", action="store_true", help="a NaN is no problem; not of a store"
  )
  parser.add_argument(
    "--time_key",
    action="append",
    default=[],
    metavar="NAME",
    help="a feature, or path, of time stamps, which must not run backwards; those that "
    "are called time or timestamp, and clocks/<topic> of MCAP, are looked at anyway",
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
  if args.salvage and os.path.lexists(args.salvage):
    # Before all is read, which may take hours.
    kind = "folder" if os.path.isdir(args.salvage) else "file"
    raise console.UsageError(
      f"--salvage {args.salvage}: expected nothing there, got a {kind}. Name a new "
      "folder."
    )
  if args.max_shown < 0:
    raise console.UsageError(f"--max_shown must be >= 0, got {args.max_shown}.")


def _check_store(args: argparse.Namespace) -> int:
  from t2r_seq import store, windows
  from t2r_seq.episodes.splits import describe_overlaps, describe_splits
  from t2r_seq.store.splits import read_splits

  if args.allow_nan:
    raise console.UsageError(
      "--allow_nan is for TFRecord files and other formats; this is a store."
    )
  spec = None
  if args.spec:
    spec = windows.flat_specs(console.load_store_specs(args.spec))
  if args.salvage is None:
    report = store.verify_store(args.sources[0], spec=spec)
    console.show(render_store_report(report))
    splits = read_splits(os.path.abspath(args.sources[0]), report.num_episodes)
    if splits:
      console.show(f"\n{describe_splits(splits)}")
      for shared in describe_overlaps(splits):
        console.show(console.fill(shared))
    total = sum(report.num_episodes.values())
    told = sources.unfinished_conversion(args.sources[0], total)
    if told:
      console.show(f"\n{told}")
    if args.split is not None:
      return _check_split(report, args.split, splits)
    return 0 if report.is_whole and not _check_times(args) and not told else 1
  if args.split is not None:
    raise console.UsageError("--split and --salvage: a whole store is salvaged.")
  salvaged = store.salvage_store(args.sources[0], args.salvage, spec, args.lenient)
  console.show(render_store_report(salvaged.source))
  print()
  console.show(render_store_salvage(salvaged))
  return 0 if salvaged.source.is_whole else 1


def _check_times(args: argparse.Namespace) -> int:
  """Shows in which episodes of a whole store time stamps run backwards; counts them."""
  from t2r_seq import store
  from t2r_seq.checks import times

  opened = store.EpisodeStore(args.sources[0])
  found = [*times.check_store(opened, args.time_key)]
  if found:
    print(f"\n{console.count(len(found), 'problem')} of time stamps:")
  return _show(found, args.max_shown)


def _show(problems: Iterable[object], max_shown: int) -> int:
  """Shows the first problems when they are found; returns how many there are."""
  found = 0
  for problem in problems:
    found += 1
    if found <= max_shown:
      console.show(console.fill(str(problem)))
  if found > max_shown:
    print(f"  and {found - max_shown:,} more; --max_shown shows them")
  return found


def _check_split(
  report: StoreReport, split: str, splits: Mapping[str, Sequence[int]]
) -> int:
  """Says which episodes of a split are damaged."""

  total = sum(report.num_episodes.values())
  where = f"doctor: {report.path}"
  from t2r_seq.episodes import choose_episodes

  chosen = choose_episodes(where, total, None, split, splits)
  broken, first = set(), 0
  for segment, num_episodes in report.num_episodes.items():
    broken |= {first + number for number in report.broken_episodes(segment)}
    first += num_episodes
  found = sorted(broken & {*(chosen.tolist() if chosen is not None else ())})
  shown = f" ({episode_ranges(found)})" if found else ""
  print(
    f"split {split}: {len(found):,} of "
    f"{console.count(len(splits[split]), 'episode')} damaged{shown}"
  )
  return 1 if found else 0


def _check_episodes(args: argparse.Namespace) -> int:
  """Reads every episode."""
  from t2r_seq import checks

  if args.salvage or args.spec or args.lenient:
    raise console.UsageError(
      "--salvage, --spec and --lenient are for stores and TFRecord files."
    )
  source = sources.open_source(args.sources, args)
  console.show("\n\n".join(inspect.render_episodes(source)))
  print()
  problems = checks.check_episodes(source, args.time_key, args.allow_nan)
  found = _show(problems, args.max_shown)
  count = source.num_episodes
  total = "the episodes" if count is None else console.count(count, "episode")
  print(
    f"{console.count(found, 'problem')} in {total}"
    if found
    else f"Every one of {total} can be read in full."
  )
  return 1 if found else 0


def _check_records(args: argparse.Namespace) -> int:
  from t2r_seq import records

  args.sources = sources.record_files(args.sources, args.split)
  features, labels = console.load_specs(args.spec) if args.spec else (None, None)
  report = records.examine_records(
    args.sources,
    features,
    labels,
    allow_nan=args.allow_nan,
    time_keys=args.time_key,
    schema=1 if args.schema is None else args.schema,
  )
  if not any(report.num_records.values()):
    raise console.UsageError(f"there are no records in {' '.join(args.sources)}.")
  console.show(render_record_report(report, args.max_shown))
  if args.salvage is not None:
    print()
    salvaged = records.salvage_records(report, args.salvage)
    console.show(render_record_salvage(salvaged))
  return 0 if report.is_good else 1
