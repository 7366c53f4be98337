"""Whether data gives an example at all, and the errors if not."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.data.input_report import InputReport
from t2r_seq.data.reading.record_report import RecordInputReport

# What reading for ever fails with: TensorFlow would end it, or never come back.
NOTHING_LEFT = (
  "expected an example in each epoch, got none: since reading began, all files have "
  "become empty or all of their records bad."
)
_as_it_is = tf.autograph.experimental.do_not_convert


def fills_a_batch(
  record: Any,
  flat_specs: specs.TensorSpecStruct,
  grid: windows.WindowGrid,
  num_needed: int,
  decode_images: records.DecodeImages,
) -> bool:
  """Whether an episode alone gives enough windows, found without making a dataset.

  Args:
    record: serialized, or a dict of records by dataset_key.
    flat_specs: what to parse, by path.
    grid: of the windows.
    num_needed: windows of a batch.
    decode_images: how encoded images are decoded.
  Returns:
    False also where the record cannot be read; the dataset's own error will tell.
  """
  parse_fn = records.create_parse_tf_example_fn(flat_specs, decode_images=decode_images)
  try:
    episode = parse_fn(record)
  except (tf.errors.OpError, UnicodeDecodeError):
    return False
  timed = [path for path, spec in flat_specs.items() if spec.is_sequence]
  lengths = {len(episode[path]) for path in timed}
  return len(lengths) == 1 and grid.num_windows(lengths.pop()) >= num_needed


def check_enough(
  where: str,
  num_needed: int,
  num_found: int,
  min_steps: int,
  report: windows.WindowReport | None = None,
  left_out: InputReport | None = None,
) -> None:
  """Checks that there are the examples that a first batch needs.

  Args:
    where: which generator reads what.
    num_needed: examples of a batch.
    num_found: examples that there are.
    min_steps: of a window.
    report: of the episodes that were read; None where examples are not windows.
    left_out: of the bad records, where they are no errors.
  Raises:
    RecordError: there are too few.
  """
  if num_found >= num_needed:
    return
  if report is not None and report.episodes and not num_found:
    raise too_short_error(where, min_steps, report.episodes, report.longest_too_short)
  error = too_few_error(where, num_needed, num_found)
  if not isinstance(left_out, RecordInputReport) or not left_out.problems:
    raise error
  raise errors.RecordError(
    f"{where}: expected at least the {num_needed} examples of one batch, got "
    f"{num_found} and {left_out}. The first: {left_out.problems[0]}"
  )


def never_ending(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Makes an error of the end of a dataset that is repeated for ever.

  TensorFlow's `repeat` ends, in silence, at an epoch that has nothing.

  Args:
    dataset: of any elements.
  Returns:
    The same dataset, that fails where the other ends.
  """

  @_as_it_is
  def fail(number: tf.Tensor) -> tf.Tensor:
    check = tf.raw_ops.Assert(condition=False, data=[tf.constant(NOTHING_LEFT)])
    with tf.control_dependencies([check]):
      return tf.identity(number)

  # What follows has to look like a dataset of the same elements.
  failing = tf.data.Dataset.range(1).map(fail).flat_map(_as_it_is(lambda _: dataset))
  return dataset.concatenate(failing)


def too_short_error(
  where: str, min_steps: int, num_episodes: int, longest: int
) -> errors.RecordError:
  """Builds the error for episodes none of which is as long as a window.

  Args:
    where: which generator reads what.
    min_steps: of a window.
    num_episodes: that were read, all of them too short.
    longest: steps of the longest of them.
  Returns:
    The error, to be raised by the caller.
  """
  return errors.RecordError(
    f"{where}: expected episodes with at least the {min_steps} steps of a window, got "
    f"none: all {num_episodes} episodes are shorter; the longest has {longest}. "
    "Use longer episodes, a smaller span or sequence_length, or padding 'repeat'."
  )


def too_few_error(where: str, num_needed: int, num_found: int) -> errors.RecordError:
  """Builds the error for examples that do not fill one batch.

  Args:
    where: which generator reads what.
    num_needed: examples of a batch.
    num_found: examples that there are.
  Returns:
    The error, to be raised by the caller.
  """
  return errors.RecordError(
    f"{where}: expected at least the {num_needed} examples of one batch, got "
    f"{num_found}. Use a smaller batch_size, or drop_remainder=False."
  )
