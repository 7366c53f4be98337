"""`t2r_seq replay-server`: a Reverb server, as a process of its own."""

from __future__ import annotations

import argparse

from t2r_seq.cli import console

SUMMARY = "run a replay server, for actors to write to and learners to read from"
DESCRIPTION = """Runs a Reverb server until it is told to stop (SIGTERM).

What it holds and how it samples, removes and paces is said by gin, as the arguments of
`ReplayServer`. With a checkpoint_dir it goes on from the newest checkpoint there, and
writes one every checkpoint_secs, and when it stops. Needs the extra `reverb`.

  t2r_seq replay-server \\
    --gin_configs research/pose_env/configs/distributed_server.gin \\
    --gin_bindings 'REPLAY_DIR = "runs/replay"' 'ReplayServer.port = 8000'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  console.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
  """Serves; see `t2r_seq.replay.reverb.ReplayServer` for what can be configured."""
  console.parse(args)
  from t2r_seq.replay import reverb

  with reverb.ReplayServer() as server:
    print(f"replay-server: at {server.address}", flush=True)
    server.serve()
  print("replay-server: stopped", flush=True)
  return 0
