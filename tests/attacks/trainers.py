"""Trainers: killed at any moment, they go on; left alone, they end with status 0.

Run as a script it trains: `python trainers.py MODEL_DIR STORE MAX_STEPS`.
"""

from __future__ import annotations

import collections
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import data, models, policies, specs, store, training

_STEPS, _MAX_KILLS = 300, 3
_EPISODE = {
  "state": specs.ExtendedTensorSpec((2,), tf.float32, "state", is_sequence=True),
  "action": specs.ExtendedTensorSpec((1,), tf.float32, "action", is_sequence=True),
}


class _Model(models.RegressionModel):
  def get_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    spec = specs.ExtendedTensorSpec(
      (3, 2), tf.float32, "state", time_offsets=(-2, -1, 0)
    )
    return specs.TensorSpecStruct(state=spec)

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    spec = specs.ExtendedTensorSpec((1,), tf.float32, "action", time_offsets=0)
    return specs.TensorSpecStruct(target=spec)

  def create_network(self) -> dict[str, Any]:
    return {"out": tf.keras.layers.Dense(1)}

  def a_func(self, features: Any, mode: str) -> dict[str, tf.Tensor]:
    flat = tf.reshape(features.state, [-1, 6])
    return {"inference_output": self.network["out"](flat)}


def train(model_dir: str, path: str, max_train_steps: int) -> None:
  """Trains on a store; goes on where an earlier run was killed."""
  training.train_eval_model(
    t2r_model=_Model(),
    input_generator_train=data.StoreInputGenerator(path, batch_size=8, seed=1),
    max_train_steps=max_train_steps,
    model_dir=model_dir,
    run_config=training.RunConfig(save_checkpoints_steps=17, seed=3),
    create_exporters_fn=None,
  )


def export(folder: str, lite_folder: str) -> None:
  """Exports the model with random weights, the same each time, also for LiteRT."""
  tf.keras.utils.set_random_seed(0)
  model = _Model()
  model.build()
  training.export_saved_model(model, folder, global_step=1)
  policies.export_lite(folder, lite_folder)


class TrainerAttack:
  """Kills training runs, and compares what they come to.

  Attributes:
    counts: kills, and runs that came to their end.
  """

  def __init__(self, seed: int, folder: str, say: Callable[[str, Any], None]) -> None:
    self._seed = seed
    self._folder = folder
    self._say = say
    self._store = os.path.join(folder, "data")
    self._want: dict[str, np.ndarray] = {}
    self._seconds = 0.0
    self.counts: collections.Counter[str] = collections.Counter()

  def run(self, number: int, count: int) -> None:
    """Trains so many models."""
    if not self._want:
      self._say("at", "the run that is not killed")
      self._begin()
    for i in range(count):
      where = f"run {i} of round {number} of seed {self._seed}"
      rng = random.Random(f"trainers/{self._seed}/{number}/{i}")
      folder = os.path.join(self._folder, "run")
      for kill in range(_MAX_KILLS):
        self._say("at", f"{where}, kill {kill}")
        process = self._start(folder)
        # Somewhere between its first checkpoint and its end.
        while process.poll() is None and not tf.train.latest_checkpoint(folder):
          time.sleep(0.01)
        time.sleep(rng.random() * 0.5)
        is_killed = process.poll() is None
        process.kill()
        process.wait()
        self.counts["killed" if is_killed else "ended before"] += 1
      self._say("at", f"{where}, to its end")
      if self._start(folder).wait():
        self._say("wrong", f"{where}: the last run failed")
      elif wrong := _differences(self._want, _weights(folder)):
        self._say("wrong", f"{where}: other values of {wrong}")
      self.counts["whole runs"] += 1
      shutil.rmtree(folder)

  def _begin(self) -> None:
    rng = np.random.default_rng(0)
    with store.EpisodeStore.create(self._store, _EPISODE) as writer:
      for length in (30, 50, 21, 17, 80):
        state = rng.normal(size=(length, 2)).astype(np.float32)
        writer.append_episode({"state": state, "action": state[:, :1] * 2})
    folder = os.path.join(self._folder, "whole")
    if self._start(folder).wait():
      raise RuntimeError("The run that nobody kills failed.")
    self._want = _weights(folder)

  def _start(self, folder: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
      [sys.executable, __file__, folder, self._store, str(_STEPS)],
      stdout=subprocess.DEVNULL,
    )


_EXITS = pathlib.Path(__file__).parents[1] / "training" / "exits.py"


class ExitAttack:
  """Ends short training runs while others keep the machine busy.

  Attributes:
    counts: runs by how they ended.
  """

  def __init__(self, seed: int, folder: str, say: Callable[[str, Any], None]) -> None:
    self._folder = folder
    self._say = say
    self.counts: collections.Counter[str] = collections.Counter()

  def run(self, number: int, count: int) -> None:
    """Trains so many times, six at once."""
    self._say("at", f"exits of round {number}")
    with tempfile.TemporaryDirectory(dir=self._folder) as folder:
      done = subprocess.Popen(
        [sys.executable, _EXITS, "--runs", str(count), "--at_once", "6"],
        env={**os.environ, "TMPDIR": folder, "PYTHONPATH": str(_EXITS.parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
      )
      lines = []
      for line in done.stdout or ():  # One as soon as a run ends: a round is long.
        self._say("at", f"exits of round {number}: {line.strip()}")
        lines.append(line)
    text = "".join(lines)
    for runs, status in re.findall(r"^(\d+) x .*: status (-?\d+)$", text, re.M):
      self.counts[f"status {status}"] += int(runs)
    if done.wait():
      self._say("wrong", f"exits of round {number}: {text}")


def _weights(folder: str) -> dict[str, np.ndarray]:
  reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
  names = [n for n in reader.get_variable_to_shape_map() if not n.startswith("_")]
  return {name: reader.get_tensor(name) for name in names}


def _differences(want: dict[str, Any], got: dict[str, Any]) -> list[str]:
  """Names of variables that are not the same; how often was saved may differ."""
  names = sorted(n for n in {*want, *got} if "save_counter" not in n)
  return [
    n
    for n in names
    if n not in want or n not in got or not np.array_equal(want[n], got[n])
  ]


if __name__ == "__main__":
  train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
