"""`explain`: a pipeline's stages, shapes, bytes and time, and what to change."""

import time

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, specs, store
from t2r_seq.cli import main

Spec = specs.ExtendedTensorSpec
WINDOW = {
  "image": Spec((2, 8, 8, 3), tf.uint8, "image", time_offsets=(-1, 0)),
  "action": Spec((2,), tf.float32, "action", time_offsets=0),
}


@pytest.fixture
def path(tmp_path):
  stored = {
    "image": Spec((8, 8, 3), tf.uint8, "image", is_sequence=True),
    "action": Spec((2,), tf.float32, "action", is_sequence=True),
  }
  with store.EpisodeStore.create(tmp_path / "s", stored) as writer:
    for _ in range(3):
      writer.append_episode(
        {"image": np.zeros((9, 8, 8, 3), np.uint8), "action": np.zeros((9, 2), "f4")}
      )
  return str(tmp_path / "s")


def generator_of(path, **options):
  generator = data.StoreInputGenerator(path, batch_size=4, seed=0, **options)
  generator.set_feature_specifications({"image": WINDOW["image"]})
  generator.set_label_specifications({"action": WINDOW["action"]})
  generator.set_padding("repeat")
  return generator


def test_explains_windows(path):
  found = generator_of(path).explain(num_batches=3)
  assert found.batch_bytes == 4 * (2 * 8 * 8 * 3 + 2 * 4)
  assert found.inputs == {
    "features/image": "'image' at (-1, 0) -> uint8 [4, 2, 8, 8, 3]",
    "labels/action": "'action' at 0 -> float32 [4, 2]",
  }
  assert [stage.name for stage in found.stages] == ["read and cut"]
  assert all(stage.seconds > 0 for stage in found.stages)
  text = str(found)
  assert "27 windows of 3 episodes" in text and "batches of 4" in text
  assert "windows: padding repeat" in text and "is reading" in text


def test_names_a_slow_preprocessor(path):
  generator = generator_of(path)

  def slow(features, labels):
    def spin(image):
      end = time.process_time() + 0.02
      while time.process_time() < end:
        pass
      return image

    image = tf.numpy_function(spin, [features["image"]], tf.uint8)
    image.set_shape(features["image"].shape)
    return specs.TensorSpecStruct(image=image, extra=image[..., :1]), labels

  generator.set_preprocess_fn(slow)
  found = generator.explain(num_batches=5)
  assert found.stages[1].cpu_seconds > 3 * found.stages[0].cpu_seconds
  assert "is the preprocessor" in found.advice
  assert found.inputs["features/extra"].startswith("made by the pipeline -> uint8")


def test_names_encoded_images(tmp_path):
  jpeg = Spec((8, 8, 3), tf.uint8, "image", data_format="jpeg", is_sequence=True)
  with store.EpisodeStore.create(tmp_path / "s", {"image": jpeg}) as writer:
    writer.append_episode({"image": np.zeros((9, 8, 8, 3), np.uint8)})
  generator = data.StoreInputGenerator(str(tmp_path / "s"), batch_size=2, seed=0)
  stack = Spec((2, 8, 8, 3), tf.uint8, "image", data_format="jpeg", time_offsets=(0, 1))
  generator.set_feature_specifications({"image": stack})
  generator.set_label_specifications({})
  found = generator.explain(num_batches=2)
  assert "decoding features/image" in found.advice
  assert "'image' jpeg at (0, 1)" in found.inputs["features/image"]


BAD = {
  "no batches": (
    lambda g: g.explain(num_batches=0),
    "num_batches: expected an integer of at least 1",
  ),
  "no specs": (
    lambda g: data.StoreInputGenerator("gone").explain(),
    "feature specs: expected a spec structure",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name, path):
  call, match = BAD[name]
  with pytest.raises(errors.SpecError, match=match):
    call(generator_of(path))


def test_empty_dataset(path):
  generator = generator_of(path)
  generator.set_padding("drop")
  wide = Spec((20, 2), tf.float32, "action", time_offsets=tuple(range(20)))
  generator.set_label_specifications({"action": wide})
  with pytest.raises(errors.SpecError):
    generator.explain("eval")


def test_command(path, tmp_path, capsys, monkeypatch):
  (tmp_path / "explained.py").write_text(
    "from t2r_seq import models, specs\n"
    "import gin, tensorflow as tf\n"
    "@gin.configurable\n"
    "class ExplainedModel(models.RegressionModel):\n"
    "  def get_feature_specification(self, mode):\n"
    "    return specs.TensorSpecStruct(image=specs.ExtendedTensorSpec(\n"
    "      (2, 8, 8, 3), tf.uint8, 'image', time_offsets=(-1, 0)))\n"
    "  def get_label_specification(self, mode):\n"
    "    return specs.TensorSpecStruct(target=specs.ExtendedTensorSpec(\n"
    "      (2,), tf.float32, 'action', time_offsets=0))\n"
    "  def create_network(self):\n"
    "    return tf.keras.layers.Dense(2)\n"
    "  def a_func(self, features, mode):\n"
    "    raise NotImplementedError\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / "train.gin").write_text(
    "import explained\n"
    "train_eval_model.t2r_model = @ExplainedModel()\n"
    "train_eval_model.input_generator_train = @StoreInputGenerator()\n"
    f"StoreInputGenerator.store_path = '{path}'\n"
    "StoreInputGenerator.batch_size = 4\n"
  )
  config = str(tmp_path / "train.gin")
  assert main(["inspect", "--gin_configs", config]) == 0
  out = capsys.readouterr().out
  assert "'image' at (-1, 0) -> uint8 [4, 2, 8, 8, 3]" in out and "ms/batch" in out
  assert main(["inspect", path, "--gin_configs", config]) != 0
  assert "expected FILES or --gin_configs, got both" in capsys.readouterr().err
  assert main(["inspect"]) != 0
  assert "expected FILES, or --gin_configs" in capsys.readouterr().err
