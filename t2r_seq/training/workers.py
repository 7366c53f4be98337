"""Several workers, one folder: who writes, and who decides."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

import tensorflow as tf

from t2r_seq.training import stopping


def is_multi_worker(strategy: tf.distribute.Strategy) -> bool:
  """Whether the strategy spans several processes."""
  return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
  """Whether this process is the one that writes; always so without other workers."""
  if not is_multi_worker(strategy):
    return True
  resolver = strategy.cluster_resolver
  if resolver.task_type in (None, "chief"):
    return True
  has_chief = "chief" in resolver.cluster_spec().jobs
  return not has_chief and resolver.task_type == "worker" and resolver.task_id == 0


def chief_says(strategy: tf.distribute.Strategy, flag: bool) -> bool:
  """Returns the chief's flag in every worker.

  Clocks and folders differ between workers, and a step that only some of them take
  part in would hang. All of them must call this.
  """
  if not is_multi_worker(strategy):
    return flag
  vote = tf.constant(float(flag and is_chief(strategy)))

  @tf.function
  def count() -> tf.Tensor:
    votes = strategy.run(lambda: vote)
    return strategy.reduce(tf.distribute.ReduceOp.SUM, votes, axis=None)

  return float(count()) > 0


@contextlib.contextmanager
def stop_signal(strategy: tf.distribute.Strategy) -> Iterator[stopping.StopSignal]:
  """Listens to SIGTERM, unless there are other workers.

  They would wait for ever for the next step of one that has stopped; one that dies is
  an error to them at once.
  """
  signal = stopping.StopSignal()
  with contextlib.nullcontext() if is_multi_worker(strategy) else signal:
    yield signal


@contextlib.contextmanager
def own_folder(strategy: tf.distribute.Strategy, folder: str) -> Iterator[str]:
  """Gives the chief `folder`, and every other worker a temporary one.

  All workers take part in saving, since some variables are gathered from all of them;
  what the others write is thrown away.
  """
  if is_chief(strategy):
    yield folder
    return
  with tempfile.TemporaryDirectory() as temporary:
    yield temporary
