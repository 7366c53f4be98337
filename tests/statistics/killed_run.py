"""A run over small parts, which kills its process at an episode if it is told to."""

from __future__ import annotations

import os
import signal

import numpy as np

from t2r_seq import statistics
from t2r_seq.statistics import sources

PART_BYTES = 4000
calls = 0
die_at = 0


def to_deltas(episode):
  """Counts its calls; dies at one of them."""
  global calls
  calls += 1
  if calls == die_at:
    os.kill(os.getpid(), signal.SIGKILL)
  return {"delta": np.diff(episode["state"], axis=0), "done": episode["done"]}


def run(source, output, call=0):
  """Computes with one worker, saving after each part; returns the calls."""
  global calls, die_at
  calls, die_at = 0, call
  sources.PART_BYTES = sources.PART_BYTES = PART_BYTES
  statistics.compute_statistics(
    source, output, transform=to_deltas, num_workers=1, checkpoint_seconds=0
  )
  return calls
