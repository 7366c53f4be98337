"""How records are read and parsed: a bad one stops it, or is left out and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.data.input_report import InputReport
from t2r_seq.data.reading import record_order
from t2r_seq.data.reading.record_report import RecordInputReport
from t2r_seq.data.reading.skipping import FileResumer, ParseFn, RecordSkipper
from t2r_seq.records.bad_records import BadRecordLog

POLICIES = ("raise", "skip")

_as_it_is = tf.autograph.experimental.do_not_convert


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
  """Reads and parses records; a bad one stops the dataset with TensorFlow's error."""

  failure: Exception | None = None
  read_file: Callable[[Any, Any], tf.data.Dataset] | None = None

  def read(
    self,
    files: record_order.FilesByKey,
    cycle_length: int = 1,
    shuffle_files: bool = False,
    seed: int | None = None,
    check: bool = True,
  ) -> tf.data.Dataset:
    """Reads serialized records; see `record_order.read_records`."""
    return record_order.read_records(files, cycle_length, shuffle_files, seed, check)

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
  ) -> tf.data.Dataset:
    """Parses records one by one; see `parse_batches`.

    Args:
      serialized: one by one.
      flat_specs: what to parse, by path.
      num_parallel_calls: has no influence on the order.
      decode_images: False may leave images encoded.
    Returns:
      Dataset of episodes by path.
    """
    parse_fn = records.create_parse_tf_example_fn(
      flat_specs, decode_images=decode_images
    )
    return _map(serialized, parse_fn, num_parallel_calls)

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

  def good_records(
    self, serialized: tf.data.Dataset, flat_specs: specs.TensorSpecStruct
  ) -> tf.data.Dataset:
    """Returns a dataset of as many elements as there are records to go on with."""
    del flat_specs
    return serialized

  def report(self, counts: windows.WindowReport | None) -> InputReport | None:
    """Returns what the generator reports."""
    return counts


class SkippingReading(RecordReading):
  """Leaves bad records out, up to a limit."""

  def __init__(
    self, files: record_order.FilesByKey, max_bad_records: int, where: str
  ) -> None:
    """Creates the reading.

    Args:
      files: by dataset_key.
      max_bad_records: one more is an error.
      where: who reads what, for messages.
    Raises:
      SpecError: there are several datasets: without one's record i, the other's would
        go with another.
    """
    if len(files) > 1:
      raise errors.SpecError(
        f"{where}: on_bad_record: expected 'raise' for the zipped datasets "
        f"{errors.listing(files)}, got 'skip'."
      )
    (self._filenames,) = files.values()
    self._log = BadRecordLog(max_bad_records)
    self._resumer = FileResumer(self._log)
    self.read_file = self._resumer.read_file
    self._record_size = 0

  @property
  def failure(self) -> Exception | None:  # type: ignore[override]
    """The error of too many bad records, if that is what happened."""
    return self._log.failure

  def read(
    self,
    files: record_order.FilesByKey,
    cycle_length: int = 1,
    shuffle_files: bool = False,
    seed: int | None = None,
    check: bool = True,
  ) -> tf.data.Dataset:
    """Reads serialized records, past damaged frames."""
    del files, check  # Known; and what is no TFRecord file has no good record.
    return records.record_dataset(
      self._filenames,
      cycle_length,
      shuffle_files,
      seed,
      check=False,
      read_file=self._resumer.read_file,
    )

  def first_record(self, files: record_order.FilesByKey, where: str) -> Any:
    """Reads the first record; its size stands for that of all."""
    first = super().first_record(files, where)
    self._record_size = len(first.numpy())
    return first

  def good_records(
    self, serialized: tf.data.Dataset, flat_specs: specs.TensorSpecStruct
  ) -> tf.data.Dataset:
    """Parses records one by one, in batches of one."""
    return self.parse_batches(serialized, flat_specs, 1, False, None)

  def report(self, counts: windows.WindowReport | None) -> InputReport | None:
    """Returns counts of windows and of what is left out."""
    return RecordInputReport(counts, self._log)

  def parse_batches(
    self,
    serialized: tf.data.Dataset,
    flat_specs: specs.TensorSpecStruct,
    batch_size: int,
    drop_remainder: bool,
    num_parallel_calls: int | None,
  ) -> tf.data.Dataset:
    """Batches and parses records; full batches, whatever is left out."""
    parse_fn = records.create_parse_tf_example_fn(flat_specs)
    has_sequences = any(spec.is_sequence for spec in flat_specs.values())
    # Batches of sequences are padded to lengths of their own and cannot be cut anew.
    # So they are parsed once to see whether they can be, and once more.
    first_fn = _checked(parse_fn) if has_sequences else parse_fn
    parsed = self._skipper(flat_specs).parse(
      serialized, first_fn, batch_size, self._record_size, num_parallel_calls
    )
    # Copies nothing until a record is left out.
    batches = parsed.rebatch(batch_size, drop_remainder)
    return _map(batches, parse_fn, num_parallel_calls) if has_sequences else batches

  def parse_episodes(
    self,
    serialized: tf.data.Dataset,
    flat_specs: specs.TensorSpecStruct,
    num_parallel_calls: int | None,
    decode_images: bool = True,
  ) -> tf.data.Dataset:
    """Parses episodes; one whose sequences differ in length is bad."""
    del decode_images  # An image that cannot be decoded makes its record bad.
    parse_fn = _with_equal_lengths(
      records.create_parse_tf_example_fn(flat_specs), flat_specs
    )
    skipper = self._skipper(flat_specs, same_lengths=True)
    return skipper.parse(
      serialized, parse_fn, None, self._record_size, num_parallel_calls
    )

  def _skipper(
    self, flat_specs: specs.TensorSpecStruct, same_lengths: bool = False
  ) -> RecordSkipper:
    return RecordSkipper(self._filenames, flat_specs, same_lengths, self._log)


def make_reading(
  policy: str, files: record_order.FilesByKey, max_bad_records: int, where: str
) -> RecordReading:
  """Creates the reading of a policy; see `SkippingReading` for the arguments."""
  if policy == "raise":
    return RecordReading()
  return SkippingReading(files, max_bad_records, where)


def _map(
  dataset: tf.data.Dataset, function: ParseFn, num_parallel_calls: int | None
) -> tf.data.Dataset:
  # tf.data warns of an order asked for where nothing runs in parallel.
  deterministic = None if num_parallel_calls is None else True
  return dataset.map(function, num_parallel_calls, deterministic)


def _checked(parse_fn: ParseFn) -> ParseFn:
  """Returns a function that hands records on if they can be parsed, and else fails."""

  def check(serialized: tf.Tensor) -> tf.Tensor:
    leaves = tf.nest.flatten(parse_fn(serialized))
    # A control dependency would not do: the optimizer of graphs drops it.
    is_parsed = tf.reduce_all([tf.size(leaf, tf.int64) >= 0 for leaf in leaves])
    return tf.where(is_parsed, serialized, "")

  return _as_it_is(check)


def _with_equal_lengths(
  parse_fn: ParseFn, flat_specs: specs.TensorSpecStruct
) -> ParseFn:
  """Adds the check that all sequences of an episode are equally long."""
  sequences = [path for path, spec in flat_specs.items() if spec.is_sequence]

  def parse(serialized: tf.Tensor) -> Any:
    parsed = parse_fn(serialized)
    lengths = tf.stack([tf.shape(parsed[path])[0] for path in sequences])
    check = tf.debugging.assert_equal(lengths, lengths[0], "sequences of one length")
    with tf.control_dependencies([check]):
      return tf.nest.map_structure(tf.identity, parsed)

  return _as_it_is(parse)
