"""Draws docs/images/conventions.svg: what the same numbers mean in other layouts.

python docs/draw_conventions.py
"""

from __future__ import annotations

import pathlib

import numpy as np

from t2r_seq.specs import Convention, Converter
from t2r_seq.specs.rotations import SIZES

OUTPUT = pathlib.Path(__file__).parent / "images" / "conventions.svg"
# A view from the front, the right and above.
RIGHT, UP = np.array([-0.55, 0.83, 0.0]), np.array([-0.35, -0.25, 0.9])
COLORS = ("#d62728", "#2ca02c", "#1f77b4")
PANELS = (  # (title, layout, the same numbers)
  ("(0, 0, 0.6, 0.8) as xyzw", "quaternion_xyzw", (0, 0, 0.6, 0.8)),
  ("(0, 0, 0.6, 0.8) as wxyz", "quaternion_wxyz", (0, 0, 0.6, 0.8)),
  ("(0.5, 0.9, 0.7) as axis-angle", "axis_angle", (0.5, 0.9, 0.7)),
  ("as Euler xyz, fixed axes", "euler_xyz_extrinsic", (0.5, 0.9, 0.7)),
  ("as Euler xyz, turned axes", "euler_xyz_intrinsic", (0.5, 0.9, 0.7)),
)
WIDTH, HEIGHT, LENGTH = 190, 190, 62


def arrow(start: np.ndarray, end: np.ndarray, color: str, label: str, dash: str) -> str:
  """Returns a line with a dot at its end, and its label."""
  (x, y), (u, v) = start, end
  return (
    f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}" stroke="{color}" '
    f'stroke-width="2.5" {dash}/><circle cx="{u:.1f}" cy="{v:.1f}" r="3.5" '
    f'fill="{color}"/><text x="{u + 6:.1f}" y="{v:.1f}" fill="{color}">{label}</text>'
  )


def panel(title: str, layout: str, numbers: tuple[float, ...], left: float) -> str:
  """Returns the axes of the base, dashed, and those of the rotated tool."""
  convert = Converter(
    Convention(rotation=layout), Convention(rotation="matrix"), SIZES[layout], 9
  )
  matrix = convert(np.asarray([numbers], np.float64)).reshape(3, 3)
  center = np.array([left + WIDTH / 2, 115.0])
  shown = [f'<text x="{left + WIDTH / 2}" y="18" text-anchor="middle">{title}</text>']
  for axes, dash in (
    (np.eye(3), 'stroke-dasharray="3 4" opacity="0.45"'),
    (matrix, ""),
  ):
    for name, color, axis in zip("xyz", COLORS, axes.T, strict=True):
      end = center + LENGTH * np.array([axis @ RIGHT, -(axis @ UP)])
      shown.append(arrow(center, end, color, "" if dash else name, dash))
  return "".join(shown)


def main() -> None:
  """Writes the picture."""
  panels = [panel(*each, left=WIDTH * i) for i, each in enumerate(PANELS)]
  OUTPUT.write_text(
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(PANELS)} '
    f'{HEIGHT}" font-family="sans-serif" font-size="12"><rect width="100%" '
    f'height="100%" fill="white"/>{"".join(panels)}</svg>\n',
    encoding="utf-8",
  )


if __name__ == "__main__":
  main()
