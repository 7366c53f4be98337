"""How records are read and parsed: a bad one stops it, or is left out and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.data.input_report import InputReport
from t2r_seq.data.reading import record_order
from t2r_seq.data.reading.bad_record_finder import BadRecordFinder

ParseFn = Callable[[tf.Tensor], Any]
POLICIES = ("raise", "skip")


def check_policy(where: str, policy: Any, index: str | None) -> str:
  """Checks what is to become of bad records.

  Args:
    where: the class that was told.
    policy: one of POLICIES.
    index: how files are read by their index.
  Returns:
    The policy.
  Raises:
    SpecError: no such policy, or one that reading by an index does not have.
  """
  if policy not in POLICIES:
    raise errors.SpecError(
      f"{where}: on_bad_record: expected 'raise' or 'skip', got {policy!r}."
      f"{errors.nearest(str(policy), POLICIES)}"
    )
  if policy == "skip" and index is not None:
    raise errors.SpecError(
      f"{where}: on_bad_record: expected 'raise' where files are read by their index, "
      f"got 'skip' with index='{index}'. Use index=None, or leave bad records out for "
      "good: t2r_seq doctor FILES --salvage OUT."
    )
  return policy


class RecordReading:
  """Reads and parses records; a bad one stops the dataset with TensorFlow's error.

  Attributes:
    failure: what stopped the dataset, where that is known better than TensorFlow does.
    read_file: reads one file other than TensorFlow does, if it is not None.
  """

  failure: Exception | None = None
  read_file: Callable[[Any, Any], tf.data.Dataset] | None = None

  def __init__(self, decode_images: records.DecodeImages = True) -> None:
    """Creates the reading.

    Args:
      decode_images: how encoded images are decoded, where they are.
    """
    self._decode_images = decode_images

  def read(
    self,
    files: record_order.FilesByKey,
    cycle_length: int = 1,
    shuffle_files: bool = False,
    seed: int | None = None,
    check: bool = True,
  ) -> tf.data.Dataset:
    """Reads serialized records; see `record_order.read_records`."""
    # With a way of its own to read files, what is none of them has no good record.
    check = check and self.read_file is None
    return record_order.read_records(
      files, cycle_length, shuffle_files, seed, check, self.read_file
    )

  def parse_batches(
    self,
    serialized: tf.data.Dataset,
    flat_specs: specs.TensorSpecStruct,
    batch_size: int,
    drop_remainder: bool,
    num_parallel_calls: int | None,
  ) -> tf.data.Dataset:
    """Batches and parses records.

    Args:
      serialized: one by one.
      flat_specs: what to parse, by path.
      batch_size: B.
      drop_remainder: whether the last, smaller batch is left out.
      num_parallel_calls: has no influence on the order.
    Returns:
      Dataset of batches by path, [B, ...].
    """
    batches = serialized.batch(batch_size, drop_remainder)
    return self.parse_episodes(batches, flat_specs, num_parallel_calls)

  def parse_episodes(
    self,
    serialized: tf.data.Dataset,
    flat_specs: specs.TensorSpecStruct,
    num_parallel_calls: int | None,
    decode_images: bool = True,
    then: ParseFn | None = None,
  ) -> tf.data.Dataset:
    """Parses records one by one; see `parse_batches`.

    Args:
      serialized: one by one.
      flat_specs: what to parse, by path.
      num_parallel_calls: has no influence on the order.
      decode_images: False may leave images encoded.
      then: maps each episode, in the same call: another one costs 0.1 ms.
    Returns:
      Dataset of episodes by path, or of what `then` makes of them.
    """
    parse_fn = records.create_parse_tf_example_fn(
      flat_specs, decode_images=self._decode_images if decode_images else False
    )
    if then is None:
      return map_in_order(serialized, parse_fn, num_parallel_calls)
    both = tf.autograph.experimental.do_not_convert(lambda text: then(parse_fn(text)))
    return map_in_order(serialized, both, num_parallel_calls)

  def first_record(self, files: record_order.FilesByKey, where: str) -> Any:
    """Reads the first record, or the first of each dataset.

    Args:
      files: by dataset_key.
      where: who reads what, for messages.
    Returns:
      The serialized record, or a dict of them.
    Raises:
      RecordError: there is none.
    """
    first = next(iter(self.read(files).take(1)), None)
    if first is None:
      num_files = sum(len(names) for names in files.values())
      raise errors.RecordError(
        f"{where}: expected records, got none in {num_files} file(s)."
      )
    return first

  def finder(self, flat_specs: specs.TensorSpecStruct) -> BadRecordFinder | None:
    """Returns what tells bad episodes from good ones, where they are left out."""
    del flat_specs
    return None

  def check_position(self) -> None:
    """Checks that streamed windows of the episodes have a position to be saved.

    Raises:
      SpecError: they have none, and one is wanted.
    """

  def good_records(
    self, serialized: tf.data.Dataset, flat_specs: specs.TensorSpecStruct
  ) -> tf.data.Dataset:
    """Returns a dataset of as many elements as there are records to go on with."""
    del flat_specs
    return serialized

  def report(self, counts: windows.WindowReport | None) -> InputReport | None:
    """Returns what the generator reports."""
    return counts


def map_in_order(
  dataset: tf.data.Dataset, function: ParseFn, num_parallel_calls: int | None
) -> tf.data.Dataset:
  """Maps a function; the order does not depend on how many calls run in parallel."""
  # tf.data warns of an order asked for where nothing runs in parallel.
  deterministic = None if num_parallel_calls is None else True
  return dataset.map(function, num_parallel_calls, deterministic)
