"""Datasets that a tf.data service runs, on as many machines as it has."""

from __future__ import annotations

import re

import tensorflow as tf

from t2r_seq import errors

MODES = ("distributed_epoch", "parallel_epochs")


def distribute_by_service(
  dataset: tf.data.Dataset,
  service_address: str,
  mode: str = "distributed_epoch",
  job_name: str | None = None,
  compression: bool = False,
  max_outstanding_requests: int | None = None,
) -> tf.data.Dataset:
  """Lets the workers of a tf.data service make a dataset's elements.

  In 'distributed_epoch' the workers share the elements of the dataset's source. While
  all of them live, each is used once per epoch; what a worker that dies was working on
  is lost, what others have is not, and the rest goes on: at most once. In
  'parallel_epochs' each worker goes through the whole dataset: as often as there are
  workers. The order depends on who is faster in either mode.

  Args:
    dataset: its graph refers to nothing in this process: records, or
      `StoreWindowLoader.portable_dataset`. The workers see its files by the same names.
    service_address: of the dispatcher, 'host:port', after 'grpc://' or not.
    mode: 'distributed_epoch' or 'parallel_epochs'.
    job_name: consumers that give the same name share the elements between them.
    compression: compresses what the workers send. Pays where the network is slower than
      the processors.
    max_outstanding_requests: elements that are asked for at once, at most.
  Returns:
    Dataset of the same structure.
  Raises:
    SpecError: an argument is wrong, or the graph refers to memory of this process.
    tf.errors.OpError: the dispatcher cannot be reached.
  """
  if mode not in MODES:
    raise errors.SpecError(
      f"distribute_by_service: mode: expected one of {', '.join(MODES)}, got {mode!r}."
      f"{errors.nearest(str(mode), MODES)}"
    )
  if not re.fullmatch(r"(\w+://)?[^/\s]+:\d+", str(service_address)):
    raise errors.SpecError(
      "distribute_by_service: service_address: expected 'host:port' of a dispatcher, "
      f"got {service_address!r}."
    )
  protocol = "" if "://" in service_address else "grpc://"
  distribute = tf.data.experimental.service.distribute(
    processing_mode=mode,
    service=f"{protocol}{service_address}",
    job_name=job_name,
    compression="AUTO" if compression else None,
    max_outstanding_requests=max_outstanding_requests,
  )
  return dataset.apply(distribute)
