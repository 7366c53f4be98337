"""`Connection`: a server that may be away for a while, and how long that may last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.replay.reverb import tables
from t2r_seq.replay.reverb.importing import import_reverb
from t2r_seq.replay.reverb.server import TABLE
from t2r_seq.replay.reverb.waiting import LOOK_SECS, Waiting, check_seconds

Tables = dict[str, Any]


class Connection:
  """A client of one server, and the patience that it has with it.

  Reverb's own calls wait for ever where a server is away, and take up their work where
  it comes back. Here every wait is cut into looks at the server, and ends with an error
  that says what is wrong.

  Attributes:
    address: of the server.
    client: Reverb's.
    timeout: seconds that the rate limiter may keep somebody waiting; None for ever.
    server_timeout: seconds that the server may be away; None for ever.
  """

  def __init__(
    self,
    address: str,
    timeout: float | None,
    server_timeout: float | None,
    signature: Mapping[str, tf.TensorSpec],
  ) -> None:
    """Waits for the server and compares its table; see the attributes.

    Args:
      address: 'host:port'.
      timeout: see the attributes.
      server_timeout: see the attributes.
      signature: that the table has to have.
    Raises:
      ReplayTimeoutError: it does not answer.
      SpecError: a number of seconds is wrong, or the table is another.
    """
    check_seconds("timeout", timeout)
    check_seconds("server_timeout", server_timeout)
    self.address = address
    self.timeout = timeout
    self.server_timeout = server_timeout
    self._signature = signature
    self._reverb = import_reverb()
    self.client = self._reverb.Client(address)
    self.tables("connect")

  def look(self) -> Tables | None:
    """Returns Reverb's infos of all tables; None where the server is away."""
    try:
      return self.client.server_info(LOOK_SECS)
    except (self._reverb.DeadlineExceededError, RuntimeError):
      return None

  def tables(self, operation: str) -> Tables:
    """Returns Reverb's infos of all tables; waits for the server.

    Args:
      operation: for the error.
    Raises:
      ReplayTimeoutError: it has been away for too long.
      SpecError: its table is for other items.
    """
    waiting = self.waiting(operation)
    while (found := waiting.look()) is None:
      pass
    return found

  def check(self, found: Tables) -> None:
    """Checks that the table is for the items that are meant.

    Args:
      found: Reverb's infos of all tables.
    Raises:
      SpecError: it is not, or there is no such table; all differences are named.
    """
    where = f"ReverbReplay: {self.address}"
    if TABLE not in found:
      raise errors.SpecError(
        f"{where}: {TABLE}: expected a table of this name, got "
        f"{errors.listing(found)}. Start the server by ReplayServer."
      )
    tables.check_signature(where, self._signature, found[TABLE].signature)

  def waiting(self, operation: str) -> Waiting:
    """Begins to wait; for one operation.

    Args:
      operation: for the error.
    """
    return Waiting(self, operation)

  def call(self, operation: str, function: Callable[[], Any]) -> Any:
    """Calls what blocks for as long as the server is away, in a thread of its own.

    Args:
      operation: for the error.
      function: the call.
    Returns:
      What it returns.
    Raises:
      ReplayTimeoutError: the server has been away for too long; the call goes on.
      ReplayError: the server refuses.
    """
    done = _Call(function)
    waiting = self.waiting(operation)
    while not done.wait(LOOK_SECS):
      waiting.look()
    try:
      return done.result()
    except RuntimeError as error:
      raise self.refusal(operation, error) from error

  def refusal(self, operation: str, error: Exception) -> errors.ReplayError:
    """Returns the error for what the server does not do."""
    return errors.ReplayError(
      f"{operation}: {self.address}: the server refused: {error}"
    )


class _Call(threading.Thread):
  """A call that nobody has to wait for: the process may end before it does."""

  def __init__(self, function: Callable[[], Any]) -> None:
    super().__init__(daemon=True)
    self._function = function
    self._result: Any = None
    self._error: BaseException | None = None
    self.start()

  def run(self) -> None:
    try:
      self._result = self._function()
    except BaseException as error:
      self._error = error

  def wait(self, seconds: float) -> bool:
    self.join(seconds)
    return not self.is_alive()

  def result(self) -> Any:
    if self._error is not None:
      raise self._error
    return self._result
