"""Sensors at their own rates: a store without resampling, a policy, verified, acts.

  python examples/sensors_at_other_rates.py

A recording of ROS 2 becomes such a store by
`t2r_seq convert log.mcap robot.store --layout layout.json --clocks own`.
"""

import argparse
import pathlib

import numpy as np
import tensorflow as tf

from t2r_seq import data, models, policies, specs, store, training, verification
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.specs import Seconds

# The arm has the steps, 100 a second. A camera and a force sensor have other clocks:
# (None, ...) is as many values as an episode's clock has stamps.
COLUMNS = {
  "arm": Spec((2,), tf.float32, "arm", is_sequence=True),
  "action": Spec((2,), tf.float32, "action", is_sequence=True),
  "timestamp": Spec((), tf.float64, "timestamp", is_sequence=True),
  "camera": Spec((None, 16, 16, 3), tf.uint8, "camera", data_format="png"),
  "clocks/camera": Spec((None,), tf.float64, "clocks/camera"),
  "force": Spec((None, 3), tf.float32, "force"),
  "clocks/force": Spec((None,), tf.float64, "clocks/force"),
}
CLOCKS = {
  path: f"clocks/{name}"
  for name in ("camera", "force")
  for path in (name, f"clocks/{name}")
}


def times(rng: np.random.Generator, rate: float, start: float, end: float):
  """Returns time stamps of a sensor, with jitter."""
  found = np.arange(start, end, 1 / rate)
  return np.sort(found + rng.normal(0, 0.1 / rate, len(found)))


def write_episodes(path: str) -> str:
  """Writes a store: the arm follows what the force was 0.1 s ago."""
  rng = np.random.default_rng(0)
  with store.EpisodeStore.create(path, COLUMNS, clocks=CLOCKS) as writer:
    for number in range(4):
      steps = times(rng, 100, 10.0 * number, 10.0 * number + 1)
      camera = times(rng, 30, steps[0] - 0.2, steps[-1])
      force = times(rng, 60, steps[0] - 0.2, steps[-1])
      pushed = np.stack([np.sin(3 * force), np.cos(2 * force), force % 1], 1)
      past = np.searchsorted(force, steps - 0.1, "right") - 1
      writer.append_episode(
        {
          "arm": rng.random((len(steps), 2), np.float32),
          "action": pushed[past, :2].astype(np.float32),
          "timestamp": steps,
          "camera": rng.integers(0, 255, (len(camera), 16, 16, 3)).astype(np.uint8),
          "clocks/camera": camera,
          "force": pushed.astype(np.float32),
          "clocks/force": force,
        }
      )
  return path


class Follow(models.RegressionModel):
  """Looks at two images and four forces by time, and the arm by steps."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      camera=Spec((2, 16, 16, 3), tf.uint8, "camera", time_offsets=Seconds(-0.1, 0.0)),
      force=Spec(
        (4, 3), tf.float32, "force", time_offsets=Seconds(-0.15, -0.1, -0.05, 0.0)
      ),
      arm=Spec((2, 2), tf.float32, "arm", time_offsets=(-1, 0)),
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(
      target=Spec((2,), tf.float32, "action", time_offsets=0)
    )

  def create_network(self):
    return tf.keras.layers.Dense(2)

  def a_func(self, features, mode):
    image = tf.reduce_mean(tf.cast(features.camera, tf.float32) / 255.0, [2, 3])
    parts = [image, features.force, features.arm]
    flat = [tf.reshape(part, [-1, part.shape[1] * part.shape[2]]) for part in parts]
    return {"inference_output": self.network(tf.concat(flat, -1))}


def main(argv: list[str] | None = None) -> np.ndarray:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--folder", default="sensors_run")
  parser.add_argument("--steps", type=int, default=300)
  args = parser.parse_args(argv)
  folder = pathlib.Path(args.folder)
  folder.mkdir(parents=True, exist_ok=True)
  dataset = write_episodes(str(folder / "robot.store"))

  # 1. Train. Windows are cut at the arm's steps, with what each sensor had by then.
  model, run = Follow(), str(folder / "run")
  training.train_eval_model(
    t2r_model=model,
    input_generator_train=data.StoreInputGenerator(dataset, 32, seed=1),
    model_dir=run,
    max_train_steps=args.steps,
    create_exporters_fn=training.create_default_exporters,
    input_generator_eval=data.StoreInputGenerator(dataset, 32),
    eval_steps=1,
  )

  # 2. Verify: the export sees what training saw, bit for bit; also as a robot at 40 Hz
  # gets the values, some late or lost.
  predictor = policies.ExportedSavedModelPredictor(f"{run}/export/latest")
  predictor.restore()
  for replay in (None, verification.Replay(rate=40, drop=0.05, delay=0.02)):
    report = verification.verify(
      predictor, dataset, model, num_episodes=1, replay=replay
    )
    print(report)
    assert report.is_identical

  # 3. Run. A step gets what each sensor has measured since the step before, and when:
  # here two forces, and an image every other step.
  policy = policies.RegressionPolicy(predictor)
  policy.reset()
  rng = np.random.default_rng(1)
  for step in range(5):
    now = 100 + step / 100
    images = np.full(1 - step % 2, now - 0.02)
    observation = {
      "arm": rng.random(2, np.float32),
      "camera": rng.integers(0, 255, (len(images), 16, 16, 3)).astype(np.uint8),
      "force": rng.random((2, 3), np.float32),
      "timestamp": now,
      "stamps": {"camera": images, "force": now - np.array([0.009, 0.004])},
    }
    action, _ = policy.sample_action(observation)
  print(f"action: {np.round(action, 3)}")
  return action


if __name__ == "__main__":
  main()
