"""`SkippingReading`: records are read past bad ones, which are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.data.dataset_options import keeps_positions
from t2r_seq.data.input_report import InputReport
from t2r_seq.data.reading import record_order, skipping
from t2r_seq.data.reading.bad_record_finder import BadRecordFinder
from t2r_seq.data.reading.file_resumer import FileResumer
from t2r_seq.data.reading.record_reading import ParseFn, RecordReading, map_in_order
from t2r_seq.data.reading.record_report import RecordInputReport
from t2r_seq.records.check import BadRecordLog

_as_it_is = tf.autograph.experimental.do_not_convert


class SkippingReading(RecordReading):
  """Leaves bad records out, up to a limit."""

  def __init__(
    self,
    files: record_order.FilesByKey,
    max_bad_records: int,
    where: str,
    decode_images: records.DecodeImages = True,
  ) -> None:
    """Creates the reading.

    Args:
      files: by dataset_key.
      max_bad_records: one more is an error.
      where: who reads what, for messages.
      decode_images: how encoded images are decoded.
    Raises:
      SpecError: there are several datasets: without one's record i, the other's would
        go with another.
    """
    if len(files) > 1:
      raise errors.SpecError(
        f"{where}: on_bad_record: expected 'raise' for the zipped datasets "
        f"{errors.listing(files)}, got 'skip'."
      )
    super().__init__(decode_images)
    self._where = where
    (self._filenames,) = files.values()
    self._log = BadRecordLog(max_bad_records)
    self._resumer = FileResumer(self._log)
    self.read_file = self._resumer.read_file
    self._record_size = 0
    self._made: dict[
      tuple[bool, bool], tuple[specs.TensorSpecStruct, ParseFn, BadRecordFinder]
    ] = {}

  @property
  def failure(self) -> Exception | None:  # type: ignore[override]
    """The error of too many bad records, if that is what happened."""
    return self._log.failure

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
    parse_fn, finder = self._make_parser(flat_specs)
    has_sequences = any(spec.is_sequence for spec in flat_specs.values())
    # Batches of sequences are padded to lengths of their own and cannot be cut anew.
    # So they are parsed once to see whether they can be, and once more.
    parsed = skipping.parse_batches(
      serialized,
      _checked(parse_fn) if has_sequences else parse_fn,
      *(batch_size, self._record_size, num_parallel_calls, _keeping(finder)),
      most_bad=self._log.max_bad_records,
    )
    # Copies nothing until a record is left out.
    batches = parsed.rebatch(batch_size, drop_remainder)
    return (
      map_in_order(batches, parse_fn, num_parallel_calls) if has_sequences else batches
    )

  def parse_episodes(
    self,
    serialized: tf.data.Dataset,
    flat_specs: specs.TensorSpecStruct,
    num_parallel_calls: int | None,
    decode_images: bool = True,
    then: ParseFn | None = None,
  ) -> tf.data.Dataset:
    """Parses episodes; one whose sequences differ in length is bad.

    Where images are not decoded, one that cannot be is found later: `finder` tells.
    """
    parse_fn, finder = self._make_parser(flat_specs, True, decode_images)
    sequences = [path for path, spec in flat_specs.items() if spec.is_sequence]

    def parse_one(text: tf.Tensor, *place: tf.Tensor) -> tuple[Any, ...]:
      return skipping.of_equal_lengths(parse_fn(text), sequences), *place

    return skipping.parse_episodes(
      *(serialized, parse_one, self._record_size, num_parallel_calls),
      *(_keeping(finder), then or _as_it_is(lambda episode: episode)),
    )

  def finder(self, flat_specs: specs.TensorSpecStruct) -> BadRecordFinder:
    """Returns what tells bad episodes from good ones, and notes them."""
    return self._make_parser(flat_specs, True, False)[1]

  def check_position(self) -> None:
    """Checks that nobody is to save one: TensorFlow could not, at the save."""
    if keeps_positions():
      # "IgnoreErrorsDataset does not support symbolic checkpointing."
      raise errors.SpecError(
        f"{self._where}: params['is_checkpointed']: expected on_bad_record='raise', "
        "got 'skip', of which TensorFlow saves no position. Resume from "
        "params['start_step'], or leave bad records out for good: "
        "t2r_seq doctor FILES --salvage OUT."
      )

  def _make_parser(
    self,
    flat_specs: specs.TensorSpecStruct,
    same_lengths: bool = False,
    decode_images: bool = True,
  ) -> tuple[ParseFn, BadRecordFinder]:
    """Makes what parses: one graph, traced once, for all datasets of these specs."""
    made = self._made.get((same_lengths, decode_images))
    if made is None or made[0] is not flat_specs:
      parse_fn = records.create_parse_tf_example_fn(
        flat_specs, decode_images=self._decode_images if decode_images else False
      )
      (features,) = records.collect_features(
        {"": flat_specs}, self._decode_images
      ).values()
      finder = BadRecordFinder(self._filenames, features, same_lengths, self._log)
      made = flat_specs, tf.function(parse_fn, autograph=False), finder
      self._made[same_lengths, decode_images] = made
    return made[1:]


def make_reading(
  policy: str,
  files: record_order.FilesByKey,
  max_bad_records: int,
  where: str,
  decode_images: records.DecodeImages = True,
) -> RecordReading:
  """Creates the reading of a policy; see `SkippingReading` for the arguments."""
  if policy == "raise":
    return RecordReading(decode_images)
  return SkippingReading(files, max_bad_records, where, decode_images)


def _keeping(finder: BadRecordFinder) -> skipping.KeepFn:
  def keep(texts: np.ndarray, *places: np.ndarray) -> np.ndarray:
    del places
    return finder.are_good(texts.tolist())

  return keep


def _checked(parse_fn: ParseFn) -> ParseFn:
  """Returns a function that hands records on if they can be parsed, and else fails."""

  def check(serialized: tf.Tensor) -> tf.Tensor:
    leaves = tf.nest.flatten(parse_fn(serialized))
    # A control dependency would not do: the optimizer of graphs drops it.
    is_parsed = tf.reduce_all([tf.size(leaf, tf.int64) >= 0 for leaf in leaves])
    return tf.where(is_parsed, serialized, "")

  return _as_it_is(check)
