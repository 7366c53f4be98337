"""A store, as the terminal shows it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from t2r_seq.cli import tables

if TYPE_CHECKING:
  from t2r_seq import store

WIDTH = 100
_MIN_PATH = 12
_MAX_NAME = 36
_NUM_BINS = 8
_BAR = 40


def render_summary(summary: store.StoreSummary, source: str | None) -> str:
  """Renders what a store holds.

  Args:
    summary: of `summarize_store`.
    source: where the specs of the windows come from; None for the usual stacks.
  Returns:
    Lines of at most 100 columns, joined.
  """
  num_steps = int(summary.lengths.sum())
  heading = ", ".join(
    [
      _count(len(summary.lengths), "episode"),
      _count(num_steps, "step"),
      _count(len(summary.segments), "segment"),
    ]
  )
  parts = [f"{summary.path}:\n{heading}", _columns(summary, num_steps)]
  if len(summary.segments) > 1:
    parts.append(_segments(summary))
  if len(summary.lengths):
    parts += [_lengths(summary.lengths), _bytes(summary)]
    parts.append(_windows(summary, source))
  if summary.metadata:
    parts.append(_metadata(summary.metadata))
  return "\n\n".join(parts)


def _count(number: int, noun: str) -> str:
  return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _columns(summary: store.StoreSummary, num_steps: int) -> str:
  header = ["column", "dtype", "row", "rows", "per", "bytes", "bytes/step"]
  has_optional = any(c.num_present is not None for c in summary.columns)
  rows = []
  for column in summary.columns:
    row = [
      column.path,
      column.dtype,
      "x".join(map(str, column.row_shape)) or "scalar",
      f"{column.num_rows:,}",
      "step" if column.is_per_step else "episode",
      f"{column.num_bytes:,}",
      f"{column.num_bytes / max(num_steps, 1):,.1f}",
    ]
    if has_optional:
      present = column.num_present
      row.append("" if present is None else f"in {present:,} episodes")
    rows.append(row)
  header += ["optional"] if has_optional else []
  numbers = ("rows", "bytes", "bytes/step")
  widths = [max(len(row[i]) for row in [header, *rows]) for i in range(1, len(header))]
  room = max(WIDTH - sum(widths) - 2 * len(widths), _MIN_PATH)
  shown = [[tables.shorten(row[0], room), *row[1:]] for row in rows]
  return tables.format_table(header, shown, numbers)


def _segments(summary: store.StoreSummary) -> str:
  header = ["segment", "episodes", "steps", "bytes"]
  rows = [
    [tables.shorten(name, _MAX_NAME), *(f"{number:,}" for number in numbers)]
    for name, numbers in summary.segments.items()
  ]
  return tables.format_table(header, rows, header[1:])


def _lengths(lengths: np.ndarray) -> str:
  low, high = int(lengths.min()), int(lengths.max())
  line = (
    f"lengths: min {low:,}, median {np.median(lengths):,.6g}, mean "
    f"{lengths.mean():,.1f}, max {high:,}"
  )
  if low == high:
    return line
  # Whole steps to a bin; the last one may hold fewer.
  width = -(-(high - low + 1) // _NUM_BINS)
  counts = np.bincount((lengths - low) // width)
  rows = []
  for number, count in enumerate(counts.tolist()):
    first = low + number * width
    last = min(first + width - 1, high)
    steps = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    # What there is shows, however little.
    bar = "█" * max(round(_BAR * count / int(counts.max())), int(count > 0))
    rows.append([steps, f"{count:,}", bar])
  table = tables.format_table(["steps", "episodes", ""], rows, ("steps", "episodes"))
  return f"{line}\n\n{table}"


def _bytes(summary: store.StoreSummary) -> str:
  ratio = summary.disk_bytes / max(summary.value_bytes, 1)
  return (
    f"{summary.disk_bytes:,} bytes on disk, {ratio:.4f} times the "
    f"{summary.value_bytes:,} bytes of the values themselves"
  )


def _windows(summary: store.StoreSummary, source: str | None) -> str:
  if source is None:
    counted = next(w for w in summary.windows if w.padding == "repeat")
    return (
      f"A stack of 4 frames at every step would take {counted.stacked_bytes:,} bytes, "
      f"{counted.ratio:.2f} times as much."
    )
  header = ["padding", "windows", "episodes without", "bytes if stacked", "to flat"]
  rows = [
    [
      counted.padding,
      f"{counted.num_windows:,}",
      f"{counted.num_too_short:,}",
      f"{counted.stacked_bytes:,}",
      f"{counted.ratio:.2f} x",
    ]
    for counted in summary.windows
  ]
  first, last = summary.span
  flat = summary.windows[0].flat_bytes
  heading = (
    f"The store fits {source}: windows from step {first:+d} to {last:+d} of paths that "
    f"take {flat:,} bytes"
  )
  table = tables.format_table(header, rows, header[1:])
  return f"{heading}\n\n{table}"


def _metadata(metadata: dict[str, Any]) -> str:
  lines = [f"  {key}: {json.dumps(value)}" for key, value in metadata.items()]
  return "\n".join(["metadata:", *(tables.shorten(line, WIDTH) for line in lines)])
