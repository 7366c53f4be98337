"""What the system says of a process's memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys

_KIB_PER_MIB = 1024


def peak_mib() -> float:
  """Returns the peak resident memory of this process."""
  # On Linux ru_maxrss starts with what the parent had at the fork; VmHWM does not.
  peak = memory_mib("VmHWM")
  if peak is not None:
    return peak
  found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return found / (_KIB_PER_MIB**2 if sys.platform == "darwin" else _KIB_PER_MIB)


def memory_mib(field: str, pid: int | None = None) -> float | None:
  """Returns what Linux says of a process's memory.

  Args:
    field: of /proc/PID/status: VmHWM, the peak of all; RssAnon, what is private now;
      RssFile, pages of mapped files now.
    pid: of the process; None for this one.
  Returns:
    MiB; None where the system has no such line.
  """
  path = f"/proc/{pid or 'self'}/status"
  with contextlib.suppress(OSError), open(path, encoding="utf-8") as status:
    for line in status:
      if line.startswith(f"{field}:"):
        return int(line.split()[1]) / _KIB_PER_MIB
  return None


def give_back_freed() -> None:
  """Lets go of what is free but kept for later, where the allocator is glibc's.

  What is counted afterwards is in use.
  """
  gc.collect()
  trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
  if trim is not None:
    trim(0)
