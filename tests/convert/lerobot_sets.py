"""Datasets of LeRobot's: real ones, and small ones of our own writer."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import convert, specs, store

Spec = specs.ExtendedTensorSpec
ROOT = pathlib.Path(__file__).resolve().parents[2]
LENGTHS = (3, 6, 1, 4)
TASKS = (
  b"pick up the cube",
  b"put it in the bin",
  b"pick up the cube",
  "öffnen".encode(),
)
FPS = 10
CAMERA = "observation.images.top"
SPEC = {
  CAMERA: Spec((48, 64, 3), tf.uint8, CAMERA, is_sequence=True),
  "observation.state": Spec((3,), tf.float32, "observation.state", is_sequence=True),
  "action": Spec((2,), tf.float64, "action", is_sequence=True),
  "reward": Spec((), tf.float32, "reward", is_sequence=True),
  "task": Spec((), tf.string, "task", is_sequence=True),
}


# Written by LeRobot's and Minari's own tools; see the README there.
REAL_DATA = ROOT / "tests" / "data" / "real"


def real_folders() -> dict[str, pathlib.Path]:
  """Returns LeRobot's real datasets by name."""
  found = REAL_DATA.glob("lerobot*/MANIFEST.json")
  return {place.parent.name: place.parent for place in sorted(found)}


REAL = {n: f for n, f in real_folders().items() if "unfinalized" not in n}


def stamp(frame: np.ndarray, camera: dict[str, Any]) -> tuple[int, int]:
  """Reads the episode and the step that twelve blocks of a real frame say."""
  height, width = frame.shape[:2]
  middle = (sum(camera["zero"]) + sum(camera["one"])) / 2
  number = 0
  for row in range(3):
    for column in range(4):
      y = (row * height // 3, (row + 1) * height // 3)
      x = (column * width // 4, (column + 1) * width // 4)
      dy, dx = (y[1] - y[0]) // 4, (x[1] - x[0]) // 4
      block = frame[y[0] + dy : y[1] - dy, x[0] + dx : x[1] - dx].astype(np.float64)
      number = 2 * number + int(block.sum(-1).mean() > middle)
  return divmod(number * 925 % 4096, 256)


def frames(episode: int) -> np.ndarray:
  """Makes frames that no codec leaves as they are, and none takes for another."""
  steps = np.arange(LENGTHS[episode])[:, None, None]
  y, x = np.arange(48)[:, None], np.arange(64)
  wave = np.sin(y / 5 + episode + steps) + np.sin(x / 7 - steps)
  shade = 40 * (episode % 4) + 10 * steps
  channels = [60 * wave + shade, 30 * wave + 100, shade + x]
  return np.stack(np.broadcast_arrays(*channels), -1).clip(0, 255).astype(np.uint8)


def episode(number: int) -> dict[str, np.ndarray]:
  """Makes the values of an episode."""
  rng = np.random.default_rng(number)
  length = LENGTHS[number]
  return {
    CAMERA: frames(number),
    "observation.state": rng.normal(size=(length, 3)).astype(np.float32),
    "action": rng.normal(size=(length, 2)),
    "reward": np.arange(length, dtype=np.float32) / 4,
    "task": np.full(length, TASKS[number], object),
  }


def make_store(
  path: str, spec: Any = None, metadata: Any = None, change: Any = None
) -> str:
  """Makes a store of the episodes, perhaps changed."""
  with store.EpisodeStore.create(path, spec or SPEC, metadata or {}) as writer:
    for number in range(len(LENGTHS)):
      values = episode(number)
      writer.append_episode(change(values) if change else values)
  return path


def make_folder(path: str = "own.lerobot", **options: Any) -> str:
  """Makes a dataset of LeRobot's of the episodes."""
  source = make_store(f"{path}.store")
  given = {"fps": FPS, "video_codec": "libx264", "video_gop": 4, **options}
  convert.convert(source, path, **given)
  return path


def edit_json(name: str, **changes: Any) -> None:
  """Changes keys of a JSON file; None takes one away."""
  found = {**json.loads(pathlib.Path(name).read_text()), **changes}
  kept = {key: value for key, value in found.items() if value is not None}
  pathlib.Path(name).write_text(json.dumps(kept))
