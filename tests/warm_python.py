"""Python scripts as processes that begin with TensorFlow imported.

To import it takes over 4 s of processor time. These processes are forked from one that
has imported it and has not run any of it, so each is as good as a new one, at once.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).resolve().parents[1]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tensorflow"])


def run(
  *argv: object,
  cwd: object = None,
  env: Mapping[str, str] | None = None,
  timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
  """Runs a script as `python *argv` does.

  Args:
    *argv: a script and its arguments, or "-c", code and arguments.
    cwd: where to run it.
    env: environment variables to change.
    timeout: seconds, after which it is killed.
  Returns:
    Its status, negative after a signal; and what it printed.
  """
  with tempfile.TemporaryDirectory() as folder:
    outputs = os.path.join(folder, "stdout"), os.path.join(folder, "stderr")
    texts = tuple(map(str, argv))
    changes = {"TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})}
    process = _FORKS.Process(
      target=_run, args=(texts, str(cwd or ROOT), changes, outputs)
    )
    process.start()
    process.join(timeout)
    if process.exitcode is None:
      process.kill()
      process.join()
      raise subprocess.TimeoutExpired(texts, timeout)
    stdout, stderr = (pathlib.Path(name).read_text() for name in outputs)
    return subprocess.CompletedProcess(texts, process.exitcode, stdout, stderr)


def _run(
  argv: tuple[str, ...], cwd: str, env: dict[str, str], outputs: tuple[str, str]
) -> None:
  with open(os.devnull) as nothing:
    os.dup2(nothing.fileno(), 0)
  for number, name in enumerate(outputs, start=1):
    with open(name, "wb") as file:
      os.dup2(file.fileno(), number)
  os.chdir(cwd)
  os.environ.update(env)
  # As for a new process: what lies beside the script, or in the folder, is found first.
  is_code = argv[0] == "-c"
  sys.path.insert(0, "" if is_code else os.path.dirname(argv[0]))
  sys.argv = ["-c", *argv[2:]] if is_code else list(argv)
  if is_code:
    exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
  else:
    runpy.run_path(argv[0], run_name="__main__")
