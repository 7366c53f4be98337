"""n-step transitions streamed from records: a SequenceExample an episode."""

from __future__ import annotations

import os

import tensorflow as tf

from benchmarks.store import transition_work
from benchmarks.store.transition_work import Structure, TransitionWork
from t2r_seq import data, records, specs

_SHAPES = {"obs": (17,), "act": (6,), "rew": (), "done": ()}


def records_path(work: TransitionWork) -> str:
  """The file that all read."""
  return os.path.join(work.folder, "steps.tfrecord")


def write(work: TransitionWork) -> None:
  """Writes the records and their index; the observation after the last is left out."""
  spec = {
    name: specs.ExtendedTensorSpec(shape, tf.float32, name, is_sequence=True)
    for name, shape in _SHAPES.items()
  }
  records.write_records(
    records_path(work),
    spec,
    (
      {name: values[: work.num_steps] for name, values in episode.items()}
      for episode in transition_work.make_episodes(work)
    ),
  )
  records.write_index(records_path(work))


def ours(
  work: TransitionWork, epochs: int | None = None, index: str | None = None
) -> tf.data.Dataset:
  """Joins steps by the input generator, as training does."""
  declared = specs.TensorSpecStruct(
    {
      name: specs.ExtendedTensorSpec(shape, tf.float32, name, time_offsets=0)
      for name, shape in _SHAPES.items()
    }
  )
  declared["next_obs"] = specs.ExtendedTensorSpec(
    _SHAPES["obs"], tf.float32, "obs", time_offsets=1
  )
  generator = data.DefaultRecordInputGenerator(
    records_path(work),
    batch_size=work.batch_size,
    seed=1,
    n_step=(work.n, work.gamma),
    index=index,
  )
  generator.set_feature_specifications(declared, declared)
  generator.set_label_specifications({}, {})
  generator.set_padding("drop")
  dataset = generator.create_dataset(specs.ModeKeys.TRAIN).map(
    lambda features, labels: features
  )
  return (
    dataset.take(epochs * work.num_transitions // work.batch_size)
    if epochs
    else dataset
  )


def by_index(work: TransitionWork, epochs: int | None = None) -> tf.data.Dataset:
  """The same, in an exact order by the index."""
  return ours(work, epochs, "require")


def pool_by_hand(work: TransitionWork, epochs: int | None = None) -> tf.data.Dataset:
  """All episodes as one tensor a field, joined at once; each batch is gathered."""
  features = {
    name: tf.io.FixedLenSequenceFeature(shape, tf.float32)
    for name, shape in _SHAPES.items()
  }

  def parse(serialized: tf.Tensor) -> Structure:
    _, steps = tf.io.parse_single_sequence_example(
      serialized, sequence_features=features
    )
    return {
      name: tf.ensure_shape(steps[name], [work.num_steps, *shape])
      for name, shape in _SHAPES.items()
    }

  def join(episode: Structure) -> Structure:
    obs = tf.concat([episode["obs"], episode["obs"][-1:]], 0)
    return transition_work.join_all(work, {**episode, "obs": obs})

  def batches(number: tf.Tensor, pool: Structure) -> tf.data.Dataset:
    rows = {
      name: tf.reshape(values, [-1, *values.shape[2:]]) for name, values in pool.items()
    }
    count = tf.shape(rows["obs"])[0]
    seed = tf.stack([1, tf.cast(number, tf.int32)])
    order = tf.random.experimental.index_shuffle(tf.range(count), seed, count - 1)
    numbers = tf.data.Dataset.from_tensor_slices(order)
    return numbers.batch(work.batch_size, drop_remainder=True).map(
      lambda chosen: {name: tf.gather(values, chosen) for name, values in rows.items()},
      2,
    )

  files = tf.data.TFRecordDataset(records_path(work)).repeat(epochs)
  joined = files.map(lambda serialized: join(parse(serialized)), tf.data.AUTOTUNE)
  pools = joined.batch(work.num_episodes).prefetch(1).enumerate()
  return pools.flat_map(batches).prefetch(2)
