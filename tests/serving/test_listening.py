"""Servers that listen everywhere, and are reached at one address only."""

from __future__ import annotations

import socket

import pytest

from t2r_seq import errors
from t2r_seq.serving import listening


def own_address():
  """An address of this machine that is not its loopback; nothing is sent."""
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(("192.0.2.1", 9))
    except OSError:
      pytest.skip("this machine has no network")
    return probe.getsockname()[0]


@pytest.fixture(name="server", params=["v4", "v4 and v6"])
def fixture_server(request):
  """Listens everywhere, as gRPC's servers do."""
  if request.param == "v4":
    server = socket.create_server(("0.0.0.0", 0))
  elif socket.has_dualstack_ipv6():
    server = socket.create_server(
      ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True
    )
  else:
    pytest.skip("this machine has no IPv6")
  with server:
    yield server


def answers(host, port):
  try:
    socket.create_connection((host, int(port)), timeout=0.3).close()
    return True
  except OSError:
    return False


@pytest.mark.parametrize(
  ("address", "want"),
  [
    ("localhost", (True, False)),
    ("127.0.0.1", (True, False)),
    ("own", (False, True)),
    ("0.0.0.0", (True, True)),
  ],
)
def test_restricted_server_answers_on_its_address_only(server, address, want):
  own, port = own_address(), server.getsockname()[1]
  assert (answers("127.0.0.1", port), answers(own, port)) == (True, True)
  listening.restrict(own if address == "own" else address, port)
  assert (answers("127.0.0.1", port), answers(own, port)) == want


def test_localhost_is_of_both_versions():
  if not socket.has_dualstack_ipv6():
    pytest.skip("this machine has no IPv6")
  with socket.create_server(
    ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True
  ) as server:
    port = server.getsockname()[1]
    listening.restrict("localhost", port)
    assert answers("127.0.0.1", port) and answers("::1", port)


def test_connections_before_the_restriction_are_closed(server):
  own, port = own_address(), server.getsockname()[1]
  with (
    socket.create_connection((own, port)) as early,
    socket.create_connection(("127.0.0.1", port)) as good,
  ):
    # By the port of the client, which is the same whatever the version of IP.
    accepted = {peer[1]: here for here, peer in (server.accept() for _ in range(2))}
    listening.restrict("localhost", port)
    early.settimeout(5)
    assert early.recv(1) == b""
    good.sendall(b"x")
    assert accepted[good.getsockname()[1]].recv(1) == b"x"
    for connection in accepted.values():
      connection.close()


@pytest.mark.parametrize("address", ["", "example.org", "10.0.0.5:80", "localhost:1"])
def test_check_address_rejects_invalid_addresses(address):
  want = rf"expected 'localhost', '0.0.0.0' for every address .* got '{address}'"
  with pytest.raises(errors.SpecError, match=want):
    listening.check_address("data-service: --listen", address)


def test_system_that_cannot(monkeypatch):
  monkeypatch.setattr("sys.platform", "darwin")
  listening.check_address("data-service: --listen", "0.0.0.0")
  want = "data-service: --listen: expected '0.0.0.0' on darwin, where servers cannot be"
  with pytest.raises(errors.SpecError, match=want):
    listening.check_address("data-service: --listen", "localhost")


def test_nobody_listens():
  with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
  with pytest.raises(OSError, match=f"expected a server at port {port} in"):
    listening.restrict("localhost", port)
