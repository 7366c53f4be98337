"""Questions about the meaning of numbers, from their values; nothing is applied."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from t2r_seq import specs
from t2r_seq.episodes.views import Episodes

_NUM_EPISODES = 5
_NEAR = 1e-3
_CIRCLE = 2 * np.pi


def find_questions(episodes: Episodes) -> dict[str, list[str]]:
  """Guesses undeclared conventions of paths from their values.

  Args:
    episodes: the first few are read.
  Returns:
    Questions by path, each with the fields of a `Convention` that would answer it.
  """
  open_paths = {
    path for path, spec in episodes.spec.items()
    if spec.convention is None or not spec.convention.elements
  }  # fmt: skip
  rows: dict[str, list[np.ndarray]] = {}
  for episode in itertools.islice(episodes, _NUM_EPISODES):
    for path in open_paths & {*episode.values}:
      values = np.asarray(episode.values[path])
      spec = episodes.spec[path]
      is_vector = spec.is_sequence and values.dtype.kind in "fu" and values.ndim > 1
      if is_vector and not specs.is_encoded_image_spec(spec):
        rows.setdefault(path, []).append(values)
  by_path = {path: [*_ask(np.concatenate(parts))] for path, parts in rows.items()}
  return {path: questions for path, questions in by_path.items() if questions}


def _ask(values: np.ndarray) -> Iterator[str]:
  if values.ndim == 4 and values.dtype == np.uint8 and values.shape[-1] == 3:
    red, _, blue = values[:: max(1, len(values) // 50)].mean((0, 1, 2))
    if blue > 1.1 * red:
      yield "blue is stronger than red: are these BGR? {'channels': 'bgr'}"
  if values.ndim != 2 or values.dtype.kind != "f" or len(values) < 2:
    return
  values = values[np.isfinite(values).all(1)].astype(np.float64)
  elements: set[int] = set()
  for size, name in ((9, "matrix"), (6, "rot6d_rows"), (4, "quaternion")):
    for start in range(values.shape[1] - size + 1):
      block = values[:, start : start + size]
      if elements & {*range(start, start + size)} or not _is_rotation(block):
        continue
      elements |= {*range(start, start + size)}
      question, layout = f"are these a rotation {name}", name
      if name == "quaternion":
        # Near the identity, |w| is the largest component.
        is_last = np.abs(block[:, 3]).mean() >= np.abs(block[:, 0]).mean()
        layout = "quaternion_xyzw" if is_last else "quaternion_wxyz"
        question = f"are these a quaternion, with w {'last' if is_last else 'first'}"
      elif name == "rot6d_rows":
        question = "are these two rows of a rotation matrix, or 'rot6d_columns'"
      yield f"{_element(start, start + size, 'rotation', layout)}: {question}?"
  for i in {*range(values.shape[1])} - elements:
    levels = np.unique(values[:, i])
    if len(levels) == 2:
      opened, closed = (float(f"{level:.6g}") for level in levels[::-1])
      answer = (opened, closed, "binary")
      yield (
        f"{_element(i, i + 1, 'gripper', answer)}: two values: is this a gripper, "
        f"open at {opened:g}?"
      )
      elements.add(i)
  rest = values[:, sorted({*range(values.shape[1])} - elements)]
  largest = np.abs(rest).max(initial=0)
  # Radians rarely exceed 2 pi; 5 % tolerates unwrapped angles.
  if 1.05 * _CIRCLE < largest <= 360:
    yield f"{{'unit': 'deg'}}: up to {largest:.4g}: are these angles in degrees?"


def _is_rotation(block: np.ndarray) -> bool:
  """Whether rows are unit quaternions, or orthonormal vectors of 3."""
  if not block.std(0).any():
    return False
  if block.shape[1] == 4:
    return bool((np.abs(np.square(block).sum(1) - 1) < _NEAR).all())
  vectors = block.reshape(len(block), -1, 3)
  products = vectors @ vectors.transpose(0, 2, 1)
  return bool((np.abs(products - np.eye(vectors.shape[1])) < _NEAR).all())


def _element(start: int, stop: int, field: str, value: object) -> str:
  return f"{{'elements': [[{start}, {stop}, {{'{field}': {value!r}}}]]}}"
