"""Several devices and workers: strategies, the chief and its decisions, the lock."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence

import gin
import tensorflow as tf
from absl import logging

from t2r_seq import errors, files
from t2r_seq.training import stopping

_LOCK = "train.lock"
_COMMUNICATIONS = ("auto", "ring", "nccl")


def is_multi_worker(strategy: tf.distribute.Strategy) -> bool:
  """Whether the strategy spans several processes."""
  return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
  """Whether this process writes the run's files; true without other workers."""
  if not is_multi_worker(strategy):
    return True
  resolver = strategy.cluster_resolver
  if resolver.task_type in (None, "chief"):
    return True
  has_chief = "chief" in resolver.cluster_spec().jobs
  return not has_chief and resolver.task_type == "worker" and resolver.task_id == 0


def of_chief(strategy: tf.distribute.Strategy, number: int | None) -> int | None:
  """Returns the chief's `number`, at least 0 or None, in every worker.

  All workers must call it. Clocks and folders differ between workers, and an operation
  that only some of them run would hang.
  """
  if not is_multi_worker(strategy):
    return number
  local = tf.constant(-1 if number is None else number, tf.int64)

  def vote() -> tf.Tensor:
    # The first replica is one of the chief's.
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.where(tf.equal(replica, 0), local, tf.zeros_like(local))

  @tf.function
  def count() -> tf.Tensor:
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(vote), axis=None)

  value = int(count())
  return None if value < 0 else value


def chief_says(strategy: tf.distribute.Strategy, flag: bool) -> bool:
  """Returns the chief's flag in every worker; see `of_chief`."""
  return bool(of_chief(strategy, int(flag)))


@contextlib.contextmanager
def stop_signal(strategy: tf.distribute.Strategy) -> Iterator[stopping.StopSignal]:
  """Listens to SIGTERM, SIGHUP and SIGINT, unless there are other workers.

  Other workers would wait forever for a stopped one; if it dies, they get an error.

  Raises:
    KeyboardInterrupt: SIGINT ended a wait, in place of `Stopped`.
  """
  signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
  heard = () if is_multi_worker(strategy) else signals
  with stopping.StopSignal(signals=heard) as stop:
    try:
      yield stop
    except stopping.Stopped:
      if stop.number == signal.SIGINT:
        raise KeyboardInterrupt from None
      raise


@contextlib.contextmanager
def own_folder(
  strategy: tf.distribute.Strategy, folder: str, is_shared: bool = False
) -> Iterator[str]:
  """Yields `folder` in the chief, which locks it, and a temporary folder in others.

  All workers take part in saving, since some variables are gathered from all of them;
  the temporary folders are deleted.

  Args:
    strategy: strategy of the run.
    folder: folder of the run, which exists.
    is_shared: whether other processes may write to the folder: takes no lock.
  Raises:
    SpecError: another process has the lock.
    OSError: the lock file cannot be written.
  """
  if not is_chief(strategy):
    with tempfile.TemporaryDirectory() as temporary:
      yield temporary
    return
  lock = None if is_shared else _lock(folder)
  try:
    yield folder
  finally:
    if lock is not None:
      lock.release()


def _lock(folder: str) -> files.FileLock | None:
  def refusal(holder: str) -> errors.SpecError:
    return errors.SpecError(
      f"train_eval_model: model_dir: expected no other process to train in {folder}, "
      f"got {holder}. Wait for it, or use another folder. (A process that only "
      "evaluates may run beside it: input_generator_train=None and "
      "create_exporters_fn=None.)"
    )

  try:
    return files.FileLock(os.path.join(folder, _LOCK), refusal)
  except OSError as error:
    if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
      raise
    logging.warning(
      "%s: its file system has no locks: a second run could train there, too.", folder
    )
    return None


@gin.configurable
def create_mirrored_strategy(
  devices: Sequence[str] | None = None,
) -> tf.distribute.Strategy:
  """Creates a strategy with a replica on each of several devices of this machine.

  Args:
    devices: such as ['GPU:0', 'GPU:1']; None for all GPUs; without any, the CPU.
  """
  return tf.distribute.MirroredStrategy(None if devices is None else list(devices))


@gin.configurable
def create_multi_worker_mirrored_strategy(
  communication: str = "auto",
) -> tf.distribute.Strategy:
  """Creates a strategy of several machines, which `TF_CONFIG` on each describes.

  Call it before any other use of TensorFlow; in gin, bind it before the model.

  Args:
    communication: 'auto', 'ring' or 'nccl'.
  Raises:
    SpecError: `communication` is unknown, or TensorFlow is in use already.
  """
  if communication not in _COMMUNICATIONS:
    raise errors.SpecError(
      "create_multi_worker_mirrored_strategy: communication: expected one of "
      f"{errors.listing(_COMMUNICATIONS)}, got {communication!r}."
    )
  implementation = tf.distribute.experimental.CommunicationImplementation
  options = tf.distribute.experimental.CommunicationOptions(
    implementation=implementation[communication.upper()]
  )
  try:
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
  except RuntimeError as e:
    raise errors.SpecError(
      "create_multi_worker_mirrored_strategy: expected to be called before TensorFlow "
      f"is in use, got: {_first_line(e)}. In gin, bind it in front of the model."
    ) from e


@gin.configurable
def create_tpu_strategy(tpu: str = "") -> tf.distribute.Strategy:
  """Connects to a TPU and initializes it; returns its strategy.

  Args:
    tpu: name or address of the TPU; 'local' on the TPU's own machine; '': from the
      environment.
  Raises:
    SpecError: no TPU is found.
  """
  try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu)
    if tpu != "local":
      tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
  except (ValueError, RuntimeError, tf.errors.OpError) as e:
    raise errors.SpecError(
      f"create_tpu_strategy: tpu: expected a TPU at {tpu!r}, got: {_first_line(e)}."
    ) from e
  return tf.distribute.TPUStrategy(resolver)


def _first_line(error: Exception) -> str:
  return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
