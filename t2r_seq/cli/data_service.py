"""`t2r_seq data-service`: the dispatcher and the workers of a tf.data service."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import threading
from typing import Any

from t2r_seq import errors, process
from t2r_seq.cli import console
from t2r_seq.serving import listening

SUMMARY = "run the dispatcher or a worker of a tf.data service"
DESCRIPTION = """Runs a server of a tf.data service until SIGTERM.

One dispatcher distributes the work among any number of workers, on this machine:

  t2r_seq data-service dispatcher --port 5050
  t2r_seq data-service worker --dispatcher localhost:5050

or on others that see the same files. For those name an address to listen on, in a
private network only: any client of a server can make it read and write files.

  t2r_seq data-service dispatcher --port 5050 --listen 10.0.0.5
  t2r_seq data-service worker --dispatcher 10.0.0.5:5050 --listen 10.0.0.6

A training reads through them if gin binds `DataService.address = ...`."""

_RETRY_SECONDS = 0.5
_ADDRESS = r"(grpc://)?[^/\s]+:\d+"


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  add = parser.add_argument
  add(
    "role",
    metavar="ROLE",
    choices=("dispatcher", "worker"),
    help="dispatcher or worker",
  )
  add(
    "--port", type=int, default=0, help="port to listen on; 0 (default): any free one"
  )
  add(
    "--dispatcher",
    metavar="HOST:PORT",
    default="",
    help="worker: the dispatcher's address",
  )
  add(
    "--listen",
    metavar="ADDRESS",
    default=listening.LOOPBACK,
    help=f"address to listen on; {listening.EVERYWHERE}: all interfaces; default: "
    "localhost only",
  )
  add("--host", help="worker: address that others connect to; default: --listen")
  add(
    "--heartbeat",
    type=float,
    metavar="SECONDS",
    default=10.0,
    help="worker: time between two reports to the dispatcher; default: 10",
  )
  add(
    "--work_dir",
    metavar="FOLDER",
    help="dispatcher: folder of its journal, from which it resumes after a restart",
  )
  add(
    "--worker_timeout",
    type=float,
    metavar="SECONDS",
    default=60.0,
    help="dispatcher: time without a heartbeat after which a worker is dropped; "
    "default: 60",
  )


def run(args: argparse.Namespace) -> int:
  """Runs the server until SIGTERM or SIGINT."""
  others = {"work_dir", "worker_timeout"}
  if args.role == "dispatcher":
    others = {"dispatcher", "host", "heartbeat"}
  console.reject_options(args, {*vars(args)} - others, f"for a {args.role}")
  if args.role == "worker" and not re.fullmatch(_ADDRESS, args.dispatcher):
    raise errors.SpecError(
      "data-service: --dispatcher: expected HOST:PORT of the dispatcher, got "
      f"{args.dispatcher!r}."
    )
  # TensorFlow would listen on another port.
  listening.check_port("data-service: --port", args.port)
  listening.check_address("data-service: --listen", args.listen)
  if args.listen == listening.EVERYWHERE and args.role == "worker" and not args.host:
    raise errors.SpecError(
      f"data-service: --host is required with --listen {args.listen}: the address that "
      "others connect to."
    )
  stop = threading.Event()
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: stop.set())
  console.load_tensorflow()
  process.keep_freed_memory()
  if args.role == "worker":
    _find(args.dispatcher, stop)
  if stop.is_set():
    return _say_stopped(args.role)
  server = _worker(args) if args.role == "worker" else _dispatcher(args)
  listening.restrict(args.listen)
  if args.role == "worker":
    print("worker: ready", flush=True)
  else:
    # TensorFlow always answers 'localhost'.
    host = listening.reached_at(args.listen)
    print(f"dispatcher: at {server.target.replace('localhost', host)}", flush=True)
  stop.wait()
  # The server's own stop, as its destructor, may wait forever for a client or for a
  # dispatcher that has gone. It has nothing to save: a journal is written as it grows.
  os._exit(_say_stopped(args.role))


def _say_stopped(role: str) -> int:
  print(f"{role}: stopped", flush=True)
  return 0


def _find(address: str, stop: threading.Event) -> None:
  """Waits until a server listens at the address, or for SIGTERM.

  TensorFlow would wait as well, but no signal could interrupt it.
  """
  print(f"worker: looking for {address}", flush=True)
  host, _, port = address.removeprefix("grpc://").rpartition(":")
  while not stop.is_set():
    try:
      socket.create_connection((host, int(port)), timeout=5).close()
      return
    except OSError:
      stop.wait(_RETRY_SECONDS)


def _dispatcher(args: argparse.Namespace) -> Any:
  import tensorflow as tf

  service = tf.data.experimental.service
  return service.DispatchServer(
    service.DispatcherConfig(
      port=args.port,
      work_dir=args.work_dir,
      fault_tolerant_mode=args.work_dir is not None,
      worker_timeout_ms=int(args.worker_timeout * 1000),
      # It looks for lost workers this often. Its default, ten minutes, blocks jobs.
      job_gc_check_interval_ms=max(1, int(args.worker_timeout * 500)),
    )
  )


def _worker(args: argparse.Namespace) -> Any:
  import tensorflow as tf

  service = tf.data.experimental.service
  host = args.host or args.listen
  return service.WorkerServer(
    service.WorkerConfig(
      dispatcher_address=args.dispatcher.removeprefix("grpc://"),
      # TensorFlow replaces %port% by the port that it listens on.
      worker_address=f"[{host}]:%port%" if ":" in host else f"{host}:%port%",
      port=args.port,
      heartbeat_interval_ms=int(args.heartbeat * 1000),
    )
  )
