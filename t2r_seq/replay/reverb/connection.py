"""`Connection`: a server that may be away for a while, and how long that may last."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from t2r_seq import errors
from t2r_seq.replay.reverb.importing import import_reverb
from t2r_seq.replay.reverb.server import TABLE

# How long one look at the server takes at most, and what lies between two.
LOOK_SECS = 1


class Connection:
  """A client of one server, and the patience that it has with it.

  Reverb's own calls wait for ever where a server is away, and take up their work where
  it comes back. Here every wait is cut into looks at the server, and ends with an error
  that says what is wrong.

  Attributes:
    address: of the server.
    client: Reverb's.
    timeout: seconds that the rate limiter may keep somebody waiting; None for ever.
    server_timeout: seconds that the server may be away.
  """

  def __init__(
    self, address: str, timeout: float | None, server_timeout: float
  ) -> None:
    """Waits for the server; see the attributes.

    Raises:
      ReplayTimeoutError: it does not answer.
      SpecError: a number of seconds is wrong.
    """
    for name, seconds in (("timeout", timeout), ("server_timeout", server_timeout)):
      _check_seconds(name, seconds, name == "timeout")
    # gRPC asks for the addresses of a name every half a minute at most, and until then
    # does not see that the server is back.
    self.address = re.sub("^localhost:", "127.0.0.1:", address)
    self.timeout = timeout
    self.server_timeout = server_timeout
    self._reverb = import_reverb()
    self.client = self._reverb.Client(self.address)
    waiting = self.waiting("connect")
    while not self.is_there():
      waiting.look()

  def tables(self) -> dict[str, Any] | None:
    """Returns Reverb's infos of all tables; None where the server is away."""
    try:
      return self.client.server_info(LOOK_SECS)
    except (self._reverb.DeadlineExceededError, RuntimeError):
      return None

  def table(self) -> Any | None:
    """Returns the info of the table; None where the server is away, or has none."""
    return (self.tables() or {}).get(TABLE)

  def is_there(self) -> bool:
    """Returns whether the server answers."""
    return self.tables() is not None

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
      waiting.look(does_table_matter=False)
    try:
      return done.result()
    except RuntimeError as error:
      raise self.refusal(operation, error) from error

  def refusal(self, operation: str, error: Exception) -> errors.ReplayError:
    """Returns the error for what the server does not do."""
    return errors.ReplayError(
      f"{operation}: {self.address}: the server refused: {error}"
    )


class Waiting:
  """One wait, from its beginning."""

  def __init__(self, connection: Connection, operation: str) -> None:
    """Begins; see `Connection.waiting`."""
    self._connection = connection
    self._operation = operation
    self._began = time.monotonic()
    self._away_since: float | None = None

  def look(self, does_table_matter: bool = True) -> None:
    """Looks at the server once; takes no longer than a second or so.

    Args:
      does_table_matter: whether it is the rate limiter that may make one wait.
    Raises:
      ReplayTimeoutError: this has lasted for as long as it may.
    """
    tables = self._connection.tables()
    now = time.monotonic()
    if tables is None:
      self._away_since = self._away_since or now - LOOK_SECS
      if now - self._away_since >= self._connection.server_timeout:
        raise self._away(now - self._away_since)
      return
    self._away_since = None
    limit = self._connection.timeout
    if does_table_matter and limit is not None and now - self._began >= limit:
      raise errors.ReplayTimeoutError(
        f"replay: {self._operation}: waited {limit:g} s for "
        f"{self._connection.address}: {why_it_waits(tables.get(TABLE))}"
      )

  def _away(self, seconds: float) -> errors.ReplayTimeoutError:
    return errors.ReplayTimeoutError(
      f"{self._operation}: {self._connection.address}: expected a Reverb server, got "
      f"no answer for {seconds:.0f} s. Start it (t2r_seq replay-server), check the "
      "address, or allow more time: server_timeout."
    )


def why_it_waits(info: Any | None) -> str:
  """Says in which state a table's rate limiter is.

  Args:
    info: Reverb's TableInfo; None where there is none.
  """
  if info is None:
    return f"the server has no table {TABLE}."
  limiter = info.rate_limiter_info
  text = (
    f"{info.current_size} of {limiter.min_size_to_sample} items are there, after "
    f"{limiter.insert_stats.completed} inserts and {limiter.sample_stats.completed} "
    "samples"
  )
  if limiter.max_diff < 1e300:
    text += (
      f"; inserts * {limiter.samples_per_insert:g} - samples is kept from "
      f"{limiter.min_diff:g} to {limiter.max_diff:g}"
    )
  return text + "."


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


def _check_seconds(name: str, seconds: Any, may_be_none: bool) -> None:
  if seconds is None and may_be_none:
    return
  is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
  if not is_number or not math.isfinite(seconds) or seconds < 0:
    raise errors.SpecError(
      f"ReverbReplay: {name}: expected a number of seconds of at least 0, got "
      f"{seconds!r}."
    )
