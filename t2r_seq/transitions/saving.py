"""`save_transitions`: chains of transitions as the episodes of a store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.store import EpisodeStore
from t2r_seq.transitions.array_checks import check_arrays
from t2r_seq.transitions.chains import chain_ends
from t2r_seq.transitions.fields import TransitionFields
from t2r_seq.transitions.metadata import KEY, NStep, TransitionsMetadata

_BLOCK_BYTES = 1 << 23
_OPERATION = "save_transitions"


def save_transitions(
  path: str | os.PathLike[str],
  transitions: Any,
  rew: str = "rew",
  done: str = "done",
  truncated: str = "truncated",
  n_step: tuple[int, float] | NStep | None = None,
  metadata: Mapping[str, Any] | None = None,
) -> int:
  """Saves flat transitions as a store that has each observation once.

  The transitions are cut into chains. A chain goes on while a transition is no
  terminal and its next observation is the observation of the following one, bit for
  bit. A chain of T transitions becomes an episode of T + 1 rows: the last row has the
  last next observation, and zeros in the other fields. So there is no column of next
  observations, and still every one comes back as it was given: the real one at a
  truncation, too. Arrays may be memory maps of any size; they are read in blocks.

  The store is whole or, after a crash, refused by `load_transitions`.

  Args:
    path: of the folder; it must not be there, or be empty.
    transitions: arrays [N, ...] in one structure, in the order of time: obs, act, rew,
      next_obs, done and any others. A field `next_x` is the next `x`; both may be
      branches, as obs/image and obs/state. Byte strings come as arrays of objects.
    rew: path of the reward, or of a branch of several.
    done: path of the flag of terminals, [N] or [N, 1], 0 or 1 of any dtype.
    truncated: path of a like flag of steps after which an episode was cut off; it is
      kept, and ends a chain. There may be none.
    n_step: (n, gamma), where the rewards are n-step returns and the next observations
      n steps away already; what is declared here cannot be done again later.
    metadata: JSON values of the user's own, for the store.
  Returns:
    The number of chains.
  Raises:
    SpecError: fields are missing, or their lengths, dtypes or values do not fit; all
      are named, and nothing is written.
    StoreError: there is something at the path already.
    OSError: the folder cannot be written, or the disk is full.
  """
  declared = NStep.of(n_step)
  arrays = _to_arrays(transitions)
  fields = TransitionFields.from_paths(_OPERATION, arrays, rew, done, truncated)
  spec = check_arrays(_OPERATION, arrays, fields)
  num = len(arrays[fields.done])
  if KEY in (metadata or {}):
    raise errors.SpecError(
      f"{_OPERATION}: metadata: expected keys other than '{KEY}', got it. It is where "
      "the store says what its transitions are."
    )
  about = TransitionsMetadata(fields, declared, num).to_json_dict()
  ends = chain_ends(arrays, fields)
  with EpisodeStore.create(
    path, spec, {**(metadata or {}), KEY: about}, commit_every=len(ends), allow_nan=True
  ) as writer:
    for start, end in zip(np.concatenate([[0], ends[:-1]]), ends, strict=True):
      for rows in _chain_rows(arrays, fields, int(start), int(end)):
        writer.append_steps(rows)
      writer.end_episode()
  return len(ends)


def _to_arrays(transitions: Any) -> dict[str, np.ndarray]:
  try:
    flat = specs.flatten_spec_structure(transitions)
  except errors.SpecError as error:
    raise errors.SpecError(
      f"{_OPERATION}: expected a structure of arrays [N, ...]. {error}"
    ) from error
  return {
    path: leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
    for path, leaf in flat.items()
  }


def _chain_rows(
  arrays: Mapping[str, np.ndarray], fields: TransitionFields, start: int, end: int
) -> Iterator[dict[str, np.ndarray]]:
  """Yields the rows of one chain in blocks; the last one has the row of its end."""
  row_bytes = max(1, sum(arrays[path][:1].nbytes for path in fields.stored))
  block = max(1, _BLOCK_BYTES // row_bytes)
  last_block = start + (end - start - 1) // block * block
  for first in range(start, last_block, block):
    yield {path: arrays[path][first : first + block] for path in fields.stored}
  finals = {of: arrays[path][end - 1 : end] for path, of in fields.next_of.items()}
  rows = {}
  for path in fields.stored:
    values = arrays[path][last_block:end]
    final = finals.get(path)
    if final is None:
      final = np.full((1, *values.shape[1:]), _nothing(values.dtype), values.dtype)
    rows[path] = np.concatenate([values, final])
  yield rows


def _nothing(dtype: np.dtype) -> Any:
  return b"" if dtype.hasobject else 0
