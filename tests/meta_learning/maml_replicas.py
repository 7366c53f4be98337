"""Prints the losses of MAML on one replica, and on two of the same batches."""

import json

import tensorflow as tf

from t2r_seq.training.trainer import Trainer
from tests.meta_learning import test_maml


def main() -> None:
  """Trains twice."""
  cpus = tf.config.list_physical_devices("CPU")
  two = [tf.config.LogicalDeviceConfiguration()] * 2
  tf.config.set_logical_device_configuration(cpus[0], two)
  losses = []
  for strategy in (
    tf.distribute.get_strategy(),
    tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
  ):
    tf.keras.utils.set_random_seed(3)
    model = test_maml.maml(steps=2)
    trainer = Trainer(model, strategy)
    tasks = tf.data.Dataset.from_tensors(test_maml.make_tasks()).repeat().unbatch()
    batches = iter(trainer.distribute(tasks.batch(4, drop_remainder=True)))
    steps = [trainer.train_step(*next(batches)) for _ in range(4)]
    losses.append([float(step["loss"]) for step in steps])
  print(json.dumps(losses), flush=True)


if __name__ == "__main__":
  main()
