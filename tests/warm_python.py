"""Python scripts as processes that begin with TensorFlow imported.

To import it takes over 4 s of processor time. These processes are forked from one that
has imported it and has not run any of it, so each is as good as a new one, at once.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import IO, Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Its processes have imported TensorFlow.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tensorflow"])

# Sends its arguments, folder, environment and outputs to `programs`, and ends as what
# was started for it.
_CLIENT = """
import json, os, socket, sys
first, *_ = *sys.argv[1:], "-"
if first.startswith("-") and first not in ("-m", "-c"):
  os.execv({python!r}, [{python!r}, *sys.argv[1:]])
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
  server.connect({address!r})
  socket.send_fds(server, [len(request).to_bytes(4, "big")], [1, 2])
  server.sendall(request)
  sys.exit(server.recv(1)[0])
"""


class Running:
  """A process that was started; what a `subprocess.Popen` with pipes has.

  Attributes:
    pid: its number.
    stdout: what it prints, to be read as it comes.
  """

  def __init__(self, process: Any, stdout: Any, stderr: Any) -> None:
    """See `start`."""
    self._process = process
    self.stdout = stdout
    self._stderr = stderr
    self.pid = process.pid

  @property
  def returncode(self) -> int | None:
    """Its status, negative after a signal; None while it runs."""
    return self._process.exitcode

  def poll(self) -> int | None:
    """Returns `returncode`."""
    return self.returncode

  def wait(self, timeout: float | None = None) -> None:
    """Waits until it ends."""
    self._process.join(timeout)
    if self.returncode is None:
      raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)

  def send_signal(self, number: int) -> None:
    """Sends a signal, if it still runs."""
    if self.returncode is None:
      os.kill(self.pid, number)

  def kill(self) -> None:
    """Kills it, if it still runs."""
    self.send_signal(signal.SIGKILL)

  def terminate(self) -> None:
    """Sends SIGTERM, if it still runs."""
    self.send_signal(signal.SIGTERM)

  def communicate(self, timeout: float | None = None) -> tuple[str, str]:
    """Reads what it still prints, until it ends; returns (stdout, stderr)."""
    texts = ["", ""]

    def read(index: int, file: IO[str]) -> None:
      texts[index] = file.read()

    readers = [
      threading.Thread(target=read, args=item, daemon=True)
      for item in enumerate((self.stdout, self._stderr))
    ]
    for reader in readers:
      reader.start()
    self.wait(timeout)
    for reader in readers:
      reader.join()
    return texts[0], texts[1]


def start(
  *argv: object,
  cwd: object = None,
  env: Mapping[str, str] | None = None,
  log: IO[bytes] | None = None,
) -> Running:
  """Starts a script as `python *argv` does.

  Args:
    *argv: a script and its arguments; or "-c", code and arguments; or "-m", a module
      and arguments.
    cwd: where to run it.
    env: environment variables to change.
    log: takes all that it prints, in place of pipes.
  Returns:
    The process.
  """
  changes = {"TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})}
  if log is not None:
    outputs = [Connection(os.dup(log.fileno()), readable=False) for _ in range(2)]
    process = _start(argv, cwd, changes, outputs)
    return Running(process, None, None)
  pipes = [FORKS.Pipe(duplex=False) for _ in range(2)]
  process = _start(argv, cwd, changes, [writer for _, writer in pipes])
  stdout, stderr = (os.fdopen(os.dup(reader.fileno())) for reader, _ in pipes)
  return Running(process, stdout, stderr)


def _start(argv: Any, cwd: Any, env: dict[str, str], outputs: list[Any]) -> Any:
  process = FORKS.Process(
    target=_run, args=(tuple(map(str, argv)), str(cwd or ROOT), env, outputs)
  )
  process.start()
  for output in outputs:
    output.close()
  return process


def run(
  *argv: object,
  cwd: object = None,
  env: Mapping[str, str] | None = None,
  timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
  """Runs a script as `python *argv` does, to its end.

  Args:
    *argv: see `start`.
    cwd: where to run it.
    env: environment variables to change.
    timeout: seconds, after which it is killed.
  Returns:
    Its status, negative after a signal; and what it printed.
  """
  process = start(*argv, cwd=cwd, env=env)
  try:
    stdout, stderr = process.communicate(timeout)
  finally:
    process.kill()
  return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)


@contextlib.contextmanager
def programs(folder: pathlib.Path) -> Iterator[str]:
  """Makes a folder with a `python` and a `t2r_seq` that start as `start` does.

  Its stdin is empty. What is no script, module or code is run by the real one.

  Args:
    folder: does not exist.
  Yields:
    The folder, to come first in PATH.
  """
  folder.mkdir()
  client = folder / "client.py"
  for name, module in (("python", ""), ("t2r_seq", "-m t2r_seq")):
    command = f'exec {sys.executable} -I -S {client} {module} "$@"'
    (folder / name).write_text(f"#!/bin/sh\n{command}\n")
    (folder / name).chmod(0o755)
  with socket.socket(socket.AF_UNIX) as server:
    server.bind("")  # Linux finds a name, which is no path: those may be too long.
    server.listen()
    address = server.getsockname()
    client.write_text(_CLIENT.format(python=sys.executable, address=address))
    threading.Thread(target=_serve, args=[server], daemon=True).start()
    try:
      yield str(folder)
    finally:
      server.shutdown(socket.SHUT_RDWR)


def _serve(server: socket.socket) -> None:
  with contextlib.suppress(OSError):  # Until it is shut down.
    while True:
      client, _ = server.accept()
      threading.Thread(target=_answer, args=[client], daemon=True).start()


def _answer(client: socket.socket) -> None:
  with client:
    head, descriptors, *_ = socket.recv_fds(client, 4, 2)
    with client.makefile("rb") as file:
      argv, cwd, env = json.loads(file.read(int.from_bytes(head, "big")))
    outputs = [Connection(each, readable=False) for each in descriptors]
    process = FORKS.Process(target=_run, args=(tuple(argv), cwd, env, outputs))
    process.start()
    for output in outputs:
      output.close()
    process.join()
    # As a shell counts those that a signal has ended.
    status = process.exitcode or 0
    client.sendall(bytes([status if status >= 0 else 128 - status]))


def _run(
  argv: tuple[str, ...], cwd: str, env: dict[str, str], outputs: list[Any]
) -> None:
  with open(os.devnull) as nothing:
    os.dup2(nothing.fileno(), 0)
  for number, output in enumerate(outputs, start=1):
    os.dup2(output.fileno(), number)
    output.close()
  os.chdir(cwd)
  os.environ.update(env)
  # As for a new process: what lies beside the script, or in the folder, is found first.
  is_script = argv[0] not in ("-c", "-m")
  sys.path.insert(0, os.path.dirname(argv[0]) if is_script else "")
  sys.argv = list(argv) if is_script else [argv[0], *argv[2:]]
  if is_script:
    runpy.run_path(argv[0], run_name="__main__")
  elif argv[0] == "-m":
    runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
  else:
    exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
