"""`DataService`: runs training pipelines on the workers of a tf.data service."""

from __future__ import annotations

import dataclasses
import itertools
import re
import socket

import gin
import tensorflow as tf
from absl import logging
from tensorflow.core.framework import graph_pb2

from t2r_seq import errors

MODES = ("distributed_epoch", "parallel_epochs")
# ExternalStatePolicy.IGNORE, as the number that the raw op takes.
_IGNORE_STATE = 1
# A dispatcher on the same network answers sooner.
_CONNECT_SECS = 5.0
_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@gin.configurable
@dataclasses.dataclass(frozen=True)
class DataService:
  """Where training pipelines of input generators run; by default, in this process.

  Every input generator takes it from gin, so one line moves any of them:
  `DataService.address = 'host:5050'`.

  In 'distributed_epoch' the workers share the elements of the dataset's source. While
  all of them live, each element is used once per epoch; if a worker dies, its current
  elements are lost, and the others read the rest: at most once. In 'parallel_epochs'
  each worker goes through the whole dataset. In both modes the order depends on the
  workers' speed.

  Attributes:
    address: dispatcher, 'host:port' with or without 'grpc://'. None: no service.
    mode: 'distributed_epoch' or 'parallel_epochs'.
    job_name: consumers that give the same name share the elements between them.
    compression: compresses the elements, which is faster if the network is the
      bottleneck.
    max_outstanding_requests: maximum number of elements requested at once; None:
      TensorFlow's choice.
  """

  address: str | None = None
  mode: str = "distributed_epoch"
  job_name: str | None = None
  compression: bool = False
  max_outstanding_requests: int | None = None

  def __post_init__(self) -> None:
    """Raises SpecError if the mode or the address is invalid."""
    mismatches = []
    if self.mode not in MODES:
      want = f"one of {errors.listing(MODES)}"
      near = errors.nearest(str(self.mode), MODES)
      mismatches.append(errors.Mismatch("mode", want, repr(self.mode), near.strip()))
    if self.address is not None and not _is_address(str(self.address)):
      want = "'host:port' of a dispatcher, after 'grpc://' or not"
      mismatches.append(errors.Mismatch("address", want, repr(self.address)))
    if mismatches:
      raise errors.mismatch_error("DataService", mismatches)

  def distribute(
    self, dataset: tf.data.Dataset, where: str = "DataService"
  ) -> tf.data.Dataset:
    """Moves a dataset to the workers.

    TensorFlow waits for a missing dispatcher without a timeout, so a warning names it.

    Args:
      dataset: a dataset that calls no Python. Its variables are copied with their
        current values. The workers must find its files under the same names.
      where: name of the generator, for messages.
    Returns:
      Dataset of the same structure; without an address, the given dataset.
    Raises:
      SpecError: the dataset calls Python.
    """
    if self.address is None:
      return dataset
    check_portable(dataset, where)
    _warn_if_unreachable(self.address, where)
    protocol = "" if "://" in self.address else "grpc://"
    distribute = tf.data.experimental.service.distribute(
      processing_mode=self.mode,
      service=f"{protocol}{self.address}",
      job_name=self.job_name,
      compression="AUTO" if self.compression else None,
      max_outstanding_requests=self.max_outstanding_requests,
    )
    return dataset.apply(distribute)


def _is_address(text: str) -> bool:
  match = re.fullmatch(r"(grpc[+\w]*://)?[^/\s]+:([0-9]+)", text)
  return match is not None and 1 <= int(match[2]) <= 65_535


def _warn_if_unreachable(address: str, where: str) -> None:
  """Warns if no dispatcher answers; it is no error, as one may be started later."""
  host, port = address.rpartition("://")[2].rsplit(":", 1)
  try:
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECS).close()
  except OSError as error:
    logging.warning(
      "%s: data service: waiting for a dispatcher at %s, no answer yet: %s. "
      "Start it, `t2r_seq data-service dispatcher`, or mend DataService.address.",
      where,
      address,
      error,
    )


def check_portable(dataset: tf.data.Dataset, where: str) -> None:
  """Raises SpecError if a dataset calls Python: no other process could run it."""
  # No public function returns the graph of a dataset.
  serialized = tf.raw_ops.DatasetToGraphV2(
    input_dataset=tf.data.experimental.to_variant(dataset),
    external_state_policy=_IGNORE_STATE,
  )
  graph = graph_pb2.GraphDef.FromString(serialized.numpy())
  functions = [function.node_def for function in graph.library.function]
  if any(node.op in _PYTHON_OPS for node in itertools.chain(graph.node, *functions)):
    raise errors.SpecError(
      f"{where}: data service: expected a pipeline that other processes can run, got "
      "one that calls Python. Python generators, random data, on_bad_record='skip' "
      "and preprocessing with py_function stay here: DataService.address = None."
    )
