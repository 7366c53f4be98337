"""Batches of tasks, [tasks, samples, ...], and datasets of tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gin
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.records.files import get_data_format_and_filenames
from t2r_seq.specs import ModeKeys, TensorSpecStruct


class TrainValPair(NamedTuple):
  """Support and query set of a task, or their specs.

  Attributes:
    train: the support set, [tasks, samples, ...].
    val: the query set, [tasks, samples, ...].
    val_mode: bool [tasks, 1]: whether the outputs are those on `val`.
  """

  train: Any
  val: Any
  val_mode: Any


@gin.configurable
def parallel_read(
  file_patterns: str | Sequence[str],
  parse_fn: Callable[[tf.data.Dataset], tf.data.Dataset],
  shuffle_filenames: bool = True,
  num_train_samples_per_task: int = 4,
  num_val_samples_per_task: int = 4,
  shuffle_buffer_size: int = 50,
  filter_fn: Callable[..., tf.Tensor] | None = None,
  interleave_cycle_length: int | None = None,
  mode: str = ModeKeys.TRAIN,
  seed: int | None = None,
) -> tf.data.Dataset:
  """Reads record files of one task each, endlessly, a batch of samples at a time.

  Each element has `num_train + num_val` samples of one file, which are different unless
  there is a `filter_fn`. Consecutive elements are of different tasks.

  Args:
    file_patterns: patterns of TFRecord files, each with one task.
    parse_fn: maps a dataset of serialized records, [samples], to one of parsed
      records, [samples, ...].
    shuffle_filenames: whether the tasks are shuffled in every epoch.
    num_train_samples_per_task: number of support samples.
    num_val_samples_per_task: number of query samples.
    shuffle_buffer_size: size of the shuffle buffer of a file, in mode 'train'.
    filter_fn: returns whether to keep a parsed sample; None keeps all.
    interleave_cycle_length: tasks that are open at once; None: all.
    mode: records are shuffled in 'train' only.
    seed: seed of the orders; None: random.
  Returns:
    Dataset of the output of `parse_fn`, leaves [num_train + num_val, ...].
  Raises:
    SpecError: no file matches.
    tf.errors.InvalidArgumentError: when reading, if a file has too few records.
  """
  _, filenames = get_data_format_and_filenames(file_patterns)
  num_samples = num_train_samples_per_task + num_val_samples_per_task

  def check(number: tf.Tensor, batch: tf.Tensor, filename: tf.Tensor) -> tf.Tensor:
    is_full = tf.equal(tf.size(batch), num_samples)
    text = f": expected {num_samples} records or more, the samples of a task, got"
    checked = tf.debugging.Assert(
      is_full | (number > 0), ["parallel_read:", filename, text, tf.size(batch)]
    )
    with tf.control_dependencies([checked]):
      return tf.identity(is_full)

  def read_task(filename: tf.Tensor) -> tf.data.Dataset:
    samples = tf.data.TFRecordDataset(filename)
    if mode == ModeKeys.TRAIN:
      samples = samples.shuffle(max(shuffle_buffer_size, num_samples), seed)
    batches = samples.batch(num_samples).enumerate()
    full = batches.filter(lambda number, batch: check(number, batch, filename))
    whole = full.map(lambda _, batch: tf.ensure_shape(batch, [num_samples]))
    samples = parse_fn(whole.repeat())
    if filter_fn is not None:
      kept = samples.unbatch().filter(filter_fn)
      samples = kept.batch(num_samples, drop_remainder=True)
    return samples

  tasks = tf.data.Dataset.from_tensor_slices(filenames)
  if shuffle_filenames:
    tasks = tasks.shuffle(len(filenames), seed)
  return tasks.repeat().interleave(
    read_task, interleave_cycle_length or len(filenames), block_length=1
  )


def split_train_val(
  dataset: tf.data.Dataset, num_train_samples_per_task: int
) -> tf.data.Dataset:
  """Splits samples: (features, labels), [samples, ...], become two `TrainValPair`s.

  The first `num_train_samples_per_task` samples become `train`, the others `val`.
  """

  def split(tensors: Any) -> TrainValPair:
    return TrainValPair(
      tf.nest.map_structure(lambda x: x[:num_train_samples_per_task], tensors),
      tf.nest.map_structure(lambda x: x[num_train_samples_per_task:], tensors),
      tf.constant([True]),
    )

  return dataset.map(lambda features, labels: (split(features), split(labels)))


def tile_val_mode(pair: Any) -> None:
  """Repeats a pair's `val_mode` [tasks, 1] for each sample: [tasks * samples, 1].

  The order is as in `flatten_batch_examples`: by task, then by sample.

  Args:
    pair: a struct with `train`, `val` and `val_mode`; `val_mode` is replaced.
  Raises:
    SpecError: `train` and `val` have different numbers of samples.
  """
  firsts = [specs.flatten_spec_structure(part) for part in (pair.train, pair.val)]
  counts = [next(iter(first.values())).shape[1] for first in firsts]
  if counts[0] != counts[1]:
    raise errors.SpecError(
      "tile_val_mode: expected as many samples in train as in val, got "
      f"{counts[0]} and {counts[1]}."
    )
  pair.val_mode = tf.repeat(pair.val_mode, counts[0], axis=0)


def flatten_batch_examples(tensor_collection: Any) -> Any:
  """Merges the axes of [tasks, samples, ...]; tensors with one axis are unchanged."""

  def flatten(tensor: Any) -> tf.Tensor:
    tensor = tf.convert_to_tensor(tensor)
    return tensor if tensor.shape.rank == 1 else _merge_axes(tensor, 2)

  return specs.map_leaves(flatten, tensor_collection)


def unflatten_batch_examples(
  tensor_collection: Any, num_samples_per_task: int
) -> TensorSpecStruct:
  """Splits the axis of [tasks * samples, ...]; returns [tasks, samples, ...], flat."""
  flat = specs.flatten_spec_structure(tensor_collection)
  return TensorSpecStruct(
    (path, _split_axis(tensor, [-1, num_samples_per_task]))
    for path, tensor in flat.items()
  )


def merge_first_n_dims(structure: Any, n: int) -> Any:
  """Merges the first n axes of each tensor of a structure."""
  return tf.nest.map_structure(
    lambda value: _merge_axes(value, n) if tf.is_tensor(value) else value, structure
  )


def expand_batch_dims(structure: Any, batch_sizes: Any) -> Any:
  """Splits the first axis of each tensor of a structure into `batch_sizes`."""
  return tf.nest.map_structure(
    lambda value: _split_axis(value, batch_sizes) if tf.is_tensor(value) else value,
    structure,
  )


def batch_sizes(structure: Any, n: int) -> Any:
  """Returns the first n sizes of the first tensor, static if they are known."""
  first = next(v for v in tf.nest.flatten(structure) if tf.is_tensor(v))
  sizes = first.shape[:n]
  return sizes if sizes.is_fully_defined() else tf.shape(first)[:n]


def multi_batch_apply(
  f: Callable[..., Any], num_batch_dims: int, *args: Any, **kwargs: Any
) -> Any:
  """Calls a function of batches on tensors with several batch axes.

  Args:
    f: maps tensors [B, ...] to tensors [B, ...].
    num_batch_dims: batch axes of each tensor among the arguments.
    *args: arguments of `f`, tensors [b1, b2, ..., ...] or other values.
    **kwargs: arguments of `f`.
  Returns:
    The output of `f`, with all batch axes.
  """
  sizes = batch_sizes((args, kwargs), num_batch_dims)
  merged = merge_first_n_dims((args, kwargs), num_batch_dims)
  return expand_batch_dims(f(*merged[0], **merged[1]), sizes)


def _merge_axes(tensor: tf.Tensor, n: int) -> tf.Tensor:
  """Merges the first n axes; keeps the static shape."""
  lead, rest = tensor.shape[:n], tensor.shape[n:]
  size = lead.num_elements() if lead.is_fully_defined() else None
  merged = tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[n:]], axis=0))
  return tf.ensure_shape(merged, [size, *rest])


def _split_axis(tensor: tf.Tensor, sizes: Any) -> tf.Tensor:
  """Splits the first axis; keeps the static shape."""
  sizes = tf.cast(tf.convert_to_tensor(sizes), tf.int32)
  dims = tf.get_static_value(sizes)
  dims = [-1] * sizes.shape[0] if dims is None else dims.tolist()
  if dims.count(-1) == 1 and tensor.shape[0] is not None:
    dims[dims.index(-1)] = tensor.shape[0] // -math.prod(dims)
  static = [None if size < 0 else size for size in dims]
  shape = tf.concat([sizes, tf.shape(tensor)[1:]], axis=0)
  return tf.ensure_shape(tf.reshape(tensor, shape), [*static, *tensor.shape[1:]])


def spread(sample: Any, num_samples: int, num_steps: Any) -> Any:
  """Returns the step of sample number `sample` of evenly spread samples of an episode.

  The first and the last sample are the ends of the episode; a single one is its end.
  """
  if num_samples == 1:
    return num_steps - 1
  return sample * (num_steps - 1) // (num_samples - 1)
