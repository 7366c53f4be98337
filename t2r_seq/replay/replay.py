"""The face of live replay: what writes to it and learns from it sees no engine."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import numbers
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from t2r_seq import errors, files, specs, windows
from t2r_seq.replay.options import to_priority

_ERRORS = {
  "ReplayTimeoutError": errors.ReplayTimeoutError,
  "ReplayError": errors.ReplayError,
  "SpecError": errors.SpecError,
}


def check_open(operation: str, is_closed: bool) -> None:
  """Raises ReplayError for what is asked of a replay that is closed."""
  if is_closed:
    raise errors.ReplayError(f"{operation}: expected an open replay, got a closed one.")


@contextlib.contextmanager
def explained() -> Iterator[None]:
  """Turns what a replay raised inside of TensorFlow into what it was."""
  try:
    yield
  except tf.errors.OpError as error:
    for name, error_cls in _ERRORS.items():
      found = re.search(rf"\b{name}: (.+?)\s*(Traceback|$)", error.message, re.S)
      if found:
        raise error_cls(found[1]) from error
    raise


class SampleInfo(NamedTuple):
  """What is known of each sampled item; arrays or tensors [B].

  Attributes:
    key: names the item for `update_priorities`, uint64. Never used again.
    probability: with which it was drawn, float64.
    table_size: items that there were, int64.
    priority: float64.
    times_sampled: this time included, int32.
  """

  key: Any
  probability: Any
  table_size: Any
  priority: Any
  times_sampled: Any


@dataclasses.dataclass(frozen=True)
class ReplayCounters:
  """What a replay holds and what it has seen; None is what an engine cannot tell.

  Attributes:
    num_episodes: of which at least one step is held, running ones too.
    num_steps: that are held.
    num_items: that can be sampled.
    num_inserts: items since the beginning.
    num_samples: since the beginning.
    num_deletes: items that have gone, since the beginning.
    num_ignored_updates: priorities for items that had gone already.
    num_bytes: of memory that the held steps take, with all that belongs to them.
  """

  num_episodes: int
  num_steps: int | None
  num_items: int
  num_inserts: int
  num_samples: int
  num_deletes: int
  num_ignored_updates: int | None
  num_bytes: int | None

  @property
  def samples_per_insert(self) -> float:
    """Samples for each insert since the beginning; 0 before the first insert."""
    return self.num_samples / self.num_inserts if self.num_inserts else 0.0


class ReplayWriter(files.Closing):
  """Appends the steps of one environment, in the order of time; for one thread.

  The window of an anchor can be sampled as soon as all steps that it shows are there,
  while the episode goes on. An episode that is never ended, because the writer was
  closed or its process died, ends at the last step that arrived.

  Attributes:
    should_stop: is asked, about once a second, by a writer that waits for a server or
      for a rate limiter; True ends the wait with a ReplayTimeoutError. None: never.
  """

  should_stop: Callable[[], bool] | None = None
  _is_closed = False

  def append(self, step: Any, priority: float | None = None) -> None:
    """Appends one step.

    Args:
      step: a value for every path of `Replay.flat_spec`, packed or by path, without a
        time axis. Context features (specs without `is_sequence`) come with the first
        step of an episode; further steps may leave them out or repeat them.
      priority: of the item whose anchor this step is (for a sequence, its first
        anchor); None for the replay's initial priority.
    Raises:
      SpecError: the step does not fit, every path is named, and nothing is appended;
        or the writer is closed.
      ReplayTimeoutError: the rate limiter let nothing in for as long as was allowed;
        nothing is appended.
    """
    if priority is not None:
      priority = to_priority("append", priority)
    self._append(step, priority)

  @abc.abstractmethod
  def end_episode(self) -> None:
    """Ends the episode; the next step begins another. Without steps, nothing happens.

    Raises:
      SpecError: the writer is closed.
      ReplayTimeoutError: the rate limiter let nothing in for as long as was allowed;
        the episode has ended, and what was not let in yet may be lost.
    """

  @abc.abstractmethod
  def _append(self, step: Any, priority: float | None) -> None:
    """Checks a step and appends it."""

  def _check_open(self, operation: str) -> None:
    if self._is_closed:
      raise errors.ReplayError(
        f"{operation}: expected an open writer, got a closed one. Ask the replay for "
        "another writer()."
      )


class Replay(files.Closing):
  """Experience that arrives while it is learned from, under one spec structure.

  Steps are stored flat, each once; stacks, sequences, next observations are gathered
  when they are sampled, and never cross episodes. Windows are those that
  `windows.WindowReader` cuts from whole episodes.
  """

  @property
  @abc.abstractmethod
  def spec_structure(self) -> specs.TensorSpecStruct:
    """The specs of one window, what the learner sees, by path."""

  @property
  @abc.abstractmethod
  def cut(self) -> windows.Cut:
    """How episodes become windows, and transitions are joined."""

  @property
  @abc.abstractmethod
  def flat_spec(self) -> specs.TensorSpecStruct:
    """What one `append` takes, one row a path; see `flat_replay_specs`."""

  @abc.abstractmethod
  def writer(self, should_stop: Callable[[], bool] | None = None) -> ReplayWriter:
    """Returns a writer for one environment.

    Args:
      should_stop: the writer's; ends the wait for the server of a new writer, too.
    Raises:
      SpecError: there are as many open writers as there may be.
      ReplayTimeoutError: no server answers for as long as was allowed, or until it is
        told to stop.
    """

  @abc.abstractmethod
  def dataset(self, batch_size: int, with_info: bool = False) -> tf.data.Dataset:
    """Makes an endless dataset of batches of sampled windows.

    Args:
      batch_size: B.
      with_info: gives pairs (SampleInfo, windows).
    Returns:
      Dataset of TensorSpecStructs by path, leaves [B, ...]; iterating waits as the
      rate limiter says, and raises where it waits for longer than is allowed: an error
      of TensorFlow's, inside of `explain_failures` a ReplayTimeoutError.
    """

  def give_up(self, error: BaseException) -> None:
    """Is told that whoever appended has ended by an error.

    Where nobody else appends in this process, who waits for items gets an error that
    names it. A server's other clients may append: there nothing changes.

    Args:
      error: by which it ended.
    """
    del error

  def explain_failures(self) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which iterating over a `dataset` raises what went wrong."""
    return explained()

  def watch(self) -> Callable[[], Any] | None:
    """Begins to watch over a wait for a batch; see `AbstractInputGenerator.watch`."""
    return None

  @abc.abstractmethod
  def update_priorities(self, keys: Any, priorities: Any) -> int | None:
    """Sets the priorities of items.

    Args:
      keys: uint64 [n], from `SampleInfo`.
      priorities: [n], finite and at least 0.
    Returns:
      How many of the items were still there, or None from an engine that cannot tell.
      For the others nothing happens: an item may go while the learner computes its
      priority.
    Raises:
      SpecError: a priority is negative or not finite, or lengths differ.
    """

  @property
  @abc.abstractmethod
  def counters(self) -> ReplayCounters:
    """What the replay holds and has seen."""

  @abc.abstractmethod
  def checkpoint(self) -> str:
    """Saves everything, so that it survives the process.

    Returns:
      The path of the checkpoint.
    """


def importance_weights(info: SampleInfo, beta: float | tf.Tensor | tf.Variable) -> Any:
  """Returns what each sample's loss is to be multiplied by.

  Prioritized sampling shows some items more often than others; the weights
  `(table_size * probability) ** -beta`, divided by the largest of the batch, make up
  for it (Schaul et al. 2016).

  Args:
    info: of a batch, arrays or tensors.
    beta: from 0, no correction, to 1, a full one; or a scalar tensor or variable, whose
      value is not looked at.
  Returns:
    float32 [B], in (0, 1]; of the same kind.
  Raises:
    SpecError: info is no SampleInfo, or beta is no such number.
  """
  if not isinstance(info, SampleInfo):
    raise errors.SpecError(
      f"importance_weights: info: expected a SampleInfo, got {errors.describe(info)}. "
      "It comes from dataset(batch_size, with_info=True)."
    )
  beta = check_exponent(beta)
  if not isinstance(info.probability, np.ndarray):  # Quicker than tf.is_tensor.
    size = tf.cast(info.table_size, tf.float64)
    weights = tf.pow(size * tf.cast(info.probability, tf.float64), -beta)
    return tf.cast(weights / tf.reduce_max(weights), tf.float32)
  sizes = np.asarray(info.table_size, np.float64)
  weights = (sizes * np.asarray(info.probability, np.float64)) ** -float(beta)
  return (weights / weights.max()).astype(np.float32)


def check_exponent(beta: Any) -> Any:
  """Returns the beta of `importance_weights`; raises SpecError if it is none."""
  if tf.is_tensor(beta):
    if beta.shape.rank in (0, None) and (
      beta.dtype.is_floating or beta.dtype.is_integer
    ):
      return tf.cast(beta, tf.float64)
  elif isinstance(beta, numbers.Real) and not isinstance(beta, bool):
    number = float(beta)
    if 0 <= number <= 1:
      return number
  raise errors.SpecError(
    "importance_weights: beta: expected a number from 0 to 1, or a scalar tensor, got "
    f"{beta!r}. 0 corrects nothing, 1 everything."
  )
