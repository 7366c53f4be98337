"""Checks of arguments that Reverb would answer in its own words, or not at all."""

from __future__ import annotations

import numbers
import threading
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.data.arguments import check_count
from t2r_seq.replay.priorities import check_priorities


def check_port(operation: str, port: Any) -> None:
  """Raises SpecError unless one can listen there, or anywhere: None."""
  is_integer = isinstance(port, numbers.Integral) and not isinstance(port, bool)
  if port is not None and not (is_integer and 0 < port < 2**16):
    raise errors.SpecError(
      f"{operation}: port: expected an integer from 1 to 65535, or None for any free "
      f"one, got {port!r}."
    )


def check_checkpoint_secs(operation: str, seconds: Any) -> float | None:
  """Returns seconds or None; raises SpecError unless one can wait for so long."""
  if seconds is None:
    return None
  is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
  if not is_number or not 0 < seconds <= threading.TIMEOUT_MAX:
    raise errors.SpecError(
      f"{operation}: checkpoint_secs: expected a number of seconds above 0 and up to "
      f"{threading.TIMEOUT_MAX:.2g}, or None, got {seconds!r}. None writes one at "
      "the end only."
    )
  return float(seconds)


def check_address(address: Any) -> None:
  """Raises SpecError unless it names a host and a port."""
  host, _, port = address.rpartition(":") if isinstance(address, str) else ("",) * 3
  if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
    raise errors.SpecError(
      f"ReverbReplay: address: expected 'host:port' of a server, got {address!r}."
    )


def check_writing(
  initial_priority: Any, chunk_length: Any, max_in_flight_items: Any
) -> None:
  """Raises SpecError unless writers can work so; see `ReverbReplay`."""
  where = "ReverbReplay"
  if not isinstance(initial_priority, numbers.Real):
    raise errors.SpecError(
      f"{where}: initial_priority: expected a number of at least 0, got "
      f"{initial_priority!r}."
    )
  check_priorities(f"{where}: initial_priority", np.asarray(initial_priority, float))
  check_count(where, "chunk_length", chunk_length, 1)
  check_count(where, "max_in_flight_items", max_in_flight_items, 0)


def check_updates(keys: Any, priorities: Any) -> dict[int, float]:
  """Returns priorities by key.

  Args:
    keys: of items.
    priorities: as many.
  Raises:
    SpecError: these are no keys, or no priorities.
  """
  keys, given = np.asarray(keys), np.asarray(priorities)
  are_keys = keys.dtype.kind == "u" or (keys.dtype.kind == "i" and (keys >= 0).all())
  are_numbers = given.dtype.kind in "iuf"
  is_one_each = keys.ndim == 1 and keys.shape == given.shape
  if not (is_one_each and are_numbers and (are_keys or not keys.size)):
    got = f"keys {keys.tolist()}"[:60] + f" and priorities {given.tolist()}"[:60]
    raise errors.SpecError(
      "update_priorities: expected keys [n], integers of at least 0, and as many "
      f"priorities, got {errors.describe(keys)} and {errors.describe(given)}: {got}."
    )
  given = given.astype(np.float64)
  check_priorities("update_priorities", given)
  return dict(zip(keys.tolist(), given.tolist(), strict=True))
