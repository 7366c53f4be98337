"""The RLDS episodes that TFDS wrote into the folder `rlds`; see its make.py."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import specs

Spec = specs.ExtendedTensorSpec

FOLDER = str(pathlib.Path(__file__).parent / "rlds")
FILES = f"{FOLDER}/tiny-train.tfrecord*"
# In the order in which TFDS shuffled them into the file.
EPISODES = (0, 1)
NUM_STEPS = (5, 3)


def _step(shape: Any, dtype: tf.DType, name: str, data_format: str | None = None):
  return Spec(
    *(shape, dtype, f"steps/{name}"),
    is_sequence=True,
    data_format=data_format,
    is_concatenated=True,
  )


# All that the records hold, as features.json has it; float64 has been rounded.
SPEC = {
  "action": _step((2,), tf.float32, "action"),
  "discount": _step((), tf.float32, "discount"),
  "episode_metadata/file_path": Spec((), tf.string, "episode_metadata/file_path"),
  "episode_metadata/goal": Spec((2,), tf.float32, "episode_metadata/goal"),
  "is_first": _step((), tf.bool, "is_first"),
  "is_last": _step((), tf.bool, "is_last"),
  "is_terminal": _step((), tf.bool, "is_terminal"),
  "language_instruction": _step((), tf.string, "language_instruction"),
  "observation/depth": _step((4, 4, 1), tf.uint16, "observation/depth", "png"),
  "observation/exact": _step((2,), tf.float32, "observation/exact"),
  "observation/grid": _step((2, 2), tf.uint8, "observation/grid"),
  "observation/image": _step((8, 10, 3), tf.uint8, "observation/image", "jpeg"),
  "observation/phase": _step((), tf.int64, "observation/phase"),
  "observation/state": _step((3,), tf.float32, "observation/state"),
  "observation/torque": _step((2, 2), tf.float32, "observation/torque", "raw"),
  "observation/touched": _step((2,), tf.bool, "observation/touched"),
  "observation/words": _step((2,), tf.string, "observation/words"),
  "reward": _step((), tf.float32, "reward"),
}


def values(episode: int) -> dict[str, np.ndarray]:
  """Returns what make.py wrote into an episode, by path; images as pixels."""
  num_steps = NUM_STEPS[episode]
  t = np.arange(num_steps)
  is_last = t == num_steps - 1

  def each(shape: tuple[int, ...], dtype: Any, scale: int = 1) -> np.ndarray:
    grown = t.reshape([-1] + [1] * len(shape)) * scale
    return np.broadcast_to(grown, (num_steps, *shape)).astype(dtype)

  def constant(value: float) -> np.ndarray:
    return np.full(num_steps, value, np.float32)

  grid = np.stack([t, 0 * t + 1, 0 * t + 2, 0 * t + 250], 1).reshape(-1, 2, 2)
  state = np.stack([constant(episode), t, constant(0.25)], 1)
  action = np.stack([t, constant(episode)], 1) * ~is_last[:, None]
  words = [[f"w{i}".encode(), b"x"] for i in range(num_steps)]
  return {
    "action": action.astype(np.float32),
    "discount": constant(1.0),
    "episode_metadata/file_path": np.array(f"lab/{episode}".encode(), object),
    "episode_metadata/goal": np.float32([episode, 0.5]),
    "is_first": t == 0,
    "is_last": is_last,
    "is_terminal": is_last & (episode == 0),
    "language_instruction": np.array([f"task {episode}".encode()] * num_steps, object),
    "observation/depth": each((4, 4, 1), np.uint16, 1000),
    "observation/exact": np.stack([t, constant(0.1)], 1).astype(np.float32),
    "observation/grid": grid.astype(np.uint8),
    "observation/image": each((8, 10, 3), np.uint8, 40),
    "observation/phase": t,
    "observation/state": state.astype(np.float32),
    "observation/torque": each((2, 2), np.float32),
    "observation/touched": np.stack([t % 2 == 0, t >= 0], 1),
    "observation/words": np.array(words, object),
    "reward": np.where(is_last, 0, t + 1).astype(np.float32),
  }
