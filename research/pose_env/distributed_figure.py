"""The distributed demo's one picture: the return over time, and what was moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from research.pose_env import distributed_report as report
from research.pose_env import figure

_KINDS = {
  report.COLLECT: ("o", "exploring", "#d1662b"),
  report.EVAL: ("D", "greedy", "#1f6fb2"),
}
_FILLS = ("full", "none")


def draw(
  rounds: Sequence[report.Round],
  progress: Sequence[report.Progress],
  start: float,
  best_from_one_frame: float,
  path: str,
) -> None:
  """Draws the job to a PNG file.

  Args:
    rounds: of all actors.
    progress: of the job, by time.
    start: of the job, in seconds since the epoch.
    best_from_one_frame: the return of a policy without memory, to compare with.
    path: of the file.
  """
  with figure.plt.rc_context(figure.STYLE):
    drawn: Any = figure.plt.figure(figsize=(12, 4.8), dpi=110, layout="constrained")
    left, right = drawn.subfigures(1, 2, width_ratios=(1.7, 1.0))
    _draw_returns(left.subplots(), rounds, start, best_from_one_frame)
    _draw_progress(right.subplots(3, 1, sharex=True), progress, start)
    drawn.savefig(path, facecolor="white")
    figure.plt.close(drawn)


def _draw_returns(
  axes: Any, rounds: Sequence[report.Round], start: float, bound: float
) -> None:
  actors = sorted({each.actor for each in rounds})
  for kind, (marker, label, color) in _KINDS.items():
    for index, actor in enumerate(actors):
      chosen = [each for each in rounds if (each.actor, each.kind) == (actor, kind)]
      axes.plot(
        [each.wall_time - start for each in chosen],
        [each.reward for each in chosen],
        marker=marker,
        markersize=4,
        fillstyle=_FILLS[index % len(_FILLS)],
        color=color,
        linewidth=1.2 if kind == report.EVAL else 0,
        alpha=0.9,
        label=f"{actor}, {label}" if chosen else None,
      )
  axes.axhline(bound, color="#8a8f98", linestyle="--", linewidth=1.2)
  axes.annotate(
    "knows where the duck is, not where it goes",
    (1.0, bound),
    xycoords=("axes fraction", "data"),
    xytext=(0, 4),
    textcoords="offset points",
    ha="right",
    fontsize=8.5,
    color="#5d636b",
  )
  axes.set(
    title="Return of the actors (0 is perfect)",
    xlabel="seconds since the job began",
    ylabel="sum of an episode's rewards",
  )
  axes.set_xlim(left=0)
  axes.set_ylim(top=0)
  axes.legend(loc="lower right", ncols=2)


def _draw_progress(
  panels: Any, progress: Sequence[report.Progress], start: float
) -> None:
  seconds = [each.wall_time - start for each in progress]
  curves = {
    "steps inserted": [each.inserted for each in progress],
    "windows sampled": [each.sampled for each in progress],
    "training steps": [each.learner_step for each in progress],
  }
  for axes, (title, values) in zip(panels, curves.items(), strict=True):
    axes.plot(seconds, values, color="#2f7d4f", linewidth=1.6)
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
  panels[-1].set_xlabel("seconds since the job began")
