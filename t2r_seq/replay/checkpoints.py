"""Checkpoints of a replay in memory: a store and arrays, saved, loaded and restored."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from absl import logging

from t2r_seq import errors, files, specs
from t2r_seq.replay import options
from t2r_seq.replay.options import check_path
from t2r_seq.replay.rate_limiters import make_rate_limiter
from t2r_seq.replay.replay import Replay
from t2r_seq.replay.ring import Contexts, Lanes, Ring
from t2r_seq.replay.table import Table
from t2r_seq.store import EpisodeStore, EpisodeWriter, layout, verify_store
from t2r_seq.store.layout import Columns
from t2r_seq.store.manifest import check_spec

_NAME = "state.npz"
_HEADER = "header"
_FORMAT = "t2r_seq.replay.checkpoint"
_VERSION = 1


def is_in(folder: str) -> bool:
  """Whether there is a state file in a folder."""
  return os.path.isfile(os.path.join(folder, _NAME))


def write_state(
  folder: str, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
  """Writes the state; when it returns, it is on the disk.

  Args:
    folder: to put the file into.
    values: JSON values by name.
    arrays: by name; not of objects.
  """
  header = json.dumps(
    {
      "format": _FORMAT,
      "version": _VERSION,
      "arrays": [*arrays],
      "values": dict(values),
    }
  )
  encoded = np.frombuffer(header.encode(), np.uint8)
  with open(os.path.join(folder, _NAME), "wb") as file:
    np.savez(file, **{_HEADER: encoded}, **arrays)  # type: ignore[arg-type]
    file.flush()
    os.fsync(file.fileno())


def read_state(folder: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Reads the state.

  Args:
    folder: with the file in it.
  Returns:
    The values and the arrays, by name.
  Raises:
    ReplayError: the file is damaged, or of another program or version.
  """
  place = os.path.join(folder, _NAME)
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
  except Exception as error:  # A damaged zip file raises whatever its bytes lead to.
    raise errors.ReplayError(
      f"replay: {place}: expected the state of a replay, '{_FORMAT}' of version "
      f"{_VERSION}, got {error!r}. Restore a former checkpoint."
    ) from error


_NAME_PUBLISHING = "checkpoint-{:08d}"
_PUBLISHED = re.compile(r"checkpoint-(\d{8,})")
_UNPUBLISHED = re.compile(r"\.checkpoint-\d{8,}\.tmp")


def publish(
  folder: str,
  write: Callable[[str], None],
  keep: int,
  is_whole: Callable[[str], bool],
) -> str:
  """Makes a new checkpoint, and then removes those that are too old.

  A process that is killed at any moment leaves the former checkpoints as they were,
  and perhaps the beginning of one that nobody takes for a checkpoint; the next one
  to be published removes it.

  Args:
    folder: of the checkpoints; it is made if there is none.
    write: called with a new folder, puts the checkpoint into it and onto the disk.
    keep: how many whole ones to keep, this one included.
    is_whole: whether a checkpoint could be restored, given its path.
  Returns:
    The path of the checkpoint.
  Raises:
    ReplayError: another process is writing one there.
    OSError: the disk is full or failed; the former checkpoints are as they were.
  """
  try:
    os.makedirs(folder, exist_ok=True)
    with _held(folder):
      return _publish(folder, write, keep, is_whole)
  except OSError as error:
    raise _explain(error, folder) from error


def find(path: str) -> list[str]:
  """Returns the paths of checkpoints, the newest first.

  Args:
    path: of a checkpoint itself, or of a folder of them.
  Raises:
    ReplayError: there is none.
  """
  if is_in(path):
    return [path]
  published = _list(path)
  if published:
    return [os.path.join(path, name) for name in reversed(published)]
  got = "nothing" if not os.path.exists(path) else "a file"
  if os.path.isdir(path):
    got = errors.listing(os.listdir(path), limit=5)
  raise errors.ReplayError(
    f"replay: {path}: expected a checkpoint or a folder of them, got {got}. One that "
    "was not finished is none; `checkpoint()` makes one."
  )


def _publish(
  folder: str,
  write: Callable[[str], None],
  keep: int,
  is_whole: Callable[[str], bool],
) -> str:
  for name in filter(_UNPUBLISHED.fullmatch, os.listdir(folder)):
    shutil.rmtree(os.path.join(folder, name))
  name = _NAME_PUBLISHING.format(_next_number(folder))
  unpublished, path = _unpublished(folder, name), os.path.join(folder, name)
  try:
    os.mkdir(unpublished)
    write(unpublished)
    files.sync_folder(unpublished)
    os.rename(unpublished, path)
    files.sync_folder(folder)
  except BaseException:
    shutil.rmtree(unpublished, ignore_errors=True)
    raise
  num_whole = 1
  for old in reversed(_list(folder)[:-1]):
    if num_whole < keep:
      num_whole += is_whole(os.path.join(folder, old))
      continue
    # Renamed first: a half-removed one must not look like a checkpoint.
    os.rename(os.path.join(folder, old), _unpublished(folder, old))
    shutil.rmtree(_unpublished(folder, old))
  return path


def _list(folder: str) -> list[str]:
  """Lists the names of what is published, the oldest first."""
  names = os.listdir(folder) if os.path.isdir(folder) else []
  return sorted(filter(_PUBLISHED.fullmatch, names), key=_number)


def _next_number(folder: str) -> int:
  return max(map(_number, _list(folder)), default=0) + 1


def _number(name: str) -> int:
  return int(name.partition("-")[2])


def _unpublished(folder: str, name: str) -> str:
  return os.path.join(folder, f".{name}.tmp")


@contextlib.contextmanager
def _held(folder: str) -> Iterator[None]:
  """Holds a folder for one writer; a process that dies lets go of it."""
  descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
  try:
    _lock(descriptor, folder)
    yield
  finally:
    os.close(descriptor)


def _lock(descriptor: int, folder: str) -> None:
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise errors.ReplayError(
      f"replay: {folder}: expected nobody else to write a checkpoint there, got "
      "another writer. Give each replay a folder of its own."
    ) from None


def _explain(error: OSError, folder: str) -> OSError:
  published = _list(folder)
  former = "There is no former checkpoint."
  if published:
    former = f"The former checkpoint, {published[-1]}, is kept."
  # What it says itself is of a file in a folder that is gone by now.
  reason = os.strerror(error.errno) if error.errno else str(error)
  return OSError(
    error.errno,
    f"checkpoint: {folder}: expected a folder that it may write to, with room on the "
    f"disk, got: {reason}. {former} Make room, or give another checkpoint_dir, and "
    "call checkpoint() again.",
  )


# Steps are copied out of the ring in blocks of this size.
_BLOCK_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True)
class HeldEpisode:
  """The part of an episode that is in a ring.

  Attributes:
    lane: whose it is.
    first: its oldest step that is held.
    end: the step after its newest.
  """

  lane: int
  first: int
  end: int


def held_episodes(
  counts: np.ndarray, all_ends: Sequence[Iterable[int]], num_slots: int
) -> list[HeldEpisode]:
  """Lists the episodes of which a step is held, by writer, the oldest first.

  Args:
    counts: steps of each writer so far.
    all_ends: of each writer, where its episodes ended.
    num_slots: steps of each writer that are held.
  """
  found = []
  for lane, (count, ends) in enumerate(zip(counts.tolist(), all_ends, strict=True)):
    first = max(0, count - num_slots)
    for end in (*ends, count):
      if end > first:
        found.append(HeldEpisode(lane, first, end))
        first = end
  return found


def write_episode(
  writer: EpisodeWriter,
  ring: Ring,
  contexts: Contexts,
  lanes: Lanes,
  episode: HeldEpisode,
) -> None:
  """Appends an episode to a store, in blocks."""
  rows = np.zeros(0, np.int64)
  for rows in _blocks_of_rows(ring, lanes, episode):
    writer.append_steps({p: column.take(rows, 0) for p, column in ring.columns.items()})
  last = rows[-1:]
  writer.end_episode({path: contexts.take(path, last)[0] for path in contexts.columns})


def read_episode(
  store: EpisodeStore,
  index: int,
  ring: Ring,
  contexts: Contexts,
  lanes: Lanes,
  episode: HeldEpisode,
) -> None:
  """Puts an episode of a store into the rows that it had."""
  values = store.episode(index)
  if contexts:
    contexts.begin(episode.lane, {path: values[path][()] for path in contexts.columns})
  start = 0
  for rows in _blocks_of_rows(ring, lanes, episode):
    for path, column in ring.columns.items():
      column[rows] = values[path][start : start + len(rows)]
    if contexts:
      for row in rows.tolist():
        contexts.add_step(episode.lane, row)
    start += len(rows)


def _blocks_of_rows(
  ring: Ring, lanes: Lanes, episode: HeldEpisode
) -> Iterator[np.ndarray]:
  """Yields the rows of an episode, int64 [n], some at a time."""
  size = max(1, _BLOCK_BYTES // ring.row_bytes)
  for first in range(episode.first, episode.end, size):
    steps = np.arange(first, min(first + size, episode.end))
    yield steps % lanes.num_slots * lanes.num_writers + episode.lane


def to_state(table: Table) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Returns JSON values and arrays; some of these are the table's own."""
  limiter, lanes = table.limiter, table.lanes
  values = {
    "num_inserts": limiter.num_inserts,
    "num_samples": limiter.num_samples,
    "num_deletes": limiter.num_deletes,
    "num_ignored_updates": table.num_ignored_updates,
    "greatest_priority": table.given.greatest,
    "given": [
      table.given.of_writer(lane, count)
      for lane, count in enumerate(lanes.counts.tolist())
    ],
    "rng": table.rng.bit_generator.state,
  }
  arrays = {
    "counts": lanes.counts,
    "starts": lanes.starts,
    "ends": np.array([end for ends in lanes.ends for end in ends], np.int64),
    "num_ends": np.array([len(ends) for ends in lanes.ends]),
    "marks": lanes.marks,
    **table.items.arrays(),
  }
  if lanes.ages is not None:
    arrays["ages"] = lanes.ages
  return values, arrays


def split_ends(arrays: Mapping[str, np.ndarray]) -> list[list[int]]:
  """Returns where the episodes of each writer ended.

  Args:
    arrays: of `to_state`.
  """
  stops = np.cumsum(arrays["num_ends"])[:-1]
  return [ends.tolist() for ends in np.split(arrays["ends"], stops)]


def load_lanes(lanes: Lanes, arrays: Mapping[str, np.ndarray]) -> None:
  """Sets which steps and items there are.

  Args:
    lanes: without steps.
    arrays: of `to_state`.
  """
  lanes.counts[:] = arrays["counts"]
  lanes.starts[:] = arrays["starts"]
  lanes.dead[:] = np.maximum(lanes.counts - lanes.num_slots, 0)
  for ends, saved in zip(lanes.ends, split_ends(arrays), strict=True):
    ends.extend(saved)
  lanes.marks[:] = arrays["marks"]
  lanes.num_items = int(np.count_nonzero(lanes.marks))
  if lanes.ages is not None:
    lanes.ages[:] = arrays["ages"]


def load_items(
  table: Table, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
  """Sets everything else; items go if there are more than there may be now.

  Args:
    table: whose lanes are set.
    values: of `to_state`.
    arrays: of `to_state`.
  """
  limiter = table.limiter
  limiter.num_inserts = values["num_inserts"]
  limiter.num_samples = values["num_samples"]
  limiter.num_deletes = values["num_deletes"]
  table.num_ignored_updates = values["num_ignored_updates"]
  table.given.greatest = values["greatest_priority"]
  for lane, saved in enumerate(values["given"]):
    for step, priority in saved:
      table.given.put(lane, step, priority)
  table.rng.bit_generator.state = values["rng"]
  table.items.load(arrays)
  table.remove_surplus()


EPISODES = "episodes"
# What a checkpoint says of the part of the ring that each writer had.
NUM_SLOTS = "steps for each writer"


@dataclasses.dataclass(frozen=True)
class Saved:
  """A whole checkpoint.

  Attributes:
    path: of it.
    values: of `table_state.to_state`, and the buffer's identity.
    arrays: of `table_state.to_state`.
    episodes: that were held.
    store: of the same episodes.
  """

  path: str
  values: dict[str, Any]
  arrays: dict[str, np.ndarray]
  episodes: list[HeldEpisode]
  store: EpisodeStore


def read_checkpoint(checkpoint: str) -> Saved:
  """Reads a checkpoint.

  Args:
    checkpoint: its path.
  Raises:
    ReplayError: it is damaged.
  """
  values, arrays = read_state(checkpoint)
  store = _open_episodes(checkpoint)
  ends = split_ends(arrays)
  num_slots = values["identity"][NUM_SLOTS]
  episodes = held_episodes(arrays["counts"], ends, num_slots)
  _check_lengths(store, [episode.end - episode.first for episode in episodes])
  return Saved(checkpoint, values, arrays, episodes, store)


def is_whole(checkpoint: str) -> bool:
  """Whether a checkpoint can be read."""
  try:
    read_checkpoint(checkpoint)
  except errors.ReplayError:
    return False
  return True


def _open_episodes(checkpoint: str) -> EpisodeStore:
  """Opens the store of a checkpoint, whose bytes are those that were saved."""
  try:
    store = EpisodeStore(os.path.join(checkpoint, EPISODES))
    found = [str(problem) for problem in verify_store(store.path).problems]
  except errors.SpecError as error:
    raise errors.ReplayError(
      f"restore: {checkpoint}: expected the episodes that were saved, got damaged ones "
      f"or none: {error} Restore a former checkpoint."
    ) from error
  if found:
    raise errors.ReplayError(
      f"restore: {store.path}: expected the bytes that were saved, got\n  "
      + "\n  ".join(found)
      + "\nRestore a former checkpoint."
    )
  return store


def _check_lengths(store: EpisodeStore, lengths: list[int]) -> None:
  if store.episode_lengths.tolist() != lengths:
    raise errors.ReplayError(
      f"restore: {store.path}: expected episodes of {sum(lengths)} steps, as the state "
      f"beside it says, got {len(store)} episodes of {store.num_steps} steps. The "
      "checkpoint was changed: restore another one."
    )


def save(
  table: Table, columns: Columns, identity: dict[str, Any], folder: str, keep: int
) -> str:
  """Saves a buffer; writers and samplers wait meanwhile, as at a Reverb server.

  Args:
    table: of the buffer.
    columns: of a step and of an episode.
    identity: JSON values that a buffer must have to be restored from this.
    folder: of checkpoints.
    keep: how many whole ones to keep.
  Returns:
    The path of the checkpoint.
  Raises:
    ReplayError: the buffer is closed, or another one is being saved there.
    OSError: the disk is full or failed; the former checkpoints are as they were.
  """

  def write(place: str) -> None:
    with table.lock:
      table.check_open("checkpoint")
      export(table, columns, os.path.join(place, EPISODES))
      values, arrays = to_state(table)
      write_state(place, {**values, "identity": identity}, arrays)

  # Former ones, of which damaged ones are found out, keep nobody waiting.
  return publish(os.path.abspath(folder), write, keep, is_whole)


def export(table: Table, columns: Columns, path: str) -> int:
  """Writes the episodes that are held to a new store, each step once.

  Args:
    table: of the buffer.
    columns: of a step and of an episode.
    path: of the store.
  Returns:
    The number of episodes.
  Raises:
    StoreError: there is something at the path already.
    OSError: the disk is full or failed; nothing is left of the store.
  """
  flat = specs.TensorSpecStruct((p, column.spec) for p, column in columns.items())
  with table.lock:
    table.check_open("to_store")
    lanes = table.lanes
    episodes = held_episodes(lanes.counts, lanes.ends, lanes.num_slots)
    was_empty, is_new = _is_empty_folder(path), not os.path.lexists(path)
    try:
      with EpisodeStore.create(
        path, flat, commit_every=len(episodes) + 1, allow_nan=True
      ) as writer:
        for episode in episodes:
          write_episode(writer, table.ring, table.contexts, lanes, episode)
    except errors.StoreError:
      raise  # Something was there already.
    except BaseException:
      # An empty store would be in the way of another try.
      if is_new or was_empty:
        _remove(path, keep=was_empty)
      raise
  return len(episodes)


def _is_empty_folder(path: str) -> bool:
  return os.path.isdir(path) and not os.listdir(path)


def _remove(path: str, keep: bool) -> None:
  """Removes what was begun; keeps the folder itself if it was there before."""
  names = [path]
  if keep:
    names = [os.path.join(path, name) for name in os.listdir(path)]
  for name in names:
    if os.path.isdir(name):
      shutil.rmtree(name, ignore_errors=True)
    elif os.path.lexists(name):
      os.remove(name)


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


# What a checkpoint says of a buffer's windows.
ANCHORS = "the windows' anchors"


def restore(
  table: Table, identity: dict[str, Any], path: str, free_lanes: Container[int]
) -> str:
  """Restores a buffer that nothing has been appended to.

  Args:
    table: of the buffer.
    identity: JSON values that the buffer was saved with, if it is of this kind.
    path: of a checkpoint, or of a folder of them: then it is the newest whole one.
    free_lanes: that no writer has; one who asks for them ends what goes on there.
  Returns:
    The path of the checkpoint.
  Raises:
    ReplayError: there is no checkpoint, all are damaged, it is of another kind of
      buffer, or this buffer has steps already.
  """
  saved = _newest_whole(os.path.abspath(path))
  values, arrays = saved.values, saved.arrays
  _check_identity(saved.path, identity, values["identity"])
  with table.lock:
    table.check_open("restore")
    _check_empty(table.lanes)
    for index, episode in enumerate(saved.episodes):
      read_episode(saved.store, index, table.ring, table.contexts, table.lanes, episode)
    load_lanes(table.lanes, arrays)
    load_items(table, values, arrays)
    with nothing_waits(table):
      for lane in range(table.lanes.num_writers):
        if lane not in free_lanes:
          table.end_episode(lane)
  return saved.path


def _newest_whole(path: str) -> Saved:
  """Reads the newest checkpoint that is not damaged; says which ones are.

  Raises:
    ReplayError: there is none; all damaged ones are named.
  """
  damaged: list[errors.ReplayError] = []
  for checkpoint in find(path):
    try:
      saved = read_checkpoint(checkpoint)
    except errors.ReplayError as error:
      damaged.append(error)
      continue
    for why in damaged:
      logging.warning("Passed over for %s: %s", checkpoint, why)
    return saved
  if len(damaged) == 1:
    raise damaged[0]
  raise errors.ReplayError(
    f"restore: {path}: expected a whole checkpoint, got {len(damaged)} damaged ones:\n"
    + "\n".join(f"  {why}" for why in damaged)
  )


def _check_identity(
  checkpoint: str, want: Mapping[str, Any], got: Mapping[str, Any]
) -> None:
  found = [
    errors.Mismatch(name, _text(want.get(name)), _text(got.get(name)), _hint(name))
    for name in {**want, **got}
    if _text(want.get(name)) != _text(got.get(name))
  ]
  if found:
    raise errors.mismatch_error(
      f"restore: {checkpoint}, which is of another replay (expected is what this "
      "buffer has)",
      found,
      errors.ReplayError,
    )


def _hint(name: str) -> str:
  if name != ANCHORS:
    return ""
  return "They follow from padding, sequence_length, stride, shift and n_step."


def _text(value: Any) -> str:
  return "nothing" if value is None else json.dumps(value, sort_keys=True)


def _check_empty(lanes: Lanes) -> None:
  if lanes.counts.any():
    raise errors.ReplayError(
      f"restore: expected a buffer without steps, got one of {lanes.num_steps}. "
      "Restore before anything is appended."
    )


_Self = TypeVar("_Self", bound="DurableReplay")


class DurableReplay(Replay):
  """Checkpoints, and stores that a buffer becomes or begins with.

  While files are written or read, writers and samplers wait.
  """

  _table: Table
  _columns: Columns
  _checkpoint_dir: str | None
  _keep_checkpoints: int
  _free_lanes: list[int]

  @abc.abstractmethod
  def __init__(self, spec_structure: specs.SpecStructure, **arguments: Any) -> None:
    """Makes an empty one."""

  @classmethod
  def from_store(
    cls: type[_Self],
    path: str | os.PathLike[str],
    spec_structure: specs.SpecStructure,
    **arguments: Any,
  ) -> _Self:
    """Makes a buffer that begins with the episodes of a store.

    As many of the last ones as there is room for are read, in their order. Each is an
    insert to the rate limiter, but none waits: with `SampleToInsertRatio`, appending
    may have to wait until the learner has sampled what was loaded.

    Args:
      path: of an EpisodeStore. A path of the specs reads the column of that name, or
        else the one that is the spec's name.
      spec_structure: the specs of a window.
      **arguments: of the buffer.
    Raises:
      StoreError: there is no such store.
      SpecError: no path is given, or the store lacks what the specs need; all that is
        missing is named.
    """
    place = check_path("from_store", "path", path, "Name an EpisodeStore.")
    replay = cls(spec_structure, **arguments)
    load_store(replay._table, replay._columns, place)
    return replay

  def to_store(self, path: str | os.PathLike[str]) -> int:
    """Writes the episodes that are held to a new EpisodeStore, each step once.

    Episodes that go on end here, and episodes whose oldest steps are gone begin with
    the oldest that is there; under padding 'drop' the windows are those of the buffer.

    Args:
      path: of the store.
    Returns:
      The number of episodes.
    Raises:
      SpecError: no path is given.
      StoreError: there is something at the path already.
      OSError: the disk is full or failed; nothing is left of the store.
    """
    hint = "Name a folder that is not there yet, or an empty one."
    place = check_path("to_store", "path", path, hint)
    return export(self._table, self._columns, place)

  def checkpoint(self) -> str:
    """Saves everything; see `Replay.checkpoint`.

    A checkpoint is a folder with an EpisodeStore and one more file. It appears in
    `checkpoint_dir` whole or not at all, whatever happens to the process or the disk,
    and the oldest ones are removed after that; damaged ones do not count as kept.

    Raises:
      ReplayError: the buffer has no `checkpoint_dir`, or is closed.
      OSError: the disk is full or failed; the former checkpoints are as they were.
    """
    self._table.check_open("checkpoint")
    if self._checkpoint_dir is None:
      raise errors.ReplayError(
        "checkpoint: expected a buffer with a checkpoint_dir, got one without. Give "
        "ReplayBuffer(checkpoint_dir=...)."
      )
    return save(
      self._table,
      self._columns,
      self._identity(),
      self._checkpoint_dir,
      self._keep_checkpoints,
    )

  def restore(self, path: str | os.PathLike[str]) -> str:
    """Goes on where a checkpoint was made: the same draws follow.

    The buffer has the specs, the capacity and the windows of the one that was saved;
    how it samples, removes and paces may be changed; where there are more items than
    `max_size` now, the remover lets them go. An episode that was going on
    then ends where it was: at once where a writer is open already, and otherwise as
    soon as one asks for that part of the ring.

    Args:
      path: of a checkpoint, or of a folder of them: then it is the newest whole one;
        the log names those that are damaged.
    Returns:
      The path of the checkpoint.
    Raises:
      SpecError: no path is given.
      ReplayError: there is no checkpoint, all are damaged, it is of another kind of
        buffer, or this buffer has steps already.
    """
    place = check_path(
      "restore", "path", path, "Name a checkpoint, or a folder of them."
    )
    return restore(self._table, self._identity(), place, self._free_lanes)

  def _identity(self) -> dict[str, Any]:
    """Returns what a buffer must have in common with the one that was saved."""
    lanes = self._table.lanes
    return {
      **json.loads(self.spec_structure.to_json()),
      "num_writers": lanes.num_writers,
      NUM_SLOTS: lanes.num_slots,
      ANCHORS: dataclasses.asdict(lanes.rule),
    }
