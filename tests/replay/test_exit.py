"""Waits of datasets for items that nobody will append: exit, and SIGINT."""

from __future__ import annotations

import subprocess
import sys

import pytest

# By name: a dataset that waits. The last one follows a store with too few windows.
INTERRUPTED = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
import tensorflow as tf
import time
from t2r_seq import data, replay, specs, store
from t2r_seq.data import following

spec = {"x": specs.ExtendedTensorSpec((), tf.float32, "x", time_offsets=0)}
stored = {"x": specs.ExtendedTensorSpec((), tf.float32, "x", is_sequence=True)}
with store.EpisodeStore.create(sys.argv[1], stored) as writer:
  writer.append_episode({"x": np.zeros(3, np.float32)})
buffer = replay.ReplayBuffer(spec, 100)
follower = following.StoreFollower(
  store.EpisodeStore(sys.argv[1]), spec, 2, data.Follow(min_windows=100)
)
for name, dataset in {
  "replay": buffer.dataset(2),
  "prefetched": buffer.dataset(2).take(5).prefetch(2),
  "follower": follower.dataset(),
}.items():
  threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
  try:
    next(iter(dataset))
  # TensorFlow may wrap the KeyboardInterrupt.
  except (KeyboardInterrupt, RuntimeError) as error:
    print(name, "KeyboardInterrupt" in repr(error))
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
try:
  os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
  print("as before")
# The process ends while a dataset waits: one sample is let through, and no other.
limiter = replay.SampleToInsertRatio(1.0, 1, (0.0, 1000.0))
limited = replay.ReplayBuffer(spec, 10, rate_limiter=limiter)
with limited.writer() as writer:
  writer.append({"x": np.float32(0)})
batches = iter(limited.dataset(1))
next(batches)
while not limited._table.limiter._num_waiting:
  time.sleep(0.01)
print("waits")
"""


@pytest.mark.skipif(
  sys.platform == "win32", reason="Windows has no faulthandler.register"
)
def test_sigint_ends_the_wait_of_a_dataset_and_exit_ends_another(tmp_path):
  done = subprocess.run(
    [sys.executable, "-c", INTERRUPTED, str(tmp_path / "store")],
    capture_output=True,
    text=True,
    timeout=120,
  )
  want = ["replay True", "prefetched True", "follower True", "as before"]
  assert done.stdout.splitlines() == [*want, "waits"], done.stderr
  assert done.returncode == 0, done.stderr
