"""`Waiting`: a wait for a server, or for its rate limiter, in looks at the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import logging

from t2r_seq import errors
from t2r_seq.replay.reverb.server import TABLE

if TYPE_CHECKING:
  from t2r_seq.replay.reverb.connection import Connection, Tables

# How long one look at the server takes at most, and what lies between two.
LOOK_SECS = 1
# Seconds after which whoever waits says so, again and again.
TELL_SECS = 30.0


class Waiting:
  """One wait, from its beginning."""

  def __init__(
    self,
    connection: Connection,
    operation: str,
    should_stop: Callable[[], bool] | None = None,
  ) -> None:
    """Begins; see `Connection.waiting`.

    Args:
      connection: to the server.
      operation: for the error.
      should_stop: see `ReplayWriter`.
    """
    self._connection = connection
    self._operation = operation
    self._should_stop = should_stop
    self._began = self._told = time.monotonic()
    self._away_since: float | None = None

  def look(self) -> Tables | None:
    """Looks at the server once; takes no longer than a second or so.

    Returns:
      Reverb's infos of all tables; None where the server is away.
    Raises:
      ReplayTimeoutError: it has been away for as long as it may, or until one is told
        to stop.
      SpecError: its table is another, or is not there.
    """
    found = self._connection.look()
    now = time.monotonic()
    if found is None:
      self._go_on_without(now)
    else:
      self._away_since = None
      # It may have gone and come back since the last look.
      self._connection.check(found)
    return found

  def look_at_table(self) -> None:
    """Looks at the server once, where its rate limiter may be what one waits for.

    Raises:
      ReplayTimeoutError: this has lasted for as long as it may, or until one is told to
        stop, or the server is away.
      SpecError: its table is another, or is not there.
    """
    found = self.look()
    if found is None:
      return
    why = why_it_waits(found.get(TABLE))
    limit, now = self._connection.timeout, time.monotonic()
    if limit is not None and now - self._began >= limit:
      raise errors.ReplayTimeoutError(
        f"replay: {self._operation}: waited {limit:g} s for "
        f"{self._connection.address}: {why}"
      )
    self._check_not_told_to_stop("takes nothing")
    self._tell(now, why)

  def _go_on_without(self, now: float) -> None:
    """Raises ReplayTimeoutError if the server has been away for as long as it may."""
    self._check_not_told_to_stop("gives no answer")
    if self._away_since is None:
      self._away_since = now - LOOK_SECS
      self._told = now
    seconds = now - self._away_since
    limit = self._connection.server_timeout
    if limit is not None and seconds >= limit:
      raise errors.ReplayTimeoutError(
        f"replay: {self._operation}: {self._connection.address}: expected a Reverb "
        f"server with the table {TABLE}, got no answer for {seconds:.0f} s. Start it "
        "(t2r_seq replay-server), check the address, or allow more time: "
        "server_timeout."
      )
    bound = "for ever" if limit is None else f"up to {limit:g} s"
    self._tell(now, f"no answer for {seconds:.0f} s; it waits {bound}.")

  def _check_not_told_to_stop(self, what_it_does: str) -> None:
    if self._should_stop is not None and self._should_stop():
      raise errors.ReplayTimeoutError(
        f"replay: {self._operation}: told to stop while {self._connection.address} "
        f"{what_it_does}; what it has not taken is lost."
      )

  def _tell(self, now: float, why: str) -> None:
    if now - self._told >= TELL_SECS:
      self._told = now
      where = self._connection.address
      logging.warning("replay: %s: waiting for %s: %s", self._operation, where, why)


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


def check_seconds(name: str, seconds: Any) -> None:
  """Raises SpecError unless it is a number of seconds, or None."""
  if seconds is None:
    return
  is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
  if not is_number or not 0 <= seconds <= threading.TIMEOUT_MAX:
    raise errors.SpecError(
      f"ReverbReplay: {name}: expected a number of seconds of at least 0, or None, "
      f"got {seconds!r}."
    )
