"""Damaged records and files without end: a crash, a hang and wrong data are found.

    python -m tests.records.fuzz --seconds 600 --seed 7

runs until the time is up; `--records 2000 --files 500` runs that many. Each case is a
function of the seed and its number. The cases run in a process of their own, which says
what it is about to do: what stops it, or keeps it, is known by its last words.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

_HERE = pathlib.Path(__file__).resolve()
_ROOT = _HERE.parents[2]
# No step takes longer, on the slowest of machines: tracing a graph takes seconds.
_PATIENCE = 120.0
# In a round, or fewer if fewer are wanted; its pipelines are traced once, which takes
# longer than 250 cases.
_RECORDS, _FILES = 1000, 500


def main(arguments: list[str] | None = None) -> int:
  """Runs the cases in a child process; returns how many things were wrong."""
  options = _parse(arguments)
  if options.child:
    return _run_cases(options)
  with tempfile.TemporaryDirectory() as folder:
    child = [sys.executable, str(_HERE), "--child", "--folder", folder]
    return watch([*child, *_numbers(options)])


def _parse(arguments: list[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--seconds", type=float, default=0.0)
  parser.add_argument("--records", type=int, default=0)
  parser.add_argument("--files", type=int, default=0)
  parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
  parser.add_argument("--folder", help=argparse.SUPPRESS)
  options = parser.parse_args(arguments)
  if not (options.seconds or options.records or options.files):
    parser.error("say how long: --seconds, or --records and --files")
  return options


def _numbers(options: argparse.Namespace) -> list[str]:
  names = ("seed", "seconds", "records", "files")
  return [text for n in names for text in (f"--{n}", str(getattr(options, n)))]


def watch(command: list[str], patience: float = _PATIENCE) -> int:
  """Starts a process and listens; says what it was doing where it does not end well.

  Args:
    command: of a process that uses `say`.
    patience: seconds of silence that are a hang.
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
    doing, num_wrong, is_done = _listen(child, patience)
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
  while True:
    try:
      line = lines.get(timeout=patience)
    except queue.Empty:
      print(f"silent for {patience:g} s")
      child.kill()
      return doing, num_wrong, False
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


def _run_cases(options: argparse.Namespace) -> int:
  """Goes through rounds of cases until there were enough, or the time is up."""
  import fuzz_files
  import fuzz_records

  fuzzers: dict[str, Any] = {
    "records": fuzz_records.RecordFuzz(options.seed, options.folder, say),
    "files": fuzz_files.FileFuzz(options.seed, options.folder, say),
  }
  # Records of one structure and the other take turns: two rounds have both.
  sizes = {
    "records": min(_RECORDS, options.records // 2 or _RECORDS),
    "files": min(_FILES, options.files or _FILES),
  }
  done = {"records": 0, "files": 0}
  start = time.monotonic()
  for number in range(1 << 30):
    is_more = False
    for kind, fuzzer in fuzzers.items():
      if time.monotonic() - start < options.seconds or (
        done[kind] < getattr(options, kind)
      ):
        fuzzer.run(number, sizes[kind])
        done[kind] += sizes[kind]
        is_more = True
    if not is_more:
      break
  outcomes = {
    f"outcomes of {kind}": dict(sorted(fuzzer.counts.items()))
    for kind, fuzzer in fuzzers.items()
  }
  seconds = round(time.monotonic() - start)
  say("done", json.dumps({**done, "seconds": seconds, **outcomes}))
  return 0


if __name__ == "__main__":
  sys.exit(min(main(), 100))
