"""The processes of the distributed job: what each is told, and where it is found.

Every one of them is the command line with a gin file. On several machines the same
commands are started by hand, or by whatever starts processes there; see
docs/distributed.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import socket
import sys
from collections.abc import Mapping, Sequence

# The processes work here, where gin files find each other.
ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER, LEARNER, ACTOR = "server", "learner", "actor"
STORE, REVERB = "store", "reverb"
_CONFIGS = "research/pose_env/configs"


@dataclasses.dataclass(frozen=True)
class Job:
  """What is started, where.

  Attributes:
    out: an absolute path; the folder of everything written.
    engine: what stands between actors and learner: STORE, a folder that the actors
      append to and the learner follows, or REVERB, a server.
    num_actors: how many actors.
    train_steps: that the learner makes; then the job is done.
    batch_size: windows in each of them.
    num_eval: episodes that its last export is evaluated in.
    port: that a server listens at, on this machine.
    bindings: further gin bindings by role: SERVER, LEARNER or ACTOR.
  """

  out: pathlib.Path
  engine: str = STORE
  num_actors: int = 2
  train_steps: int = 2000
  batch_size: int = 64
  num_eval: int = 30
  port: int = 8000
  bindings: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

  @property
  def address(self) -> str:
    """Where the others find the server."""
    return f"localhost:{self.port}"

  @property
  def actor_dirs(self) -> list[pathlib.Path]:
    """The folder of each actor; its name is the actor's."""
    return [self.out / f"actor_{index}" for index in range(self.num_actors)]

  @property
  def replay_dir(self) -> pathlib.Path:
    """The folder of the store, or of the server's checkpoints."""
    return self.out / "replay"

  @property
  def learner_dir(self) -> pathlib.Path:
    """The folder of the training run."""
    return self.out / "learner"

  @property
  def export_dir(self) -> pathlib.Path:
    """Where the learner exports to, and the actors look."""
    return self.learner_dir / "export" / "latest"

  def commands(self) -> dict[str, list[str]]:
    """Returns the command of each process, by name; they may start in any order."""
    if self.engine == REVERB:
      shared, generator = f"REPLAY_ADDRESS = {self.address!r}", "ReplayInputGenerator"
    else:
      shared = f"REPLAY_STORE_DIR = {str(self.replay_dir)!r}"
      generator = "StoreInputGenerator"
    commands = {}
    if self.engine == REVERB:
      commands[SERVER] = self._command(
        SERVER,
        "replay-server",
        f"REPLAY_DIR = {str(self.replay_dir)!r}",
        f"ReplayServer.port = {self.port}",
      )
    commands[LEARNER] = self._command(
      LEARNER,
      "train",
      shared,
      f"{generator}.batch_size = {self.batch_size}",
      f"train_eval_model.model_dir = {str(self.learner_dir)!r}",
      f"NUM_TRAIN_STEPS = {self.train_steps}",
    )
    for index, folder in enumerate(self.actor_dirs):
      segment = [f"StoreSink.segment = {folder.name!r}"]
      commands[folder.name] = self._command(
        ACTOR,
        "collect-eval",
        shared,
        f"EXPORT_DIR = {str(self.export_dir)!r}",
        f"collect_eval_loop.root_dir = {str(folder)!r}",
        f"collect_eval_loop.seed = {index}",
        *(segment if self.engine == STORE else []),
      )
    return commands

  def _command(self, role: str, command: str, *bindings: str) -> list[str]:
    part = "reverb_" if self.engine == REVERB else ""
    return [
      *(sys.executable, "-m", "t2r_seq", command),
      *("--gin_configs", f"{_CONFIGS}/distributed_{part}{role}.gin"),
      *("--gin_bindings", *bindings, *self.bindings.get(role, ())),
    ]


def free_port() -> int:
  """Returns a port that nobody listens at now."""
  with contextlib.closing(socket.socket()) as free:
    free.bind(("localhost", 0))
    return int(free.getsockname()[1])
