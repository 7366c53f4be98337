"""Reads the transitions of a store, and the metadata that describes them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.data.loaders import NumpyBatches, WindowLoader
from t2r_seq.data.plan import Plan
from t2r_seq.specs import SpecStructure
from t2r_seq.store import EpisodeStore
from t2r_seq.store.columns import StoreColumns
from t2r_seq.store.mapped import HeldTensor
from t2r_seq.windows import Cut, NStep
from t2r_seq.windows.cut import TRANSITIONS_KEY as KEY
from t2r_seq.windows.cut import Anchors
from t2r_seq.windows.n_step import TransitionFields
from t2r_seq.windows.reader import WindowReader

# Version 2 has stacks; a store without stacks has version 1.
FORMAT_VERSION = 2


class FrameStack(NamedTuple):
  """Frame stack of a field, oldest frame first; `axis` is the frame axis in a stack."""

  num_frames: int
  axis: int


@dataclasses.dataclass(frozen=True)
class TransitionsMetadata:
  """The part of a store's metadata that describes its transitions.

  Attributes:
    fields: the roles of the fields.
    n_step: n-step declaration of the saved transitions; None for one-step ones.
    num_transitions: the number of transitions in a complete store.
    stacks: frame stacks by path, for fields that are stored as single frames.
    padding: padding of stacks that begin before a chain's first row.
    num_before: rows of each chain before its first transition: the earlier frames of
      its first stacks.
  """

  fields: TransitionFields
  n_step: NStep | None
  num_transitions: int
  stacks: Mapping[str, FrameStack] = dataclasses.field(default_factory=dict)
  padding: str = "drop"
  num_before: int = 0

  def offsets(self, path: str) -> int | tuple[int, ...]:
    """Returns the time offsets of a field's rows, relative to its transition."""
    stored_path = self.fields.next_of.get(path, path)
    later = int(path in self.fields.next_of)
    stack = self.stacks.get(stored_path)
    if stack is None:
      return later
    return tuple(range(later - stack.num_frames + 1, later + 1))

  @classmethod
  def of_windows(
    cls, element_spec: Any, spec_structure: SpecStructure, cut: Cut, lengths: list[int]
  ) -> TransitionsMetadata | None:
    """Describes episodes whose windows are one-step transitions, stacked or not.

    Args:
      element_spec: specs of the flat episodes, by path.
      spec_structure: specs of the windows.
      cut: cut of the windows; its `n_step` names the fields.
      lengths: steps of each episode; the last step has only the last observation.
    Returns:
      The description; None if the windows are not transitions.
    """
    joined = Cut(n_step=cut.n_step or NStep(1, 1.0), padding=cut.padding)
    try:
      reader = WindowReader(element_spec, spec_structure, joined)
    except errors.SpecError:
      return None
    assert reader.n_step is not None
    fields = reader.n_step.fields
    if set(fields.stored_paths) != set(element_spec):
      return None
    stacks = {}
    for path, reading in reader.readings.items():
      of = fields.next_of.get(path, path)
      if reading.source != of:
        return None
      if path == of and reading.steps is not None and reading.steps.ndim:
        stacks[path] = FrameStack(len(reading.steps), 0)
    max_frames = max((stack.num_frames for stack in stacks.values()), default=1)
    num_before = 0 if cut.pads_front else max_frames - 1
    num = sum(max(0, length - 1 - num_before) for length in lengths)
    about = cls(fields, None, num, stacks, cut.front, num_before)
    for path, reading in reader.readings.items():
      if reading.steps is not None and not np.array_equal(
        reading.steps, about.offsets(path)
      ):
        return None
    return about

  def to_json_dict(self) -> dict[str, Any]:
    stacks = {
      "stacks": {path: list(stack) for path, stack in self.stacks.items()},
      "padding": self.padding,
      "num_before": self.num_before,
    }
    return {
      "format_version": FORMAT_VERSION if self.stacks else 1,
      "fields": list(self.fields.paths),
      "rew": self.fields.rew,
      "done": self.fields.done,
      "truncated": self.fields.truncated,
      "n_step": self.n_step and {"n": self.n_step.n, "gamma": self.n_step.gamma},
      "num_transitions": self.num_transitions,
      **(stacks if self.stacks else {}),
    }

  @classmethod
  def from_metadata(
    cls, place: str, metadata: Mapping[str, Any]
  ) -> TransitionsMetadata:
    """Reads it from the metadata of the store at `place`.

    Raises:
      StoreError: the store has no transitions, damaged ones, or a newer version.
    """
    values = metadata.get(KEY)
    if not isinstance(values, Mapping):
      raise errors.StoreError(
        f"load_transitions: {place}: expected transitions, got an EpisodeStore of "
        f"episodes. Read it with EpisodeStore(path); save_transitions makes a store of "
        "transitions, and so does a replay's to_store if its specs are those of one."
      )
    version = values.get("format_version")
    if version not in (1, FORMAT_VERSION) or isinstance(version, bool):
      is_newer = isinstance(version, int) and version > FORMAT_VERSION
      hint = "A newer t2r_seq wrote them: upgrade t2r_seq to read them."
      raise errors.StoreError(
        f"load_transitions: {place}: expected transitions of format version 1 or "
        f"{FORMAT_VERSION}, got {version!r}. "
        f"{hint if is_newer else 'The store is damaged.'}"
      )
    try:
      return cls._from_values(place, values)
    except (KeyError, TypeError, ValueError) as error:
      raise errors.StoreError(
        f"load_transitions: {place}: metadata: {error!r}. The store is damaged."
      ) from error

  @classmethod
  def _from_values(cls, place: str, values: Mapping[str, Any]) -> TransitionsMetadata:
    n_step = values["n_step"]
    return cls(
      TransitionFields.from_paths(
        f"load_transitions: {place}",
        map(str, values["fields"]),
        str(values["rew"]),
        str(values["done"]),
        str(values["truncated"]),
      ),
      None if n_step is None else NStep(n_step["n"], n_step["gamma"]),
      int(values["num_transitions"]),
      {
        path: FrameStack(*map(int, of)) for path, of in values.get("stacks", {}).items()
      },
      str(values.get("padding", "drop")),
      int(values.get("num_before", 0)),
    )


class Transitions:
  """The transitions of a store in order, n-step or not; columns are memory-mapped.

  A chain of T transitions has T + 1 rows after the frames of its first stacks; the next
  observation of a transition is in the next row.

  Attributes:
    store: store of chains.
    path: path of the store.
    fields: the roles of the fields.
    saved_n_step: the n-step returns of the saved transitions; None if one-step.
    joined: the n-step returns that are computed while reading; None if not.
    spec: specs of one transition, by path, in the order of the fields.
    max_bytes: maximum memory of a transition.
  """

  def __init__(
    self, store: EpisodeStore, about: TransitionsMetadata, joined: NStep | None = None
  ) -> None:
    """Maps the columns; use `load_transitions`.

    Raises:
      SpecError: a field has a name that `joined` adds.
    """
    self.store = store
    self.path = store.path
    self.fields = about.fields
    self.saved_n_step = about.n_step
    self.joined = joined
    self._about = about
    self._columns = StoreColumns(store)
    # Chains store their last observation: there is no padding at the end.
    cut = windows.Cut(padding=(about.padding, "drop"), n_step=joined)
    self._reader = WindowReader(
      self._columns.element_spec, _window_specs(store, about), cut
    )
    self._axes = {
      path: stack.axis
      for path in self._reader.window_spec
      for stack in [about.stacks.get(about.fields.next_of.get(path, path))]
      if stack is not None and stack.axis
    }
    self.spec = specs.TensorSpecStruct(
      (path, _with_axis(spec, self._axes.get(path, 0)))
      for path, spec in self._reader.window_spec.items()
    )
    sources = [reading.source for reading in self._reader.readings.values()]
    self.max_bytes = sum(map(self._columns.max_row_bytes, sources))
    lengths, before = store.episode_lengths, about.num_before
    counts = np.maximum(lengths - 1 - before, 0)
    ends = np.cumsum(counts)
    self._num_transitions = int(ends[-1])
    self._ends = HeldTensor.of(ends)
    # By chain: row of the first transition, and number of transitions before it.
    rows = np.cumsum(lengths) - lengths
    self._begins = HeldTensor.of(np.stack([rows + before, ends - counts], 1))
    self._num_before = before
    self._held = [*self._columns.held, self._ends, self._begins]

  def __len__(self) -> int:
    return self._num_transitions

  def read(self, ids: tf.Tensor) -> specs.TensorSpecStruct:
    """Gathers transitions by TensorFlow ops.

    Args:
      ids: integers of any shape, in range(len(self)), in any order.
    Returns:
      The fields by path, ids.shape + the shape of the field.
    """
    ids = tf.cast(ids, tf.int64)
    ends = self._ends.read_value()
    chains = tf.searchsorted(ends, tf.reshape(ids, [-1]), "right", out_type=tf.int64)
    chains = tf.reshape(chains, tf.shape(ids)) if ids.shape.rank != 1 else chains
    row, first = tf.unstack(tf.gather(self._begins.read_value(), chains), axis=-1)
    anchors = Anchors(
      row + ids - first, self._num_before + ids - first, tf.gather(ends, chains) - ids
    )

    def take(path: str, rows: tf.Tensor | None) -> tf.Tensor:
      return self._columns.take(path, chains if rows is None else rows)

    read = self._reader.read_at(take, anchors)
    lead = ids.shape.rank
    for path, axis in self._axes.items():
      value = read[path]
      order = list(range(value.shape.rank))
      order.insert(lead + axis, order.pop(lead))
      read[path] = tf.transpose(value, order)
    return specs.TensorSpecStruct(read)

  def n_step(self, n: int, gamma: float) -> Transitions:
    """Returns the n-step transitions, computed while reading; see `windows.NStep`.

    Raises:
      SpecError: these are n-step transitions already, an argument is invalid, or a
        field has a name that n-step returns add.
    """
    for done in (self.saved_n_step, self.joined):
      if done is not None:
        raise errors.SpecError(
          f"n_step: {self.path}: expected one-step transitions, got {done}. Returns of "
          "returns would be wrong: read n-step transitions as they are."
        )
    fields = self.fields
    joined = NStep(n, gamma, fields.rew, fields.done, fields.truncated or "truncated")
    return Transitions(self.store, self._about, joined)

  def __getitem__(self, index: int) -> specs.TensorSpecStruct:
    """Returns one transition as numpy arrays; -1 is the last one."""
    if not -len(self) <= index < len(self):
      raise IndexError(
        f"transitions: {self.path}: expected a number below {len(self)}, got {index}."
      )
    one = self.read(tf.constant(index % len(self), tf.int64))
    return specs.TensorSpecStruct((path, one[path].numpy()) for path in self.spec)

  def to_numpy(self, start: int = 0, stop: int | None = None) -> specs.TensorSpecStruct:
    """Reads a range of transitions.

    Args:
      start: index of the first transition.
      stop: index after the last one; None for all.
    Returns:
      Arrays [stop - start, ...] by path, n-step if `joined`; byte strings as objects.
    Raises:
      IndexError: the range is outside the transitions.
    """
    stop = len(self) if stop is None else stop
    if not 0 <= start <= stop <= len(self):
      raise IndexError(
        f"transitions: {self.path}: expected 0 <= start <= stop <= {len(self)}, got "
        f"start {start} and stop {stop}."
      )
    read = self.read(tf.range(start, stop, dtype=tf.int64))
    return specs.TensorSpecStruct((path, read[path].numpy()) for path in self.spec)

  def dataset(
    self, batch_size: int, order: str = "global", start_batch: int = 0, **fields: Any
  ) -> tf.data.Dataset:
    """Returns a dataset of batches.

    Args:
      batch_size: B.
      order: 'sequential', or 'global': another permutation of all transitions in every
        epoch, without a buffer.
      start_batch: number of batches to skip, over all epochs, to resume.
      **fields: fields of a `data.plan.Plan`: seed=1, num_epochs=None, num_shards=2, ...
    Returns:
      Dataset of TensorSpecStructs by path, leaves [B, ...].
    Raises:
      SpecError: an argument is invalid, or there are fewer transitions than a batch.
    """
    return self._loader(batch_size, order, fields).dataset(start_batch)

  def numpy_batches(
    self, batch_size: int, order: str = "global", start_batch: int = 0, **fields: Any
  ) -> NumpyBatches:
    """Returns an iterator of the batches of `dataset`, as dicts of numpy arrays."""
    return self._loader(batch_size, order, fields).numpy_batches(start_batch)

  def _loader(
    self, batch_size: int, order: str, fields: Mapping[str, Any]
  ) -> WindowLoader:
    plan = Plan(
      batch_size=batch_size, order=order, where=f"transitions: {self.path}", **fields
    )
    return WindowLoader(
      plan.with_seed(), self.read, len(self), self.max_bytes, held=self._held
    )


@gin.configurable
def load_transitions(
  path: str | os.PathLike[str], n_step: tuple[int, float] | NStep | None = None
) -> Transitions:
  """Opens a store from `save_transitions`, or from `ReplayBuffer.to_store`.

  Args:
    path: path of the store.
    n_step: (n, gamma) of transitions that were saved as n-step ones; None for one-step
      transitions. To compute n-step returns while reading: `Transitions.n_step`.
  Returns:
    The transitions, memory-mapped.
  Raises:
    StoreError: no store of transitions, or a damaged, unfinished or newer one.
    SpecError: the transitions were saved with another `n_step`, or it is invalid.
  """
  expected = NStep.of(n_step)
  store = EpisodeStore(path)
  about = TransitionsMetadata.from_metadata(store.path, store.metadata)
  if about.n_step != expected:
    saved = about.n_step and f"({about.n_step.n}, {about.n_step.gamma})"
    one_step = "one-step transitions"
    raise errors.SpecError(
      f"load_transitions: {store.path}: expected {expected or one_step}, got "
      f"{about.n_step or one_step}. Load them with n_step={saved}."
    )
  _check_columns(store, about)
  return Transitions(store, about)


def _check_columns(store: EpisodeStore, about: TransitionsMetadata) -> None:
  """Raises StoreError if the store does not match its metadata."""
  want, got = set(about.fields.stored_paths), set(store.spec)
  if want != got:
    raise errors.StoreError(
      f"load_transitions: {store.path}: expected columns {errors.listing(want)}, got "
      f"{errors.listing(got)}. The store is damaged."
    )
  lengths = store.episode_lengths
  num = int(np.maximum(lengths - 1 - about.num_before, 0).sum())
  if num < about.num_transitions:
    raise errors.StoreError(
      f"load_transitions: {store.path}: expected {about.num_transitions} transitions, "
      f"got {num}. They were not saved to the end: remove the folder and save again."
    )


def _window_specs(
  store: EpisodeStore, about: TransitionsMetadata
) -> specs.TensorSpecStruct:
  """Returns the specs of transitions as windows over the rows of a chain."""
  stored, window_spec = store.spec, specs.TensorSpecStruct()
  for path in about.fields.paths:
    source = about.fields.next_of.get(path, path)
    spec, offsets = stored[source], about.offsets(path)
    stacked = [len(offsets)] if isinstance(offsets, tuple) else []
    window_spec[path] = specs.ExtendedTensorSpec.from_spec(
      spec,
      name=source,
      shape=[*stacked, *spec.shape],
      is_sequence=False,
      time_offsets=offsets if spec.is_sequence else None,
    )
  return window_spec


def _with_axis(spec: tf.TensorSpec, axis: int) -> tf.TensorSpec:
  """Moves the first axis of a spec to `axis`."""
  if not axis:
    return spec
  sizes = list(spec.shape)
  sizes.insert(axis, sizes.pop(0))
  return tf.TensorSpec(sizes, spec.dtype, spec.name)
