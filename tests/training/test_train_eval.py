"""Training runs, for real: on record files, killed, resumed, distributed."""

from __future__ import annotations

import logging
import os
import pathlib
import signal
import subprocess
import sys
import time

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, models, specs, training, windows
from t2r_seq.training import arguments

_SCRIPT = str(pathlib.Path(__file__).with_name("reach_model.py"))
_ROOT = str(pathlib.Path(__file__).parents[2])


def _weights(model_dir) -> dict[str, np.ndarray]:
  latest = tf.train.latest_checkpoint(str(model_dir))
  reader = tf.train.load_checkpoint(latest)
  names = [n for n in reader.get_variable_to_shape_map() if n.startswith("model/")]
  return {name: reader.get_tensor(name) for name in names}


def test_a_run_leaves_checkpoints_events_config_and_exports(trained_dir):
  names = {path.name.split(".")[0] for path in trained_dir.iterdir()}
  assert {"checkpoint", "model", "events", "eval", "export"} <= names
  assert (trained_dir / "operative_config-30.gin").exists()
  assert tf.train.latest_checkpoint(str(trained_dir)).endswith("model.ckpt-30")
  assert len(training.export_versions(str(trained_dir / "export" / "latest"))) == 1


def test_the_event_file_shows_scalars_config_and_what_the_model_sees(
  trained_dir, read_events
):
  events = read_events(trained_dir)
  scalars = {"loss", "regularization_loss", "gradient_norm", "learning_rate"}
  scalars |= {"steps_per_second", "input_wait"}
  assert scalars | {"operative_config", "seen/state/image"} == events.keys()
  assert read_events(trained_dir / "eval").keys() == {"loss"}


def test_the_operative_config_holds_what_was_bound(reach, record_path, tmp_path):
  gin.parse_config("train_eval_model.eval_steps = 1")
  reach.train(str(tmp_path), record_path, 2, create_exporters_fn=list)
  text = (tmp_path / "operative_config-2.gin").read_text()
  assert "train_eval_model.eval_steps = 1" in text


@pytest.mark.parametrize(("throttle_secs", "want"), [(0, [10, 20, 25]), (3600, [25])])
def test_evaluations_follow_checkpoints_unless_throttled(
  throttle_secs, want, reach, record_path, tmp_path, caplog
):
  with caplog.at_level(logging.INFO, logger="absl"):
    reach.train(
      str(tmp_path),
      record_path,
      25,
      eval_throttle_secs=throttle_secs,
      create_exporters_fn=list,
    )
  lines = [m for m in caplog.messages if m.startswith("eval at step")]
  assert [int(line.split()[3].rstrip(":")) for line in lines] == want


def test_eval_steps_bound_the_evaluation(reach, record_path, tmp_path):
  batches = []

  class Counting(reach.ReachModel):
    def model_eval_fn(self, features, labels, inference_outputs, mode):
      tf.py_function(lambda: batches.append(1), [], [])
      return super().model_eval_fn(features, labels, inference_outputs, mode)

  for eval_steps, want in ((1, 1), (None, 3)):
    batches.clear()
    reach.train(
      str(tmp_path / str(eval_steps)),
      record_path,
      1,
      t2r_model=Counting(),
      eval_steps=eval_steps,
      create_exporters_fn=list,
    )
    assert len(batches) == want


def test_episodes_too_short_to_train_on_are_reported(
  reach, record_path, tmp_path, caplog
):
  model = reach.ReachModel(padding="drop")
  with caplog.at_level(logging.INFO, logger="absl"):
    reach.train(
      str(tmp_path), record_path, 1, t2r_model=model, create_exporters_fn=list
    )
  assert "Training input so far" in caplog.text
  want = "1 episodes too short for a window, the longest of them with 1 steps"
  assert f"Eval input: 13 windows from 4 episodes (20 steps); {want}" in caplog.text


def test_training_lowers_the_loss_and_reports_it(reach, record_path, tmp_path, caplog):
  with caplog.at_level(logging.INFO, logger="absl"):
    before = reach.train(str(tmp_path), record_path, 1, create_exporters_fn=list)
    after = reach.train(str(tmp_path), record_path, 60, create_exporters_fn=list)
  assert after["loss"] < 0.5 * before["loss"]
  assert after["global_step"] == 60
  assert "steps/s, waiting for input" in caplog.text
  assert "Resumed from checkpoint" in caplog.text and "at step 1." in caplog.text


def test_the_same_seed_trains_the_same_weights(reach, record_path, tmp_path):
  for name in ("a", "b"):
    reach.train(str(tmp_path / name), record_path, 5, create_exporters_fn=list)
  a, b = _weights(tmp_path / "a"), _weights(tmp_path / "b")
  assert a.keys() == b.keys() and a
  for name in a:
    np.testing.assert_array_equal(a[name], b[name])


def test_only_the_newest_checkpoints_are_kept(reach, record_path, tmp_path):
  reach.train(
    str(tmp_path), record_path, 40, keep_checkpoint_max=2, create_exporters_fn=list
  )
  kept = sorted(path.name for path in tmp_path.glob("*.index"))
  assert kept == ["model.ckpt-30.index", "model.ckpt-40.index"]


def test_a_killed_run_resumes_at_its_last_checkpoint(
  reach, record_path, tmp_path, caplog
):
  model_dir = tmp_path / "killed"
  command = [sys.executable, _SCRIPT, str(model_dir), record_path, "1000000"]
  env = {**os.environ, "PYTHONPATH": _ROOT}
  process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
  try:
    deadline = time.monotonic() + 120
    while tf.train.latest_checkpoint(str(model_dir)) is None:
      assert process.poll() is None, "the run ended before its first checkpoint"
      assert time.monotonic() < deadline, "no checkpoint within two minutes"
      os.sched_yield()
  finally:
    process.send_signal(signal.SIGKILL)
    process.wait()
  step = int(tf.train.latest_checkpoint(str(model_dir)).rsplit("-", 1)[1])
  with caplog.at_level(logging.INFO, logger="absl"):
    result = reach.train(
      str(model_dir), record_path, step + 3, create_exporters_fn=list
    )
  assert f"at step {step}." in caplog.text
  assert result["global_step"] == step + 3


def _nan_after(reach, num_good: int):
  def generator():
    for index in range(1000):
      features = specs.TensorSpecStruct(
        {
          "state/image": np.zeros((3, 8, 8, 3), np.uint8),
          "state/velocity": np.ones(2, np.float32),
          "task": np.ones(1, np.float32),
        }
      )
      bad = index >= num_good
      target = np.full(2, np.nan if bad else 1.0, np.float32)
      yield features, specs.TensorSpecStruct(target=target)

  return data.GeneratorInputGenerator(generator, batch_size=1)


def test_a_nan_loss_stops_and_keeps_the_last_good_checkpoint(reach, tmp_path):
  with pytest.raises(
    training.NanLossError,
    match=r"step 15: expected a finite loss .*last good checkpoint: .*model.ckpt-10",
  ):
    training.train_eval_model(
      reach.ReachModel(),
      _nan_after(reach, 14),
      max_train_steps=100,
      model_dir=str(tmp_path),
      save_checkpoints_steps=10,
      log_every_n_steps=10,
    )
  assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-10")
  assert all(np.isfinite(value).all() for value in _weights(tmp_path).values())


def test_a_checkpoint_of_another_model_is_refused(reach, record_path, trained_dir):
  class Other(reach.ReachModel):
    def create_network(self):
      return {**super().create_network(), "more": tf.keras.layers.Dense(3)}

    def a_func(self, features, mode):
      outputs = super().a_func(features, mode)
      self.network["more"](outputs["normed"])
      return outputs

  with pytest.raises(errors.SpecError, match="expected a checkpoint of this model"):
    reach.train(str(trained_dir), record_path, 40, t2r_model=Other())


def test_labels_that_the_record_lacks_are_named(reach, record_path, tmp_path):
  class Demanding(reach.ReachModel):
    def get_label_specification(self, mode):
      return specs.TensorSpecStruct(
        super().get_label_specification(mode),
        targets=specs.ExtendedTensorSpec((2,), tf.float32, "targets", time_offsets=0),
      )

  with pytest.raises(errors.RecordError, match=r"targets.*Did you mean 'target'"):
    reach.train(str(tmp_path), record_path, 1, t2r_model=Demanding())


def test_labels_that_the_model_lacks_are_named(reach, record_path, tmp_path):
  class Misspelt(reach.ReachModel):
    def loss_fn(self, labels, inference_outputs, mode):
      return tf.reduce_mean(labels.traget)

  with pytest.raises(AttributeError, match=r"traget.*Did you mean 'target'"):
    reach.train(str(tmp_path), record_path, 1, t2r_model=Misspelt())


def test_a_loss_that_trains_nothing_is_refused(reach, record_path, tmp_path):
  class Detached(reach.ReachModel):
    def create_network(self):
      return {
        "norm": tf.keras.layers.BatchNormalization(center=False, scale=False),
        "out": tf.keras.layers.Dense(2),
      }

    def loss_fn(self, labels, inference_outputs, mode):
      return tf.reduce_mean(labels.target)

  with pytest.raises(errors.SpecError, match="reaches none of 2"):
    reach.train(str(tmp_path), record_path, 1, t2r_model=Detached())


_BAD_ARGUMENTS = {
  "no generator": ({}, "input_generator_train and input_generator_eval: .*neither"),
  "steps as text": ({"max_train_steps": "30"}, "max_train_steps: .*got '30'"),
  "a checkpoint every 0 steps": (
    {"save_checkpoints_steps": 0, "log_every_n_steps": 0},
    r"(?s)log_every_n_steps: .*got 0.*save_checkpoints_steps: .*got 0",
  ),
  "no eval step": ({"eval_steps": 0}, "eval_steps: expected an integer of at least 1"),
  "a model's class": (
    {"t2r_model": models.RegressionModel},
    r"t2r_model: expected a T2RModel, got the class .*@RegressionModel\(\) in gin",
  ),
  "a generator's class": (
    {"input_generator_train": data.DefaultRandomInputGenerator},
    r"input_generator_train: .*@DefaultRandomInputGenerator\(\) in gin",
  ),
}


@pytest.mark.parametrize("case", _BAD_ARGUMENTS)
def test_wrong_arguments_are_named_before_anything_is_built(case, reach, tmp_path):
  arguments, message = _BAD_ARGUMENTS[case]
  given = {"t2r_model": reach.ReachModel(), "model_dir": str(tmp_path / "new")}
  with pytest.raises(errors.SpecError, match=message):
    training.train_eval_model(**{**given, **arguments})
  assert not (tmp_path / "new").exists()


def test_a_file_is_no_model_dir(reach, record_path):
  with pytest.raises(errors.SpecError, match="model_dir: expected a folder, got the f"):
    reach.train(record_path, record_path, 1)


def test_an_evaluation_needs_a_checkpoint(reach, record_path, tmp_path):
  generator = data.DefaultRecordInputGenerator(record_path)
  with pytest.raises(errors.SpecError, match="expected a checkpoint to evaluate"):
    training.train_eval_model(
      reach.ReachModel(), input_generator_eval=generator, model_dir=str(tmp_path)
    )


def test_a_run_without_training_evaluates_the_newest_checkpoint(
  reach, record_path, trained_dir
):
  result = training.train_eval_model(
    reach.ReachModel(),
    input_generator_eval=data.DefaultRecordInputGenerator(record_path),
    model_dir=str(trained_dir),
    create_exporters_fn=list,
  )
  assert result["global_step"] == 30


def test_layers_beside_the_network_are_found(reach, record_path, tmp_path):
  class Forgetful(reach.ReachModel):
    def create_network(self):
      self.extra = tf.keras.layers.Dense(2, name="extra")
      return super().create_network()

    def a_func(self, features, mode):
      outputs = super().a_func(features, mode)
      more = self.extra(features.state.velocity)
      return {"inference_output": outputs["inference_output"] + more}

  with pytest.raises(
    errors.SpecError, match=r"Forgetful: the network: .*got \[.*in use beside it"
  ):
    reach.train(
      str(tmp_path), record_path, 1, t2r_model=Forgetful(), create_exporters_fn=list
    )


def test_what_cannot_act_is_refused_before_training(reach, record_path, tmp_path):
  class Peeking(reach.ReachModel):
    def inference_network_fn(self, features, labels, mode):
      outputs = super().inference_network_fn(features, labels, mode)
      return {**outputs, "error": outputs["inference_output"] - labels.target}

  with pytest.raises(errors.SpecError, match=r"export: Peeking: expected a model that"):
    reach.train(str(tmp_path), record_path, 1, t2r_model=Peeking())
  assert tf.train.latest_checkpoint(str(tmp_path)) is None


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (lambda p: p.write_bytes(p.read_bytes()[:100]), "expected a readable checkpoint"),
    (lambda p: p.write_bytes(b""), "expected a readable checkpoint"),
  ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(
  damage, message, reach, record_path, tmp_path
):
  reach.train(str(tmp_path), record_path, 20, create_exporters_fn=list)
  (path,) = tmp_path.glob("model.ckpt-20.data-*")
  damage(path)
  with pytest.raises(errors.SpecError, match=message) as error:
    reach.train(str(tmp_path), record_path, 25, create_exporters_fn=list)
  assert "model.ckpt-20.* to resume at the one before" in str(error.value)
  for doomed in tmp_path.glob("model.ckpt-20.*"):
    doomed.unlink()
  result = reach.train(str(tmp_path), record_path, 12, create_exporters_fn=list)
  assert result["global_step"] == 12


def test_labels_that_look_ahead_without_a_mask_are_warned_of(reach, caplog):
  class Ahead(reach.ReachModel):
    def get_label_specification(self, mode):
      spec = specs.ExtendedTensorSpec((2,), tf.float32, "target", time_offsets=1)
      return specs.TensorSpecStruct(target=spec)

  class Masked(Ahead):
    def get_label_specification(self, mode):
      return windows.add_mask_specs(super().get_label_specification(mode))

  with caplog.at_level(logging.WARNING, logger="absl"):
    arguments.warn_of_unmasked_labels(Masked())
    arguments.warn_of_unmasked_labels(Ahead(padding="drop"))
    assert not caplog.messages
    arguments.warn_of_unmasked_labels(Ahead())
  assert "Labels ['target'] look ahead and are padded ('repeat')" in caplog.text
