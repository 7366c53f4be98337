"""Freed memory is kept for the next batch, by whoever reads batches."""

from __future__ import annotations

import _thread
import ctypes
import os
import subprocess
import sys
import threading

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

# Takes and frees blocks of 7 MB, and prints the page faults of doing so with others.
_PROCESS = """
import ctypes, resource, sys
from t2r_seq import allocation
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
print(allocation.keep_freed_memory())
def take_and_free(num_blocks):
  size = ctypes.c_size_t(7 << 20)
  blocks = [ctypes.c_void_p(libc.malloc(size)) for _ in range(num_blocks)]
  for block in blocks:
    libc.memset(block, 1, ctypes.c_size_t(7 << 20))
  for block in reversed(blocks):
    libc.free(block)
for _ in range(4):
  take_and_free(int(sys.argv[1]))
if sys.argv[3:]:
  allocation.give_back_freed_memory()
  take_and_free(int(sys.argv[2]))
def page_faults_of(work):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  work()
  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(page_faults_of(lambda: [take_and_free(int(sys.argv[2])) for _ in range(5)]))
"""

# Frees 40 MB below a block that stays, or all of them, at a thread's top or at main's;
# prints how many MiB are given back.
_FREED = """
import ctypes, sys, threading
from t2r_seq import allocation
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
allocation.keep_freed_memory()
def private():
  with open("/proc/self/status") as status:
    (line,) = [line for line in status if line.startswith("RssAnon")]
  return int(line.split()[1]) // 1024
def free(staying):
  size = ctypes.c_size_t(50_000)
  blocks = [ctypes.c_void_p(libc.malloc(size)) for _ in range(800)]
  for block in blocks:
    libc.memset(block, 1, size)
  for block in blocks[:len(blocks) - staying]:
    libc.free(block)
if sys.argv[1] == "main's top":
  free(0)
else:
  thread = threading.Thread(target=free, args=[int(sys.argv[1] == "holes")])
  thread.start()
  thread.join()
before = private()
allocation.give_back_freed_memory()
print(before - private())
"""

# Counts the arenas that threads get which are there at one time.
_THREADS = """
import ctypes, sys, threading
from t2r_seq import allocation
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
if sys.argv[2] == "limited":
  allocation.keep_freed_memory()
limit = allocation.num_arenas()
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
def test_freed_memory_is_taken_again(name):
  changes, is_kept = ENVIRONMENTS[name]
  was_changed, page_faults = _take_and_free(3, 3, changes)
  assert was_changed == is_kept
  assert page_faults < 100 if is_kept else page_faults > 5 * 1000


@_GLIBC
def test_of_more_than_is_kept_a_part_is_left():
  """Of eleven blocks three are left, for which nothing is mapped anew."""
  was_changed, page_faults = _take_and_free(11, 3, {})
  assert was_changed
  assert page_faults < 100


@_GLIBC
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_freed_memory_is_given_back(name):
  changes, is_kept = ENVIRONMENTS[name]
  given_back = int(*_print(_FREED, "holes", changes=changes))
  # Who has decided about memory keeps it.
  assert given_back > 30 if is_kept else given_back < 5


@_GLIBC
@pytest.mark.parametrize("where", ["a thread's top", "main's top"])
def test_what_is_free_at_the_top_of_an_arena_is_given_back(where):
  assert int(*_print(_FREED, where)) > 30


@_GLIBC
def test_memory_is_kept_again_after_giving_back():
  was_changed, page_faults = _print(_PROCESS, "5", "5", "give back")
  assert was_changed == "True"
  assert int(page_faults) < 100


@_GLIBC
def test_threads_that_cannot_start_are_done_without(monkeypatch):
  """Those that have started end, and no memory is lost or asked for in vain."""
  assert allocation.keep_freed_memory()
  start, started = _thread.start_new_thread, []

  def start_two(function, args):
    if len(started) == 2:
      raise RuntimeError("can't start new thread")
    started.append(1)
    return start(function, args)

  monkeypatch.setattr(allocation._thread, "start_new_thread", start_two)
  libc = ctypes.CDLL(None)
  blocks = allocation._take_from_each_arena(libc)
  assert len(blocks) == 2
  assert all(block.value for block in blocks)
  for block in blocks:
    libc.free(block)


@_GLIBC
def test_a_thread_that_does_not_answer_is_not_waited_for(monkeypatch):
  """As when garbage that it collects waits for the iterator that has called this."""
  start, started = _thread.start_new_thread, []

  def start_all_but_one(function, args):
    started.append(function)
    return start(function, args) if len(started) > 1 else None

  monkeypatch.setattr(allocation._thread, "start_new_thread", start_all_but_one)
  monkeypatch.setattr(allocation, "_MAX_WAIT_SECS", 0.2)
  given_back = threading.Thread(target=allocation.give_back_freed_memory, daemon=True)
  given_back.start()
  given_back.join(30)
  assert not given_back.is_alive()
  assert len(started) > 1


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


def _generate(_):
  generator = data.DefaultRandomInputGenerator(2)
  generator.set_feature_specifications(_SPEC)
  generator.set_label_specifications({})
  generator.create_dataset("train")


READERS = {
  "store": _load_store,
  "store, in pools": lambda folder: _load_store(folder, order="quasi_random"),
  "stream, in pools": lambda _: data.streamed_windows(
    tf.data.Dataset.from_tensors({"obs": tf.zeros((3, 2))}), _SPEC, 2
  ),
  "generator": _generate,
  "replay": lambda _: replay.ReplayBuffer(_SPEC, 10),
}


@pytest.mark.parametrize("name", READERS)
def test_what_reads_batches_keeps_memory(name, tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(allocation, "keep_freed_memory", lambda: calls.append(1))
  READERS[name](tmp_path)
  assert calls


def test_reused_memory_is_taken_again_when_nothing_refers_to_it():
  memory = allocation.ReusedMemory()
  first = memory.take(1000)
  part = first.reshape(10, 100)[3:].view(np.uint16)
  address = first.ctypes.data
  assert address % 64 == 0
  first[:] = 7

  del first
  while_held = memory.take(1000)
  assert while_held.ctypes.data != address
  while_held[:] = 1
  assert (part == 0x0707).all()

  del part
  assert memory.take(900).ctypes.data == address


def test_an_array_of_nothing_keeps_no_memory_from_others():
  memory = allocation.ReusedMemory()
  first = memory.take(1000)
  address = first.ctypes.data
  del first
  nothing = memory.take(0)
  assert nothing.shape == (0,)
  assert memory.take(1000).ctypes.data == address


def test_reused_memory_goes_back_some_time_after_the_last_array(monkeypatch):
  memory = allocation.ReusedMemory(idle_secs=60)
  small = [memory.take(100) for _ in range(3)]
  del small[1:]
  assert len(memory._free) == 2
  assert memory._timer is None
  timers = []
  monkeypatch.setattr(
    allocation.threading, "Timer", lambda *args: _Timer(timers, *args)
  )
  now = [100.0]
  monkeypatch.setattr(allocation.time, "monotonic", lambda: now[0])
  del small
  assert len(memory._free) == 3
  (timer,) = timers
  assert (timer.seconds, timer.daemon) == (60, True)
  now[0] += 40
  memory.take(100)  # And back: no second timer.
  assert timers == [timer]
  now[0] += 20
  timer.function()
  assert len(memory._free) == 3
  assert [each.seconds for each in timers] == [60, 40]
  now[0] += 40
  timers[1].function()
  assert not memory._free


class _Timer:
  """Does not run by itself."""

  daemon = False

  def __init__(self, timers, seconds, function):
    self.seconds, self.function = seconds, function
    timers.append(self)

  def start(self):
    pass


def test_reused_memory_stays_while_an_array_is_there():
  memory = allocation.ReusedMemory(idle_secs=0.01)
  first, second = memory.take(100), memory.take(100)
  del second
  memory._let_go_if_idle()
  assert len(memory._free) == 1
  del first
  memory._timer.join()
  assert not memory._free


@pytest.mark.parametrize("keeps", [False, True])
def test_another_thread_may_take_memory_at_any_line(keeps):
  """Garbage is collected anywhere; an iterator that ends there waits for a thread."""
  memory = allocation.ReusedMemory()
  held, kept = [], []

  def take():
    array = memory.take(5000)
    if keeps:
      kept.append(array)

  def look(frame, event, _):
    if frame.f_code.co_filename != allocation.__file__:
      return None
    if event == "line":
      thread = threading.Thread(target=take, daemon=True)
      thread.start()
      thread.join(10)
      held.append(thread.is_alive())
      if held[-1]:
        sys.settrace(None)
    return look

  before = sys.gettrace()
  sys.settrace(look)
  try:
    memory.take(100)
    memory.take(5000)
  finally:
    sys.settrace(before)
  assert len(held) > 10
  assert not any(held)
  assert len(memory._lent) == len(kept)


def test_reused_memory_goes_back_when_another_takes_new():
  idle, busy, other = (allocation.ReusedMemory() for _ in range(3))
  held = [busy.take(100) for _ in range(2)]
  del held[1]
  taken = idle.take(100)
  del taken
  assert len(idle._free) == 1

  new = other.take(100)
  assert not idle._free
  assert len(busy._free) == 1

  taken = idle.take(100)
  del taken, new
  again = other.take(100)  # Not new.
  assert len(idle._free) == 1
  del held, again


def test_reused_memory_goes_back_when_sizes_grow():
  memory = allocation.ReusedMemory()
  small = [memory.take(100) for _ in range(3)]
  del small[1:]
  large = memory.take(100_000)
  assert not memory._free
  del small
  assert len(memory._free) == 1
  del large


def test_tensors_share_reused_memory():
  memory = allocation.ReusedMemory()
  taken = {}

  def take(number):
    array = memory.take(100_000)
    array[:] = number
    taken[int(number)] = array.ctypes.data
    return array

  dataset = tf.data.Dataset.range(20).map(
    lambda number: tf.numpy_function(take, [number], tf.uint8, stateful=False)
  )
  for number, tensor in enumerate(dataset):
    values = np.asarray(tensor)
    assert (values == number).all()
    assert values.ctypes.data == taken[number]
    del values, tensor
  assert len(set(taken.values())) < 20
