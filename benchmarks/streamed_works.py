"""Works whose windows are streamed from records: a SequenceExample an episode."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.measure import Round, Run
from benchmarks.store import limits, tf_peers, works
from t2r_seq import data, records, specs, windows
from t2r_seq.data.pool import num_bytes_alive

# Of W2's JPEGs at most, with what TensorFlow keeps of a string.
_JPEG_BYTES = 10_000


@dataclasses.dataclass(frozen=True)
class StreamedWork(works.Work):
  """A work of the episode store, read from records of one Feature a step."""

  @property
  def records_path(self) -> str:
    """The file that all read."""
    return os.path.join(self.folder, f"steps_{self._data_format}.tfrecord")

  @property
  def memory_budget(self) -> int:
    """Bytes for pools of as many windows as others have in their buffers, or more."""
    pixels = math.prod(self.fields["image"].shape)
    pooled, parsed = pixels + 200, pixels + 200
    if self.is_jpeg:
      pooled, parsed = pixels + 2 * _JPEG_BYTES, _JPEG_BYTES
    num_episodes = -(-self.shuffle_buffer_size // self.windows_per_episode)
    return num_bytes_alive(
      num_episodes * pooled * self.num_steps,
      parsed * self.num_steps,
      self.batch_size * self.window_bytes,
    )

  def parse_episode(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses a record; raw images become pixels."""
    features = {
      name: tf.io.FixedLenSequenceFeature((), tf.string)
      if name == "image"
      else tf.io.FixedLenSequenceFeature(field.shape, field.dtype)
      for name, field in self.fields.items()
    }
    _, steps = tf.io.parse_single_sequence_example(
      serialized, sequence_features=features
    )
    if not self.is_jpeg and "image" in steps:
      shape = [-1, *self.fields["image"].shape]
      steps["image"] = tf.reshape(tf.io.decode_raw(steps["image"], tf.uint8), shape)
    return steps


@dataclasses.dataclass(frozen=True)
class StatesWork(StreamedWork):
  """Small states: several paths of eight floats a step."""

  num_paths: int = 1

  @property
  def fields(self) -> dict[str, tf.TensorSpec]:
    """One step."""
    state = tf.TensorSpec((8,), tf.float32)
    return {f"state_{number}": state for number in range(self.num_paths)}

  @property
  def records_path(self) -> str:
    """The file that all read."""
    return os.path.join(self.folder, f"states_{self.num_paths}.tfrecord")

  @property
  def memory_budget(self) -> int:
    """Bytes for pools of more windows than others have in their buffers."""
    return 2**26


def window_specs(work: StreamedWork) -> specs.TensorSpecStruct:
  """Declares the windows; raw frames are stored as bytes."""
  found = works.window_specs(work)
  if not work.is_jpeg and "image" in found:
    image = specs.ExtendedTensorSpec.from_spec(found["image"], data_format="raw")
    found["image"] = image
  return found


def write(work: StreamedWork) -> None:
  """Writes the records."""
  flat = windows.flat_specs(window_specs(work))
  episodes = works.make_episodes(work)
  records.write_records(
    work.records_path,
    flat,
    ({name: list(values) for name, values in episode.items()} for episode in episodes)
    if work.is_jpeg
    else episodes,
  )


def skipping(work: StreamedWork, epochs: int | None = None) -> tf.data.Dataset:
  """The same as `ours`, with bad records to be left out."""
  return ours(work, epochs, on_bad_record="skip")


def ours(
  work: StreamedWork, epochs: int | None = None, **options: Any
) -> tf.data.Dataset:
  """Reads windows through the input generator, as training does."""
  generator = data.DefaultRecordInputGenerator(
    work.records_path,
    batch_size=work.batch_size,
    seed=1,
    memory_budget=work.memory_budget,
    **options,
  )
  declared = window_specs(work)
  generator.set_feature_specifications(declared, declared)
  generator.set_label_specifications({}, {})
  generator.set_padding("drop")
  dataset = generator.create_dataset(specs.ModeKeys.TRAIN).map(_features)
  # It repeats for ever, one whole epoch after the other.
  return (
    dataset.take(epochs * work.num_windows // work.batch_size) if epochs else dataset
  )


def pool_by_hand(work: StreamedWork, epochs: int | None = None) -> tf.data.Dataset:
  """A pool in plain tf.data, for episodes of one length.

  Episodes are batched to one tensor a field, windows are permuted, and each batch is
  gathered. Windows that fill no batch are lost, and memory is what comes.
  """
  per_episode = work.windows_per_episode
  fields = work.fields.items()

  def same_length(steps: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    shapes = {name: [work.num_steps, *field.shape] for name, field in fields}
    return {name: tf.ensure_shape(steps[name], shapes[name]) for name in shapes}

  def batches(number: tf.Tensor, pool: dict[str, tf.Tensor]) -> tf.data.Dataset:
    rows = {name: tf.reshape(pool[name], [-1, *field.shape]) for name, field in fields}
    count = tf.shape(next(iter(pool.values())))[0] * per_episode
    seed = tf.stack([1, tf.cast(number, tf.int32)])
    order = tf.random.experimental.index_shuffle(tf.range(count), seed, count - 1)

    def gather(windows_: tf.Tensor) -> dict[str, tf.Tensor]:
      first = windows_ // per_episode * work.num_steps + windows_ % per_episode
      steps = first[:, tf.newaxis] + tf.range(work.num_frames)
      return {name: tf.gather(values, steps) for name, values in rows.items()}

    numbers = tf.data.Dataset.from_tensor_slices(order)
    return numbers.batch(work.batch_size, drop_remainder=True).map(gather, 2)

  episodes = tf_peers.stored_episodes(work, epochs).map(same_length)
  num_episodes = -(-work.shuffle_buffer_size // per_episode)
  pools = episodes.batch(num_episodes).prefetch(1).enumerate()
  return pools.flat_map(batches).prefetch(2)


def parse_and_drop(work: StreamedWork) -> Run:
  """Makes the run that parses episodes and drops them.

  Its units are the windows that they hold, so that rates compare.
  """
  num_episodes = -(-work.num_batches * work.batch_size // work.windows_per_episode)
  parsed = tf_peers.stored_episodes(work).prefetch(tf.data.AUTOTUNE)

  def run() -> Round:
    episodes = iter(parsed.take(1 + num_episodes))
    next(episodes)
    return lambda: sum(work.windows_per_episode for _ in episodes)

  return run


def decode_and_drop(work: StreamedWork) -> Run:
  """Makes the run in which two threads decode the frames from memory."""
  stored = tf_peers.stored_episodes(work, 1).as_numpy_iterator()
  return limits.decode_frames(work, np.stack([episode["image"] for episode in stored]))


def _features(features: Any, labels: Any) -> Any:
  del labels
  return features
