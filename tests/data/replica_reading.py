"""Prints which windows of a store each replica of a strategy sees.

A script of its own: logical devices, and a cluster, come before TensorFlow starts.

    python replica_reading.py STORE mirrored|workers ORDER:drop|keep:START_STEP ...
"""

from __future__ import annotations

import json
import sys

import tensorflow as tf

from t2r_seq import specs
from t2r_seq.data import StoreWindowLoader
from t2r_seq.store import EpisodeStore

WINDOW = {"x": specs.ExtendedTensorSpec((2,), tf.int64, time_offsets=(0, 1))}


def create_strategy(kind: str) -> tf.distribute.Strategy:
  if kind == "workers":
    return tf.distribute.MultiWorkerMirroredStrategy()
  (cpu,) = tf.config.list_physical_devices("CPU")
  tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
  )
  return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def read(strategy: tf.distribute.Strategy, path: str, case: str) -> list:
  order, remainder, start_step = case.split(":")
  loader = StoreWindowLoader(
    *(EpisodeStore(path), WINDOW, 4, order),
    seed=3,
    padding="drop",
    num_epochs=2,
    drop_remainder=remainder == "drop",
  )
  seen = []
  for batch in loader.distribute(strategy, int(start_step)):
    local = strategy.experimental_local_results(batch["x"])
    seen.append([part.numpy()[:, 0].tolist() for part in local])
  return seen


def main(path: str, kind: str, *cases: str) -> None:
  strategy = create_strategy(kind)
  print(json.dumps([read(strategy, path, case) for case in cases]))


if __name__ == "__main__":
  main(*sys.argv[1:])
