"""Keeps the processes of a job running, as systemd or Kubernetes would elsewhere.

It starts commands, starts those again that die, and stops all of them. It knows nothing
of what they do: they find each other by themselves, and each goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from absl import logging

from research.pose_env import tied_process

_SHOWN_LINES = 15


class JobError(RuntimeError):
  """A process of a job died too often; its last words are in the message."""


@dataclasses.dataclass
class _Child:
  """One command, and the process that runs it; none while it waits for a restart."""

  command: Sequence[str]
  process: subprocess.Popen[bytes] | None = None
  num_starts: int = 0
  start_at: float = 0.0


class Supervisor:
  """Runs named commands, each with a log file of its own.

  A command that ends with status 0 has finished; with any other it died. If this
  process dies itself, the commands get SIGTERM.
  """

  def __init__(
    self,
    log_dir: pathlib.Path,
    max_restarts: int = 10,
    restart_seconds: float = 1.0,
    environment: Mapping[str, str] | None = None,
    folder: pathlib.Path | None = None,
  ) -> None:
    """Creates a supervisor of nothing.

    Args:
      log_dir: folder of the logs, `<name>.log`; they are appended to.
      max_restarts: how often a command may be started again, each.
      restart_seconds: between a death and the restart.
      environment: variables of the processes; None: those of this one.
      folder: that they work in; None: that of this one.
    """
    self._log_dir = log_dir
    self._max_restarts = max_restarts
    self._restart_seconds = restart_seconds
    self._environment = dict(os.environ if environment is None else environment)
    self._folder = folder
    self._children: dict[str, _Child] = {}
    log_dir.mkdir(parents=True, exist_ok=True)

  def start(self, name: str, command: Sequence[str]) -> None:
    """Starts a command."""
    self._children[name] = _Child(list(command))
    self._launch(name)

  def pid(self, name: str) -> int | None:
    """Returns the id of a command's process; None while there is none."""
    process = self._children[name].process
    return None if process is None or process.poll() is not None else process.pid

  def num_restarts(self, name: str) -> int:
    """Returns how often a command was started again."""
    return max(0, self._children[name].num_starts - 1)

  def log_path(self, name: str) -> pathlib.Path:
    """Returns where a command's output goes."""
    return self._log_dir / f"{name}.log"

  def poll(self) -> set[str]:
    """Starts again what died; to be called every now and then.

    Returns:
      The names of the commands that have finished.
    Raises:
      JobError: a command died once more than it may be restarted.
    """
    finished = set()
    for name, child in self._children.items():
      if child.process is None:
        if time.monotonic() >= child.start_at:
          self._launch(name)
      elif child.process.poll() == 0:
        finished.add(name)
      elif child.process.returncode is not None:
        self._plan_restart(name, child, child.process.returncode)
    return finished

  def stop(self, *names: str, timeout: float = 30.0) -> None:
    """Stops commands with SIGTERM, and with SIGKILL those that don't listen.

    Args:
      *names: all of them are told at once; none means every command.
      timeout: seconds that they have together.
    """
    deadline = time.monotonic() + timeout
    processes = {
      name: child.process
      for name, child in self._children.items()
      if child.process is not None and (not names or name in names)
    }
    for process in processes.values():
      process.terminate()  # Does nothing to one that has ended.
    for name, process in processes.items():
      try:
        process.wait(max(0.0, deadline - time.monotonic()))
      except subprocess.TimeoutExpired:
        logging.warning("%s did not stop in %g s; killing it.", name, timeout)
        process.kill()
        process.wait()
    for name in names or list(self._children):
      self._children.pop(name)

  @contextlib.contextmanager
  def stopped_at_exit(self) -> Iterator[Supervisor]:
    """Stops every command when the block is left, whatever the reason."""
    try:
      yield self
    finally:
      self.stop()

  def launch(self, command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts a process; a subclass may have another way.

    Args:
      command: of it.
      log: what it prints goes there.
    Returns:
      The process: its `pid`, `returncode` and `poll`, `wait`, `terminate`, `kill`.
    """
    # In a session of its own: Ctrl-C then reaches this process alone, which stops
    # the others in its own order.
    return subprocess.Popen(
      [sys.executable, tied_process.__file__, str(os.getpid()), *command],
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      env=self._environment,
      cwd=self._folder,
      start_new_session=True,
    )

  def _launch(self, name: str) -> None:
    child = self._children[name]
    with open(self.log_path(name), "ab") as log:
      child.process = self.launch(child.command, log)
    child.num_starts += 1

  def _plan_restart(self, name: str, child: _Child, status: int) -> None:
    cause = f"status {status}" if status > 0 else signal.Signals(-status).name
    if child.num_starts > self._max_restarts:
      raise JobError(
        f"run job: {name}: expected at most {self._max_restarts} restarts, died once "
        f"more ({cause}). The end of {self.log_path(name)}:\n{self._last_words(name)}"
      )
    logging.warning("%s died (%s); starting it again.", name, cause)
    child.process = None
    child.start_at = time.monotonic() + self._restart_seconds

  def _last_words(self, name: str) -> str:
    text = self.log_path(name).read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-_SHOWN_LINES:])
