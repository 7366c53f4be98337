"""Reads every input generator under a MirroredStrategy; run by test_distributed.py.

A script of its own: two logical devices must be asked for before TensorFlow starts.
"""

from __future__ import annotations

import sys

import conftest as kit
import tensorflow as tf

from t2r_seq import data


def without_image(mode):
  features = kit.feature_spec(mode)
  del features["image"]
  return features


def main(folder: str) -> None:
  (cpu,) = tf.config.list_physical_devices("CPU")
  tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
  )
  strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
  kit.write_episodes(f"{folder}/a.tfrecord", (5, 2, 6))
  kit.write_episodes(f"{folder}/b.tfrecord", (4,), first=3)

  def per_replica(generator, mode, model=None, count=None):
    generator.set_specification_from_model(model or kit.FakeModel(), mode)
    dataset = generator.create_dataset(mode)
    dataset = dataset if count is None else dataset.take(count)
    distributed = strategy.experimental_distribute_dataset(dataset)

    @tf.function
    def anchors(features, labels):
      assert features.state.shape[1:] == (3, 2)
      return features["state"][:, -1], labels.next

    for features, labels in distributed:
      states, following = strategy.run(anchors, args=(features, labels))
      for state, after in zip(
        strategy.experimental_local_results(states),
        strategy.experimental_local_results(following),
        strict=True,
      ):
        yield [[*map(int, row)] for row in state.numpy()], after.numpy()

  def records(**kwargs):
    return data.DefaultRecordInputGenerator(
      f"{folder}/*.tfrecord", batch_size=4, seed=1, **kwargs
    )

  want = [[0, 2], [0, 3], [2, 2], [2, 3], [2, 4], [3, 2]]
  got = list(per_replica(records(), "eval"))
  assert [row for states, _ in got for row in states] == want, got
  assert [len(states) for states, _ in got[:2]] == [2, 2], got
  # The others do without images: to decode them costs graphs, for each generator.
  got = list(per_replica(records(), "train", kit.FakeModel(without_image), count=3))
  states = [row for states, _ in got for row in states]
  assert [len(states) for states, _ in got] == [2] * 6, got
  assert sorted(states[:6]) == sorted(states[6:]) == want, got
  for states, following in got:
    assert [[e, t + 1] for e, t in states] == following.tolist()

  no_labels = kit.FakeModel(without_image, lambda mode: {})
  generator = records()
  generator.set_specification_from_model(no_labels, "eval")
  dataset = strategy.experimental_distribute_dataset(generator.create_dataset("eval"))
  assert all(len(labels) == 0 for _, labels in dataset)

  def episodes():
    for index, length in enumerate((5, 2, 6)):
      episode = kit.make_episode(index, length)
      yield episode, {"next": episode["state"]}

  for generator in (
    data.DefaultRandomInputGenerator(batch_size=4),
    data.DefaultConstantInputGenerator(batch_size=4),
    data.GeneratorInputGenerator(episodes, batch_size=4, yields_episodes=True),
  ):
    got = list(per_replica(generator, "train", count=2))
    assert [len(states) for states, _ in got] == [2] * 4, got
  print("all read")


if __name__ == "__main__":
  main(sys.argv[1])
