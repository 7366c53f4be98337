"""Windows by time beside windows by steps: processor time of a window, and disk.

Run it as `taskset -c 0 python -m benchmarks.bench_seconds [--rounds N] [--quick]`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import numpy as np
import tensorflow as tf

from t2r_seq import data, specs, store
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.specs import Seconds

STEPS, PERIOD, BATCH = (-3, -2, -1, 0), 0.02, 64
CLOCKS = {"force": "clocks/force", "clocks/force": "clocks/force"}
STORED = {
  "frame": Spec((64, 64, 3), tf.uint8, "frame", is_sequence=True),
  "stamp": Spec((), tf.float64, "stamp", is_sequence=True),
  "force": Spec((None, 64), tf.float32, "force"),
  "clocks/force": Spec((None,), tf.float64, "clocks/force"),
}
TIMES = Seconds(step * PERIOD for step in STEPS)


def frames_by(offsets: tuple[int, ...] | Seconds) -> dict[str, Spec]:
  """Returns specs of four frames."""
  return {
    "frame": Spec((4, 64, 64, 3), tf.uint8, "frame", time_offsets=offsets),
  }


WAYS = {
  "frames by steps": frames_by(STEPS),
  "frames by jittered stamps": frames_by(TIMES),
  "frames by steps, and 40 forces of another clock": {
    **frames_by(STEPS),
    "force": Spec(
      (40, 64), tf.float32, "force", time_offsets=Seconds(np.arange(-39, 1) / 500)
    ),
  },
}


def write(folder: str, num_episodes: int, num_steps: int) -> int:
  """Writes episodes at 50 Hz with a force at 500 Hz; returns the bytes of their values.

  Args:
    folder: of the store.
    num_episodes: to write.
    num_steps: of each.
  """
  rng, num_bytes = np.random.default_rng(0), 0
  with store.EpisodeStore.create(folder, STORED, clocks=CLOCKS) as writer:
    for _ in range(num_episodes):
      stamps = np.arange(num_steps) * PERIOD
      force = np.arange(10 * num_steps) * PERIOD / 10
      values = {
        "frame": rng.integers(0, 255, (num_steps, 64, 64, 3), np.uint8),
        "stamp": stamps + rng.uniform(0, PERIOD / 4, num_steps),
        "force": rng.random((len(force), 64), np.float32),
        "clocks/force": force,
      }
      writer.append_episode(values)
      num_bytes += sum(each.nbytes for each in values.values())
  return num_bytes


def measure(folder: str, spec: dict[str, Spec], num_batches: int) -> float:
  """Returns microseconds of processor time for each window."""
  generator = data.StoreInputGenerator(folder, BATCH, seed=1)
  generator.set_feature_specifications(specs.TensorSpecStruct(spec))
  generator.set_label_specifications({})
  batches = iter(generator.create_dataset("train"))
  for _ in range(10):
    next(batches)
  start = time.process_time()
  for _ in range(num_batches):
    next(batches)
  return 1e6 * (time.process_time() - start) / (num_batches * BATCH)


def main(argv: list[str] | None = None) -> dict[str, float]:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--quick", action="store_true", help="proves nothing")
  args = parser.parse_args(argv)
  size = (2, 60, 2) if args.quick else (20, 500, 300)
  with tempfile.TemporaryDirectory() as root:
    folder = os.path.join(root, "store")
    raw = write(folder, *size[:2])
    on_disk = sum(
      os.path.getsize(os.path.join(place, name))
      for place, _, names in os.walk(folder)
      for name in names
    )
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(args.rounds):
      for name, spec in WAYS.items():
        found[name].append(measure(folder, spec, size[2]))
  result = {name: float(np.median(times)) for name, times in found.items()}
  for name, microseconds in result.items():
    print(f"{name}: {microseconds:.1f} us of processor time a window")
  result["disk"] = on_disk / raw
  print(f"disk: {result['disk']:.4f} of the raw values")
  return result


if __name__ == "__main__":
  main()
