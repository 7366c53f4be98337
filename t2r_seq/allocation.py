"""Memory that the process has freed: kept for the next batch, not given back."""

from __future__ import annotations

import ctypes
import functools
import os

from absl import logging

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The most that glibc's own adaptation comes to.
_MMAP_BYTES = 2**25
# As much as a heap of another thread than the first can hold.
_KEPT_BYTES = 2**26
_VARIABLES = (
  "MALLOC_TRIM_THRESHOLD_",
  "MALLOC_TOP_PAD_",
  "MALLOC_MMAP_THRESHOLD_",
  "MALLOC_MMAP_MAX_",
)


@functools.cache
def keep_freed_memory() -> bool:
  """Makes glibc keep up to 64 MiB of what is freed in each arena, once a process.

  Batches of some megabytes come and go. By itself glibc gives their memory back to the
  system when two or three of them are free, and the next one takes it again, page by
  page, each of which the kernel fills with zeros first. Windows of 110 KB in batches
  of 64 were read at 54,000 a second so, and at 130,000 without (two cores, a virtual
  machine; 16 us of system time a window, then 1). It takes 48 MiB; 32 are half as
  good. Blocks of more than 32 MiB are mapped one by one as before.

  Loaders of windows by number and replay buffers call this. Pools do not, which keep to
  a budget: with it they took a fifth more, and were a tenth faster. Who has set one of
  glibc's variables (`MALLOC_TRIM_THRESHOLD_` and others, or `glibc.malloc` in
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
  # Each returns 1 where it was understood.
  if not (
    mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
  ):
    return False
  logging.info(
    "allocation: up to %d freed bytes an arena are kept for the next batch; "
    "MALLOC_TRIM_THRESHOLD_ in the environment sets another number.",
    _KEPT_BYTES,
  )
  return True
