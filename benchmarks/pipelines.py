"""The usual tf.data ways to make frame stacks: what ours is measured against.

Each is the idiom at its best: parallel maps, one buffer of as many windows, the same
batches. What differs is where the frames are stacked.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from benchmarks.episodes import Work
from benchmarks.measure import Round, Run

_AUTOTUNE = tf.data.AUTOTUNE


def stored_frames(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """Reads flat episodes as they are stored, [T] strings each."""
  sequence = {"image": tf.io.FixedLenSequenceFeature((), tf.string)}

  def parse(serialized: tf.Tensor) -> tf.Tensor:
    _, steps = tf.io.parse_single_sequence_example(
      serialized, sequence_features=sequence
    )
    return steps["image"]

  dataset = tf.data.TFRecordDataset(work.flat_path).repeat(epochs)
  return dataset.map(parse, num_parallel_calls=_AUTOTUNE)


def decode(work: Work, stored: tf.Tensor) -> tf.Tensor:
  """Maps strings [N] to frames [N, h, w, 3]."""
  shape = work.frame_shape
  if work.data_format == "raw":
    return tf.reshape(tf.io.decode_raw(stored, tf.uint8), [-1, *shape])
  return tf.map_fn(
    lambda frame: tf.ensure_shape(tf.io.decode_jpeg(frame, channels=3), shape),
    stored,
    fn_output_signature=tf.TensorSpec(shape, tf.uint8),
  )


def decoded_episodes(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """Reads flat episodes [T, h, w, 3], each frame decoded once."""
  return stored_frames(work, epochs).map(
    lambda stored: decode(work, stored), num_parallel_calls=_AUTOTUNE
  )


def shuffled_batches(windows: tf.data.Dataset, work: Work) -> tf.data.Dataset:
  """Shuffles windows that are already stacked, and batches them."""
  return batches(windows.shuffle(work.shuffle_buffer_size, seed=1), work)


def batches(windows: tf.data.Dataset, work: Work) -> tf.data.Dataset:
  """Batches windows, one batch ahead of who reads them."""
  return windows.batch(work.batch_size, drop_remainder=True).prefetch(_AUTOTUNE)


def dataset_window(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """`Dataset.window`: a small dataset for every window."""

  def cut(frames: tf.Tensor) -> tf.data.Dataset:
    steps = tf.data.Dataset.from_tensor_slices(frames)
    nested = steps.window(work.num_frames, shift=1, drop_remainder=True)
    return nested.flat_map(lambda window: window.batch(work.num_frames))

  stacked = decoded_episodes(work, epochs).interleave(
    cut, cycle_length=2, num_parallel_calls=_AUTOTUNE
  )
  return shuffled_batches(stacked, work)


def gather_all(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """Octo's and dlimp's way: all windows of an episode at once, then flattened."""
  stacked = decoded_episodes(work, epochs).map(
    lambda frames: tf.gather(frames, _all_steps(work)), num_parallel_calls=_AUTOTUNE
  )
  return shuffled_batches(_flatten(stacked), work)


def gather_all_encoded(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """The same with encoded frames: a small buffer, and every frame decoded K times."""
  stacked = stored_frames(work, epochs).map(
    lambda stored: tf.gather(stored, _all_steps(work)), num_parallel_calls=_AUTOTUNE
  )
  shuffled = _flatten(stacked).shuffle(work.shuffle_buffer_size, seed=1)
  decoded = shuffled.map(
    lambda stored: tf.ensure_shape(
      decode(work, stored), [work.num_frames, *work.frame_shape]
    ),
    num_parallel_calls=_AUTOTUNE,
  )
  return batches(decoded, work)


def stacked_records(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """Tensor2Robot's way: records of stacks, shuffled serialized, parsed by the batch.

  The number of parallel calls and the options are those of its input function.
  """
  feature = {"image": tf.io.FixedLenFeature([work.num_frames], tf.string)}
  shape = [-1, work.num_frames, *work.frame_shape]

  def parse(serialized: tf.Tensor) -> tf.Tensor:
    stored = tf.io.parse_example(serialized, feature)["image"]
    return tf.reshape(decode(work, tf.reshape(stored, [-1])), shape)

  serialized = tf.data.TFRecordDataset(work.stacked_path).repeat(epochs)
  shuffled = serialized.shuffle(work.shuffle_buffer_size, seed=1)
  batched = shuffled.batch(work.batch_size, drop_remainder=True)
  options = tf.data.Options()
  options.threading.max_intra_op_parallelism = 1
  options.deterministic = False
  parsed = batched.map(parse, num_parallel_calls=4)
  return parsed.with_options(options).prefetch(_AUTOTUNE)


def deliver(pipeline: Callable[[Work], tf.data.Dataset], work: Work) -> Run:
  """Makes the run that reads `work.num_batches` batches of windows.

  The clock starts when the first batch has come: the shuffle buffer is full by then,
  and what is measured is the rate that training sees after its first step.

  Args:
    pipeline: makes a dataset of batches that goes on for ever.
    work: what it reads.
  Returns:
    The run.
  """
  dataset = pipeline(work).take(1 + work.num_batches)

  def run() -> Round:
    batches_left = iter(dataset)
    next(batches_left)
    return lambda: sum(len(tf.nest.flatten(batch)[0]) for batch in batches_left)

  return run


def deliver_episodes(work: Work) -> Run:
  """Makes the run that decodes as many episodes and cuts nothing.

  Its units are the windows that those episodes hold, so that rates compare.
  """
  num_episodes = -(-work.num_batches * work.batch_size // work.windows_per_episode)
  dataset = decoded_episodes(work).prefetch(_AUTOTUNE).take(1 + num_episodes)

  def run() -> Round:
    episodes_left = iter(dataset)
    next(episodes_left)
    return lambda: sum(work.windows_per_episode for _ in episodes_left)

  return run


def _all_steps(work: Work) -> tf.Tensor:
  """Returns the steps of every window of an episode, [windows, K]."""
  return tf.range(work.windows_per_episode)[:, None] + tf.range(work.num_frames)


def _flatten(stacked: tf.data.Dataset) -> tf.data.Dataset:
  return stacked.interleave(
    tf.data.Dataset.from_tensor_slices, cycle_length=2, num_parallel_calls=_AUTOTUNE
  )
