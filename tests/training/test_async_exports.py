"""Exports beside the training: of the right weights, in order, and not lost."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import specs, training


class Slow(training.LatestExporter):
  """Its first export waits until the training is at its end."""

  def __init__(self):
    super().__init__("slow")
    self.release = threading.Event()

  def export(self, *args, **kwargs):
    assert self.release.wait(600)
    return super().export(*args, **kwargs)


class Release(training.Callback):
  """Lets the exporter go at the last evaluation, and keeps what it is told."""

  def __init__(self, slow):
    self.slow, self.exported = slow, []

  def after_evaluation(self, run, metrics):
    if run.step == 30:
      self.slow.release.set()

  def after_export(self, run, name, path):
    assert threading.current_thread() is threading.main_thread()
    self.exported.append((name, path))


class Broken(training.LatestExporter):
  def export(self, *args, **kwargs):
    raise OSError("no space left")


def test_training_does_not_wait_for_exports(reach, record_path, tmp_path):
  class Model(reach.ReachModel):
    def model_eval_fn(self, *args):
      step = tf.cast(self.global_step, tf.float32)
      return {**super().model_eval_fn(*args), "step": step}

  slow, model = Slow(), Model()
  release = Release(slow)
  exporters = [
    slow,
    training.BestExporter("best", metric="step", larger_is_better=True),
    training.BestExporter("worst", metric="step"),
  ]
  reach.train(
    *(str(tmp_path), record_path, 30),
    t2r_model=model,
    create_exporters_fn=lambda: exporters,
    eval_throttle_secs=0.0,
    callbacks=[release],
    async_exports=True,
  )
  steps = {}
  for name, path in release.exported:
    assets = specs.load_t2r_assets_to_file(f"{path}/assets.extra/t2r_assets.pbtxt")
    steps.setdefault(name, []).append(assets.global_step)
  # Of those that waited the newest was made, and each export of a kind in its order.
  assert steps == {"slow": [10, 30], "best": [30], "worst": [10]}
  # It has the weights of its step, which were trained on meanwhile.
  in_spec = model.preprocessor.get_in_feature_specification("infer")
  asked = specs.make_random_numpy(in_spec, batch_size=2, seed=0)
  reader = tf.train.load_checkpoint(str(tmp_path / "model.ckpt-10"))
  names = model.named_variables
  value = "/.ATTRIBUTES/VARIABLE_VALUE"
  weights = {name: reader.get_tensor(f"model/{name}{value}") for name in names}
  model.take_weights(weights, 10)
  tensors = {path: tf.constant(leaf) for path, leaf in asked.items()}
  want = model.export_outputs(tensors)["inference_output"]
  path = next(path for name, path in release.exported if name == "slow")
  function = tf.saved_model.load(path).signatures["serving_default"]
  got = function(**{specs.signature_key(k): t for k, t in tensors.items()})
  np.testing.assert_allclose(got["inference_output"], want, rtol=1e-5)

  with training.AsyncExports(model) as exports:
    exports.submit([Broken()], str(tmp_path), 30, {})
    with pytest.raises(OSError, match="no space left"):
      exports.join()
