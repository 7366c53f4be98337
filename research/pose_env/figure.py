"""The demo's one picture: how it learned, what it saw, and its predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from research import runs
from research.pose_env import evaluation

plt = runs.pyplot()
_STACK1, _STACK4, _TRUTH, _BOUND = "#d1662b", "#1f6fb2", "#2f7d4f", "#8a8f98"
_INK, _GRID = "#22262b", "#e3e6ea"
STYLE: Any = {
  "font.size": 10,
  "font.family": "DejaVu Sans",
  "axes.titlesize": 11,
  "axes.titleweight": "bold",
  "axes.titlelocation": "left",
  "axes.edgecolor": "#b5bac1",
  "axes.labelcolor": _INK,
  "axes.grid": True,
  "axes.axisbelow": True,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "grid.color": _GRID,
  "text.color": _INK,
  "xtick.color": _INK,
  "ytick.color": _INK,
  "legend.frameon": False,
  "legend.fontsize": 9,
}


@dataclasses.dataclass(frozen=True)
class SeenWindow:
  """A window as the exported policy held it, and what was made of it.

  Attributes:
    frames: [K, H, W, 3] uint8, oldest first.
    points: pixel positions (column, row) in the last frame, by 'truth', 'stack of 1'
      and 'stack of 4'.
  """

  frames: np.ndarray
  points: Mapping[str, tuple[float, float]]
  path: Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Results:
  """All that the picture shows.

  Attributes:
    curves: (steps, mean distance in metres) of the eval data by (task, frames).
    evaluations: closed-loop runs by (task, policy).
    window: what the stack of 4 saw once.
    horizon: how many steps ahead the moving target lies.
  """

  curves: Mapping[tuple[str, int], tuple[np.ndarray, np.ndarray]]
  evaluations: Mapping[tuple[str, str], evaluation.Evaluation]
  window: SeenWindow
  horizon: int


def draw(results: Results, path: str) -> None:
  """Draws the results to a PNG file."""
  with plt.rc_context(STYLE):
    figure: Any = plt.figure(figsize=(14, 7.6), dpi=110, layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(0.94, 1.08), hspace=0.02)
    curves, window = top.subfigures(1, 2, width_ratios=(1.0, 1.9), wspace=0.02)
    _draw_curves(curves.subplots(), results)
    _draw_window(window, results)
    panels = bottom.subplots(1, 4)
    _draw_scatter(panels[0], results, "still", "stack of 1", _STACK1)
    _draw_scatter(panels[1], results, "moving", "stack of 1", _STACK1)
    _draw_scatter(panels[2], results, "moving", "stack of 4", _STACK4)
    _draw_error_by_step(panels[3], results)
    figure.suptitle(
      "Where will the duck be? One frame cannot tell; a stack of four can.",
      fontsize=15,
      fontweight="bold",
      x=0.012,
      ha="left",
    )
    figure.savefig(path, facecolor="white")
    plt.close(figure)


def _draw_curves(axes: Any, results: Results) -> None:
  for (task, num_frames), (steps, distances) in results.curves.items():
    axes.plot(
      steps,
      distances,
      color=_STACK1 if num_frames == 1 else _STACK4,
      linestyle="-" if task == "moving" else (0, (1.5, 1.5)),
      linewidth=2,
      label=f"{task}, stack of {num_frames}",
    )
  bound = results.evaluations["moving", "present position"].error
  axes.axhline(bound, color=_BOUND, linestyle="--", linewidth=1.2)
  axes.annotate(
    "moving: the object's present position",
    (1.0, bound),
    xycoords=("axes fraction", "data"),
    xytext=(0, -4),  # Below, where no curve comes: one frame cannot do better.
    textcoords="offset points",
    ha="right",
    va="top",
    fontsize=8.5,
    color="#5d636b",
  )
  axes.set(
    title="Learning: error on held-out episodes",
    xlabel="training step",
    ylabel="mean distance (m)",
    yscale="log",
  )
  ticks = [0.01, 0.03, 0.1, 0.3, 1.0]
  axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
  axes.minorticks_off()
  axes.legend(loc="upper right", ncols=2, bbox_to_anchor=(1.0, 1.01))
  axes.set_xlim(left=0)
  axes.set_ylim(0.01, 1.8)


def _draw_window(figure: Any, results: Results) -> None:
  frames = results.window.frames
  figure.suptitle(
    "A window as the policy saw it, and its answer for "
    f"{results.horizon} steps ahead (moving task)",
    fontsize=11,
    fontweight="bold",
    x=0.01,
    ha="left",
  )
  panels = figure.subplots(1, len(frames))
  for index, (axes, frame) in enumerate(zip(panels, frames, strict=True)):
    age = len(frames) - 1 - index
    axes.imshow(frame, interpolation="nearest")
    axes.set_xlabel(f"t - {age}" if age else "t (now)")
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
      spine.set_visible(True)
  # A guess that is right lies around the truth.
  marks = {
    "truth": ("*", _TRUTH, 110, 5, "truth"),
    "stack of 1": ("X", _STACK1, 80, 3, "stack of 1 says"),
    "stack of 4": ("o", _STACK4, 190, 4, "stack of 4 says"),
  }
  columns, rows = zip(*results.window.path, strict=True)
  panels[-1].plot(columns, rows, ".", color="white", markersize=3.5)
  for name, (marker, color, size, zorder, label) in marks.items():
    panels[-1].scatter(
      *results.window.points[name],
      marker=marker,
      s=size,
      color=color,
      edgecolor="white",
      linewidth=1.1,
      label=label,
      clip_on=False,
      zorder=zorder,
    )
  figure.legend(loc="lower right", ncols=3)


def _draw_scatter(
  axes: Any, results: Results, task: str, policy: str, color: str
) -> None:
  result = results.evaluations[task, policy]
  limit = 1.05 * float(np.abs(result.targets).max())
  axes.plot([-limit, limit], [-limit, limit], color=_BOUND, linewidth=1, zorder=1)
  for axis, marker in enumerate("o^"):
    axes.scatter(
      result.targets[:, axis],
      result.actions[:, axis],
      s=9,
      marker=marker,
      color=color,
      alpha=0.45,
      linewidth=0,
      label="xy"[axis],
    )
  axes.set(
    title=f"{task.capitalize()}, {policy}: {result.error:.3f} m",
    xlabel="true position (m)",
    ylabel="predicted position (m)",
    xlim=(-limit, limit),
    ylim=(-limit, limit),
    aspect="equal",
  )
  axes.legend(loc="upper left", handletextpad=0.1, markerscale=1.8)


def _draw_error_by_step(axes: Any, results: Results) -> None:
  shown = {
    "present position": (_BOUND, "--", "present position"),
    "stack of 1": (_STACK1, "-", "stack of 1"),
    "stack of 4": (_STACK4, "-", "stack of 4"),
  }
  for policy, (color, style, label) in shown.items():
    values = results.evaluations["moving", policy].error_by_step()
    marker = "" if style == "--" else "o"
    axes.plot(values, style, color=color, marker=marker, markersize=4, label=label)
  axes.axvspan(-0.5, 2.5, color="#f1f3f5", zorder=0)
  axes.text(1.0, 0.0, "history\nfills", ha="center", va="bottom", fontsize=8.5)
  axes.set(
    title="Moving: error over an episode",
    xlabel="step of the episode",
    ylabel="mean distance (m)",
    xlim=(-0.5, len(values) - 0.5),
  )
  axes.set_ylim(bottom=0)
  axes.set_box_aspect(1)
  axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.52))
