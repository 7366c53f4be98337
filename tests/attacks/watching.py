"""Processes that say what they are about to do, and are watched by another."""

from __future__ import annotations

import os
import pathlib
import queue
import subprocess
import tempfile
import threading
from typing import Any

_HERE = pathlib.Path(__file__).resolve()
_ROOT = _HERE.parents[2]
# No step takes longer, on the slowest of machines: tracing a graph takes seconds. Ahead
# of the first one TensorFlow is imported: many times that, where others do so, too.
_PATIENCE, _AT_THE_START = 120.0, 10


def _patience() -> float:
  """Returns how long a step may take where others want the processors, too."""
  return _PATIENCE * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def watch(command: list[str], patience: float | None = None) -> int:
  """Starts a process and listens; says what it was doing where it does not end well.

  Args:
    command: of a process that uses `say`.
    patience: seconds of silence that are a hang; None for those of a machine as busy
      as this one is.
  Returns:
    How many things were wrong, a crash or hang among them.
  """
  paths = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
  with tempfile.TemporaryFile("w+", errors="replace") as log:
    child = subprocess.Popen(
      command,
      env={**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"},
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=log,
      text=True,
    )
    doing, num_wrong, is_done = _listen(child, patience or _patience())
    status = child.wait()
    if is_done:
      return num_wrong
    log.seek(0)
    print(f"stopped with status {status} at: {doing}\n{log.read()[-4000:]}")
    return num_wrong + 1


def _listen(child: subprocess.Popen[str], patience: float) -> tuple[str, int, bool]:
  """Returns the last step, how many things were wrong, and whether it was the last."""
  lines: queue.Queue[str | None] = queue.Queue()

  def read() -> None:
    for line in child.stdout or ():
      lines.put(line.rstrip("\n"))
    lines.put(None)

  threading.Thread(target=read, daemon=True).start()
  doing, num_wrong = "the start", 0
  limit = _AT_THE_START * patience
  while True:
    try:
      line = lines.get(timeout=limit)
    except queue.Empty:
      print(f"silent for {limit:g} s")
      child.kill()
      return doing, num_wrong, False
    limit = patience
    kind, _, rest = (line or "").partition(" ")
    if kind == "at":
      doing = rest
    elif kind == "wrong":
      num_wrong += 1
      print(f"wrong: {rest}", flush=True)
    elif kind == "done":
      print(rest, flush=True)
      return doing, num_wrong, True
    elif line is None:
      return doing, num_wrong, False


def say(kind: str, text: Any) -> None:
  """Tells the parent: 'at' before a step, 'wrong', or 'done' at the end."""
  line = f"{kind} {text}".replace("\n", " ")[:2000] + "\n"
  os.write(1, line.encode("utf-8", "backslashreplace"))
