"""n-step transitions: what there is to read, and the ways of tf.data to do so."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from t2r_seq import transitions

Structure = dict[str, tf.Tensor]

_AUTOTUNE = tf.data.AUTOTUNE


@dataclasses.dataclass(frozen=True)
class TransitionWork:
  """Batches of n-step transitions in a random order.

  Attributes:
    folder: where the files are.
    num_episodes: episodes in the files; each ends with a terminal.
    num_steps: T of every episode, transitions in it.
    n: steps that are joined.
    gamma: discount of one step.
    batch_size: transitions in a batch.
    shuffle_buffer_size: transitions among which peers shuffle that need a buffer.
    num_batches: batches in a round.
    batches_per_next: that a tf.function may take with one `next`, which costs 45 us
      by itself, as much as a batch.
  """

  folder: str
  num_episodes: int
  num_steps: int
  n: int = 3
  gamma: float = 0.99
  batch_size: int = 256
  shuffle_buffer_size: int = 10_000
  num_batches: int = 4000
  batches_per_next: int = 50

  @property
  def store_path(self) -> str:
    """The store that `save_transitions` writes."""
    return os.path.join(self.folder, "store_transitions")

  @property
  def records_path(self) -> str:
    """TFRecords, an Example per episode; every field is one serialized tensor."""
    return os.path.join(self.folder, "transitions.tfrecord")

  @property
  def num_transitions(self) -> int:
    """Transitions in the files."""
    return self.num_episodes * self.num_steps


def make_episodes(work: TransitionWork) -> Iterator[dict[str, np.ndarray]]:
  """Yields episodes: obs [T + 1, ...], the last one included; the others [T, ...]."""
  for index in range(work.num_episodes):
    rng = np.random.default_rng([13, index])
    yield {
      "obs": rng.standard_normal((work.num_steps + 1, 17), np.float32),
      "act": rng.standard_normal((work.num_steps, 6), np.float32),
      "rew": rng.standard_normal(work.num_steps, np.float32),
      "done": (np.arange(work.num_steps) == work.num_steps - 1).astype(np.float32),
    }


def flat_transitions(work: TransitionWork) -> dict[str, np.ndarray]:
  """Returns all one-step transitions, [N, ...]."""
  episodes = list(make_episodes(work))
  flat = {
    name: np.concatenate([e[name] for e in episodes]) for name in ("act", "rew", "done")
  }
  flat["obs"] = np.concatenate([e["obs"][:-1] for e in episodes])
  flat["next_obs"] = np.concatenate([e["obs"][1:] for e in episodes])
  return flat


def write(work: TransitionWork) -> None:
  """Writes the store and the records."""
  transitions.save_transitions(work.store_path, flat_transitions(work))
  with tf.io.TFRecordWriter(work.records_path) as writer:
    for episode in make_episodes(work):
      feature = {
        name: tf.train.Feature(
          bytes_list=tf.train.BytesList(value=[tf.io.serialize_tensor(values).numpy()])
        )
        for name, values in episode.items()
      }
      features = tf.train.Features(feature=feature)
      writer.write(tf.train.Example(features=features).SerializeToString())


def n_step_and_flatten(
  work: TransitionWork, epochs: int | None = None
) -> tf.data.Dataset:
  """All n-step transitions of an episode at once, then flattened and shuffled."""
  joined = read_episodes(work, epochs).map(
    lambda episode: join_all(work, episode), num_parallel_calls=2
  )
  return _shuffled_batches(joined.flat_map(tf.data.Dataset.from_tensor_slices), work)


def dataset_window(work: TransitionWork, epochs: int | None = None) -> tf.data.Dataset:
  """`Dataset.window` of n steps, reduced to one transition after it is stacked."""
  powers = tf.constant(work.gamma ** np.arange(work.n), tf.float32)

  def cut(episode: Structure) -> tf.data.Dataset:
    steps = tf.data.Dataset.from_tensor_slices(
      {
        "obs": episode["obs"][:-1],
        "next_obs": episode["obs"][1:],
        **{name: episode[name] for name in ("act", "rew", "done")},
      }
    )
    nested = steps.window(work.n, shift=1)
    return nested.flat_map(
      lambda window: tf.data.Dataset.zip(
        {name: field.batch(work.n) for name, field in window.items()}
      )
    )

  def join(window: Structure) -> Structure:
    rewards = window["rew"]
    return {
      "obs": window["obs"][0],
      "act": window["act"][0],
      "rew": tf.reduce_sum(rewards * powers[: tf.shape(rewards)[0]]),
      "next_obs": window["next_obs"][-1],
      "done": window["done"][-1],
    }

  stacked = read_episodes(work, epochs).interleave(
    cut, cycle_length=4, num_parallel_calls=4, deterministic=False
  )
  joined = stacked.map(join, num_parallel_calls=_AUTOTUNE, deterministic=False)
  return _shuffled_batches(joined, work)


def slices_in_memory(
  work: TransitionWork, epochs: int | None = None
) -> tf.data.Dataset:
  """n-step transitions made before, in memory: only shuffled and batched."""
  episodes = [
    join_all(work, {name: tf.constant(values) for name, values in episode.items()})
    for episode in make_episodes(work)
  ]
  joined = {name: tf.concat([e[name] for e in episodes], 0) for name in episodes[0]}
  slices = tf.data.Dataset.from_tensor_slices(joined)
  return _shuffled_batches(slices.repeat(epochs), work)


def read_episodes(work: TransitionWork, epochs: int | None = None) -> tf.data.Dataset:
  """Reads episodes, leaves [T or T + 1, ...]."""
  names = ("obs", "act", "rew", "done")
  features = {name: tf.io.FixedLenFeature((), tf.string) for name in names}
  shapes = {
    "obs": (work.num_steps + 1, 17),
    "act": (work.num_steps, 6),
    "rew": (work.num_steps,),
    "done": (work.num_steps,),
  }

  def parse(serialized: tf.Tensor) -> Structure:
    parsed = tf.io.parse_single_example(serialized, features)
    return {
      name: tf.ensure_shape(tf.io.parse_tensor(values, tf.float32), shapes[name])
      for name, values in parsed.items()
    }

  dataset = tf.data.TFRecordDataset(work.records_path).repeat(epochs)
  return dataset.map(parse, num_parallel_calls=_AUTOTUNE)


def join_all(work: TransitionWork, episode: Structure) -> Structure:
  """Makes the n-step transitions of an episode, [T, ...]."""
  steps = tf.range(work.num_steps)
  last = tf.minimum(steps + work.n, work.num_steps)
  padded = tf.pad(episode["rew"], [[0, work.n - 1]])
  returns = tf.add_n(
    [work.gamma**k * padded[k : k + work.num_steps] for k in range(work.n)]
  )
  return {
    "obs": episode["obs"][:-1],
    "act": episode["act"],
    "rew": returns,
    "next_obs": tf.gather(episode["obs"], last),
    "done": tf.gather(episode["done"], last - 1),
  }


def _shuffled_batches(
  dataset: tf.data.Dataset, work: TransitionWork
) -> tf.data.Dataset:
  shuffled = dataset.shuffle(work.shuffle_buffer_size, seed=1)
  return shuffled.batch(work.batch_size, drop_remainder=True).prefetch(_AUTOTUNE)
