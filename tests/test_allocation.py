"""Freed memory is kept for the next batch, where no budget forbids it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import allocation, data, replay
from t2r_seq.specs import ExtendedTensorSpec
from t2r_seq.store import EpisodeStore

_SPEC = {"obs": ExtendedTensorSpec((2,), tf.float32, "obs", time_offsets=0)}
_GLIBC = pytest.mark.skipif(
  sys.platform != "linux", reason="allocators of other systems have no such setting"
)

# Takes and frees 3 blocks of 7 MB in turns, and prints page faults of the later ones.
_PROCESS = """
import ctypes, resource
from t2r_seq import allocation
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
print(allocation.keep_freed_memory())
def take_and_free():
  blocks = [ctypes.c_void_p(libc.malloc(ctypes.c_size_t(7 << 20))) for _ in range(3)]
  for block in blocks:
    libc.memset(block, 1, ctypes.c_size_t(7 << 20))
  for block in reversed(blocks):
    libc.free(block)
for _ in range(4):
  take_and_free()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
  take_and_free()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

# name: (environment, whether memory is kept)
ENVIRONMENTS = {
  "glibc's own way": ({}, True),
  "a trim threshold": ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
  "tunables": ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}, False),
  "tunables of something else": ({"GLIBC_TUNABLES": "glibc.mem.tagging=0"}, True),
}


@_GLIBC
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_freed_memory_is_taken_again(name):
  changes, is_kept = ENVIRONMENTS[name]
  others = {k: v for k, v in os.environ.items() if "MALLOC" not in k}
  printed = subprocess.run(
    [sys.executable, "-c", _PROCESS],
    env={**others, "PYTHONPATH": os.pathsep.join(sys.path), **changes},
    capture_output=True,
    text=True,
    check=True,
  ).stdout.split()
  assert printed[0] == str(is_kept)
  page_faults = int(printed[1])
  assert page_faults < 100 if is_kept else page_faults > 5 * 1000


@pytest.mark.parametrize("has_mallopt", [True, False])
def test_other_allocators_stay_as_they_are(has_mallopt, monkeypatch):
  class Libc:
    if has_mallopt:
      mallopt = staticmethod(lambda *_: 0)

  monkeypatch.setattr(allocation.ctypes, "CDLL", lambda _: Libc)
  assert not allocation.keep_freed_memory.__wrapped__()


def _load_store(folder, **options):
  flat = {"obs": ExtendedTensorSpec((2,), tf.float32, "obs", is_sequence=True)}
  with EpisodeStore.create(folder / "store", flat) as writer:
    writer.append_episode({"obs": np.zeros((3, 2), np.float32)})
  data.store_windows(str(folder / "store"), _SPEC, 2, **options)


# name: (what makes a reader, whether it keeps memory)
READERS = {
  "store": (_load_store, True),
  "store, in pools with a budget": (
    lambda folder: _load_store(folder, order="quasi_random"),
    False,
  ),
  "stream, in pools with a budget": (
    lambda _: data.streamed_windows(
      tf.data.Dataset.from_tensors({"obs": tf.zeros((3, 2))}), _SPEC, 2
    ),
    False,
  ),
  "replay": (lambda _: replay.ReplayBuffer(_SPEC, 10), True),
}


@pytest.mark.parametrize("name", READERS)
def test_who_keeps_memory(name, tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(allocation, "keep_freed_memory", lambda: calls.append(1))
  make, is_kept = READERS[name]
  make(tmp_path)
  assert bool(calls) == is_kept
