"""`t2r_seq data-service`: what it refuses; tests/data runs it for real."""

from __future__ import annotations

import signal

import pytest

from t2r_seq import process
from t2r_seq.cli import data_service, main


@pytest.mark.parametrize("address", [None, "localhost", "grpc://:1", "a b:1"])
def test_worker_needs_its_dispatcher(address, capsys):
  before = signal.getsignal(signal.SIGTERM)
  more = [] if address is None else ["--dispatcher", address]
  assert main(["data-service", "worker", *more]) == 1
  message = capsys.readouterr().err
  assert "data-service: --dispatcher: expected HOST:PORT of the dispatcher" in message
  assert repr(address or "") in message
  assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("port", ["-1", "65536", "99999"])
def test_port_is_one_that_there_is(port, capsys):
  assert main(["data-service", "dispatcher", "--port", port]) == 1
  message = f"--port: expected one of 0 to 65535, got {port}."
  assert message in capsys.readouterr().err


@pytest.mark.parametrize(
  ("more", "want"),
  [
    (
      ["--listen", "example.org"],
      "--listen: expected 'localhost', '0.0.0.0' for",
    ),
    (["--listen", "0.0.0.0"], "--host is required with --listen 0.0.0.0: the address"),
  ],
)
def test_worker_rejects_invalid_listen_address(more, want, capsys):
  command = ["data-service", "worker", "--dispatcher", "localhost:1", *more]
  assert main(command) == 1
  assert want in capsys.readouterr().err


def test_role_is_needed(capsys):
  with pytest.raises(SystemExit, match="2"):
    main(["data-service", "client"])
  assert "invalid choice: 'client'" in capsys.readouterr().err


@pytest.mark.parametrize("role", ["dispatcher", "worker"])
def test_servers_keep_freed_memory(role, monkeypatch):
  # A server ends with its process: one that fails to start does not.
  def start(args):
    del args
    events.append("start")
    raise OSError("no port")

  events = []
  monkeypatch.setattr(process, "keep_freed_memory", lambda: events.append("keep"))
  monkeypatch.setattr(signal, "signal", lambda *_: None)
  monkeypatch.setattr(data_service, "_find", lambda *_: None)
  monkeypatch.setattr(data_service, f"_{role}", start)
  options = ["--dispatcher", "localhost:1"] if role == "worker" else []
  assert main(["data-service", role, *options]) == 1
  assert events == ["keep", "start"]
