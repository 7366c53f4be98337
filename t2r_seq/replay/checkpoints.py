"""Checkpoints of a replay in memory: a store of its episodes, and a file of arrays.

A checkpoint is a folder such as `checkpoint-00000001`: the EpisodeStore `episodes` has
the steps, and `state.npz` everything else, with a JSON header. `to_store` and
`from_store` write and read only the episodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from t2r_seq import errors, files, specs
from t2r_seq.replay import options
from t2r_seq.replay.rate_limiters import make_rate_limiter
from t2r_seq.replay.replay import StampCheck
from t2r_seq.replay.ring import RingIndex
from t2r_seq.replay.table import Table
from t2r_seq.specs.names import source_path
from t2r_seq.store import EpisodeStore, verify_store
from t2r_seq.store.layout import Columns
from t2r_seq.store.manifest import check_spec
from t2r_seq.windows.cut import TRANSITIONS_KEY, check_one_step
from t2r_seq.windows.n_step import final_path
from t2r_seq.windows.reader import WindowReader

_EPISODES, _STATE, _LOCK = "episodes", "state.npz", ".lock"
_NAME, _NAMES = "checkpoint-{:08d}", re.compile(r"checkpoint-(\d{8,})")
_UNFINISHED = re.compile(r"\.checkpoint-\d{8,}\.[0-9a-f]{32}\.tmp")
_FORMAT, _VERSION, _HEADER = "t2r_seq.replay.checkpoint", 1, "header"
# Steps are copied from and to the ring in blocks of this size.
_BLOCK_BYTES = 1 << 24
# Names in the identity of a saved buffer, and in errors.
NUM_SLOTS, ANCHORS = "steps for each writer", "the windows' anchors"


def save(
  table: Table, columns: Columns, identity: dict[str, Any], folder: str, keep: int
) -> str:
  """Saves a buffer, and returns the path; writers and samplers wait meanwhile.

  A process that is killed at any moment leaves the former checkpoints, and perhaps an
  unfinished folder of another name, which the next call removes. For errors see
  `ReplayBuffer.checkpoint`.
  """

  def refusal(holder: str) -> Exception:
    return errors.ReplayError(
      f"replay: {folder}: expected no other process to write a checkpoint there, got "
      f"{holder}. Give each replay another folder."
    )

  folder = os.path.abspath(folder)
  try:
    files.make_folders(folder)
    lock = files.FileLock(os.path.join(folder, _LOCK), refusal)
    try:
      for name in filter(_UNFINISHED.fullmatch, os.listdir(folder)):
        shutil.rmtree(os.path.join(folder, name))
      former = names(folder)
      number = 1 + (_number(former[0]) if former else 0)
      path = os.path.join(folder, _NAME.format(number))
      with files.new_folder(path) as place, table.lock:
        table.check_open("checkpoint")
        _write_episodes(table, columns, os.path.join(place, _EPISODES))
        _write_state(place, table, identity)
      # To read the former ones, `table.lock` is not needed.
      num_whole = 1
      for name in former:
        old = os.path.join(folder, name)
        if num_whole < keep:
          num_whole += _is_whole(old)
        else:
          files.remove_folder(old)
      return path
    finally:
      lock.release()
  except OSError as error:
    raise _explain(error, folder) from error


def restore(
  table: Table, identity: dict[str, Any], path: str, free_writers: Container[int]
) -> str:
  """Restores a buffer without steps; see `ReplayBuffer.restore`."""
  saved = _newest_whole(os.path.abspath(path))
  _check_identity(saved.path, identity, saved.values["identity"])
  with table.lock:
    table.check_open("restore")
    if table.index.num_steps:
      raise errors.ReplayError(
        f"restore: expected a buffer without steps, got one of {table.index.num_steps}"
        ". Restore before anything is appended."
      )
    for index, episode in enumerate(saved.episodes):
      _read_episode(table, episode, saved.store.episode(index))
    _load_index(table.index, saved.arrays)
    _load_items(table, saved.values, saved.arrays)
    with _nothing_waits(table):
      for writer in range(table.index.num_writers):
        if writer not in free_writers:
          table.end_episode(writer)
  return saved.path


def export(
  table: Table, columns: Columns, path: str, describe: Callable[[list[int]], Any]
) -> int:
  """Writes the episodes of a buffer to a new store; see `ReplayBuffer.to_store`."""
  is_free = not os.path.lexists(path) or (os.path.isdir(path) and not os.listdir(path))
  if not is_free:
    raise errors.StoreError(
      f"to_store: {path}: expected nothing there or an empty folder, got something. "
      "Name another place."
    )
  with files.new_folder(path) as place, table.lock:
    table.check_open("to_store")
    return _write_episodes(table, columns, place, describe)


def load_store(table: Table, columns: Columns, path: str) -> None:
  """Appends the newest episodes of a store, as many as fill the buffer.

  The oldest of them may lose its first steps. For n-step transitions, the observation
  after the last row, such as `final_observations`, becomes one more row. For errors see
  `ReplayBuffer.from_store`.
  """
  store = EpisodeStore(os.path.abspath(path))
  sources = _find_sources(store, columns)
  reader = table.index.rule.reader
  check_one_step(f"from_store: {store.path}", store.metadata, reader.cut.n_step)
  finals = _find_finals(store, sources, reader)
  # The first of these episodes may be longer than the remaining capacity.
  capacity = table.index.num_slots * table.index.num_writers
  num_steps = np.cumsum(store.episode_lengths[::-1])
  first = max(0, len(store) - 1 - int(np.searchsorted(num_steps, capacity)))
  stamps = StampCheck(reader, columns)
  with table.lock, _nothing_waits(table):
    for index in range(first, len(store)):
      episode = store.episode(index)
      steps, context = [], {}
      for column_path, source in sources.items():
        # A store may have scalars where the buffer has (1,), or the reverse.
        column = columns[column_path]
        if column.is_per_step:
          steps.append(episode[source].reshape(-1, *column.row_shape))
        else:
          context[column_path] = episode[source].reshape(column.row_shape)[()]
      # Appends to the writer with the fewest steps so far.
      writer = int(np.argmin(table.index.counts))
      stamps.end_episode()
      for row in zip(*steps, strict=True):
        stamps.add(stamps.see(row))
        table.append(writer, list(row), context, None)
      if finals and len(steps[0]):
        table.append(
          writer, _final_row(episode, sources, columns, finals), context, None
        )
      table.end_episode(writer)


@contextlib.contextmanager
def _nothing_waits(table: Table) -> Iterator[None]:
  """Counts inserts without waiting: no sampler runs yet."""
  limiter = table.limiter
  table.limiter = make_rate_limiter(options.MinSize(), table.lock)
  try:
    yield
  finally:
    limiter.did_insert(table.limiter.num_inserts)
    limiter.did_delete(table.limiter.num_deletes)
    table.limiter = limiter


def _find_finals(
  store: EpisodeStore, sources: dict[str, str], reader: WindowReader
) -> dict[str, str]:
  """Returns the store's columns of final observations, by path of the buffer.

  Empty unless all observations that transitions read one step later have such a column.
  """
  n_step = reader.n_step
  if n_step is None or not n_step.keeps_terminal:
    return {}
  finals = {}
  for path in {reader.readings[path].source for path in n_step.fields.next_of}:
    final, stored = final_path(sources[path]), store.spec
    spec, column_spec = stored.get(final), stored[sources[path]]
    if spec is None or spec.is_sequence or not store.is_present(final).all():
      return {}
    if (spec.shape, spec.dtype) != (column_spec.shape, column_spec.dtype):
      return {}
    finals[path] = final
  return finals


def _final_row(
  episode: Any, sources: dict[str, str], columns: Columns, finals: dict[str, str]
) -> list[Any]:
  """Returns the values of the last row: final observations, and zeros."""
  row = []
  for path, source in sources.items():
    column = columns[path]
    if not column.is_per_step:
      continue
    if path in finals:
      row.append(episode[finals[path]][()])
    elif column.is_bytes:
      row.append(np.full(column.row_shape, b"", object)[()])
    else:
      row.append(np.zeros_like(episode[source][0]))
  return row


def _find_sources(store: EpisodeStore, columns: Columns) -> dict[str, str]:
  """Returns the column of the store for each of the buffer's paths."""
  stored = store.spec
  sources = {p: source_path(p, column.spec, stored) for p, column in columns.items()}
  sources = {p: name if name in stored else p for p, name in sources.items()}
  optional = {path for path, spec in stored.items() if spec.is_optional}
  expected = specs.TensorSpecStruct(
    (name, type(spec).from_spec(spec, is_optional=name in optional))
    for name, spec in ((name, columns[path].spec) for path, name in sources.items())
  )
  where = f"from_store: {store.path}"
  check_spec(where, expected, store.columns, False)
  mismatches = [
    errors.Mismatch(name, "it in every episode", f"none in {count} of {len(store)}")
    for name in expected
    if (count := int((~store.is_present(name)).sum()))
  ]
  if mismatches:
    raise errors.mismatch_error(where, mismatches)
  return sources


def names(folder: str) -> list[str]:
  """Lists the names of the checkpoints of a folder, the newest first."""
  entries = os.listdir(folder) if os.path.isdir(folder) else []
  return sorted(filter(_NAMES.fullmatch, entries), key=_number, reverse=True)


def _number(name: str) -> int:
  return int(name.partition("-")[2])


def _explain(error: OSError, folder: str) -> OSError:
  published = names(folder)
  former = "There is no former checkpoint."
  if published:
    former = f"The former checkpoint, {published[0]}, is kept."
  # The message of `error` names a temporary file.
  reason = os.strerror(error.errno) if error.errno else str(error)
  return OSError(
    error.errno,
    f"checkpoint: {folder}: expected a folder that it may write to, with room on the "
    f"disk, got: {reason}. {former} Make room, or give another checkpoint_dir, and "
    "call checkpoint() again.",
  )


class _Episode(NamedTuple):
  """The part of an episode that is in a ring: steps of a writer, and their end."""

  writer: int
  first: int
  end: int


def _held_episodes(counts: np.ndarray, all_ends: Any, num_slots: int) -> list[_Episode]:
  """Lists the episodes with steps in the ring, by writer, the oldest first."""
  episodes = []
  for writer, (count, ends) in enumerate(zip(counts.tolist(), all_ends, strict=True)):
    first = max(0, count - num_slots)
    for end in (*ends, count):
      if end > first:
        episodes.append(_Episode(writer, first, end))
        first = end
  return episodes


def _write_episodes(
  table: Table,
  columns: Columns,
  path: str,
  describe: Callable[[list[int]], Any] | None = None,
) -> int:
  """Writes the episodes in the ring to a store; returns their number."""
  index, contexts = table.index, table.contexts
  flat = specs.TensorSpecStruct((p, column.spec) for p, column in columns.items())
  episodes = _held_episodes(index.counts, index.ends, index.num_slots)
  about = describe and describe([episode.end - episode.first for episode in episodes])
  if about:  # Stored transitions have a row after the terminal one.
    done = table.ring.columns[about[TRANSITIONS_KEY]["done"]]
    last_rows = [index.row(episode.writer, episode.end - 1) for episode in episodes]
    about = None if done[last_rows].any() else about
  with EpisodeStore.create(
    path, flat, about, commit_every=len(episodes) + 1, allow_nan=True
  ) as writer:
    for episode in episodes:
      rows = np.zeros(0, np.int64)
      for rows in _blocks(table, episode):
        writer.append_steps(
          {p: column.take(rows, 0) for p, column in table.ring.columns.items()}
        )
      last = rows[-1:]
      writer.end_episode({p: contexts.take(p, last)[0] for p in contexts.columns})
  return len(episodes)


def _read_episode(
  table: Table, episode: _Episode, values: Mapping[str, np.ndarray]
) -> None:
  """Writes an episode to the rows that it had."""
  contexts = table.contexts
  if contexts:
    contexts.begin(
      episode.writer, {path: values[path][()] for path in contexts.columns}
    )
  start = 0
  for rows in _blocks(table, episode):
    for path, column in table.ring.columns.items():
      column[rows] = values[path][start : start + len(rows)]
    for row in rows.tolist() if contexts else ():
      contexts.add_step(episode.writer, row)
    start += len(rows)


def _blocks(table: Table, episode: _Episode) -> Iterator[np.ndarray]:
  """Yields the rows of an episode, int64 [n], in blocks."""
  size = max(1, _BLOCK_BYTES // table.ring.row_bytes)
  index = table.index
  for first in range(episode.first, episode.end, size):
    steps = np.arange(first, min(first + size, episode.end))
    yield steps % index.num_slots * index.num_writers + episode.writer


def _write_state(folder: str, table: Table, identity: dict[str, Any]) -> None:
  """Writes everything but the steps and the features of episodes."""
  limiter, index = table.limiter, table.index
  values = {
    "identity": identity,
    "num_inserts": limiter.num_inserts,
    "num_samples": limiter.num_samples,
    "num_deletes": limiter.num_deletes,
    "num_ignored_updates": table.num_ignored_updates,
    "greatest_priority": table.items.greatest,
    "given": [
      table.items.pending_priorities(writer) for writer in range(index.num_writers)
    ],
    "rng": table.rng.bit_generator.state,
  }
  arrays = {
    "counts": index.counts,
    "starts": index.starts,
    "ends": np.array([end for ends in index.ends for end in ends], np.int64),
    "num_ends": np.array([len(ends) for ends in index.ends]),
    "marks": index.marks,
    **table.items.arrays(),
  }
  if index.ages is not None:
    arrays["ages"] = index.ages
  header = {
    "format": _FORMAT,
    "version": _VERSION,
    "arrays": [*arrays],
    "values": values,
  }
  arrays[_HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
  with open(os.path.join(folder, _STATE), "wb") as file:
    np.savez(file, **arrays)  # type: ignore[arg-type]


def _read_state(folder: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Reads the output of `_write_state`; raises ReplayError if it is damaged."""
  place = os.path.join(folder, _STATE)
  try:
    # The checksums of the parts of a zip file are compared as they are read.
    with np.load(place, allow_pickle=False) as loaded:
      arrays = {name: loaded[name] for name in loaded.files}
    header = json.loads(arrays.pop(_HEADER).tobytes())
    if header["format"] != _FORMAT or header["version"] != _VERSION:
      raise ValueError(f"{header['format']!r} of version {header['version']!r}")
    if header["arrays"] != [*arrays]:
      raise ValueError(f"the arrays {[*arrays]}, not {header['arrays']}")
    return dict(header["values"]), arrays
  except Exception as error:  # A damaged zip file may raise anything.
    raise errors.ReplayError(
      f"replay: {place}: expected the state of a replay, '{_FORMAT}' of version "
      f"{_VERSION}, got {error!r}. Restore a former checkpoint."
    ) from error


def _split_ends(arrays: Mapping[str, np.ndarray]) -> list[list[int]]:
  """Returns the ends of the episodes of each writer; see `RingIndex`."""
  stops = np.cumsum(arrays["num_ends"])[:-1]
  return [ends.tolist() for ends in np.split(arrays["ends"], stops)]


def _load_index(index: RingIndex, arrays: Mapping[str, np.ndarray]) -> None:
  """Restores the index of steps and items."""
  index.counts[:] = arrays["counts"]
  index.starts[:] = arrays["starts"]
  index.dead[:] = np.maximum(index.counts - index.num_slots, 0)
  for ends, saved in zip(index.ends, _split_ends(arrays), strict=True):
    ends.extend(saved)
  index.marks[:] = arrays["marks"]
  index.num_items = int(np.count_nonzero(index.marks))
  if index.ages is not None:
    index.ages[:] = arrays["ages"]


def _load_items(
  table: Table, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
  """Restores counts, random numbers and priorities; removes items beyond `max_size`."""
  limiter = table.limiter
  limiter.num_inserts = values["num_inserts"]
  limiter.num_samples = values["num_samples"]
  limiter.num_deletes = values["num_deletes"]
  table.num_ignored_updates = values["num_ignored_updates"]
  table.rng.bit_generator.state = values["rng"]
  table.items.greatest = values["greatest_priority"]
  table.items.load(arrays)
  for writer, saved in enumerate(values["given"]):
    for step, priority in saved:
      table.items.set_pending_priority(table.index.row(writer, step), priority)
  table.remove_surplus()


class _Saved(NamedTuple):
  """A whole checkpoint: its path, its state, and its store with these episodes."""

  path: str
  values: dict[str, Any]
  arrays: dict[str, np.ndarray]
  episodes: list[_Episode]
  store: EpisodeStore


def _newest_whole(path: str) -> _Saved:
  """Reads the newest whole checkpoint; logs damaged ones, or raises if all are."""
  damaged: list[errors.ReplayError] = []
  for checkpoint in _find(path):
    try:
      saved = _read(checkpoint)
    except errors.ReplayError as error:
      damaged.append(error)
      continue
    for why in damaged:
      logging.warning("Restored the older checkpoint %s: %s", checkpoint, why)
    return saved
  if len(damaged) == 1:
    raise damaged[0]
  raise errors.ReplayError(
    f"restore: {path}: expected a whole checkpoint, got {len(damaged)} damaged ones:\n"
    + "\n".join(f"  {why}" for why in damaged)
  )


def _find(path: str) -> list[str]:
  """Returns `path` if it is a checkpoint, or those in the folder, the newest first."""
  if os.path.isfile(os.path.join(path, _STATE)):
    return [path]
  if published := names(path):
    return [os.path.join(path, name) for name in published]
  got = "nothing" if not os.path.exists(path) else "a file"
  if os.path.isdir(path):
    got = errors.listing(os.listdir(path), limit=5)
  raise errors.ReplayError(
    f"replay: {path}: expected a checkpoint or a folder of them, got {got}. An "
    "unfinished one does not count; `checkpoint()` makes one."
  )


def _is_whole(checkpoint: str) -> bool:
  try:
    _read(checkpoint)
  except errors.ReplayError:
    return False
  return True


def _read(checkpoint: str) -> _Saved:
  """Reads a checkpoint; raises ReplayError if its checksums do not match."""
  values, arrays = _read_state(checkpoint)
  try:
    store = EpisodeStore(os.path.join(checkpoint, _EPISODES))
    problems = [str(problem) for problem in verify_store(store.path).problems]
  except errors.SpecError as error:
    raise errors.ReplayError(
      f"restore: {checkpoint}: expected the episodes that were saved, got damaged ones "
      f"or none: {error} Restore a former checkpoint."
    ) from error
  if problems:
    raise errors.ReplayError(
      f"restore: {store.path}: expected the bytes that were saved, got\n  "
      + "\n  ".join(problems)
      + "\nRestore a former checkpoint."
    )
  num_slots = values["identity"][NUM_SLOTS]
  episodes = _held_episodes(arrays["counts"], _split_ends(arrays), num_slots)
  lengths = [episode.end - episode.first for episode in episodes]
  if store.episode_lengths.tolist() != lengths:
    raise errors.ReplayError(
      f"restore: {store.path}: expected episodes of {sum(lengths)} steps, as the state "
      f"beside it says, got {len(store)} episodes of {store.num_steps} steps. The "
      "checkpoint was changed: restore another one."
    )
  return _Saved(checkpoint, values, arrays, episodes, store)


def _check_identity(
  checkpoint: str, want: Mapping[str, Any], got: Mapping[str, Any]
) -> None:
  """Raises ReplayError with all differences between a buffer and the saved one."""
  hint = "They follow from padding, sequence_length, stride, shift and n_step."
  mismatches = [
    errors.Mismatch(
      name, _text(want.get(name)), _text(got.get(name)), hint if name == ANCHORS else ""
    )
    for name in {**want, **got}
    if _text(want.get(name)) != _text(got.get(name))
  ]
  if mismatches:
    raise errors.mismatch_error(
      f"restore: {checkpoint}, which is of another replay (expected is what this "
      "buffer has)",
      mismatches,
      errors.ReplayError,
    )


def _text(value: Any) -> str:
  return "nothing" if value is None else json.dumps(value, sort_keys=True)
