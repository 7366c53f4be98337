"""What is wrong with record files, as the terminal shows it."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from t2r_seq.cli import tables

if TYPE_CHECKING:
  from t2r_seq import records

WIDTH = 100
_MIN_PATH = 12
_MAX_CONSTANT = 4
_MAX_EMPTY = 3


def render_report(report: records.RecordReport, max_shown: int) -> str:
  """Renders what is wrong with record files.

  Args:
    report: of `examine_records`.
    max_shown: bad records that are shown; the others are counted.
  Returns:
    Lines of at most 100 columns, but for file names, joined.
  """
  total = sum(report.num_records.values())
  names = [*report.num_records]
  where = names[0] if len(names) == 1 else f"{len(names):,} files"
  parts = [f"{where}: {_count(total, 'record')}, {report.num_bad:,} bad"]
  if report.features:
    parts.append(_features(report))
  if report.problems:
    parts.append("\n".join(_problems(report, max_shown)))
  notes = [*_notes(report)]
  if notes:
    parts.append("\n".join(["Worth a look:", *notes]))
  if report.is_good:
    checked = (
      "its frames, checksums and protos"
      if not report.features
      else ("the proposed spec" if report.is_proposed else "the specs")
    )
    parts.append(f"Every record is good: it fits {checked}.")
  return "\n\n".join(parts)


def render_salvage(salvaged: records.SalvagedRecords) -> str:
  """Renders what was salvaged.

  Args:
    salvaged: of `salvage_records`.
  Returns:
    Lines, joined.
  """
  kept = sum(salvaged.num_kept.values())
  total = kept + salvaged.num_left_out
  files = _count(len(salvaged.num_kept), "file")
  return (
    f"Salvaged {kept:,} of {_count(total, 'record')} to {files} in {salvaged.folder}"
  )


def _count(number: int, noun: str) -> str:
  return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _features(report: records.RecordReport) -> str:
  header = ["feature", "proposed" if report.is_proposed else "spec"]
  numbers = ["bad", "NaN", "min", "max"]
  rows = [
    [
      feature.path,
      feature.described,
      f"{feature.num_problems:,}",
      f"{feature.num_nan:,}",
      "-" if feature.low is None else f"{feature.low:.5g}",
      "-" if feature.high is None else f"{feature.high:.5g}",
    ]
    for feature in report.features
  ]
  header += numbers
  widths = [max(len(row[i]) for row in [header, *rows]) for i in range(1, len(header))]
  room = max(WIDTH - sum(widths) - 2 * len(widths), _MIN_PATH)
  shown = [[tables.shorten(row[0], room), *row[1:]] for row in rows]
  return tables.format_table(header, shown, numbers)


def _problems(report: records.RecordReport, max_shown: int) -> Iterator[str]:
  """Renders problems, those of a record together."""
  yield f"{_count(len(report.problems), 'problem')}:"
  groups = itertools.groupby(report.problems, lambda problem: problem.place)
  for number, (place, group) in enumerate(groups):
    if number < max_shown:
      yield f"  {place}"
      for problem in group:
        yield _indent(str(problem.mismatch))
  rest = number + 1 - max_shown
  if rest > 0:
    yield f"  and {rest:,} more; --max_shown shows them"


def _notes(report: records.RecordReport) -> Iterator[str]:
  """Says what is no error, but may be a mistake."""
  empty = [name for name, count in report.num_records.items() if not count]
  if empty:
    rest = len(empty) - _MAX_EMPTY
    shown = ", ".join(empty[:_MAX_EMPTY]) + (f" and {rest} more" if rest > 0 else "")
    yield _note(f"{_count(len(empty), 'file')} without a record: {shown}")
  if report.num_empty:
    yield _note(
      f"{_count(report.num_empty, 'episode')} without a step: nothing is read of them"
    )
  for feature in report.features:
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
    yield _note(text)


def _note(text: str) -> str:
  return textwrap.fill(
    text, WIDTH, initial_indent="  ", subsequent_indent="    ",
    break_long_words=False, break_on_hyphens=False,
  )  # fmt: skip


def _indent(text: str) -> str:
  return textwrap.fill(
    text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 6,
    break_long_words=False, break_on_hyphens=False,
  )  # fmt: skip
