"""Freed memory is kept for the next batch, where a program wants it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, process, replay
from t2r_seq.data.streams import streamed_windows
from t2r_seq.specs import ExtendedTensorSpec
from t2r_seq.store import EpisodeStore

_SPEC = {"obs": ExtendedTensorSpec((2,), tf.float32, "obs", time_offsets=0)}
_GLIBC = pytest.mark.skipif(
  sys.platform != "linux", reason="allocators of other systems have no such setting"
)

# Takes and frees blocks of 7 MB, and prints the page faults of doing so with others.
_PROCESS = """
import ctypes, resource, sys
from t2r_seq import process
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
print(process.keep_freed_memory())
def take_and_free(num_blocks):
  size = ctypes.c_size_t(7 << 20)
  blocks = [ctypes.c_void_p(libc.malloc(size)) for _ in range(num_blocks)]
  for block in blocks:
    libc.memset(block, 1, ctypes.c_size_t(7 << 20))
  for block in reversed(blocks):
    libc.free(block)
for _ in range(4):
  take_and_free(int(sys.argv[1]))
def page_faults_of(work):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  work()
  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(page_faults_of(lambda: [take_and_free(int(sys.argv[2])) for _ in range(5)]))
"""

# Counts the arenas that threads get which are there at one time.
_THREADS = """
import ctypes, os, sys, threading
from t2r_seq import process
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
if sys.argv[2] == "limited":
  process.keep_freed_memory()
limit = min(8, 2 * len(os.sched_getaffinity(0)))
together = threading.Barrier(limit + 4)
def allocate():
  together.wait()
  libc.malloc(ctypes.c_size_t(100_000))
  together.wait()
threads = [threading.Thread(target=allocate) for _ in range(limit + 4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(open(sys.argv[1]).read().count("<heap nr="), limit)
"""


@_GLIBC
@pytest.mark.parametrize("arenas", ["limited", "glibc's"])
def test_threads_share_arenas(arenas, tmp_path):
  printed = _print(_THREADS, str(tmp_path / "info.xml"), arenas)
  num_arenas, limit = map(int, printed)
  assert num_arenas == limit if arenas == "limited" else num_arenas > limit


# name: (environment, whether memory is kept)
ENVIRONMENTS = {
  "glibc's own way": ({}, True),
  "a trim threshold": ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
  "a number of arenas": ({"MALLOC_ARENA_MAX": "8"}, False),
  "tunables": ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}, False),
  "tunables of something else": ({"GLIBC_TUNABLES": "glibc.mem.tagging=0"}, True),
}


@_GLIBC
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_freed_memory_is_reused(name):
  changes, is_kept = ENVIRONMENTS[name]
  was_changed, page_faults = _take_and_free(3, 3, changes)
  assert was_changed == is_kept
  assert page_faults < 100 if is_kept else page_faults > 5 * 1000


@_GLIBC
def test_memory_above_the_limit_is_partly_kept():
  """Of eleven blocks three are left, for which nothing is mapped anew."""
  was_changed, page_faults = _take_and_free(11, 3, {})
  assert was_changed
  assert page_faults < 100


def _take_and_free(num_blocks, num_then, changes):
  """Returns whether freed memory is kept, and the later blocks' page faults."""
  printed = _print(_PROCESS, str(num_blocks), str(num_then), changes=changes)
  return printed[0] == "True", int(printed[1])


def _print(program, *args, changes=None):
  """Returns the words that it prints in an environment without glibc's variables."""
  others = {k: v for k, v in os.environ.items() if "MALLOC" not in k}
  return subprocess.run(
    [sys.executable, "-c", program, *args],
    env={**others, "PYTHONPATH": os.pathsep.join(sys.path), **(changes or {})},
    capture_output=True,
    text=True,
    check=True,
  ).stdout.split()


@pytest.mark.parametrize("has_mallopt", [True, False])
def test_other_allocators_are_not_changed(has_mallopt, monkeypatch):
  class Libc:
    if has_mallopt:
      mallopt = staticmethod(lambda *_: 0)

  monkeypatch.setattr(process.ctypes, "CDLL", lambda _: Libc)
  assert not process.keep_freed_memory.__wrapped__()


def _load_store(folder, **options):
  flat = {"obs": ExtendedTensorSpec((2,), tf.float32, "obs", is_sequence=True)}
  with EpisodeStore.create(folder / "store", flat) as writer:
    writer.append_episode({"obs": np.zeros((3, 2), np.float32)})
  data.StoreWindowLoader(str(folder / "store"), _SPEC, 2, **options).dataset()


def _generate(_):
  generator = data.DefaultRandomInputGenerator(2)
  generator.set_feature_specifications(_SPEC)
  generator.set_label_specifications({})
  generator.create_dataset("train")


READERS = {
  "store": _load_store,
  "store, in pools": lambda folder: _load_store(folder, order="quasi_random"),
  "stream, in pools": lambda _: streamed_windows(
    tf.data.Dataset.from_tensors({"obs": tf.zeros((3, 2))}), _SPEC, 2
  ),
  "generator": _generate,
  "replay": lambda _: replay.ReplayBuffer(_SPEC, 10),
}


@pytest.mark.parametrize("name", READERS)
def test_import_does_not_change_the_process(name, tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(process, "keep_freed_memory", lambda: calls.append(1))
  READERS[name](tmp_path)
  assert not calls
