"""Loading a store into a buffer, as its start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.replay import options
from t2r_seq.replay.memory.table import Table
from t2r_seq.replay.rate_limiters import make_rate_limiter
from t2r_seq.store import EpisodeStore, layout
from t2r_seq.store.layout import Columns
from t2r_seq.store.spec_checks import check_spec

_OPERATION = "from_store"


def load_store(table: Table, columns: Columns, path: str) -> None:
  """Appends the last episodes of a store, as many as there is room for.

  Args:
    table: of a new buffer.
    columns: of a step and of an episode.
    path: of the store.
  Raises:
    StoreError: there is no such store.
    SpecError: it lacks what the columns need; every path is named.
  """
  store = EpisodeStore(os.path.abspath(path))
  sources = _find_sources(store, columns)
  capacity = table.lanes.num_slots * table.lanes.num_writers
  with nothing_waits(table):
    for index in range(_first_episode(store.episode_lengths, capacity), len(store)):
      episode = store.episode(index)
      _append(table, columns, {path: episode[of] for path, of in sources.items()})


@contextlib.contextmanager
def nothing_waits(table: Table) -> Iterator[None]:
  """Counts inserts, but lets none wait: nobody is there for whom they could."""
  limiter = table.limiter
  table.limiter = make_rate_limiter(options.MinSize(), table.lock)
  try:
    yield
  finally:
    limiter.did_insert(table.limiter.num_inserts)
    limiter.did_delete(table.limiter.num_deletes)
    table.limiter = limiter


def _find_sources(store: EpisodeStore, columns: Columns) -> dict[str, str]:
  """Returns the column of the store for each of the buffer's paths."""
  stored = store.spec
  sources = {
    path: column.spec.name
    if path not in stored and column.spec.name in stored
    else path
    for path, column in columns.items()
  }
  optional = {path for path, spec in stored.items() if spec.is_optional}
  wanted = specs.TensorSpecStruct(
    (of, type(spec).from_spec(spec, is_optional=of in optional))
    for of, spec in ((of, columns[path].spec) for path, of in sources.items())
  )
  where = f"{_OPERATION}: {store.path}"
  check_spec(where, wanted, layout.make_columns(where, stored), False)
  found = [
    errors.Mismatch(of, "it in every episode", f"none in {count} of {len(store)}")
    for of in wanted
    if (count := int((~store.is_present(of)).sum()))
  ]
  if found:
    raise errors.mismatch_error(where, found)
  return sources


def _first_episode(lengths: np.ndarray, capacity: int) -> int:
  """Returns the first of the last episodes that together fill the buffer."""
  from_end = np.cumsum(lengths[::-1])
  return max(0, len(lengths) - 1 - int(np.searchsorted(from_end, capacity)))


def _append(table: Table, columns: Columns, values: dict[str, np.ndarray]) -> None:
  """Appends an episode to the writer's part that has the fewest steps so far."""
  context = {p: value[()] for p, value in values.items() if not columns[p].is_per_step}
  steps = [value for p, value in values.items() if columns[p].is_per_step]
  with table.lock:
    lane = int(np.argmin(table.lanes.counts))
    for row in zip(*steps, strict=True):
      table.append(lane, list(row), context, None)
    table.end_episode(lane)
