"""What is wrong with a store, and what was salvaged, as the terminal shows it."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from t2r_seq import store

WIDTH = 100
_MAX_RANGES = 12
_MAX_FILES = 6


def render_report(report: store.StoreReport) -> str:
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
    f"{_count(total, 'episode')} in {_count(segments, 'segment')}; "
    f"{report.num_bytes:,} bytes compared with their checksums",
  ]
  if report.problems:
    lines += ["", f"{_count(len(report.problems), 'problem')}:"]
    lines += [_item(problem) for problem in report.problems]
  if report.leftovers:
    lines += ["", "Harmless:", *_leftovers(report.leftovers)]
  lines += ["", *_verdict(report)]
  return "\n".join(lines)


def _verdict(report: store.StoreReport) -> Iterator[str]:
  if report.is_whole:
    yield "Every length, offset and checksum of what is committed is right."
    return
  for segment, num_episodes in report.num_episodes.items():
    broken = report.broken_episodes(segment)
    unverified = sorted({*report.unverified.get(segment, ())} - {*broken})
    yield f"{segment}: {len(broken):,} of {_count(num_episodes, 'episode')} damaged" + (
      f" ({episode_ranges(broken)})" if broken else ""
    )
    if unverified:
      yield _wrap(
        f"  {_count(len(unverified), 'episode')} not compared with a checksum "
        f"({episode_ranges(unverified)})"
      )


def render_salvage(report: store.SalvageReport) -> str:
  """Renders which episodes are in the new store, and why others are not.

  Args:
    report: of `salvage_store`.
  Returns:
    Lines of at most 100 columns, joined.
  """
  kept, left_out = len(report.kept), len(report.left_out)
  lines = [
    f"Salvaged {kept:,} of {_count(kept + left_out, 'episode')} to {report.path}"
  ]
  by_reason: dict[tuple[str, str], list[int]] = {}
  for (segment, episode), reason in report.left_out.items():
    by_reason.setdefault((segment, reason), []).append(episode)
  for (segment, reason), episodes in by_reason.items():
    word = "episode" if len(episodes) == 1 else "episodes"
    lines.append(
      _wrap(f"  left out {word} {episode_ranges(episodes)} of {segment}: {reason}")
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


def _item(problem: store.StoreProblem) -> str:
  mismatch = problem.mismatch
  lines = [f"expected {mismatch.expected}, got {mismatch.got}. {mismatch.hint}".strip()]
  if problem.episodes:
    lines.append(f"damaged episodes: {episode_ranges(problem.episodes)}")
  return "\n".join([f"  {problem.place}", *map(_indent, lines)])


def _leftovers(leftovers: Sequence[store.StoreProblem]) -> Iterator[str]:
  """Renders leavings; files with the same story are told of together."""
  by_story: dict[tuple[str, str], list[store.StoreProblem]] = {}
  for leftover in leftovers:
    hint = leftover.mismatch.hint
    by_story.setdefault((leftover.segment, hint or leftover.place), []).append(leftover)
  for (segment, hint), group in by_story.items():
    if len(group) == 1:
      yield _item(group[0])
      continue
    yield f"  {segment or group[0].place}: {_count(len(group), 'file')}"
    names = [f"{p.mismatch.path} ({p.mismatch.got})" for p in group[:_MAX_FILES]]
    rest = len(group) - len(names)
    yield _indent(", ".join(names) + (f" and {rest:,} more" if rest else ""))
    yield _indent(hint)


def _indent(text: str) -> str:
  return textwrap.fill(
    text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4,
    break_long_words=False, break_on_hyphens=False,
  )  # fmt: skip


def _wrap(text: str) -> str:
  return textwrap.fill(text, WIDTH, subsequent_indent=" " * 4, break_on_hyphens=False)


def _count(number: int, noun: str) -> str:
  return f"{number:,} {noun}{'' if number == 1 else 's'}"
