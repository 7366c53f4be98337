"""What the system says of a process's time."""

from __future__ import annotations

import contextlib
import os


def cpu_seconds(pid: int) -> float:
  """Returns the processor time of all threads of a process, in steps of some 10 ms.

  Args:
    pid: of the process.
  Returns:
    Seconds; 0 where there is no such process, or the system does not tell.
  """
  path = f"/proc/{pid}/stat"
  with contextlib.suppress(OSError), open(path, encoding="utf-8") as stat:
    # Fields are counted from behind the name, which may have spaces.
    fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
  return 0.0
