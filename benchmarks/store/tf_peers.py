"""The ways of tf.data: what others do in plain TensorFlow, at their best settings.

They read TFRecords of whole episodes. Reading those is the smaller part of their cost;
what differs is where the windows are stacked, and what goes through the shuffle buffer.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable

import tensorflow as tf

from benchmarks.store.works import Work

Structure = dict[str, tf.Tensor]

_AUTOTUNE = tf.data.AUTOTUNE


def dataset_window(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """`Dataset.window`: a small dataset for every window and field."""

  def cut(episode: Structure) -> tf.data.Dataset:
    steps = tf.data.Dataset.from_tensor_slices(episode)
    nested = steps.window(work.num_frames, shift=1, drop_remainder=True)
    return nested.flat_map(
      lambda window: tf.data.Dataset.zip(
        {name: field.batch(work.num_frames) for name, field in window.items()}
      )
    )

  return _shuffled_batches(_cut(work, decoded_episodes(work, epochs), cut), work)


def gather_and_flatten(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """All windows of an episode at once, then flattened; images are decoded before.

  Two episodes at a time and one after the other: more of these large tensors on the way
  halve the rate, by page faults.
  """
  stacked = decoded_episodes(work, epochs).map(
    lambda episode: _gather_all(work, episode), num_parallel_calls=2
  )
  flat = stacked.flat_map(tf.data.Dataset.from_tensor_slices)
  return _shuffled_batches(flat, work)


def octo(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """Octo's pipeline over dlimp, written out: its calls, its options, its order.

  Images go through the buffer as they are stored, and are decoded after it. dlimp is
  not in the package registry.
  """
  episodes = stored_episodes(work, epochs, _dlimp_options())
  stacked = episodes.map(
    lambda episode: _gather_all(work, episode), num_parallel_calls=_AUTOTUNE
  )
  flat = stacked.interleave(
    tf.data.Dataset.from_tensor_slices,
    cycle_length=_AUTOTUNE,
    num_parallel_calls=_AUTOTUNE,
  )
  shuffled = flat.shuffle(work.shuffle_buffer_size, seed=1)
  if work.is_jpeg:
    # dlimp's `vmap`: unrolled over the frames of a window.
    shuffled = shuffled.map(
      lambda window: {
        "image": tf.stack([decode(work, f) for f in tf.unstack(window["image"])])
      },
      num_parallel_calls=_AUTOTUNE,
    )
  batched = shuffled.batch(work.batch_size, drop_remainder=True)
  options = tf.data.Options()
  options.autotune.ram_budget = 1 << 30
  return batched.with_options(options).prefetch(_AUTOTUNE)


def rlds(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """RLDS's own `transformations.batch` over the dataset of an episode's steps."""
  transformations = import_rlds()

  def cut(episode: Structure) -> tf.data.Dataset:
    steps = tf.data.Dataset.from_tensor_slices(episode)
    return transformations.batch(
      steps, size=work.num_frames, shift=1, drop_remainder=True
    )

  return _shuffled_batches(_cut(work, decoded_episodes(work, epochs), cut), work)


def import_rlds() -> types.ModuleType:
  """Imports `rlds.transformations`.

  It imports Reverb for its patterns. Reverb has no build for this TensorFlow, and what
  is measured here never touches it, so an empty module takes its place meanwhile.
  """
  stand_in = types.ModuleType("reverb")
  stand_in.structured_writer = types.SimpleNamespace(  # type: ignore[attr-defined]
    **dict.fromkeys(("Config", "ReferenceStep", "Pattern", "Condition"))
  )
  is_there = "reverb" in sys.modules
  sys.modules.setdefault("reverb", stand_in)
  try:
    return importlib.import_module("rlds.transformations")
  finally:
    if not is_there:
      del sys.modules["reverb"]


def stored_episodes(
  work: Work, epochs: int | None = None, options: tf.data.Options | None = None
) -> tf.data.Dataset:
  """Reads whole episodes as they are stored, leaves [T, ...]."""
  dataset = tf.data.TFRecordDataset(work.records_path)
  if options is not None:
    dataset = dataset.with_options(options)
  return dataset.repeat(epochs).map(work.parse_episode, num_parallel_calls=_AUTOTUNE)


def decoded_episodes(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """Reads whole episodes, images decoded, each frame once."""
  episodes = stored_episodes(work, epochs)
  if not work.is_jpeg:
    return episodes
  return episodes.map(
    lambda episode: {"image": decode_all(work, episode["image"])},
    num_parallel_calls=_AUTOTUNE,
  )


def decode(work: Work, encoded: tf.Tensor) -> tf.Tensor:
  """Decodes one frame."""
  frame = tf.io.decode_jpeg(encoded, channels=3)
  return tf.ensure_shape(frame, work.fields["image"].shape)


def decode_all(work: Work, encoded: tf.Tensor) -> tf.Tensor:
  """Decodes the frames of an episode, one after the other."""
  return tf.map_fn(
    lambda frame: decode(work, frame),
    encoded,
    fn_output_signature=work.fields["image"],
  )


def _gather_all(work: Work, episode: Structure) -> Structure:
  """Stacks the windows of an episode, [windows, K, ...]."""
  steps = tf.range(work.windows_per_episode)[:, None] + tf.range(work.num_frames)
  return {name: tf.gather(values, steps) for name, values in episode.items()}


def _cut(
  work: Work, episodes: tf.data.Dataset, cut: Callable[[Structure], tf.data.Dataset]
) -> tf.data.Dataset:
  if work.is_jpeg:
    # Decoding keeps both cores busy: to cut in parallel takes a fifth of the rate.
    return episodes.flat_map(cut)
  return episodes.interleave(
    cut, cycle_length=4, num_parallel_calls=4, deterministic=False
  )


def _shuffled_batches(windows: tf.data.Dataset, work: Work) -> tf.data.Dataset:
  shuffled = windows.shuffle(work.shuffle_buffer_size, seed=1)
  return shuffled.batch(work.batch_size, drop_remainder=True).prefetch(_AUTOTUNE)


def _dlimp_options() -> tf.data.Options:
  """The options that dlimp sets on every dataset that it reads."""
  options = tf.data.Options()
  options.autotune.enabled = True
  options.deterministic = False
  options.experimental_optimization.apply_default_optimizations = True
  options.experimental_optimization.map_fusion = True
  options.experimental_optimization.map_and_filter_fusion = True
  options.experimental_optimization.inject_prefetch = False
  options.experimental_warm_start = True
  return options
