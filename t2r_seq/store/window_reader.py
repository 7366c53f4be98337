"""`StoreWindows`: any window of a store, by number."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.store.columns import StoreColumns
from t2r_seq.store.held_tensors import HeldTensor

Take = Callable[[str, tf.Tensor], tf.Tensor]


class WindowPlaces(NamedTuple):
  """Where windows lie, int64 [N] each.

  Attributes:
    episodes: numbers of their episodes.
    first_rows: where those start in the columns.
    num_steps: T of those.
    starts: first anchors in them.
  """

  episodes: tf.Tensor
  first_rows: tf.Tensor
  num_steps: tf.Tensor
  starts: tf.Tensor


class StoreWindows:
  """The windows that a spec structure cuts from a store, counted through its episodes.

  Columns are read where they lie, in pages of the files that the kernel keeps; a batch
  costs one copy of what it delivers.

  Attributes:
    columns: what is read from.
    reader: cuts windows from one episode.
    counts: windows of each episode, int64 [episodes].
    num_windows: of all episodes.
    held: the tensors that are read from; see `dataset_over`.
  """

  def __init__(
    self,
    columns: StoreColumns,
    spec_structure: specs.SpecStructure,
    sequence_length: int | None = None,
    stride: int = 1,
    shift: int = 1,
    padding: str = "drop",
    masks: bool = False,
    flat: bool = False,
  ) -> None:
    """Plans the windows.

    Args:
      columns: of the store.
      spec_structure: the specs of a window. A path without time offsets is the anchor's
        own step where the store has a row per step for it, and else a context feature.
        Optional paths that some episode lacks are left out.
      sequence_length: L, stacks in a sequence; None for single windows.
      stride: steps between the stacks of one sequence.
      shift: stacks between the starts of two sequences.
      padding: 'drop', 'repeat' or 'zero'.
      masks: adds '<path>_mask' for every windowed path.
      flat: gives every step that a window shows once; see `windows.stack_windows`.
    Raises:
      SpecError: the store does not fit the specs; every path is named.
    """
    self.columns = columns
    _check_optionals(columns, spec_structure)
    self.reader = windows.WindowReader(
      columns.element_spec,
      spec_structure,
      windows.Cut(sequence_length, stride, shift, padding, masks),
      flat,
    )
    _check_context(self.reader, columns.element_spec)
    lengths = columns.episode_lengths
    self.counts: np.ndarray = np.asarray(self.reader.grid.num_windows(lengths))
    window_ends = np.cumsum(self.counts)
    self.num_windows = int(window_ends[-1])
    # By episode: its first window, the row of its first step, its steps.
    by_episode = [window_ends - self.counts, np.cumsum(lengths) - lengths, lengths]
    self._window_ends = HeldTensor.of(window_ends)
    self._episodes = HeldTensor.of(np.stack(by_episode, 1))
    self.held = [*columns.held, self._window_ends, self._episodes]

  def __len__(self) -> int:
    return self.num_windows

  def __getitem__(self, index: int) -> specs.TensorSpecStruct:
    """Returns one window as arrays by path, [L, K, ...]; negative ones from the end.

    Raises:
      IndexError: there is no such window.
      SpecError: the index is no integer.
    """
    if not isinstance(index, (int, np.integer)):
      raise errors.SpecError(
        f"EpisodeStore: {self.columns.path}: window: expected an integer, got "
        f"{errors.describe(index)}."
      )
    if not -len(self) <= index < len(self):
      raise IndexError(
        f"EpisodeStore: {self.columns.path}: expected a window below {len(self)}, got "
        f"{index}."
      )
    window = self.read(tf.constant([index % len(self)], tf.int64))
    return specs.map_leaves(lambda values: values.numpy()[0], window)

  @property
  def window_bytes(self) -> int:
    """Memory of a window's numbers, in bytes."""
    return self.reader.window_bytes

  def read(
    self, window_ids: tf.Tensor, take: Take | None = None
  ) -> specs.TensorSpecStruct:
    """Gathers windows.

    Args:
      window_ids: int [B], in range(num_windows), in any order. A number that is not
        is an error here where tensors are eager, and in graphs not looked for.
      take: gives rows in place of the columns' own method of that name.
    Returns:
      Windows by path, [B, L, K, ...]; byte strings and encoded images as strings.
    Raises:
      IndexError: there is no such window.
    """
    return self.read_at(self.locate(window_ids), take)

  def locate(self, window_ids: tf.Tensor) -> WindowPlaces:
    """Looks up where windows lie; `read_at` reads them.

    Apart, so that a loader can look up many batches at once: for one of 64 windows that
    takes some 45 us of processor time, a tenth of what reading it takes.

    Args:
      window_ids: int [N], as `read` takes them.
    Returns:
      Their places.
    Raises:
      IndexError: there is no such window.
    """
    window_ids = self._check_ids(tf.cast(window_ids, tf.int64))
    window_ends = self._window_ends.read_value()
    episodes = tf.searchsorted(window_ends, window_ids, "right", out_type=tf.int64)
    found = tf.gather(self._episodes.read_value(), episodes)
    first_windows, first_rows, num_steps = tf.unstack(found, axis=1)
    starts = self.reader.grid.start(window_ids - first_windows)
    return WindowPlaces(episodes, first_rows, num_steps, starts)

  def read_at(
    self, places: WindowPlaces, take: Take | None = None
  ) -> specs.TensorSpecStruct:
    """Gathers the windows at places; see `read`."""
    take = take or self.columns.take

    return self.reader.read_with(
      lambda path, rows: take(path, places.episodes if rows is None else rows),
      *(places.starts, places.num_steps, places.first_rows),
    )

  def _check_ids(self, window_ids: tf.Tensor) -> tf.Tensor:
    if not tf.executing_eagerly() or not tf.size(window_ids):
      return window_ids
    first, last = int(tf.reduce_min(window_ids)), int(tf.reduce_max(window_ids))
    if window_ids.shape.rank != 1 or first < 0 or last >= len(self):
      raise IndexError(
        f"EpisodeStore: {self.columns.path}: expected window numbers [B] from 0 to "
        f"{len(self) - 1}, got {errors.describe(window_ids)} from {first} to {last}."
      )
    return window_ids


def _check_context(
  reader: windows.WindowReader, element_spec: specs.TensorSpecStruct
) -> None:
  """Raises SpecError where steps would be read as a value of the episode."""
  found = [
    errors.Mismatch(
      path,
      "a value for each episode",
      f"{errors.describe(element_spec[path])}, one for each step",
      "Say which steps: time_offsets=(...).",
    )
    for path in reader.paths
    # Rows have a static shape; steps are counted, episode by episode.
    if path not in reader.timed_paths and None in element_spec[path].shape.as_list()
  ]
  if found:
    raise errors.mismatch_error("windows", found)


def _check_optionals(
  columns: StoreColumns, spec_structure: specs.SpecStructure
) -> None:
  """Raises SpecError where a spec needs what some episodes lack."""
  flat = specs.flatten_spec_structure(spec_structure)
  sources = {
    path: path if path in columns.absent else getattr(spec, "name", None)
    for path, spec in flat.items()
    if path not in columns.element_spec and not getattr(spec, "is_optional", False)
  }
  found = [
    errors.Mismatch(
      path,
      "it in every episode",
      columns.absent[source],
      "Make the spec optional to leave it out, or the store without those episodes.",
    )
    for path, source in sources.items()
    if source in columns.absent
  ]
  if found:
    raise errors.mismatch_error("windows", found)
