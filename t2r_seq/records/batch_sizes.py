"""How many records are read at a time: many small ones, and few that are large."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

_BATCH_BYTES = 1 << 20
# Beyond as many a record more costs what it costs in a batch of its own.
_MAX_BATCH = 1024
# The first episode of a file may be the shortest one.
_NUM_LOOKED_AT = 16


def batch_size(lengths: Iterable[int], max_bytes: int = _BATCH_BYTES) -> int:
  """Returns how many records make a batch, by the longest of the first ones.

  Args:
    lengths: of the records in bytes; no more than the first are asked for.
    max_bytes: of a batch, if that is less than usual.
  Returns:
    At least 1.
  """
  longest = max(itertools.islice(lengths, _NUM_LOOKED_AT), default=1)
  wanted = min(_BATCH_BYTES, max_bytes)
  return min(max(wanted // max(longest, 1), 1), _MAX_BATCH)
