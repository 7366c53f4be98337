"""`ReplayBuffer`: live replay in the memory of this process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.replay import checkpoints, options
from t2r_seq.replay.options import to_updates
from t2r_seq.replay.rate_limiters import StopFn
from t2r_seq.replay.replay import (
  Replay,
  ReplayCounters,
  ReplayWriter,
  SampleInfo,
  StampCheck,
  StepPacking,
  check_batch_size,
  element_spec,
  flat_replay_specs,
  make_columns,
  warn_of_invented_steps,
)
from t2r_seq.replay.ring import AnchorRule, Contexts, Ring, RingIndex, column_dtype
from t2r_seq.replay.sampling import Batch, Sampling, make_dataset
from t2r_seq.replay.table import Items, Table, item_bytes
from t2r_seq.specs.structures import stored_specs
from t2r_seq.store.layout import Column, Columns
from t2r_seq.transitions.loading import KEY, TransitionsMetadata
from t2r_seq.windows.reader import WindowReader

_OPERATION = "ReplayBuffer"
# Memory for the end of an episode in `RingIndex.ends`.
_END_BYTES = 8

_Self = TypeVar("_Self", bound="ReplayBuffer")


@gin.configurable
class ReplayBuffer(Replay):
  """Replay in this process: each step once in a ring, windows gathered when sampled.

  Writers, samplers and updates of priorities may run in any number of threads. If a
  writer's part of the ring is full, the next step overwrites its oldest one, and the
  windows that show that are removed.

  >>> from t2r_seq import replay, specs
  >>> pair = specs.ExtendedTensorSpec((2,), "float32", "x", time_offsets=(-1, 0))
  >>> buffer = replay.ReplayBuffer({"x": pair}, capacity_steps=100, seed=0)
  >>> with buffer.writer() as writer:
  ...   for t in range(5):
  ...     _ = writer.append({"x": float(t)})
  ...   _ = writer.end_episode()
  >>> buffer.sample(8)["x"].shape
  (8, 2)

  """

  def __init__(
    self,
    spec_structure: specs.SpecStructure,
    capacity_steps: int | None = None,
    capacity_bytes: int | None = None,
    num_writers: int = 1,
    cut: windows.Cut | None = None,
    flat: bool = False,
    seed: int | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    keep_checkpoints: int = 2,
    allow_nan: bool = False,
    **fields: Any,
  ) -> None:
    """Reserves the ring; its memory is allocated as steps arrive.

    Args:
      spec_structure: the specs of a window. A spec whose name is another path shows
        that path's steps: next_obs, with name='obs' and time_offsets=1.
      capacity_steps: steps in the ring, of all writers together.
      capacity_bytes: or the memory of steps, items and context features. It suffices
        even for episodes of one step each, so large context features leave room for few
        steps. Not for byte strings.
      num_writers: N, number of environments that are written at the same time.
      cut: how episodes become windows; None for `windows.Cut()`.
      flat: returns every step of a window once, for `windows.stack_windows`.
      seed: seed of random sampling; None: different in every run.
      checkpoint_dir: folder of this buffer's checkpoints; None: it can't save any.
      keep_checkpoints: number of checkpoints to keep, at least 1.
      allow_nan: whether steps may have NaN and infinity, which are otherwise an error.
      **fields: fields of `options.TableOptions` (sampler, remover, max_size,
        max_times_sampled, rate_limiter, initial_priority, timeout), and of the cut:
        padding='repeat', n_step=(3, 0.99), ... To sample n-step transitions, declare
        one-step ones; see `windows.NStep`.
    Raises:
      SpecError: specs or arguments do not fit together, or the capacity is too small.
      ReplayError: `checkpoint_dir` is not writable.
    """
    self._spec = stored_specs(specs.flatten_spec_structure(spec_structure)).copy()
    table_options, fields = options.split_fields(_OPERATION, fields)
    self._cut = cut = windows.Cut.of(_OPERATION, cut, fields)
    self._flat_spec = flat_replay_specs(_OPERATION, self._spec, cut.n_step)
    warn_of_invented_steps(_OPERATION, self._spec, cut)
    self._checkpoint_dir = options.check_checkpoint_dir(_OPERATION, checkpoint_dir)
    name = "keep_checkpoints"
    self._keep_checkpoints = errors.check_count(_OPERATION, name, keep_checkpoints)
    self._columns = make_columns(_OPERATION, self._flat_spec)
    element = element_spec(self._columns)
    reader = WindowReader(element, self._spec, cut, flat)
    rule = AnchorRule.of(reader)
    self._capacity = capacity = plan_capacity(
      self._columns, rule, table_options, num_writers, capacity_steps, capacity_bytes
    )
    steps = {p: c for p, c in self._columns.items() if c.is_per_step}
    contexts = {p: c for p, c in self._columns.items() if not c.is_per_step}
    with capacity.memory_for(_OPERATION):
      ring = Ring(steps, capacity.num_slots, capacity.num_writers)
      index = RingIndex(rule, capacity.num_slots, capacity.num_writers)
      held = Contexts(contexts, ring.num_rows, capacity.num_writers)
      items = Items(index, table_options)
    rng = _make_rng(_OPERATION, seed)
    self._table = Table(ring, held, index, items, table_options, rng)
    self._sampling = Sampling(self._table, reader)
    self._window_spec = reader.window_spec
    self._allow_nan = allow_nan
    self._free_writers = list(range(capacity.num_writers))

  @classmethod
  def from_store(
    cls: type[_Self],
    path: str | os.PathLike[str],
    spec_structure: specs.SpecStructure,
    **arguments: Any,
  ) -> _Self:
    """Returns a buffer with the last episodes of a store, as many as fit.

    The rate limiter counts each item as an insert, without waiting. So with
    `SampleToInsertRatio`, the next append may wait until the learner has sampled.

    Args:
      path: path of an EpisodeStore. A path of the specs reads the column of that path,
        or else the column of the spec's name.
      spec_structure: the specs of a window.
      **arguments: arguments of the buffer.
    Raises:
      StoreError: there is no such store.
      SpecError: `path` is not a local path, columns do not fit (all are named), time
        stamps are invalid, n-step transitions would be joined again, or see `__init__`.
    """
    place = options.check_path("from_store", "path", path, "Name an EpisodeStore.")
    replay = cls(spec_structure, **arguments)
    checkpoints.load_store(replay._table, replay._columns, place)
    return replay

  @property
  def spec_structure(self) -> specs.TensorSpecStruct:
    return self._spec.copy()

  @property
  def cut(self) -> windows.Cut:
    return self._cut

  @property
  def flat_spec(self) -> specs.TensorSpecStruct:
    return self._flat_spec.copy()

  @property
  def window_spec(self) -> specs.TensorSpecStruct:
    """The specs of one sampled window, by path; encoded images are strings."""
    return self._window_spec.copy()

  def writer(self, should_stop: StopFn | None = None) -> MemoryWriter:
    with self._table.lock:
      self._table.check_open("writer")
      if not self._free_writers:
        raise errors.ReplayError(
          "writer: expected no more open writers than num_writers, "
          f"{self._table.index.num_writers}, got one more. Close one, or make the "
          "buffer with more."
        )
      # After `restore` an episode of a former process may be running here.
      self._table.end_episode(self._free_writers[0], should_stop)
      number = self._free_writers.pop(0)
      self._table.limiter.fail_waiting("")
    stamps = StampCheck(self._table.index.rule.reader, self._columns)
    packing = StepPacking(self._columns, self._allow_nan)
    writer = MemoryWriter(self._table, packing, stamps, number, self._give_back)
    writer.should_stop = should_stop
    return writer

  def sample(self, batch_size: int) -> Batch:
    """Samples windows as numpy arrays.

    Returns:
      Arrays [B, ...] by path; byte strings are objects.
    Raises:
      SpecError: `batch_size` is not an integer of at least 1.
      ReplayTimeoutError: the wait for items timed out. Items that were already removed
        (`max_times_sampled=1`) come first in the next batch.
      ReplayError: the buffer is closed.
    """
    return self._sampling.sample(check_batch_size(batch_size))[1]

  def sample_with_info(self, batch_size: int) -> tuple[SampleInfo, Batch]:
    """Samples windows with information on the items; see `sample`.

    `times_sampled` counts from the first call of this, or of `dataset(with_info=True)`.
    """
    self._count_samples()
    info, batch = self._sampling.sample(check_batch_size(batch_size))
    assert info is not None
    return info, batch

  def dataset(self, batch_size: int, with_info: bool = False) -> tf.data.Dataset:
    self._table.check_open("dataset")
    if with_info:
      self._count_samples()
    size = check_batch_size(batch_size)
    return make_dataset(self._sampling, self._spec, self._window_spec, size, with_info)

  def update_priorities(self, keys: Any, priorities: Any) -> int:
    keys, priorities = to_updates(keys, priorities)
    with self._table.lock:
      self._table.check_open("update_priorities")
      return self._table.update_priorities(keys.astype(np.int64), priorities)

  @property
  def counters(self) -> ReplayCounters:
    """The counts of this buffer; also after `close`."""
    table = self._table
    with table.lock:
      return ReplayCounters(
        num_episodes=table.index.num_episodes,
        num_steps=table.index.num_steps,
        num_items=table.index.num_items,
        num_inserts=table.limiter.num_inserts,
        num_samples=table.limiter.num_samples,
        num_deletes=table.limiter.num_deletes,
        num_ignored_updates=table.num_ignored_updates,
        num_bytes=self._capacity.num_bytes(table),
      )

  def to_store(self, path: str | os.PathLike[str]) -> int:
    """Writes the episodes in the buffer to a new EpisodeStore, each step once.

    In the store, running episodes end at their last step, and episodes without their
    oldest steps begin with the oldest remaining one. So only with padding 'drop' do the
    windows equal the buffer's. If the specs are those of one-step transitions, stacked
    or not, `transitions.load_transitions` reads the store, too.

    Returns:
      The number of episodes.
    Raises:
      SpecError: `path` is not a local path.
      StoreError: the path is in use.
      ReplayError: the buffer is closed.
      OSError: the disk is full or failed; nothing is left of the store.
    """
    hint = "Name a new folder, or an empty one."
    place = options.check_path("to_store", "path", path, hint)
    return checkpoints.export(self._table, self._columns, place, self._describe)

  def _describe(self, lengths: list[int]) -> dict[str, Any] | None:
    """Returns the metadata of a store of transitions, or None."""
    element = element_spec(self._columns)
    about = TransitionsMetadata.of_windows(element, self._spec, self._cut, lengths)
    return None if about is None else {KEY: about.to_json_dict()}

  def checkpoint(self) -> str:
    """Saves the whole buffer; see `Replay.checkpoint`.

    A checkpoint is a folder with an EpisodeStore and one more file. It appears in
    `checkpoint_dir` atomically. Then the oldest ones are removed, so that
    `keep_checkpoints` whole ones remain.

    Raises:
      ReplayError: the buffer has no `checkpoint_dir` or is closed, or another process
        is writing a checkpoint there.
      OSError: the disk is full or failed; the former checkpoints are kept.
    """
    self._table.check_open("checkpoint")
    return checkpoints.save(
      self._table,
      self._columns,
      self._identity(),
      self._folder("checkpoint"),
      self._keep_checkpoints,
    )

  def resume(self) -> str | None:
    """Restores the newest whole checkpoint of `checkpoint_dir`; see `restore`.

    Returns:
      The path of the checkpoint; None without one.
    Raises:
      ReplayError: the buffer has no `checkpoint_dir`, or see `restore`.
    """
    folder = self._folder("resume")
    return self.restore(folder) if checkpoints.names(folder) else None

  def _folder(self, operation: str) -> str:
    if self._checkpoint_dir is None:
      raise errors.ReplayError(
        f"{operation}: expected a buffer with a checkpoint_dir, got one without. Give "
        "ReplayBuffer(checkpoint_dir=...)."
      )
    return self._checkpoint_dir

  def restore(self, path: str | os.PathLike[str]) -> str:
    """Resumes from a checkpoint: draws continue as in the saved buffer.

    Specs, capacity and windows must be those of the saved buffer; sampler, remover and
    rate limiter may differ, and the remover removes items beyond `max_size`. An episode
    that was running ends at its last saved step: at once if a writer is open already,
    and otherwise when a writer takes that part of the ring.

    Args:
      path: path of a checkpoint, or of a folder whose newest whole one is read; the log
        names damaged ones.
    Returns:
      The path of the checkpoint.
    Raises:
      SpecError: `path` is not a local path.
      ReplayError: there is no checkpoint, all are damaged, its specs, capacity or
        windows differ, this buffer has steps already, or it is closed.
    """
    place = options.check_path(
      "restore", "path", path, "Name a checkpoint, or a folder of them."
    )
    return checkpoints.restore(self._table, self._identity(), place, self._free_writers)

  def fail_waiting(self, error: BaseException) -> None:
    with self._table.lock:
      if len(self._free_writers) == self._table.index.num_writers:
        text = next(iter(str(error).splitlines()), "")
        self._table.limiter.fail_waiting(f"{type(error).__name__}: {text}")

  def close(self) -> None:
    """Ends all waits with an error; appending and sampling fail from then on."""
    self._table.close()

  def _identity(self) -> dict[str, Any]:
    """Returns the properties that a buffer and its saved state must share."""
    index = self._table.index
    return {
      **json.loads(self.spec_structure.to_json()),
      "num_writers": index.num_writers,
      checkpoints.NUM_SLOTS: index.num_slots,
      checkpoints.ANCHORS: index.rule.to_json_dict(),
    }

  def _count_samples(self) -> None:
    with self._table.lock:
      self._table.items.count_samples()

  def _give_back(self, number: int) -> None:
    self._free_writers.append(number)
    self._free_writers.sort()


class MemoryWriter(ReplayWriter):
  """Writes the steps of one environment to the ring; see `ReplayWriter`."""

  def __init__(
    self,
    table: Table,
    packing: StepPacking,
    stamps: StampCheck,
    number: int,
    free: Callable[[int], None],
  ) -> None:
    """Opens writer `number` of a table; `close` calls `free` with this number."""
    self._table = table
    self._packing, self._stamps = packing, stamps
    self._number = number
    self._free = free

  def _append(self, step: Any, priority: float | None) -> None:
    table, index, number = self._table, self._table.index, self._number
    context = None
    if table.contexts and index.counts.item(number) > index.starts.item(number):
      context = table.contexts.of_newest(number)
    packed = self._packing.pack(step, context)
    stamps = self._stamps.see(packed[0])
    with table.lock:
      self._check_open("append")
      table.append(number, *packed, priority, self.should_stop)
      self._stamps.add(stamps)

  def end_episode(self) -> None:
    with self._table.lock:
      self._check_open("end_episode")
      self._stamps.end_episode()
      self._table.end_episode(self._number, self.should_stop)

  def close(self) -> None:
    """Ends the episode and frees the writer's part of the ring.

    Raises:
      ReplayTimeoutError: as in `end_episode`; the writer is closed all the same.
    """
    with self._table.lock:
      if self._is_closed:
        return
      try:
        if not self._table.is_closed:
          self._table.end_episode(self._number, self.should_stop)
      finally:
        self._free(self._number)
        self._is_closed = True

  def _check_open(self, operation: str) -> None:
    self._table.check_open(operation)
    super()._check_open(operation)


def _make_rng(operation: str, seed: Any) -> np.random.Generator:
  """Returns the random generator; raises SpecError if the seed is invalid."""
  try:
    return np.random.default_rng(seed)
  except (TypeError, ValueError):
    raise errors.SpecError(
      f"{operation}: seed: expected an integer of at least 0, or None, got {seed!r}."
    ) from None


@dataclasses.dataclass(frozen=True)
class Capacity:
  """Capacity of a buffer, in steps.

  Attributes:
    argument: name of the argument, 'capacity_steps' or 'capacity_bytes'.
    num_slots: number of steps of each writer.
    num_writers: N.
    row_bytes: memory of a step and its item.
  """

  argument: str
  num_slots: int
  num_writers: int
  row_bytes: int

  def num_bytes(self, table: Table) -> int:
    """Returns the memory of the steps in a table, their items and episodes."""
    strings = sum(
      len(item) + 33
      for column in table.ring.columns.values()
      if column.dtype == object
      for item in column.flat
      if item is not None
    )
    ends = _END_BYTES * sum(map(len, table.index.ends))
    steps = table.index.num_steps * self.row_bytes
    return steps + strings + ends + table.contexts.num_bytes

  @contextlib.contextmanager
  def memory_for(self, operation: str) -> Iterator[None]:
    """Raises SpecError, which names the argument, if the memory does not suffice."""
    try:
      yield
    except errors.SpecError:
      raise
    except (MemoryError, OSError, OverflowError, ValueError) as error:
      raise errors.SpecError(
        f"{operation}: {self.argument}: expected as much as the memory has room for, "
        f"got {self.num_slots * self.num_writers} steps: {error}. Lower "
        f"{self.argument}."
      ) from error


def plan_capacity(
  columns: Columns,
  rule: AnchorRule,
  table_options: options.TableOptions,
  num_writers: Any,
  capacity_steps: Any,
  capacity_bytes: Any,
) -> Capacity:
  """Returns the capacity of a buffer.

  Args:
    columns: columns of a step, by path.
    rule: rule for the anchors of windows.
    table_options: options with the rate limiter and the selectors (memory counts).
    num_writers: number of writers that share the capacity.
    capacity_steps: a number of steps; None for `capacity_bytes`.
    capacity_bytes: a number of bytes; None for `capacity_steps`.
  Raises:
    SpecError: a number is no count, not exactly one capacity is given, it is
      `capacity_bytes` with byte strings, or it is too small for a window or for the
      items that the rate limiter waits for.
  """
  num_writers = errors.check_count(table_options.operation, "num_writers", num_writers)
  name, capacity = _check_capacity(
    table_options.operation, columns, capacity_steps, capacity_bytes
  )
  row_bytes, step_size = _row_bytes(columns, rule, table_options), 1
  if name == "capacity_bytes":
    # Worst case: every episode has one step and stores its own episode values.
    features = sum(_value_bytes(c) for c in columns.values() if not c.is_per_step)
    step_size = row_bytes + features + _END_BYTES
  slots = capacity // (step_size * num_writers)
  if slots < rule.min_steps:
    raise errors.SpecError(
      f"{table_options.operation}: {name}: expected at least {rule.min_steps} steps "
      f"for each writer, the length of a window, got {slots}. Raise it from {capacity} "
      f"to {rule.min_steps * step_size * num_writers} or more."
    )
  planned = Capacity(name, slots, num_writers, row_bytes)
  _check_rate_limiter(table_options, rule, planned)
  return planned


def _check_capacity(
  operation: str, columns: Columns, capacity_steps: Any, capacity_bytes: Any
) -> tuple[str, int]:
  """Returns the name and value of the given capacity."""
  if (capacity_steps is None) == (capacity_bytes is None):
    raise errors.SpecError(
      f"{operation}: expected either capacity_steps or capacity_bytes, got "
      f"{capacity_steps!r} and {capacity_bytes!r}. Give one of the two."
    )
  if capacity_steps is not None:
    return "capacity_steps", errors.check_count(
      operation, "capacity_steps", capacity_steps
    )
  strings = [path for path, column in columns.items() if column.is_bytes]
  if strings:
    raise errors.SpecError(
      f"{operation}: capacity_bytes cannot be used with byte strings "
      f"({errors.listing(strings)}): their sizes vary. Give capacity_steps."
    )
  return "capacity_bytes", errors.check_count(
    operation, "capacity_bytes", capacity_bytes
  )


def _check_rate_limiter(
  table_options: options.TableOptions, rule: AnchorRule, capacity: Capacity
) -> None:
  """Raises SpecError if the capacity is too small for the items of a rate limiter.

  Samples would wait without limit, or a full queue would lose items.
  """
  option, argument = table_options.rate_limiter, capacity.argument
  num_writers, num_slots = capacity.num_writers, capacity.num_slots
  match option:
    case options.MinSize() | options.SampleToInsertRatio():
      name, got = "min_size_to_sample", option.min_size_to_sample
      most = num_writers * rule.most_items(num_slots)
      source = f"{num_writers} x {num_slots} steps have"
      why = "Samples would wait without end"
    case options.Queue() if table_options.max_times_sampled == 1:
      name, got = "size", option.size
      most = rule.most_queued(num_slots)
      source = f"{num_slots} steps, the part of a writer, keep while others come"
      why = "Items would go before they are sampled"
    case _:
      return
  if table_options.max_size is not None and table_options.max_size < most:
    most, source, argument = table_options.max_size, "max_size lets in", "max_size"
  if got > most:
    raise errors.SpecError(
      f"{table_options.operation}: rate_limiter: expected {name} of at most {most}, "
      f"the items that {source}, got {got}. {why}: raise {argument}, or lower it."
    )


def _row_bytes(
  columns: Columns, rule: AnchorRule, table_options: options.TableOptions
) -> int:
  """Returns the memory of a step and its item, without context features."""
  values = sum(_value_bytes(c) for c in columns.values() if c.is_per_step)
  marks = np.min_scalar_type(rule.num_after_growing + 1).itemsize
  ages = np.min_scalar_type(rule.num_before).itemsize if rule.has_ages else 0
  # The row of the episode's features in `Contexts`.
  episode = 0 if all(column.is_per_step for column in columns.values()) else 8
  return values + marks + ages + episode + item_bytes(table_options)


def _value_bytes(column: Column) -> int:
  return math.prod(column.row_shape) * column_dtype(column).itemsize
