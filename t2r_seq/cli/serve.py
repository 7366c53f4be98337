"""`t2r_seq serve`: serves a policy to a robot on another machine."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from typing import Any

from t2r_seq import lite, serving
from t2r_seq.cli import console
from t2r_seq.lite import lite_policy
from t2r_seq.serving import listening, websocket

SUMMARY = "serve a policy to robots, by websocket and msgpack"
DESCRIPTION = """Serves an export, or the folder that `t2r_seq export --lite` wrote.

The protocol is that of openpi's clients: they send observations by path and get outputs
by name. Each connection is an environment with a separate state.

  t2r_seq serve runs/pose/export/latest
  t2r_seq serve pose_lite --listen 10.0.0.5 --port 8000
  t2r_seq serve pose_lite --rename observation/image=camera/top --output actions"""


_LOOK_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  add = parser.add_argument
  add("export_dir", metavar="EXPORT", help="an export, its folder, or a lite folder")
  add(
    "--listen",
    default=listening.LOOPBACK,
    metavar="ADDRESS",
    help="address to listen on; 0.0.0.0: all interfaces (localhost). There is no "
    "authentication.",
  )
  add(
    "--port",
    type=int,
    default=websocket.PORT,
    help=f"port to listen on; 0: any free one ({websocket.PORT})",
  )
  add("--max_clients", type=int, default=8, metavar="N", help="clients at a time (8)")
  add(
    "--max_connections",
    type=int,
    metavar="N",
    help="maximum open connections, including silent ones (64 more than clients, or "
    "fewer if `ulimit -n` requires it)",
  )
  add(
    "--rename",
    metavar="CLIENT=POLICY",
    nargs="+",
    action="extend",
    default=[],
    help="a client's name and the policy's path: observation/image=camera/top",
  )
  add(
    "--output",
    default="",
    metavar="NAME",
    help="also send the action as [steps, size] under this name: openpi's clients read "
    "'actions'. NAME=OUTPUT for another output than inference_output",
  )
  add(
    "--allow_nan",
    action="store_true",
    help="accept NaN and infinity in observations; otherwise they are an error",
  )
  console.add_robot(parser)


def run(args: argparse.Namespace) -> int:
  """Serves until SIGTERM or SIGINT."""
  if args.max_clients < 1:
    raise console.UsageError(f"--max_clients must be >= 1, got {args.max_clients}.")
  listening.check_address("serve: --listen", args.listen)
  rename = dict(_pair(each) for each in args.rename)
  listening.check_max_connections("serve", args.max_clients, args.max_connections)
  stop = threading.Event()
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: stop.set())
  policy = _load(args.export_dir, args.allow_nan, args.robot)
  with serving.PolicyServer(
    policy,
    args.listen,
    args.port,
    args.max_clients,
    args.max_connections,
    rename,
    args.output,
  ) as server:
    print(f"serve: at ws://{args.listen}:{server.port}", flush=True)
    while not stop.wait(_LOOK_SECONDS):
      server.check()
  print("serve: stopped", flush=True)
  return 0


def _pair(text: str) -> tuple[str, str]:
  name, _, path = text.partition("=")
  if not name or not path:
    raise console.UsageError(f"--rename: expected CLIENT=POLICY, got {text}.")
  return name, path


def _load(folder: str, allow_nan: bool, robot: str | None) -> Any:
  """Loads the policy to serve; loads TensorFlow for exports only."""
  if os.path.exists(os.path.join(folder, lite_policy.LAYOUT_FILE)):
    if robot is not None:
      raise console.UsageError(f"--robot: no effect: {folder} has one robot.")
    return lite.LitePolicy(folder, allow_nan=allow_nan)
  console.load_tensorflow()
  predictor = console.load_export(folder, allow_nan, robot)
  predictor.get_step_specification()  # Raises for models without a step.
  return predictor
