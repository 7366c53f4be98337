"""Callbacks: when they are told what, and those that come with the library."""

from __future__ import annotations

import glob
import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, hooks, models, specs, training
from t2r_seq.hooks.callbacks import TargetNetworkUpdate

Spec = specs.ExtendedTensorSpec


class Line(models.RegressionModel):
  def __init__(self, rate=0.1):
    super().__init__(
      action_size=1, create_optimizer_fn=lambda: tf.keras.optimizers.SGD(rate)
    )

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(x=Spec((1,), tf.float32, "x"))

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=Spec((1,), tf.float32, "y"))

  def create_network(self):
    target = tf.keras.layers.Dense(1)
    target.trainable = False
    return {"q": tf.keras.layers.Dense(1), "target": target}

  def a_func(self, features, mode):
    self.network["target"](features.x)
    return {"inference_output": self.network["q"](features.x)}


def examples():
  for x in np.linspace(-1, 1, 8, dtype=np.float32):
    yield {"x": np.array([x])}, {"target": np.array([3 * x + 1], np.float32)}


def train(folder, callbacks, steps=4, rate=0.1, config=None, **kwargs):
  model = Line(rate)
  kwargs = {"create_exporters_fn": None, **kwargs}
  fields = {"save_checkpoints_steps": 2, "log_every_n_steps": 2, "seed": 0}
  result = training.train_eval_model(
    model,
    data.GeneratorInputGenerator(examples, batch_size=4),
    data.GeneratorInputGenerator(examples, batch_size=4),
    max_train_steps=steps,
    model_dir=str(folder),
    eval_throttle_secs=0,
    run_config=training.RunConfig(**{**fields, **(config or {})}),
    callbacks=callbacks,
    **kwargs,
  )
  return model, result


class Recorder(training.Callback):
  """Writes down what it is told."""

  def __init__(self):
    self.events = []


def _recording(name):
  def record(self, run, *arguments):
    shown = [a for a in arguments if isinstance(a, str) and "/" not in a]
    self.events.append(" ".join([name, str(run.step), *shown]))
    if name in ("after_step", "after_log", "after_evaluation"):
      assert "loss" in arguments[0]
    if name == "after_checkpoint":
      assert os.path.exists(f"{arguments[0]}.index")
    if name == "after_export":
      assert os.path.isdir(arguments[1])
    if name in ("after_export", "on_end"):
      run.write_scalars({name: run.step})
    assert run.is_chief and isinstance(run.model, Line)

  return record


for _name, _method in vars(training.Callback).items():
  if callable(_method) and not _name.startswith("_"):
    setattr(Recorder, _name, _recording(_name))


@pytest.fixture(name="everything", scope="module")
def fixture_everything(tmp_path_factory):
  """One run with all callbacks that only look on."""
  folder = tmp_path_factory.mktemp("everything")
  sunk = []
  recorder = Recorder()
  model, _ = train(
    folder,
    [
      recorder,
      hooks.ScalarSink(lambda scalars, step: sunk.append((step, scalars))),
      hooks.GoldenValues(num_steps=3),
      hooks.VariableNorms(every_n_steps=2, include=("q/*",)),
      TargetNetworkUpdate({"target": "q"}, rate=1.0, every_n_steps=3),
      hooks.TD3Hooks(str(folder / "new"), str(folder / "lagged"), [1, 64], save_secs=0),
    ],
    create_exporters_fn=lambda: [training.LatestExporter()],
  )
  return folder, model, recorder.events, sunk


def test_events_come_in_order(everything):
  step = ["before_step {0}", "after_step {1}"]
  save = ["before_checkpoint {1}", "after_checkpoint {1}"]
  assess = [
    *("before_evaluation {1}", "after_evaluation {1}"),
    *("before_export {1} latest", "after_export {1} latest"),
  ]
  parts = [(step, 1), ([*step, "after_log {1}", *save, *assess], 2)]
  parts += [(step, 3), ([*step, "after_log {1}", *save, *assess], 4)]
  want = [e.format(n - 1, n) for events, n in parts for e in events]
  assert everything[2] == ["on_begin 0", *want, "on_end 4"]


def test_sink_gets_all_scalars(everything):
  *_, sunk = everything
  assert [step for step, _ in sunk] == [2, 2, 4, 4]
  assert {"loss", "learning_rate", "gradient_norm"} <= set(sunk[0][1])
  assert set(sunk[1][1]) == {"eval/loss"}
  assert all(isinstance(v, float) for _, scalars in sunk for v in scalars.values())


def test_golden_values_are_of_the_first_steps(everything):
  folder, *_ = everything
  values = json.loads((folder / "golden_values.json").read_text())
  assert len(values) == 3 and values[2]["loss"] < values[0]["loss"]


def test_norms_are_written(everything):
  folder, model, *_ = everything
  found = {}
  for path in glob.glob(str(folder / "events.*")):
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
      event = tf.compat.v1.Event.FromString(record)
      for value in event.summary.value:
        if value.tag.startswith("norm/"):
          found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
  assert {tag for tag, _ in found} == {"norm/q/kernel", "norm/q/bias"}
  kernel = model.named_variables["q/kernel"].numpy()
  np.testing.assert_allclose(found["norm/q/kernel", 4], np.abs(kernel), rtol=1e-6)


def test_events_after_the_last_step_are_written(everything, read_events):
  events = read_events(everything[0])
  assert events["after_export"][0] == events["on_end"][0] == 4


def test_td3_exports_lag_by_one(everything):
  folder, *_ = everything
  new, lagged = [sorted(os.listdir(folder / name)) for name in ("new", "lagged")]
  assert len(new) == 2 and lagged == new[:1]
  requests = folder / "new" / new[0] / "assets.extra" / "tf_serving_warmup_requests"
  assert len([*tf.data.TFRecordDataset(str(requests))]) == 2 * 2


def test_hard_update_copies_at_its_steps(everything, tmp_path):
  copies = []

  class Look(training.Callback):
    def after_step(self, run, scalars):
      names = run.model.named_variables
      copies.append(np.array_equal(names["target/kernel"], names["q/kernel"]))

  update = TargetNetworkUpdate({"target": "q"}, every_n_steps=2)
  train(tmp_path, [update, Look()])
  assert copies == [False, True, False, True]


def test_soft_update_goes_a_part_of_the_way(tmp_path):
  seen = []

  class Look(training.Callback):
    def after_step(self, run, scalars):
      names = run.model.named_variables
      seen.append([float(names[f"{n}/bias"][0]) for n in ("q", "target")])

  update = TargetNetworkUpdate({"target": "q"}, rate=0.25, every_n_steps=1)
  train(tmp_path, [update, Look()], steps=3)
  target = 0.0  # As the bias is at first; a run begins with copies.
  for q, got in seen:
    target += 0.25 * (q - target)
    assert got == pytest.approx(target, abs=1e-6)


def test_early_stopping_ends_a_run_that_gets_no_better(tmp_path):
  stopping = hooks.EarlyStopping(patience=2)
  _, result = train(tmp_path / "still", [stopping], steps=40, rate=0.0)
  assert result["global_step"] == 6 and not result["was_stopped"]
  assert (tmp_path / "still" / "model.ckpt-6.index").exists()
  _, result = train(tmp_path / "moving", [stopping], steps=8)
  assert result["global_step"] == 8


def test_run_that_is_stopped_is_saved(tmp_path):
  class Stop(training.Callback):
    def after_step(self, run, scalars):
      if run.step == 3:
        run.stop()

  _, result = train(tmp_path, [Stop()])
  assert result["global_step"] == 3 and (tmp_path / "model.ckpt-3.index").exists()


ERRORS = {
  "a class": (
    [hooks.EarlyStopping],
    "train_eval_model: callbacks: expected training.Callbacks, got <class",
  ),
  "no such metric": (
    [hooks.EarlyStopping("los")],
    "EarlyStopping: metric: expected one of [loss], got 'los'. Did you mean 'loss'?",
  ),
  "no such network": (
    [TargetNetworkUpdate({"targets": "q"})],
    "TargetNetworkUpdate: targets: expected parts of create_network's dict, [q, "
    "target], got 'targets'. Did you mean 'target'?",
  ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_callbacks_reject_wrong_options(name, tmp_path):
  callbacks, want = ERRORS[name]
  with pytest.raises(errors.SpecError, match=re.escape(want)):
    train(tmp_path, callbacks)
  with pytest.raises(errors.SpecError, match="expected an integer of at least 1"):
    hooks.VariableNorms(every_n_steps=0)
