"""Train steps/s of `train_eval_model` beside a Keras loop written by hand.

Run it as `python -m benchmarks.bench_train_step [--rounds N] [--quick]`. Both train one
network with one optimizer on the batches of one input generator, in one process, in
turns; what is timed begins when all is traced.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from benchmarks import measure
from t2r_seq import data, models, specs, store, training, windows
from t2r_seq.training.callbacks import Run

_BATCH_SIZE = 64
_LOG_EVERY = 100
_SPEC = specs.ExtendedTensorSpec


class Net(models.RegressionModel):
  """A small network on states or on images."""

  def __init__(self, path: str, spec: _SPEC) -> None:
    """Creates the model of the feature of that path."""
    super().__init__(2, create_optimizer_fn=lambda: tf.keras.optimizers.Adam(1e-3))
    self._path, self._spec = path, spec

  def get_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the one feature."""
    return specs.TensorSpecStruct({self._path: self._spec})

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the target."""
    return specs.TensorSpecStruct(
      target=_SPEC((2,), tf.float32, "target", time_offsets=0)
    )

  def create_network(self) -> tf.keras.Model:
    """Builds two dense layers, behind two convolutions of images."""
    dense, conv = tf.keras.layers.Dense, tf.keras.layers.Conv2D
    parts = [dense(64, activation="relu"), dense(64, activation="relu"), dense(2)]
    if self._path == "image":
      convs = [conv(16, 3, 2, activation="relu"), conv(16, 3, 2, activation="relu")]
      parts = [*convs, tf.keras.layers.GlobalAveragePooling2D(), *parts]
    return tf.keras.Sequential(parts)

  def a_func(self, features: specs.TensorSpecStruct, mode: str) -> dict[str, tf.Tensor]:
    """See the base class."""
    is_training = mode == specs.ModeKeys.TRAIN
    output = self.network(features[self._path], training=is_training)
    return {"inference_output": output}


# Feature, steps that are timed.
WORKS = {
  "dense net, states": (_SPEC((16,), tf.float32, "state", time_offsets=0), 2000),
  "tiny conv, 32x32": (_SPEC((32, 32, 3), tf.float32, "image", time_offsets=0), 300),
}


class _Clock(training.Callback):
  """Notes when steps are logged: by then the device has done them."""

  def __init__(self) -> None:
    self.times: dict[int, float] = {}

  def after_log(self, run: Run, scalars: Mapping[str, float]) -> None:
    self.times[run.step] = time.perf_counter()


def write(folder: str, spec: _SPEC) -> None:
  """Writes episodes to a store."""
  model = Net(spec.name, spec)
  features = model.preprocessor.get_in_feature_specification("train")
  labels = model.preprocessor.get_in_label_specification("train")
  flat = windows.flat_specs({**features, **labels})
  rng = np.random.default_rng(0)
  with store.EpisodeStore.create(folder, flat) as writer:
    for _ in range(20):
      episode = {
        path: rng.normal(size=(100, *one.frame_shape)).astype(np.float32)
        for path, one in flat.items()
      }
      writer.append_episode(episode)


def _generator(folder: str) -> data.AbstractInputGenerator:
  return data.StoreInputGenerator(folder, _BATCH_SIZE, order="global", seed=1)


def ours(folder: str, spec: _SPEC, warmup: int, num_steps: int) -> float:
  """Returns the steps/s of `train_eval_model`."""
  clock = _Clock()
  with tempfile.TemporaryDirectory() as model_dir:
    training.train_eval_model(
      Net(spec.name, spec),
      _generator(folder),
      max_train_steps=warmup + num_steps,
      model_dir=model_dir,
      run_config=training.RunConfig(
        save_checkpoints_steps=10**6, log_every_n_steps=_LOG_EVERY
      ),
      create_exporters_fn=None,
      callbacks=[clock],
    )
  return num_steps / (clock.times[warmup + num_steps] - clock.times[warmup])


def by_hand(folder: str, spec: _SPEC, warmup: int, num_steps: int) -> float:
  """Returns the steps/s of a loop that a user of Keras would write."""
  model, generator = Net(spec.name, spec), _generator(folder)
  generator.set_specification_from_model(model, "train")
  network, optimizer = model.create_network(), tf.keras.optimizers.Adam(1e-3)

  @tf.function
  def step(features, labels):
    with tf.GradientTape() as tape:
      output = network(features[spec.name], training=True)
      loss = tf.reduce_mean(tf.square(output - labels["target"]))
    variables = network.trainable_variables
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return loss

  times: dict[int, float] = {}
  dataset = generator.create_dataset("train")
  for number, batch in enumerate(itertools.islice(dataset, warmup + num_steps), 1):
    loss = step(*batch)
    if number % _LOG_EVERY == 0 or number == warmup + num_steps:
      float(loss)
      times[number] = time.perf_counter()
  return num_steps / (times[warmup + num_steps] - times[warmup])


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmark; prints and returns its table."""
  args = measure.parse_args(__doc__, argv)
  lines = [
    "| work | ours, steps/s | by hand | ratio, median | min to max |",
    "| --- | ---: | ---: | ---: | ---: |",
  ]
  for name, (spec, steps) in WORKS.items():
    # The rate is looked at every so many steps, and the loop traced then.
    warmup, num_steps = (100, 100) if args.quick else (3 * _LOG_EVERY, steps)
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, "store")
      write(path, spec)
      pairs = []
      for number in range(args.rounds):
        turns = [ours, by_hand][:: -1 if number % 2 else 1]
        rates = {turn: turn(path, spec, warmup, num_steps) for turn in turns}
        pairs.append((rates[ours], rates[by_hand]))
    ratios = [a / b for a, b in pairs]
    mine, other = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    lines.append(
      f"| {name} | {mine:,.0f} | {other:,.0f} | {statistics.median(ratios):.2f} | "
      f"{min(ratios):.2f} to {max(ratios):.2f} |"
    )
  text = "\n".join(lines)
  print(text, flush=True)
  return text


if __name__ == "__main__":
  main()
