"""Where flat transitions go on into one another, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from t2r_seq.transitions.fields import TransitionFields

_BLOCK_BYTES = 1 << 22


def chain_ends(
  transitions: Mapping[str, np.ndarray], fields: TransitionFields
) -> np.ndarray:
  """Finds the chains: runs in which each next observation is the one that follows.

  A chain ends where `done` or `truncated` is set, and where the next observation is
  another than the one of the following transition, in any bit of any path.

  Args:
    transitions: arrays [N, ...] by path, N >= 1.
    fields: which one is what.
  Returns:
    The transition after each chain's last one, int64 [chains]; the last is N.
  """
  num = len(transitions[fields.done])
  is_last = np.zeros(num, bool)
  is_last[-1] = True
  for flag in fields.flags:
    is_last |= np.asarray(transitions[flag]).reshape(num) != 0
  for path, of in fields.next_of.items():
    following, now = transitions[path], transitions[of]
    block = max(1, _BLOCK_BYTES // max(1, now[:1].nbytes))
    for start in range(0, num - 1, block):
      stop = min(start + block, num - 1)
      same = same_rows(following[start:stop], now[start + 1 : stop + 1])
      is_last[start:stop] |= ~same
  return np.flatnonzero(is_last) + 1


def same_rows(left: np.ndarray, right: np.ndarray) -> np.ndarray:
  """Compares two arrays row by row, bit for bit: a NaN is the same as itself.

  Args:
    left: [N, ...] of numbers or bytes objects.
    right: of the same shape and dtype; their byte orders may differ.
  Returns:
    bool [N].
  """
  if not left.size:
    return np.ones(len(left), bool)
  if left.dtype == object:
    return (left == right).reshape(len(left), -1).all(1)
  return (_words(left) == _words(right)).all(1)


def _words(array: np.ndarray) -> np.ndarray:
  """Views rows as unsigned integers, as wide as the rows allow."""
  native = array.astype(array.dtype.newbyteorder("="), copy=False)
  rows = np.ascontiguousarray(native).reshape(len(array), -1)
  row_bytes = rows.shape[1] * rows.dtype.itemsize
  width = next(width for width in (8, 4, 2, 1) if row_bytes % width == 0)
  return rows.view(f"u{width}")
