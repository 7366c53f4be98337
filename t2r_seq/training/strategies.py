"""The `tf.distribute` strategies, for gin."""

from __future__ import annotations

from collections.abc import Sequence

import gin
import tensorflow as tf

from t2r_seq import errors

_COMMUNICATIONS = ("auto", "ring", "nccl")


@gin.configurable
def create_mirrored_strategy(
  devices: Sequence[str] | None = None,
) -> tf.distribute.Strategy:
  """Creates a strategy of several devices of this machine, with a replica on each.

  Args:
    devices: such as ['GPU:0', 'GPU:1']; None for all GPUs, or the CPU.
  """
  return tf.distribute.MirroredStrategy(None if devices is None else list(devices))


@gin.configurable
def create_multi_worker_mirrored_strategy(
  communication: str = "auto",
) -> tf.distribute.Strategy:
  """Creates a strategy of several machines, of which `TF_CONFIG` tells each.

  Call it before anything else of TensorFlow: in gin, bind it in front of the model.

  Args:
    communication: 'auto', 'ring' or 'nccl'.
  Raises:
    SpecError: there is no such communication, or TensorFlow is in use already.
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
  """Creates a strategy of a TPU, which it connects to and initialises.

  Args:
    tpu: name or address of the TPU; 'local' on its own machine; '' as the environment
      says.
  Raises:
    SpecError: there is none.
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
