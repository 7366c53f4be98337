"""Freed memory that is kept for the next batch: for programs that own their process."""

from __future__ import annotations

import ctypes
import functools
import os

from absl import logging

# Of glibc's malloc.h: what is set, and to what.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_KEPT_BYTES, _LEFT_BYTES, _MMAP_BYTES = 72 << 20, 24 << 20, 2**25
_ARENAS_A_CORE, _MAX_ARENAS = 2, 8


@functools.cache
def keep_freed_memory() -> bool:
  """Makes glibc keep freed memory for the next batch, once a process.

  By itself glibc gives blocks of some megabytes back to the system when two or three
  are free, and the next batch takes them again page by page, each of which the kernel
  fills with zeros first: where page faults are dear, half of the time of batches of
  frames. And each thread frees to an arena of its own, where others do not find it. Now
  up to 72 MiB stay at the top of an arena, and there are two arenas for each core, at
  most eight.

  The command line calls this, because its process is its own. The library does not: a
  program that wants it calls it before anything else.

  Returns:
    Whether it was changed: not where one of glibc's variables (`MALLOC_ARENA_MAX` and
    others, or `glibc.malloc` in `GLIBC_TUNABLES`) has decided, and not of other
    allocators.
  """
  tunables = os.environ.get("GLIBC_TUNABLES", "")
  decided = any(name.startswith("MALLOC_") for name in os.environ)
  mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
  if decided or "glibc.malloc." in tunables or mallopt is None:
    return False
  cores = len(os.sched_getaffinity(0))
  arenas = min(_MAX_ARENAS, _ARENAS_A_CORE * cores)
  settings = {
    _MMAP_THRESHOLD: _MMAP_BYTES,
    _TRIM_THRESHOLD: _KEPT_BYTES,
    _TOP_PAD: _LEFT_BYTES,
    _ARENA_MAX: arenas,
  }
  # It returns 1 where it has understood.
  if not all(mallopt(option, value) for option, value in settings.items()):
    return False
  logging.debug("allocation: %d arenas keep up to %d bytes each.", arenas, _KEPT_BYTES)
  return True
