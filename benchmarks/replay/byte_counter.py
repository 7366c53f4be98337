"""`ByteCounter`: a proxy on loopback that counts what a server sends."""

from __future__ import annotations

import socket
import threading


class ByteCounter:
  """Passes connections on to a server.

  Attributes:
    address: to connect to in place of the server's.
    num_sent: bytes that the server has sent so far.
  """

  def __init__(self, address: str) -> None:
    host, port = address.rsplit(":", 1)
    self._server = ("127.0.0.1" if host == "localhost" else host, int(port))
    self._listener = socket.create_server(("127.0.0.1", 0))
    self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
    self.num_sent = 0
    threading.Thread(target=self._accept, daemon=True).start()

  def close(self) -> None:
    """Accepts no more connections."""
    self._listener.close()

  def _accept(self) -> None:
    while True:
      try:
        client, _ = self._listener.accept()
      except OSError:
        return
      server = socket.create_connection(self._server)
      for source, target, counts in ((client, server, False), (server, client, True)):
        arguments = (source, target, counts)
        threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

  def _pass_on(
    self, source: socket.socket, target: socket.socket, counts: bool
  ) -> None:
    try:
      while data := source.recv(1 << 16):
        self.num_sent += len(data) * counts
        target.sendall(data)
      target.shutdown(socket.SHUT_WR)
    except OSError:
      pass
