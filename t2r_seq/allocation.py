"""Memory that the process has freed: kept for the next batch, in few places."""

from __future__ import annotations

import _thread
import collections
import contextlib
import ctypes
import functools
import os
import queue
import threading
import time
import weakref
from typing import Any, ClassVar

import numpy as np
from absl import logging

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
# The most that glibc's own adaptation comes to.
_MMAP_BYTES = 2**25
# Five batches of 13 MB, as many as may be alive, and what is between them.
_KEPT_BYTES = 72 << 20
# What stays of them when there are more: by itself glibc gives nearly all back then.
_LEFT_BYTES = 24 << 20
# TensorFlow takes an array for a tensor without copying it where it starts at those.
_ALIGNMENT = 64
# By itself glibc makes up to 8 for each core.
_ARENAS_A_CORE, _MAX_ARENAS = 2, 8
# Whoever frees as much (64 KiB) makes glibc look at what is free at the top.
_LARGE_BYTES = 2**17
_MAX_WAIT_SECS = 1.0
_VARIABLES = (
  "MALLOC_ARENA_MAX",
  "MALLOC_MMAP_MAX_",
  "MALLOC_MMAP_THRESHOLD_",
  "MALLOC_TOP_PAD_",
  "MALLOC_TRIM_THRESHOLD_",
)


@functools.cache
def keep_freed_memory() -> bool:
  """Makes glibc keep freed memory for the next batch, once a process.

  Batches and episodes of some megabytes come and go. By itself glibc gives their memory
  back to the system when two or three of them are free, and the next one takes it
  again, page by page, each of which the kernel fills with zeros first; and each thread
  frees to an arena of its own, where others do not find it. Now up to 72 MiB stay at
  the top of an arena, 24 of them when there are more, until `give_back_freed_memory`.
  There are two arenas for each core and at most eight, where glibc would make up to
  eight for each core. Blocks of more than 32 MiB are mapped one by one as before.

  Measured on a virtual machine of two cores: windows of 110 KB in batches of 64 from a
  store were read at 54,000 a second, and at 130,000 with this (16 us of system time a
  window, then 1). Streamed JPEGs went from 9,500 windows a second to 11,500, and the
  process grew less with each new iterator: to 927 MiB with the third, 540 with this.
  With two arenas, 250-byte Examples were parsed at 170,000 a second, because threads
  waited for each other to allocate; with eight at 205,000, as with glibc's own number,
  and the third iterator over JPEGs took 400 MiB in place of 390. Long ones that leave
  bad records out took 453 to 587 MiB with eight, of a budget of 430, and 442 to 528
  with four, as two cores have now, at the same rates. On 16 cores Examples
  were parsed at 270,000 to 350,000 a second with eight arenas, and at 275,000 to
  340,000 with 16 or 64; JPEGs came at 40,000 to 49,000 windows a second, 47,000 to
  53,000 with 16 or 64, and with a budget of 415 MiB took 434, 462 and 542 MiB: that
  memory keeps within its bounds is worth the tenth that more arenas would give there.
  On another machine, with dear page faults, streamed raw frames came at 1.19 of the
  rate and JPEGs at 1.06 with 16 of 32 MiB left in place of nothing. At the end of a
  pool all five batches are free: of 7 MB, taken by Python, they came at 1.25 of that
  again with 24 of 48 MiB left, and JPEGs, with batches of 13 MB, at 1.14 of the latter
  with 24 of 72. With 64 of 72 they had 2.7 page faults a window in place of 3.6, but
  episodes of 7 MB that were parsed took 332 to 427 MiB in place of 331 to 351, of a
  budget of 319.

  Input pipelines and replay buffers call this. Who has set one of glibc's variables
  (`MALLOC_ARENA_MAX`, `MALLOC_TRIM_THRESHOLD_` and others, or `glibc.malloc` in
  `GLIBC_TUNABLES`) has decided: then, and with other allocators and systems, nothing is
  changed.

  Returns:
    Whether it was changed.
  """
  tunables = os.environ.get("GLIBC_TUNABLES", "")
  if "glibc.malloc." in tunables or any(name in os.environ for name in _VARIABLES):
    return False
  mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
  if mallopt is None:
    return False
  settings = (
    (_M_MMAP_THRESHOLD, _MMAP_BYTES),
    (_M_TRIM_THRESHOLD, _KEPT_BYTES),
    (_M_TOP_PAD, _LEFT_BYTES),
    (_M_ARENA_MAX, num_arenas()),
  )
  # It returns 1 where it has understood.
  if not all(mallopt(option, value) for option, value in settings):
    return False
  logging.info(
    "allocation: %d arenas keep up to %d freed bytes each; MALLOC_ARENA_MAX and "
    "MALLOC_TRIM_THRESHOLD_ in the environment set other numbers.",
    num_arenas(),
    _KEPT_BYTES,
  )
  return True


def num_arenas() -> int:
  """Returns how many arenas `keep_freed_memory` lets glibc make, in this process."""
  cores = len(os.sched_getaffinity(0))
  return min(_MAX_ARENAS, _ARENAS_A_CORE * cores)


def give_back_freed_memory() -> None:
  """Gives the system all memory that is free, in whole pages.

  It is kept by glibc otherwise, in as many arenas as threads have ever used. Does
  nothing where `keep_freed_memory` changes nothing.
  """
  if not keep_freed_memory():
    return
  libc = ctypes.CDLL(None)
  # What is free at the top of an arena goes when a large block of it is freed, all but
  # for main's, and what is free below with `malloc_trim`.
  blocks = _take_from_each_arena(libc)
  try:
    libc.mallopt(_M_TRIM_THRESHOLD, 0)
    libc.mallopt(_M_TOP_PAD, 0)
    for block in blocks:
      libc.free(block)
    libc.malloc_trim(0)
  finally:
    libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    libc.mallopt(_M_TOP_PAD, _LEFT_BYTES)


def _take_from_each_arena(libc: ctypes.CDLL) -> list[ctypes.c_void_p]:
  """Returns blocks that are large enough for glibc to look at the top when one goes.

  Threads that are there at one time get one arena after the other, when there are as
  many arenas as may be. Before, each gets a new one.
  """
  # Not those of `threading`: it holds locks, in which garbage may be collected.
  blocks: queue.SimpleQueue[ctypes.c_void_p] = queue.SimpleQueue()
  all_have_one = _thread.allocate_lock()

  def take() -> None:
    blocks.put(ctypes.c_void_p(malloc(_LARGE_BYTES)))
    with all_have_one:
      pass

  malloc = libc.malloc
  malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
  with all_have_one:
    num_threads = 0
    with contextlib.suppress(RuntimeError):  # The system has no more, or it all ends.
      while num_threads < 2 * num_arenas():
        _thread.start_new_thread(take, ())
        num_threads += 1
    taken: list[ctypes.c_void_p] = []
    # Not for ever: where garbage is collected in one of these threads, that may wait
    # for the iterator that has called this.
    deadline = time.monotonic() + _MAX_WAIT_SECS
    with contextlib.suppress(queue.Empty):
      while len(taken) < num_threads:
        taken.append(blocks.get(timeout=max(0.0, deadline - time.monotonic())))
    return taken


class ReusedMemory:
  """Memory of large arrays that come and go, one after the other.

  What is larger than glibc keeps would be taken from the system page by page each time.
  An array's memory is taken again when nothing refers to the array or a part of it.
  When none is alive it waits for the next one, on its way or in the next epoch; it goes
  back to the system after some time, or as soon as another one of these needs new
  memory, so that only one dataset after the other has some.

  Measured on a virtual machine: new pages at the end of each epoch, of 50,000 windows
  of 110 KB, took 4 % of all time. Memory that goes back while an evaluation runs is
  dearer: the machine gives it to its host, and 62 MB took 110 ms of system time to come
  again, for which 1,200 windows could be read.
  """

  # No locks: within any line the garbage collector may end an iterator, which waits for
  # a call of Python that may want the same memory. What is done by two at once costs a
  # block that is not found, at worst.
  _all: ClassVar[set[weakref.ref[ReusedMemory]]] = set()

  def __init__(self, idle_secs: float = 60.0) -> None:
    """Creates it; nothing is taken yet.

    Args:
      idle_secs: seconds without an array, after which the memory goes back.
    """
    self._free: collections.deque[np.ndarray] = collections.deque()
    self._lent: set[int] = set()
    self._idle_secs = idle_secs
    self._idle_since = 0.0
    self._timer: threading.Timer | None = None
    self._all.add(weakref.ref(self, self._all.discard))

  def take(self, num_bytes: int) -> np.ndarray:
    """Returns an array, uint8 [num_bytes], whose values are anything."""
    if not num_bytes:  # It would keep others from a whole block.
      return np.empty(0, np.uint8)
    block = self._find(num_bytes + _ALIGNMENT)
    if block is None:
      self._let_all_go()
      block = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    self._lent.add(id(block))
    start = -block.ctypes.data % _ALIGNMENT
    lent = _Lent(block[start : start + num_bytes])
    weakref.finalize(lent, self._give_back, block).atexit = False
    return np.asarray(lent)

  def _find(self, num_bytes: int) -> np.ndarray | None:
    while True:
      try:
        block = self._free.pop()
      except IndexError:
        return None
      # Where one is too small, sizes have grown: it is of no use.
      if len(block) >= num_bytes:
        return block

  def _give_back(self, block: np.ndarray) -> None:
    # In this order: once it is free another thread may lend it again.
    self._lent.discard(id(block))
    self._free.append(block)
    if not self._lent:
      self._idle_since = time.monotonic()
      if self._timer is None:
        self._wait(self._idle_secs)

  def _wait(self, seconds: float) -> None:
    self._timer = threading.Timer(seconds, self._let_go_if_idle)
    self._timer.daemon = True
    try:
      self._timer.start()
    except RuntimeError:  # The process ends.
      self._free.clear()

  def _let_go_if_idle(self) -> None:
    self._timer = None
    left = self._idle_since + self._idle_secs - time.monotonic()
    if not self._lent and left > 0:
      self._wait(left)
    else:
      self._let_go()

  def _let_go(self) -> None:
    if not self._lent:
      self._free.clear()

  @classmethod
  def _let_all_go(cls) -> None:
    for reference in tuple(cls._all):
      if (memory := reference()) is not None:
        memory._let_go()


class _Lent:
  """Owns the memory of arrays: the base of each is this, not the block."""

  def __init__(self, memory: np.ndarray) -> None:
    self.__array_interface__: dict[str, Any] = dict(memory.__array_interface__)
