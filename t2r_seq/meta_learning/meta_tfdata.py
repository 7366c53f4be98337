"""Batches of tasks: [tasks, samples, ...], and datasets of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gin
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.specs import ModeKeys, TensorSpecStruct


class TrainValPair(NamedTuple):
  """What a task is learned from, and what that is tried on; or their specs.

  Attributes:
    train: [tasks, samples, ...].
    val: likewise.
    val_mode: bool [tasks, 1]: whether an outcome is that on `val`.
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
  """Reads record files, each of one task, some samples of a task at a time.

  For ever; each element has `num_train + num_val` samples of one file, none of them
  twice, and the tasks take turns. After Tensor2Robot's function of that name, which
  tried tasks on the samples that they were learned from where a file was read again.

  Args:
    file_patterns: of TFRecord files, each of one task.
    parse_fn: maps a dataset of serialized records, [samples], to a dataset of what
      they hold, [samples, ...].
    shuffle_filenames: whether the tasks come in another order in every epoch.
    num_train_samples_per_task: to learn the task from.
    num_val_samples_per_task: to try it on.
    shuffle_buffer_size: records of a file among which is drawn, in mode 'train'.
    filter_fn: says of a parsed sample whether it is kept.
    interleave_cycle_length: tasks that are open at once; None: all.
    mode: records keep their order in 'eval'.
    seed: of the orders; None: another in every run.
  Returns:
    Dataset of what `parse_fn` gives, leaves [num_train + num_val, ...].
  Raises:
    SpecError: no file matches.
    InvalidArgumentError: as it is read, a file's records are too few.
  """
  _, filenames = records.get_data_format_and_filenames(file_patterns)
  num_samples = num_train_samples_per_task + num_val_samples_per_task

  def check(number: tf.Tensor, batch: tf.Tensor, filename: tf.Tensor) -> tf.Tensor:
    is_full = tf.equal(tf.size(batch), num_samples)
    told = tf.debugging.Assert(
      is_full | (number > 0),
      [
        "parallel_read:",
        filename,
        f": expected {num_samples} records of the task at",
        "least, as many as samples, got",
        tf.size(batch),
      ],
    )
    with tf.control_dependencies([told]):
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
  """Splits the samples of each task in two.

  Args:
    dataset: of (features, labels), leaves [samples, ...].
    num_train_samples_per_task: the first of them.
  Returns:
    Dataset of (`TrainValPair`, `TrainValPair`), of features and of labels.
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

  In the order of `flatten_batch_examples`; Tensor2Robot's has that of samples, which is
  another one where the tasks differ.

  Args:
    pair: a struct with `train`, `val` and `val_mode`, changed in place.
  Raises:
    SpecError: `train` and `val` have different numbers of samples.
  """
  counts = [num_samples_of(part) for part in (pair.train, pair.val)]
  if counts[0] != counts[1]:
    raise errors.SpecError(
      "tile_val_mode: expected as many samples in train as in val, got "
      f"{counts[0]} and {counts[1]}."
    )
  pair.val_mode = tf.repeat(pair.val_mode, counts[0], axis=0)


def num_samples_of(tensors: specs.SpecStructure) -> int | None:
  """Returns the static size of the second axis of a structure of tensors."""
  first = next(iter(specs.flatten_spec_structure(tensors).values()))
  return tf.TensorShape(first.shape)[1]


def flatten_batch_examples(tensor_collection: Any) -> Any:
  """Joins the axes of tasks and of samples.

  Args:
    tensor_collection: tensors [tasks, samples, ...]; those of one axis stay.
  Returns:
    The same structure, [tasks * samples, ...].
  """

  def flatten(tensor: Any) -> tf.Tensor:
    tensor = tf.convert_to_tensor(tensor)
    return tensor if tensor.shape.rank == 1 else _merged(tensor, 2)

  return specs.map_leaves(flatten, tensor_collection)


def unflatten_batch_examples(
  tensor_collection: Any, num_samples_per_task: int
) -> TensorSpecStruct:
  """Undoes `flatten_batch_examples`.

  Args:
    tensor_collection: tensors [tasks * samples, ...].
    num_samples_per_task: samples.
  Returns:
    A flat struct, [tasks, samples, ...].
  """
  flat = specs.flatten_spec_structure(tensor_collection)
  return TensorSpecStruct(
    (path, _expanded(tensor, [-1, num_samples_per_task]))
    for path, tensor in flat.items()
  )


def merge_first_n_dims(structure: Any, n: int) -> Any:
  """Joins the first n axes of each tensor of a structure; anything else stays."""
  return tf.nest.map_structure(
    lambda value: _merged(value, n) if tf.is_tensor(value) else value, structure
  )


def expand_batch_dims(structure: Any, batch_sizes: Any) -> Any:
  """Splits the first axis of each tensor of a structure into some; else it stays.

  Args:
    structure: tensors [prod(batch_sizes), ...], and other things.
    batch_sizes: int [n].
  Returns:
    The same structure, [*batch_sizes, ...].
  """
  return tf.nest.map_structure(
    lambda value: _expanded(value, batch_sizes) if tf.is_tensor(value) else value,
    structure,
  )


def multi_batch_apply(
  f: Callable[..., Any], num_batch_dims: int, *args: Any, **kwargs: Any
) -> Any:
  """Calls a function of batches on tensors with several batch axes.

  Args:
    f: takes tensors [B, ...], and gives such.
    num_batch_dims: batch axes of each tensor among the arguments, the same of all.
    *args: of `f`, [b1, b2, ..., ...]; what is no tensor is handed on.
    **kwargs: likewise.
  Returns:
    What `f` gives, with all of the batch axes.
  """
  tensors = [v for v in tf.nest.flatten((args, kwargs)) if tf.is_tensor(v)]
  known = tensors[0].shape[:num_batch_dims]
  sizes = known if known.is_fully_defined() else tf.shape(tensors[0])[:num_batch_dims]
  merged = merge_first_n_dims((args, kwargs), num_batch_dims)
  return expand_batch_dims(f(*merged[0], **merged[1]), sizes)


def _merged(tensor: tf.Tensor, n: int) -> tf.Tensor:
  """Joins the first n axes, and keeps what is known of the shape."""
  lead, rest = tensor.shape[:n], tensor.shape[n:]
  size = lead.num_elements() if lead.is_fully_defined() else None
  merged = tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[n:]], axis=0))
  return tf.ensure_shape(merged, [size, *rest])


def _expanded(tensor: tf.Tensor, sizes: Any) -> tf.Tensor:
  """Splits the first axis, and keeps what is known of the shape."""
  rest = tensor.shape[1:]
  sizes = tf.cast(tf.convert_to_tensor(sizes), tf.int32)
  shape = tf.concat([sizes, tf.shape(tensor)[1:]], axis=0)
  return tf.ensure_shape(
    tf.reshape(tensor, shape), _static_sizes(sizes, tensor.shape[0]).concatenate(rest)
  )


def _static_sizes(sizes: tf.Tensor, total: int | None) -> tf.TensorShape:
  known = tf.get_static_value(sizes)
  if known is None:
    return tf.TensorShape([None] * sizes.shape[0])
  dims = [None if size < 0 else int(size) for size in known]
  if dims.count(None) == 1 and total is not None:
    others = 1
    for dim in dims:
      others *= 1 if dim is None else dim
    dims[dims.index(None)] = total // others
  return tf.TensorShape(dims)


def spread(sample: Any, num_samples: int, num_steps: Any) -> Any:
  """Returns the step that a sample of an episode shows.

  Args:
    sample: its number, from 0.
    num_samples: of the episode; the first and the last are of its ends, the others at
      even distances between; a single one is of the end.
    num_steps: of the episode.
  """
  if num_samples == 1:
    return num_steps - 1
  return sample * (num_steps - 1) // (num_samples - 1)
