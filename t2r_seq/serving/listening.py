"""Restricts servers of this process to an address, and limits their connections.

The servers of TensorFlow and Reverb have no authentication, and listen at every address
of the machine. A packet filter of the operating system drops packets to addresses that
are not allowed.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator

from t2r_seq import errors

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

LOOPBACK = "localhost"
EVERYWHERE = "0.0.0.0"
_MAX_PORT = 2**16 - 1

# The constant of Linux, which Python's `socket` does not have.
_SO_ATTACH_FILTER = 26
# The filter is a program of "classic BPF": load 4 bytes, compare, jump, return.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
# Negative offsets are data of the kernel: SKF_AD_OFF + SKF_AD_PROTOCOL, SKF_NET_OFF.
_PROTOCOL, _NETWORK_HEADER = 2**32 - 0x1000, 2**32 - 0x100000
# By the version of IP: its EtherType, and the destination's offset in the header.
_IP = {4: (0x0800, 16), 6: (0x86DD, 24)}
_PASS, _DROP = 2**32 - 1, 0

# File descriptors for other files, and for connections that are being accepted.
_OTHER_FILES = 256
# Connections beside the clients, by default.
_NUM_UNKNOWN = 64


def check_address(operation: str, address: str) -> None:
  """Raises SpecError if a server cannot be restricted to an address."""
  try:
    is_restricted = bool(_addresses(address))
  except ValueError as error:
    raise errors.SpecError(
      f"{operation}: expected '{LOOPBACK}', '{EVERYWHERE}' for every address of this "
      f"machine, or one of them such as '10.0.0.5', got {address!r}."
    ) from error
  if is_restricted and sys.platform != "linux":
    raise errors.SpecError(
      f"{operation}: expected '{EVERYWHERE}' on {sys.platform}, where servers cannot "
      f"be kept from listening at every address, got {address!r}. Listen there if a "
      "firewall keeps others out."
    )


def check_port(operation: str, port: int) -> None:
  """Raises SpecError if no server can listen at a port; 0 picks a free one."""
  if not 0 <= port <= _MAX_PORT:
    raise errors.SpecError(
      f"{operation}: expected one of 0 to {_MAX_PORT}, got {port}."
    )


def reached_at(address: str) -> str:
  """Returns the host by which clients reach a server that `restrict` restricts."""
  if address in (LOOPBACK, EVERYWHERE):
    return LOOPBACK
  return f"[{address}]" if ":" in address else address


def restrict(address: str, port: int | None = None) -> None:
  """Restricts the servers that listen in this process to one address.

  Args:
    address: 'localhost' for 127.0.0.1 and ::1; one of the machine's addresses; or
      '0.0.0.0', which changes nothing.
    port: port of the servers; None for all that listen for TCP now.
  Raises:
    SpecError: see `check_address`.
    OSError: no server listens, or the system refuses.
  """
  check_address("listen", address)
  allowed = _addresses(address)
  if not allowed:
    return
  program = _program(allowed)
  code = ctypes.create_string_buffer(program, len(program))
  option = struct.pack("HP", len(program) // 8, ctypes.addressof(code))
  ports = set()
  for server in _sockets():
    is_meant = port is None or server.getsockname()[1] == port
    if is_meant and server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
      server.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)
      ports.add(server.getsockname()[1])
  if not ports:
    at = "" if port is None else f" at port {port}"
    raise OSError(f"expected a server{at} in this process, got none")
  for connection in _sockets():  # Accepted before the filter was set.
    host, own_port, *_ = connection.getsockname()
    if own_port in ports and _of_ip4(host) not in allowed:
      with contextlib.suppress(OSError):
        connection.getpeername()  # Fails for a listening socket.
        connection.shutdown(socket.SHUT_RDWR)


def _addresses(address: str) -> tuple[_Address, ...]:
  """Returns the allowed addresses; an empty tuple allows every address."""
  if address == EVERYWHERE:
    return ()
  names = ("127.0.0.1", "::1") if address == LOOPBACK else (address,)
  return tuple(map(ipaddress.ip_address, names))


def _of_ip4(address: str) -> _Address:
  """Parses an address; returns one that a dual-stack socket maps to IPv6 as IPv4."""
  parsed = ipaddress.ip_address(address)
  return getattr(parsed, "ipv4_mapped", None) or parsed


def _program(allowed: tuple[_Address, ...]) -> bytes:
  """Returns a BPF program that passes only packets to the allowed addresses."""
  program = b""
  for address in allowed:
    ethertype, destination = _IP[address.version]
    tests = [(_PROTOCOL, ethertype)]
    for start in range(0, len(address.packed), 4):
      word = int.from_bytes(address.packed[start : start + 4], "big")
      tests.append((_NETWORK_HEADER + destination + start, word))
    for index, (at, value) in enumerate(tests):
      # Jumps over the remaining tests of this address, to the next one.
      num_skipped = 2 * (len(tests) - index) - 1
      program += struct.pack("HBBI", _LOAD, 0, 0, at)
      program += struct.pack("HBBI", _JUMP_IF_EQUAL, 0, num_skipped, value)
    program += struct.pack("HBBI", _RETURN, 0, 0, _PASS)
  return program + struct.pack("HBBI", _RETURN, 0, 0, _DROP)


def _sockets() -> Iterator[socket.socket]:
  """Yields copies of this process's TCP sockets."""
  for name in os.listdir("/proc/self/fd"):
    try:
      copy = os.dup(int(name))
    except OSError:
      continue  # The descriptor by which `listdir` read the folder.
    if not stat.S_ISSOCK(os.fstat(copy).st_mode):
      os.close(copy)
      continue
    with socket.socket(fileno=copy) as opened:
      is_inet = opened.family in (socket.AF_INET, socket.AF_INET6)
      if is_inet and opened.type == socket.SOCK_STREAM:
        yield opened


def check_max_connections(
  operation: str, max_clients: int, max_connections: int | None
) -> int:
  """Returns the maximum number of a server's open connections.

  Args:
    operation: for the message.
    max_clients: clients that are served at the same time.
    max_connections: open connections, including silent ones; None for 64 more than
      clients, or fewer if the limit of open files requires it.
  Raises:
    SpecError: a number is not an integer above 0, `max_connections` is not above
      `max_clients`, or the limit of open files is too low.
  """
  errors.check_count(operation, "max_clients", max_clients)
  limit = _max_files()
  most = max(1, limit - _OTHER_FILES)
  connections = min(max_clients + _NUM_UNKNOWN, most)
  if max_connections is not None:
    hint = f"This process may open {limit:,} files: see `ulimit -n`."
    connections = errors.check_count(
      operation, "max_connections", max_connections, most=most, hint=hint
    )
  if connections <= max_clients:
    raise errors.SpecError(
      f"{operation}: max_connections: expected more than the {max_clients} of "
      f"max_clients, got {connections}. This process may open {limit:,} files: see "
      "`ulimit -n`."
    )
  return connections


def _max_files() -> int:
  try:
    import resource
  except ImportError:  # Windows has no such limit.
    return 1 << 20
  limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  return 1 << 20 if limit == resource.RLIM_INFINITY else min(limit, 1 << 20)
