"""Made the files beside it, with tensorflow-datasets 4.9.10: two RLDS episodes.

    python make.py

What each test expects of them is in tests/records/rlds_data.py.
"""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

FOLDER = pathlib.Path(__file__).parent
NUM_STEPS = (5, 3)


class Tiny(tfds.core.GeneratorBasedBuilder):
  """Two episodes with a feature of each kind that a step may have."""

  VERSION = tfds.core.Version("1.0.0")

  def _info(self) -> tfds.core.DatasetInfo:
    features = tfds.features
    step = {
      "observation": {
        "image": features.Image(shape=(8, 10, 3), encoding_format="jpeg"),
        "depth": features.Image(
          shape=(4, 4, 1), dtype=np.uint16, encoding_format="png"
        ),
        "state": features.Tensor(shape=(3,), dtype=np.float32),
        "grid": features.Tensor(shape=(2, 2), dtype=np.uint8),
        "torque": features.Tensor(shape=(2, 2), dtype=np.float32, encoding="bytes"),
        "touched": features.Tensor(shape=(2,), dtype=np.bool_),
        "words": features.Tensor(shape=(2,), dtype=np.str_),
        "phase": features.ClassLabel(num_classes=5),
        "exact": features.Tensor(shape=(2,), dtype=np.float64),
      },
      "action": features.Tensor(shape=(2,), dtype=np.float32),
      "reward": features.Scalar(dtype=np.float32),
      "discount": features.Scalar(dtype=np.float32),
      "is_first": features.Scalar(dtype=np.bool_),
      "is_last": features.Scalar(dtype=np.bool_),
      "is_terminal": features.Scalar(dtype=np.bool_),
      "language_instruction": features.Text(),
    }
    metadata = {
      "file_path": features.Text(),
      "goal": features.Tensor(shape=(2,), dtype=np.float32),
    }
    return tfds.core.DatasetInfo(
      builder=self,
      features=features.FeaturesDict(
        {"steps": features.Dataset(step), "episode_metadata": metadata}
      ),
    )

  def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
    return {"train": self._generate_examples()}

  def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
    for episode, num_steps in enumerate(NUM_STEPS):
      steps = [make_step(episode, t, num_steps) for t in range(num_steps)]
      metadata = {"file_path": f"lab/{episode}", "goal": [episode, 0.5]}
      yield episode, {"steps": steps, "episode_metadata": metadata}


def make_step(episode: int, t: int, num_steps: int) -> dict[str, Any]:
  """Returns a step; all its values tell which one it is."""
  is_last = t == num_steps - 1
  return {
    "observation": {
      "image": np.full((8, 10, 3), 40 * t, np.uint8),
      "depth": np.full((4, 4, 1), 1000 * t, np.uint16),
      "state": np.float32([episode, t, 0.25]),
      "grid": np.uint8([[t, 1], [2, 250]]),
      "torque": np.full((2, 2), t, np.float32),
      "touched": [t % 2 == 0, True],
      "words": [f"w{t}", "x"],
      "phase": t,
      "exact": [t, 0.1],
    },
    "action": np.float32([0, 0] if is_last else [t, episode]),
    "reward": 0.0 if is_last else t + 1.0,
    "discount": 1.0,
    "is_first": t == 0,
    "is_last": is_last,
    "is_terminal": is_last and episode == 0,
    "language_instruction": f"task {episode}",
  }


if __name__ == "__main__":
  with tempfile.TemporaryDirectory() as scratch:
    Tiny(data_dir=scratch).download_and_prepare()
    for file in pathlib.Path(scratch).glob("tiny/1.0.0/*"):
      shutil.copy(file, FOLDER)
