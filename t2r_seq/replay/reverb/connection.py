"""`Connection`: a server that may be away for a while, and how long that may last."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.replay.reverb import checkpoint_folder, tables
from t2r_seq.replay.reverb.importing import import_reverb
from t2r_seq.replay.reverb.server import TABLE
from t2r_seq.replay.reverb.waiting import LOOK_SECS, Waiting, check_seconds

Tables = dict[str, Any]

# What gRPC says of a server that is away, or went in the middle of a call.
_AWAY = re.compile(
  "connect|Socket closed|Connection|GOAWAY|unavailable|Broken pipe|recvmsg", re.I
)
# Calls that may fail so while the server answers others: it came back in between.
_MAX_FAILURES = 5
_PAUSE_SECS = 0.1
# Seconds for which a server that cannot be seen is left to take in what it has written.
_TAKING_SECS = 1.5


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

  def tables(
    self, operation: str, should_stop: Callable[[], bool] | None = None
  ) -> Tables:
    """Returns Reverb's infos of all tables; waits for the server.

    Args:
      operation: for the error.
      should_stop: see `ReplayWriter`.
    Raises:
      ReplayTimeoutError: it has been away for too long, or until one is told to stop.
      SpecError: its table is for other items.
    """
    waiting = self.waiting(operation, should_stop)
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

  def waiting(
    self, operation: str, should_stop: Callable[[], bool] | None = None
  ) -> Waiting:
    """Begins to wait; for one operation.

    Args:
      operation: for the error.
      should_stop: see `ReplayWriter`.
    """
    return Waiting(self, operation, should_stop)

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
    waiting = self.waiting(operation)
    num_failures = 0
    while True:
      done = _Call(function)
      while not done.wait(LOOK_SECS):
        waiting.look()
      try:
        return done.result()
      except RuntimeError as error:
        num_failures += 1
        if num_failures == _MAX_FAILURES or not _AWAY.search(str(error)):
          raise self.refusal(operation, error) from error
      while waiting.look() is None:
        time.sleep(_PAUSE_SECS)

  def checkpoint(self) -> str:
    """Has the server write a checkpoint; see `ReverbReplay.checkpoint`."""
    try:
      written = self.call("checkpoint", self.client.checkpoint)
    except ValueError as error:
      if "no Checkpointer" not in str(error):
        raise
      raise errors.ReplayError(
        f"ReverbReplay: checkpoint: {self.address}: expected a server with a "
        "checkpoint_dir, got None. Start it with one."
      ) from error
    kept = checkpoint_folder.kept_path(written)
    if kept == written:
      return written  # Of a server that is no ReplayServer.
    if not os.path.isdir(written):
      time.sleep(_TAKING_SECS)  # The next one might remove it.
      return kept
    waiting = self.waiting("checkpoint")
    while os.path.isdir(written):
      time.sleep(_PAUSE_SECS)
      waiting.look()
    if not checkpoint_folder.is_kept(kept):
      raise checkpoint_folder.not_whole(os.path.dirname(kept))
    return kept

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
