"""`ReplayBuffer`: live replay in the memory of this process."""

from __future__ import annotations

import json
import os
from typing import Any, TypeVar

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.replay import checkpoints, options, sizing
from t2r_seq.replay.options import to_updates
from t2r_seq.replay.rate_limiters import StopFn
from t2r_seq.replay.replay import (
  Replay,
  ReplayCounters,
  SampleInfo,
)
from t2r_seq.replay.ring import AnchorRule, Contexts, Lanes, Ring
from t2r_seq.replay.sampling import Batch, Sampling, make_dataset
from t2r_seq.replay.sizing import flat_replay_specs
from t2r_seq.replay.table import Items, Table
from t2r_seq.replay.writers import MemoryWriter
from t2r_seq.transitions.loading import KEY, TransitionsMetadata

_OPERATION = "ReplayBuffer"

_Self = TypeVar("_Self", bound="ReplayBuffer")


@gin.configurable
class ReplayBuffer(Replay):
  """Replay in this process: each step once in a ring, windows gathered when sampled.

  Writers, samplers and updates of priorities may be in as many threads as there are.
  The newest steps are kept: where a writer's part of the ring is full, its oldest step
  makes room for the next one, and the windows that show it go. Of an episode that is
  longer than its writer's part, the newest steps are kept, too.
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
    """Reserves the ring; its memory is taken as steps come.

    Args:
      spec_structure: the specs of a window. A spec whose name is another path shows
        that path's steps: next_obs, with name='obs' and time_offsets=1.
      capacity_steps: steps that are held, of all writers together.
      capacity_bytes: or the memory that they may take, with all that belongs to them:
        there are as many as fit even if each is an episode of its own, so that large
        features of episodes leave room for few. Not for byte strings.
      num_writers: N, environments that are written at the same time.
      cut: how episodes become windows; None for `windows.Cut()`.
      flat: gives every step that a window shows once, for `windows.stack_windows`.
      seed: of what is drawn at random; None for another one every time.
      checkpoint_dir: folder that `checkpoint` saves to; of this buffer alone.
      keep_checkpoints: how many of them stay, at least 1.
      allow_nan: appends NaN and infinity, which are otherwise an error.
      **fields: fields of `options.TableOptions` (sampler, remover, max_size,
        max_times_sampled, rate_limiter, initial_priority, timeout), and of the cut:
        padding='repeat', n_step=(3, 0.99), ... To sample n-step transitions, the specs
        are those of one-step ones; see `windows.NStep`.
    Raises:
      SpecError: specs or arguments that do not go together, or too small a capacity.
      ReplayError: `checkpoint_dir` may not be written to.
    """
    self._spec = specs.stored_specs(specs.flatten_spec_structure(spec_structure)).copy()
    how, fields = options.split_fields(_OPERATION, fields)
    self._cut = cut = windows.Cut.of(_OPERATION, cut, fields)
    self._flat_spec = flat_replay_specs(_OPERATION, self._spec, cut.n_step)
    sizing.warn_of_invented_steps(_OPERATION, self._spec, cut)
    self._checkpoint_dir = options.check_checkpoint_dir(_OPERATION, checkpoint_dir)
    name = "keep_checkpoints"
    self._keep_checkpoints = errors.check_count(_OPERATION, name, keep_checkpoints)
    self._columns = sizing.make_columns(_OPERATION, self._flat_spec)
    element = sizing.element_spec(self._columns)
    reader = windows.WindowReader(element, self._spec, cut, flat)
    rule = AnchorRule.of(reader)
    self._capacity = capacity = sizing.plan_capacity(
      self._columns, rule, how, num_writers, capacity_steps, capacity_bytes
    )
    steps = {p: c for p, c in self._columns.items() if c.is_per_step}
    contexts = {p: c for p, c in self._columns.items() if not c.is_per_step}
    with capacity.memory_for(_OPERATION):
      ring = Ring(steps, capacity.num_slots, capacity.num_writers)
      lanes = Lanes(rule, capacity.num_slots, capacity.num_writers)
      held = Contexts(contexts, ring.num_rows, capacity.num_writers)
      items = Items(lanes, how)
    rng = sizing.make_rng(_OPERATION, seed)
    self._table = Table(ring, held, lanes, items, how, rng)
    self._sampling = Sampling(self._table, reader)
    self._window_spec = reader.window_spec
    self._allow_nan = allow_nan
    self._free_lanes = list(range(capacity.num_writers))

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
    place = options.check_path("from_store", "path", path, "Name an EpisodeStore.")
    replay = cls(spec_structure, **arguments)
    checkpoints.load_store(replay._table, replay._columns, place)
    return replay

  @property
  def spec_structure(self) -> specs.TensorSpecStruct:
    """The specs of one window, by path."""
    return self._spec.copy()

  @property
  def cut(self) -> windows.Cut:
    """How episodes become windows, and transitions are joined."""
    return self._cut

  @property
  def flat_spec(self) -> specs.TensorSpecStruct:
    """What one `append` takes, one row a path."""
    return self._flat_spec.copy()

  @property
  def window_spec(self) -> specs.TensorSpecStruct:
    """What is sampled of one item, by path; images that are encoded as strings."""
    return self._window_spec.copy()

  def writer(self, should_stop: StopFn | None = None) -> MemoryWriter:
    """Returns a writer for one environment; see `Replay.writer`."""
    with self._table.lock:
      self._table.check_open("writer")
      if not self._free_lanes:
        raise errors.ReplayError(
          "writer: expected no more open writers than num_writers, "
          f"{self._table.lanes.num_writers}, got one more. Close one, or make the "
          "buffer with more."
        )
      # After `restore` an episode may go on here that nobody is there to end.
      self._table.end_episode(self._free_lanes[0], should_stop)
      lane = self._free_lanes.pop(0)
      self._table.limiter.give_up("")
    writer = MemoryWriter(
      self._table, self._columns, lane, self._give_back, self._allow_nan
    )
    writer.should_stop = should_stop
    return writer

  def sample(self, batch_size: int) -> Batch:
    """Samples windows as numpy arrays.

    Args:
      batch_size: B.
    Returns:
      Arrays [B, ...] by path; byte strings are objects.
    Raises:
      ReplayTimeoutError: there was nothing to sample for as long as was allowed. What
        was taken out of a queue until then comes first in the next batch.
      ReplayError: the buffer is closed.
    """
    return self._sampling.sample(sizing.check_batch_size(batch_size))[1]

  def sample_with_info(self, batch_size: int) -> tuple[SampleInfo, Batch]:
    """Samples windows, and tells what is known of the items; see `sample`.

    How often an item was sampled is counted from when somebody first wanted to know.
    """
    self._count_samples()
    info, batch = self._sampling.sample(sizing.check_batch_size(batch_size))
    assert info is not None
    return info, batch

  def dataset(self, batch_size: int, with_info: bool = False) -> tf.data.Dataset:
    """Makes an endless dataset of batches; see `Replay.dataset`."""
    self._table.check_open("dataset")
    if with_info:
      self._count_samples()
    size = sizing.check_batch_size(batch_size)
    return make_dataset(self._sampling, self._spec, self._window_spec, size, with_info)

  def update_priorities(self, keys: Any, priorities: Any) -> int:
    """Sets the priorities of items; see `Replay.update_priorities`."""
    keys, priorities = to_updates(keys, priorities)
    with self._table.lock:
      self._table.check_open("update_priorities")
      return self._table.update_priorities(keys.astype(np.int64), priorities)

  @property
  def counters(self) -> ReplayCounters:
    """What the buffer holds and has seen; also once it is closed."""
    table = self._table
    with table.lock:
      return ReplayCounters(
        num_episodes=table.lanes.num_episodes,
        num_steps=table.lanes.num_steps,
        num_items=table.lanes.num_items,
        num_inserts=table.limiter.num_inserts,
        num_samples=table.limiter.num_samples,
        num_deletes=table.limiter.num_deletes,
        num_ignored_updates=table.num_ignored_updates,
        num_bytes=self._capacity.num_bytes(table),
      )

  def to_store(self, path: str | os.PathLike[str]) -> int:
    """Writes the episodes that are held to a new EpisodeStore, each step once.

    Episodes that go on end here, and episodes whose oldest steps are gone begin with
    the oldest that is there; under padding 'drop' the windows are those of the buffer.
    Where the specs are those of one-step transitions, stacked or not,
    `transitions.load_transitions` reads the store, too.

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
    place = options.check_path("to_store", "path", path, hint)
    return checkpoints.export(self._table, self._columns, place, self._describe)

  def _describe(self, lengths: list[int]) -> dict[str, Any] | None:
    """Returns what a store of these episodes says that they are, if transitions."""
    element = sizing.element_spec(self._columns)
    about = TransitionsMetadata.of_windows(element, self._spec, self._cut, lengths)
    return None if about is None else {KEY: about.to_json_dict()}

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
      The path of the checkpoint; None where none was ever finished.
    Raises:
      ReplayError: the buffer has no `checkpoint_dir`; else as `restore`.
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
    place = options.check_path(
      "restore", "path", path, "Name a checkpoint, or a folder of them."
    )
    return checkpoints.restore(self._table, self._identity(), place, self._free_lanes)

  def give_up(self, error: BaseException) -> None:
    """Ends the waits for items, if no writer is open; see `Replay.give_up`."""
    with self._table.lock:
      if len(self._free_lanes) == self._table.lanes.num_writers:
        text = next(iter(str(error).splitlines()), "")
        self._table.limiter.give_up(f"{type(error).__name__}: {text}")

  def close(self) -> None:
    """Ends all waiting with an error; nothing can be appended or sampled any more."""
    self._table.close()

  def _identity(self) -> dict[str, Any]:
    """Returns what a buffer must have in common with the one that was saved."""
    lanes = self._table.lanes
    return {
      **json.loads(self.spec_structure.to_json()),
      "num_writers": lanes.num_writers,
      checkpoints.NUM_SLOTS: lanes.num_slots,
      checkpoints.ANCHORS: lanes.rule.to_json_dict(),
    }

  def _count_samples(self) -> None:
    with self._table.lock:
      self._table.items.count_samples()

  def _give_back(self, lane: int) -> None:
    self._free_lanes.append(lane)
    self._free_lanes.sort()
