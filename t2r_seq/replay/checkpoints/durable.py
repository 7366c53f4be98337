"""`DurableReplay`: what a buffer in memory has to do with files."""

from __future__ import annotations

import abc
import dataclasses
import os
from typing import Any, TypeVar

from t2r_seq import errors, specs
from t2r_seq.replay.arguments import check_path
from t2r_seq.replay.checkpoints import loading, reading, restoring, saving
from t2r_seq.replay.memory.table import Table
from t2r_seq.replay.replay import Replay
from t2r_seq.specs import serialization
from t2r_seq.store.layout import Columns

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
    loading.load_store(replay._table, replay._columns, place)
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
    return saving.export(self._table, self._columns, place)

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
    return saving.save(
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
    return restoring.restore(self._table, self._identity(), place, self._free_lanes)

  def _identity(self) -> dict[str, Any]:
    """Returns what a buffer must have in common with the one that was saved."""
    lanes = self._table.lanes
    return {
      **serialization.struct_to_json_dict(self.spec_structure),
      "num_writers": lanes.num_writers,
      reading.NUM_SLOTS: lanes.num_slots,
      restoring.ANCHORS: dataclasses.asdict(lanes.rule),
    }
