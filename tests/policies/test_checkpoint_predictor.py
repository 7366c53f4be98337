"""Predicting with a model's code: checkpoints of a run, and random weights."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, models, policies, specs
from t2r_seq.policies.predictors import NoModelError
from t2r_seq.training.checkpoints import Checkpoints
from t2r_seq.training.trainer import Trainer

_SPEC = specs.ExtendedTensorSpec
_POS = np.arange(6, dtype=np.float32).reshape(2, 3)


class LineModel(models.RegressionModel):
  """One linear layer, of some size."""

  def __init__(self, num_units=2, **kwargs):
    super().__init__(create_optimizer_fn=lambda: tf.keras.optimizers.SGD(0.1), **kwargs)
    self._num_units = num_units

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      pos=_SPEC((3,), tf.float32, "pos", time_offsets=0),
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=_SPEC((self._num_units,), tf.float32))

  def create_network(self):
    return tf.keras.layers.Dense(self._num_units)

  def a_func(self, features, mode):
    return {"inference_output": self.network(features.pos)}


@pytest.fixture(name="run", scope="module")
def fixture_run(tmp_path_factory):
  """A folder with checkpoints of the steps 1 to 3, and the averaged model's answers."""
  folder = str(tmp_path_factory.mktemp("run"))
  trainer = Trainer(LineModel(use_avg_model_params=True), tf.distribute.get_strategy())
  checkpoints = Checkpoints(trainer, folder, keep_checkpoint_max=5)
  features = specs.TensorSpecStruct(pos=tf.constant(_POS))
  labels = specs.TensorSpecStruct(target=tf.ones([2, 2]))
  answers = {}
  for step in (1, 2, 3):
    trainer.train_step(features, labels)
    checkpoints.save()
    with trainer.model.averaged_weights():
      answers[step] = trainer.model.export_outputs(features)["inference_output"]
  return folder, answers


def _predictor(place, **kwargs):
  return policies.CheckpointPredictor(
    LineModel(use_avg_model_params=True), place, timeout=0, **kwargs
  )


def _copy(folder, target, steps):
  for name in os.listdir(folder):
    if any(name.startswith(f"model.ckpt-{step}.") for step in steps):
      shutil.copy(os.path.join(folder, name), target)


def test_newest_checkpoint_predicts_and_steps_with_averaged_weights(run):
  folder, answers = run
  predictor = _predictor(folder)
  assert (predictor.global_step, predictor.model_version) == (-1, -1)
  with pytest.raises(NoModelError, match="no model is loaded from"):
    predictor.predict({"pos": _POS})
  assert predictor.restore()
  assert (predictor.global_step, predictor.model_version) == (3, 3)
  assert predictor.model_path == os.path.join(folder, "model.ckpt-3")
  np.testing.assert_array_equal(
    predictor.predict({"pos": _POS})["inference_output"], answers[3]
  )
  predictor.reset(2)
  step = predictor.step({"pos": _POS})["inference_output"]
  np.testing.assert_allclose(step, answers[3], rtol=1e-6)
  assert predictor.get_label_specification()["target"].shape == (2,)


@pytest.mark.parametrize("is_async", [False, True])
def test_newer_checkpoint_is_used_after_restore(run, tmp_path, is_async):
  folder, answers = run
  _copy(folder, tmp_path, [1])
  predictor = _predictor(tmp_path)
  assert predictor.restore(is_async=is_async)
  predictor.assert_is_loaded()
  assert predictor.global_step == 1
  _copy(folder, tmp_path, [2])
  assert predictor.restore(is_async=is_async)
  if is_async:
    predictor._loading.result()
    # In the middle of an episode nothing changes.
    step = predictor.step({"pos": _POS[:1]})["inference_output"]
    np.testing.assert_allclose(step, answers[1][:1], rtol=1e-6)
  step = predictor.step({"pos": _POS[:1]}, is_first=True)["inference_output"]
  np.testing.assert_allclose(step, answers[2][:1], rtol=1e-6)
  assert predictor.global_step == 2


def test_one_checkpoint_can_be_named(run, caplog):
  folder, _ = run
  prefix = os.path.join(folder, "model.ckpt-2")
  predictor = _predictor(prefix)
  with caplog.at_level("INFO", "absl"):
    assert predictor.restore()
  assert f"The prefix {prefix} is searched for checkpoints." in caplog.text
  assert predictor.global_step == 2


def test_damaged_checkpoint_leaves_the_one_before_it(run, tmp_path):
  folder, _ = run
  _copy(folder, tmp_path, [1, 2])
  (tmp_path / "model.ckpt-2.index").write_bytes(b"no index")
  predictor = _predictor(tmp_path)
  assert not predictor.restore()
  assert predictor.global_step == 1


def test_random_weights_and_no_checkpoint(tmp_path):
  predictor = policies.CheckpointPredictor(LineModel())
  with pytest.raises(errors.SpecError, match="checkpoint_dir: expected a folder"):
    predictor.restore()
  predictor.init_randomly()
  assert predictor.global_step == 0
  assert predictor.predict({"pos": _POS})["inference_output"].shape == (2, 2)
  assert not _predictor(tmp_path).restore()


def test_checkpoint_of_another_model_is_named(run, caplog):
  predictor = policies.CheckpointPredictor(LineModel(4), run[0], timeout=0)
  assert not predictor.restore()
  assert "expected a checkpoint of LineModel, got one with" in caplog.text


def test_only_predictors_with_the_models_code_have_random_weights(tmp_path):
  predictor = policies.ExportedSavedModelPredictor(tmp_path, timeout=0)
  with pytest.raises(ValueError, match="init_randomly: expected a predictor that"):
    policies.RegressionPolicy(predictor).init_randomly()


class PastModel(LineModel):
  """Answers to where it was a step ago."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      pos=_SPEC((2, 3), tf.float32, "pos", time_offsets=(-1, 0))
    )

  def a_func(self, features, mode):
    return {"inference_output": self.network(features.pos[:, 0])}


def test_restore_copies_the_weights_of_a_model_in_memory():
  model = PastModel(use_avg_model_params=True, padding="repeat")
  trainer = Trainer(model, tf.distribute.get_strategy())
  predictor = policies.ModelPredictor(model)
  predictor.restore()
  features = specs.TensorSpecStruct(pos=tf.constant(_POS)[:, None] * [[1.0], [2.0]])
  first = predictor.predict(features)["inference_output"]
  for _ in range(3):
    trainer.train_step(features, specs.TensorSpecStruct(target=tf.ones([2, 2])))
  np.testing.assert_array_equal(predictor.predict(features)["inference_output"], first)
  predictor.restore()
  assert predictor.global_step == 3
  raw = model.export_outputs(features)["inference_output"]
  with model.averaged_weights():
    want = model.export_outputs(features)["inference_output"]
  got = predictor.predict(features)["inference_output"]
  np.testing.assert_allclose(got, want, rtol=1e-6)
  assert np.abs(got - raw).max() > 1e-4
  # It keeps the frames itself, as an export does.
  predictor.reset()
  seen = [_POS[:1] + t for t in range(3)]
  steps = [predictor.step({"pos": pos})["inference_output"] for pos in seen]
  windows = [[seen[0], seen[0]], [seen[0], seen[1]], [seen[1], seen[2]]]
  pos = tf.constant(np.array(windows)[:, :, 0])
  want = predictor.predict({"pos": pos})["inference_output"]
  np.testing.assert_allclose(np.concatenate(steps), want, rtol=1e-6, atol=1e-6)
