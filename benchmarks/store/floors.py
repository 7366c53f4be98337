"""What the store must reach, in ratios of one run."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.measure import Figures


@dataclasses.dataclass(frozen=True)
class Floor:
  """At least `wanted` times what others reach.

  Attributes:
    ours: name of the candidate that must reach it.
    others: names of those that it is compared to; the best of them counts.
    wanted: the least ratio.
    text: what it says in the table.
  """

  ours: str
  others: tuple[str, ...]
  wanted: float
  text: str

  def reached(self, figures: Mapping[str, Figures]) -> float | None:
    """Returns the median of the rounds' ratios to the best; None if all are missing."""
    there = [figures[name].rates for name in self.others if name in figures]
    if not there:
      return None
    best = max(there, key=statistics.median)
    ours = figures[self.ours].rates
    return statistics.median(a / b for a, b in zip(ours, best, strict=True))


def floors_table(floors: Sequence[Floor], figures: Mapping[str, Figures]) -> str:
  """Formats floors as a Markdown table.

  Args:
    floors: the rows.
    figures: by name.
  Returns:
    The table.
  """
  lines = ["| floor | wanted | got | |", "| --- | ---: | ---: | --- |"]
  for floor in floors:
    ratio = floor.reached(figures)
    got = "-" if ratio is None else f"{ratio:.2f}"
    verdict = "not installed"
    if ratio is not None:
      verdict = "reached" if ratio >= floor.wanted else "**missed**"
    lines.append(f"| {floor.text} | {floor.wanted:g} | {got} | {verdict} |")
  return "\n".join(lines)


_GLOBAL = "t2r_seq: global order"
_QUASI = "t2r_seq: quasi-random order"
_ARRAYS = "t2r_seq: numpy arrays, from Python"
_CPPRB = ("cpprb, in memory",)
_MEMCPY = ("memcpy, 1 thread", "memcpy, 2 threads")
_GRAIN = ("Grain, batches of numbers", "Grain, windows")
_IDIOMS = (
  "slices in memory, shuffle, batch",
  "n-step, flatten, shuffle, batch",
  "`Dataset.window`, n-step, shuffle",
)
_DECODE = ("tf.io.decode_jpeg by map_fn, 2 threads",)

WINDOWS = [
  Floor(
    *("t2r_seq: the same, in a tf.function", _MEMCPY, 0.95),
    "memcpy of the delivered bytes, 1 or 2 threads; ours in a tf.function",
  ),
  Floor(_GLOBAL, _MEMCPY, 0.95, "the same; ours from Python"),
  Floor(_GLOBAL, ("FFCV",), 0.95, "FFCV"),
  Floor(_GLOBAL, ("gather all, flatten, shuffle",), 3.5, "gather, flatten, shuffle"),
  Floor(_GLOBAL, ("Octo/dlimp",), 5, "Octo/dlimp"),
  Floor(_GLOBAL, ("RLDS `batch`",), 5, "RLDS"),
  Floor(_GLOBAL, ("`Dataset.window`",), 8, "`Dataset.window`"),
  Floor(_GLOBAL, _GRAIN, 2, "Grain"),
]

ENCODED = [
  Floor(_QUASI, _DECODE, 0.75, "frames/s of the decoder alone"),
  Floor(_QUASI, ("FFCV",), 2.2, "FFCV"),
  Floor(_QUASI, ("Octo/dlimp",), 3.5, "Octo/dlimp"),
  Floor(_QUASI, ("RLDS `batch`",), 1.2, "RLDS"),
]

TRANSITIONS = [
  Floor(_ARRAYS, _CPPRB, 0.5, "cpprb, ours from Python"),
  Floor(
    *("t2r_seq: in a tf.function, 50 batches by one `next`", _CPPRB, 1),
    "cpprb, ours in a tf.function",
  ),
  Floor("t2r_seq: tensors, from Python", _IDIOMS, 3, "the best `Dataset` idiom"),
]

SEQUENCES = [
  Floor(
    "t2r_seq: flat",
    *(("t2r_seq: stacked on the host",), 2, "stacked on the host, delivered"),
  )
]
