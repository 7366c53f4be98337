"""Training runs, for real: on record files, killed, resumed, distributed."""

from __future__ import annotations

import logging
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, policies, specs, training

# Of runs of which neither is looked at.
_BARE = {"input_generator_eval": None, "create_exporters_fn": list}


def _files(folder):
  for path in sorted(pathlib.Path(folder).rglob("*")):
    if path.is_file():
      yield path.relative_to(folder), path.read_bytes()


def test_run_leaves_checkpoints_events_config_and_exports(trained_dir):
  names = {path.name.split(".")[0] for path in trained_dir.iterdir()}
  assert {"checkpoint", "model", "events", "eval", "export"} <= names
  assert (trained_dir / "operative_config-30.gin").exists()
  assert tf.train.latest_checkpoint(str(trained_dir)).endswith("model.ckpt-30")
  (latest,) = policies.list_exports(str(trained_dir / "export" / "latest"))
  # The same weights are exported once, and copied.
  (best,) = policies.list_exports(str(trained_dir / "export" / "best"))
  assert list(_files(latest.path)) == list(_files(best.path))


def test_event_file_has_scalars_config_and_model_inputs(trained_dir, read_events):
  events = read_events(trained_dir)
  scalars = {"loss", "regularization_loss", "gradient_norm", "learning_rate"}
  scalars |= {"steps_per_second", "input_wait"}
  assert (
    scalars | {"operative_config", "seen/state/image", "seen/samples"} == events.keys()
  )
  assert read_events(trained_dir / "eval").keys() == {"loss"}


def test_operative_config_holds_what_was_bound(trained_dir):
  text = (trained_dir / "operative_config-30.gin").read_text()
  assert "train_eval_model.eval_steps = 99" in text


def _eval_steps_logged(messages) -> list[int]:
  lines = [m for m in messages if m.startswith("eval at step")]
  return [int(line.split()[3].rstrip(":")) for line in lines]


def test_evaluations_follow_checkpoints_of_which_the_newest_are_kept(
  reach, tmp_path, caplog
):
  with caplog.at_level(logging.INFO, logger="absl"):
    reach.train(
      str(tmp_path),
      None,
      25,
      eval_throttle_secs=0,
      keep_checkpoint_max=2,
      create_exporters_fn=list,
    )
  assert _eval_steps_logged(caplog.messages) == [10, 20, 25]
  kept = sorted(path.name for path in tmp_path.glob("*.index"))
  assert kept == ["model.ckpt-20.index", "model.ckpt-25.index"]


def test_run_without_training_evaluates_the_newest_checkpoint_for_eval_steps(
  reach, record_path, trained_dir
):
  batches = []

  class Counting(reach.ReachModel):
    def model_eval_fn(self, features, labels, inference_outputs, mode):
      tf.py_function(lambda: batches.append(1), [], [])
      return super().model_eval_fn(features, labels, inference_outputs, mode)

  for eval_steps, want in ((1, 1), (None, 3)):
    batches.clear()
    result = training.train_eval_model(
      Counting(),
      input_generator_eval=data.DefaultRecordInputGenerator(record_path, batch_size=8),
      model_dir=str(trained_dir),
      eval_steps=eval_steps,
      create_exporters_fn=list,
    )
    assert result["global_step"] == 30
    assert len(batches) == want


def test_episodes_too_short_to_train_on_are_reported(dropping_run):
  text = "\n".join(dropping_run.messages)
  assert "Training input so far" in text
  # The episodes of a file count again in each pass over it.
  assert re.search(r"Training input, all passes together: \d+ windows from \d+ ", text)
  want = "1 episodes too short for a window, the longest of them with 1 steps"
  assert f"Eval input: 13 windows from 4 episodes (20 steps); {want}" in text


def test_training_lowers_the_loss_and_reports_it(reach, tmp_path, caplog):
  before = reach.train(str(tmp_path), None, 1, create_exporters_fn=list)
  with caplog.at_level(logging.INFO, logger="absl"):
    after = reach.train(
      str(tmp_path), None, 60, eval_throttle_secs=3600, create_exporters_fn=list
    )
  assert after["loss"] < 0.5 * before["loss"]
  assert after["global_step"] == 60
  assert "steps/s, waiting for input" in caplog.text
  assert "Resumed from checkpoint" in caplog.text and "at step 1." in caplog.text
  assert "params ask" not in caplog.text
  # Throttled: not after each of the checkpoints.
  assert _eval_steps_logged(caplog.messages) == [60]


def test_same_seed_trains_the_same_weights(
  reach, record_path, trained_dir, tmp_path, saved_weights
):
  reach.train(str(tmp_path), record_path, 10, **_BARE)
  a, b = (saved_weights(d / "model.ckpt-10") for d in (tmp_path, trained_dir))
  assert a.keys() == b.keys() and a
  for name in a:
    np.testing.assert_array_equal(a[name], b[name])


def test_seed_comes_too_late_for_a_model_that_is_built(
  reach, record_path, tmp_path, caplog
):
  model = reach.ReachModel()
  model.build()
  reach.train(str(tmp_path), record_path, 1, t2r_model=model, **_BARE)
  assert "seed: the model is built already, so its weights are not of" in caplog.text


def test_labels_that_the_record_lacks_are_named(reach, record_path, tmp_path):
  class Demanding(reach.ReachModel):
    def get_label_specification(self, mode):
      return specs.TensorSpecStruct(
        super().get_label_specification(mode),
        targets=specs.ExtendedTensorSpec((2,), tf.float32, "targets", time_offsets=0),
      )

  with pytest.raises(errors.RecordError, match=r"targets.*Did you mean 'target'"):
    reach.train(str(tmp_path), record_path, 1, t2r_model=Demanding(), **_BARE)


def test_labels_that_the_model_lacks_are_named(reach, tmp_path):
  class Misspelt(reach.ReachModel):
    def loss_fn(self, labels, inference_outputs, mode):
      return tf.reduce_mean(labels.traget)

  with pytest.raises(AttributeError, match=r"traget.*Did you mean 'target'"):
    reach.train(str(tmp_path), None, 1, t2r_model=Misspelt(), **_BARE)


def test_loss_that_trains_nothing_is_refused(reach, tmp_path):
  class Detached(reach.ReachModel):
    def create_network(self):
      return {
        "norm": tf.keras.layers.BatchNormalization(center=False, scale=False),
        "out": tf.keras.layers.Dense(2),
      }

    def loss_fn(self, labels, inference_outputs, mode):
      return tf.reduce_mean(labels.target)

  # The one error alone: AutoGraph had put the lines of a traceback before it.
  with pytest.raises(errors.SpecError, match=r"^train_eval_model: loss: .* none of 2"):
    reach.train(str(tmp_path), None, 1, t2r_model=Detached(), **_BARE)


def test_evaluation_needs_a_checkpoint(reach, record_path, tmp_path):
  generator = data.DefaultRecordInputGenerator(record_path)
  with pytest.raises(errors.SpecError, match="expected a checkpoint to evaluate"):
    training.train_eval_model(
      reach.ReachModel(), input_generator_eval=generator, model_dir=str(tmp_path)
    )


def test_layers_beside_the_network_are_found(reach, tmp_path):
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
    reach.train(str(tmp_path), None, 1, t2r_model=Forgetful(), **_BARE)


def test_models_that_need_labels_to_act_are_refused_before_training(reach, tmp_path):
  class Peeking(reach.ReachModel):
    def inference_network_fn(self, features, labels, mode):
      outputs = super().inference_network_fn(features, labels, mode)
      return {**outputs, "error": outputs["inference_output"] - labels.target}

  with pytest.raises(errors.SpecError, match=r"export: Peeking: expected a model that"):
    reach.train(str(tmp_path), None, 1, t2r_model=Peeking())
  assert tf.train.latest_checkpoint(str(tmp_path)) is None


def test_named_evals_are_evaluated_each_and_averaged(
  reach, record_path, tmp_path, caplog, read_events
):
  other = reach.write_episodes(str(tmp_path / "other.tfrecord"), seed=5)
  generator = data.MultiEvalRecordInputGenerator(
    {"seen": record_path, "unseen": other}, batch_size=4
  )
  with caplog.at_level(logging.INFO, logger="absl"):
    metrics = reach.train(
      str(tmp_path / "run"), record_path, 2, input_generator_eval=generator
    )
  assert {"loss", "seen/loss", "unseen/loss"} <= metrics.keys()
  assert metrics["loss"] == np.mean([metrics["seen/loss"], metrics["unseen/loss"]])
  (line,) = [m for m in caplog.messages if m.startswith("eval at step")]
  assert "seen/loss" in line
  for name in ("seen", "unseen"):
    events = read_events(tmp_path / "run" / f"eval_{name}")
    assert events["loss"][2] == np.float32(metrics[f"{name}/loss"])
  # The best export goes by the mean, unless the gin file names one of them.
  assert (tmp_path / "run" / "export" / "best").exists()
