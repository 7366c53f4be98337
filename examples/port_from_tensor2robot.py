"""A Tensor2Robot model and its gin file, on current TensorFlow.

  python examples/port_from_tensor2robot.py --steps 300

Comments name what was different there. docs/tensor2robot.md has every name.
"""

import argparse
import pathlib

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import models, preprocessors, records, specs, training

# `from tensor2robot.utils import tensorspec_utils`: the same functions are in
# `t2r_seq.tensorspec_utils`, and by shorter names in `t2r_seq.specs`.
TSPEC = specs.ExtendedTensorSpec


@gin.configurable
class PoseModel(models.RegressionModel):  # was regression_model.RegressionModel
  """Predicts a pose from an image, as Tensor2Robot's PoseEnvRegressionModel."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      state=TSPEC((32, 32, 3), tf.float32, name="state/image", data_format="jpeg")
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(
      target=TSPEC((2,), tf.float32, name="target_pose"),
      reward=TSPEC((1,), tf.float32, name="reward"),
    )

  @property
  def default_preprocessor_cls(self):
    return preprocessors.ImageToFloatPreprocessor  # uint8 in files, float32 here

  def create_network(self):
    # Was `with tf.variable_scope('a_func')` and slim: layers are built once, and own
    # their variables; `reuse` is calling them again.
    return tf.keras.Sequential(
      [
        tf.keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
        tf.keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(self.action_size),
      ]
    )

  # `config` and `params` are gone; the scope, too.
  def a_func(self, features, mode):
    return {"inference_output": self.network(features.state)}

  # As there, with the reward as a weight.
  def loss_fn(self, labels, inference_outputs, mode):
    error = tf.square(labels.target - inference_outputs["inference_output"])
    weight = tf.nn.softmax(labels.reward, axis=0) * tf.cast(len(error), tf.float32)
    return tf.reduce_mean(weight * error)


# Its gin file, unchanged but for the model's name and `RunConfig`, which was
# `tf.estimator.RunConfig`.
CONFIG = """
train_eval_model.t2r_model = @PoseModel()
PoseModel.action_size = 2
train_eval_model.input_generator_train = @train/DefaultRecordInputGenerator()
train_eval_model.input_generator_eval = @eval/DefaultRecordInputGenerator()
train/DefaultRecordInputGenerator.batch_size = 16
eval/DefaultRecordInputGenerator.batch_size = 16
train_eval_model.create_exporters_fn = @create_default_exporters
RunConfig.save_checkpoints_steps = 100
"""


def write_records(path: str, seed: int, count: int) -> str:
  """Writes tf.train.Examples: a bright square, and where it is."""
  rng = np.random.default_rng(seed)
  model = PoseModel(action_size=2)
  examples = []
  for _ in range(count):
    place = rng.integers(0, 24, 2)
    image = np.zeros((32, 32, 3), np.uint8)
    image[place[0] : place[0] + 8, place[1] : place[1] + 8] = 255
    target = (place / 24).astype(np.float32)
    examples.append(
      {"state": image, "target": target, "reward": np.ones(1, np.float32)}
    )
  feature = model.preprocessor.get_in_feature_specification("train")
  label = model.preprocessor.get_in_label_specification("train")
  records.write_records(path, specs.TensorSpecStruct({**feature, **label}), examples)
  return path


def main(argv: list[str] | None = None) -> dict[str, float]:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--folder", default="port_run")
  parser.add_argument("--steps", type=int, default=300)
  args = parser.parse_args(argv)
  folder = pathlib.Path(args.folder)
  folder.mkdir(parents=True, exist_ok=True)
  gin.parse_config(CONFIG)
  gin.parse_config(
    [
      f"train/DefaultRecordInputGenerator.file_patterns = "
      f"'{write_records(str(folder / 'train.tfrecord'), 0, 256)}'",
      f"eval/DefaultRecordInputGenerator.file_patterns = "
      f"'{write_records(str(folder / 'eval.tfrecord'), 1, 64)}'",
      f"train_eval_model.model_dir = '{folder / 'run'}'",
      f"train_eval_model.max_train_steps = {args.steps}",
    ]
  )
  result = training.train_eval_model()  # was `run_t2r_trainer`: `t2r_seq train`
  print({name: round(value, 4) for name, value in result.items()})
  gin.clear_config()
  return result


if __name__ == "__main__":
  main()
