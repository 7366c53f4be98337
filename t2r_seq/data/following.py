"""Live data without a server: batches from a store while actors append to it.

Actors of other processes write episodes, each to its own segment; a follower polls for
new commits. All state is in the files: a writer or a learner that is killed loses only
uncommitted data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, process, specs, windows
from t2r_seq.data import arguments
from t2r_seq.store import EpisodeStore
from t2r_seq.store.columns import StoreColumns
from t2r_seq.store.episode_store import StoreWindows

_LOG_EVERY_SECONDS = 60.0


@gin.register
@dataclasses.dataclass(frozen=True)
class Follow:
  """Options to sample a growing store.

  Attributes:
    newest_steps: samples from the newest whole episodes that together have at least
      this number of steps; None samples from all.
    samples_per_insert: maximum ratio of sampled windows to windows in the store, over
      the whole run: beyond it, the sampler waits for more. None does not wait.
    min_windows: windows in the store before the first batch.
    error_buffer: windows that may be sampled beyond that ratio.
    poll_secs: seconds between two polls for new episodes.
    timeout: seconds that a batch, or the store, may be waited for; None: no limit.
  """

  newest_steps: int | None = None
  samples_per_insert: float | None = None
  min_windows: int = 1
  error_buffer: int = 1000
  poll_secs: float = 1.0
  timeout: float | None = None

  def __post_init__(self) -> None:
    """Raises SpecError if a value is out of range."""
    for name in ("newest_steps", "min_windows", "error_buffer"):
      value = getattr(self, name)
      if value is not None:
        errors.check_count("Follow", name, value)
    for name in ("samples_per_insert", "poll_secs", "timeout"):
      value = getattr(self, name)
      if value is not None and not value >= 0:
        raise errors.SpecError(f"Follow: {name}: expected at least 0, got {value!r}.")


class _Wait:
  """A wait for new data: logs it every minute, and ends with the timeout."""

  def __init__(self, path: Any, follow: Follow) -> None:
    self._path, self._follow = path, follow
    self._began = self._logged = time.monotonic()

  def pause(self, reason: str) -> None:
    """Sleeps for a moment.

    Raises:
      StoreError: the timeout has passed.
    """
    now, timeout = time.monotonic(), self._follow.timeout
    if timeout is not None and now - self._began >= timeout:
      raise errors.StoreError(
        f"follow: {self._path}: waited {timeout:g} s: {reason}. Do actors append to it?"
      )
    if now - self._logged >= _LOG_EVERY_SECONDS:
      self._logged = now
      logging.info("follow: %s: waits: %s.", self._path, reason)
    time.sleep(min(self._follow.poll_secs, 0.2))


def wait_for_store(path: Any, follow: Follow) -> EpisodeStore:
  """Opens a store that an actor creates, as soon as it exists.

  Raises:
    StoreError: the store cannot be opened within the timeout.
  """
  wait = _Wait(path, follow)
  while True:
    try:
      return EpisodeStore(path)
    except errors.StoreError as error:
      wait.pause(str(error).rstrip("."))


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
  """Raises the errors of a follower, or its store, instead of TensorFlow's."""
  try:
    yield
  except tf.errors.OpError as error:
    match = re.search(r"\bStoreError: (.+?)\s*(Traceback|$)", error.message, re.S)
    if match:
      raise errors.StoreError(match[1]) from error
    raise


class StoreFollower:
  """Samples windows uniformly from the current episodes of a store.

  The samples are a function of the seed, the batch's number and the store's contents at
  the last poll.
  """

  def __init__(
    self,
    store: EpisodeStore,
    spec_structure: specs.SpecStructure,
    batch_size: int,
    follow: Follow | None = None,
    cut: windows.Cut | None = None,
    seed: int | None = None,
    columns_fn: Callable[[EpisodeStore], Any] = StoreColumns,
  ) -> None:
    """Creates the follower, without reading the store.

    Args:
      store: the store, which may have no episodes yet.
      spec_structure: the specs of a window; see `StoreWindows`.
      batch_size: B.
      follow: how it is sampled; None for `Follow()`.
      cut: how episodes become windows; None for `windows.Cut()`.
      seed: seed of the sampling; None: different in every run.
      columns_fn: returns the columns to read from.
    Raises:
      SpecError: the batch size is invalid.
    """
    self._store = store
    self._spec, self._cut = spec_structure, cut
    self._batch_size = arguments.check_batch_size("StoreFollower", batch_size)
    self._follow = follow or Follow()
    self._seeds = np.random.SeedSequence(seed)
    self._columns_fn = columns_fn
    self._windows: StoreWindows | None = None
    # By sampled episode: the windows up to its end, among the sampled ones and in all.
    self._ends = self._last_ids = np.zeros(1, np.int64)
    # For each segment's episodes, the order in which they arrived.
    self._arrivals: dict[str, np.ndarray] = {}
    self._num_arrived = 0
    self._polled = -float("inf")

  def element_spec(self) -> specs.TensorSpecStruct:
    """Returns specs of a batch, [B, ...] by path; waits and raises as `dataset`."""
    wait = _Wait(self._store.path, self._follow)
    while self._windows is None:
      self._poll()
      if self._windows is None:
        wait.pause("it has no episode")
    window = self._windows.reader.window_spec
    return specs.map_leaves(
      lambda leaf: tf.TensorSpec([self._batch_size, *leaf.shape], leaf.dtype), window
    )

  @property
  def num_windows(self) -> int:
    """Windows that the store had at the last poll."""
    return 0 if self._windows is None else self._windows.num_windows

  def dataset(self, start_batch: int = 0) -> tf.data.Dataset:
    """Makes an endless dataset of batches.

    Args:
      start_batch: batches that the run had before it resumed; they count as sampled.
    Returns:
      Dataset of TensorSpecStructs by path, leaves [B, ...].
    Raises:
      SpecError: the store does not fit the specs.
      StoreError: no episode comes within the timeout.
    """
    element = self.element_spec()
    loose = specs.map_leaves(
      lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), element
    )

    def batches() -> Iterator[dict[str, Any]]:
      # TensorFlow can stop a generator only between two elements, so a wait is many
      # short sleeps, each with an element without rows, which `filter` removes.
      nothing = {
        path: np.zeros([0, *leaf.shape[1:]], leaf.dtype.as_numpy_dtype)
        for path, leaf in element.items()
      }
      number = start_batch
      wait = _Wait(self._store.path, self._follow)
      while True:
        reason = self._why_wait(number)
        if reason is None:
          yield dict(self.batch(number))
          number += 1
          wait = _Wait(self._store.path, self._follow)
          continue
        with process.watched_wait() as ends:
          wait.pause(reason)
          if ends():
            raise errors.StoreError(
              f"follow: {self._store.path}: expected episodes, got SIGINT while it "
              "waited for them."
            )
        yield nothing

    path = next(iter(element))
    dataset = tf.data.Dataset.from_generator(
      batches, output_signature=dict(loose.items())
    )
    dataset = dataset.filter(lambda batch: tf.shape(batch[path])[0] > 0)

    @tf.autograph.experimental.do_not_convert
    def fix(batch: Any) -> specs.TensorSpecStruct:
      return specs.TensorSpecStruct(
        (path, tf.ensure_shape(leaf, element[path].shape))
        for path, leaf in batch.items()
      )

    return dataset.map(fix)

  def batch(self, number: int) -> specs.TensorSpecStruct:
    """Returns a batch by number, from the store's contents at the last poll."""
    assert self._windows is not None
    seeds = np.random.SeedSequence(self._seeds.entropy, spawn_key=(number,))
    chances = np.random.default_rng(seeds).random(self._batch_size)
    places = (chances * self._ends[-1]).astype(np.int64)
    which = np.searchsorted(self._ends, places, "right")
    ids = places - self._ends[which] + self._last_ids[which]
    return self._windows.read(tf.constant(ids))

  def _why_wait(self, number: int) -> str | None:
    """Describes the data that a batch waits for, or None; polls the store."""
    follow = self._follow
    if time.monotonic() - self._polled >= follow.poll_secs:
      self._poll()
    num_windows = self.num_windows
    if num_windows < follow.min_windows or not self._ends[-1]:
      return f"it has {num_windows} of {follow.min_windows} windows"
    if follow.samples_per_insert is None:
      return None
    num_samples = (number + 1) * self._batch_size - follow.error_buffer
    if num_samples <= num_windows * follow.samples_per_insert:
      return None
    return (
      f"{(number + 1) * self._batch_size} windows would be sampled of {num_windows}, "
      f"more than {follow.samples_per_insert:g} each and {follow.error_buffer}"
    )

  def _poll(self) -> None:
    """Adds newly committed data."""
    self._polled = time.monotonic()
    if not self._store.refresh() and self._windows is not None:
      return
    if not len(self._store):
      return
    columns = self._columns_fn(self._store)
    windows = StoreWindows(columns, self._spec, self._cut)
    if self._windows is not None and (
      windows.reader.window_spec != self._windows.reader.window_spec
    ):
      raise errors.StoreError(
        f"follow: {self._store.path}: expected episodes with the same optional paths, "
        f"got some that lack {errors.listing(columns.absent)}."
      )
    self._windows = windows
    self._choose(self._arrival_numbers())

  def _arrival_numbers(self) -> np.ndarray:
    """Returns the arrival number of each episode; new ones are last.

    When a follower starts, it assumes that episodes of all segments arrived evenly.
    """
    segments = self._store.segments
    sizes = {segment.name: len(segment) for segment in segments}
    # Other segments were merged to a new one; one that is shorter began again then.
    kept = {n: a for n, a in self._arrivals.items() if len(a) <= sizes.get(n, -1)}
    fresh = [
      (local + 1, size, name, local)
      for name, size in sizes.items()
      for local in range(len(kept.get(name, ())), size)
    ]
    fresh.sort(key=lambda e: (e[0] / e[1], e[2]))
    grown = {name: np.zeros(size, np.int64) for name, size in sizes.items()}
    for name, values in kept.items():
      grown[name][: len(values)] = values
    for _, _, name, local in fresh:
      grown[name][local] = self._num_arrived
      self._num_arrived += 1
    self._arrivals = grown
    return np.concatenate([grown[segment.name] for segment in segments])

  def _choose(self, arrived: np.ndarray) -> None:
    """Selects the episodes to sample from."""
    assert self._windows is not None
    newest_first = np.argsort(-arrived)
    if self._follow.newest_steps is not None:
      lengths = self._store.episode_lengths[newest_first]
      before = np.cumsum(lengths) - lengths
      newest_first = newest_first[before < self._follow.newest_steps]
    chosen = np.sort(newest_first)
    counts = self._windows.counts
    self._ends = np.cumsum(counts[chosen])
    self._last_ids = np.cumsum(counts)[chosen]
