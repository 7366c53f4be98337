"""Runs a command that ends with the process that started it.

    python tied_process.py PARENT_PID COMMAND [ARGUMENT ...]

A supervisor that is killed can stop nothing. So Linux is asked to send SIGTERM to the
command when its parent is gone, whatever the reason; elsewhere the command outlives it.
The command takes the place of this process, under the same id.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
  """Ties this process to its parent, and becomes the command."""
  if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
  if os.getppid() != parent:  # It died before it could be asked for.
    sys.exit(1)
  os.execvp(command[0], command)


if __name__ == "__main__":
  main(int(sys.argv[1]), sys.argv[2:])
