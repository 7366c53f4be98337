"""Runs that are killed, interrupted or damaged, and what is left of them."""

from __future__ import annotations

import itertools
import logging
import os
import pathlib
import shutil
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, replay, specs, training
from tests import warm_python

_SCRIPT = str(pathlib.Path(__file__).with_name("reach_model.py"))


def _weights(model_dir) -> dict[str, np.ndarray]:
  latest = tf.train.latest_checkpoint(str(model_dir))
  reader = tf.train.load_checkpoint(latest)
  names = [n for n in reader.get_variable_to_shape_map() if n.startswith("model/")]
  return {name: reader.get_tensor(name) for name in names}


def _saved_step(model_dir) -> int | None:
  latest = tf.train.latest_checkpoint(str(model_dir))
  return int(latest.rsplit("-", 1)[1]) if latest else None


def test_a_killed_run_resumes_at_its_last_checkpoint(
  reach, record_path, tmp_path, caplog
):
  model_dir = tmp_path / "killed"
  process = warm_python.start(_SCRIPT, model_dir, record_path, 1000000)
  try:
    deadline = time.monotonic() + 120
    while _saved_step(model_dir) is None:
      assert process.poll() is None, "the run ended before its first checkpoint"
      assert time.monotonic() < deadline, "no checkpoint within two minutes"
      time.sleep(0.02)
  finally:
    process.send_signal(signal.SIGKILL)
    process.wait()
  step = _saved_step(model_dir)
  with caplog.at_level(logging.INFO, logger="absl"):
    result = reach.train(
      *(str(model_dir), record_path, step + 3),
      input_generator_eval=None,
      create_exporters_fn=list,
    )
  assert f"at step {step}." in caplog.text
  assert result["global_step"] == step + 3


def test_sigterm_ends_the_wait_for_a_batch_and_saves(reach, tmp_path):
  go_on, waited_in_vain = threading.Event(), []

  def examples():
    yield from itertools.islice(_examples(num_good=1000), 5)
    if not go_on.wait(60):
      waited_in_vain.append("no signal was heard")
    yield from _examples(num_good=1000)

  def send():
    while _saved_step(tmp_path) != 5:
      time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

  sender = threading.Thread(target=send)
  sender.start()
  result = training.train_eval_model(
    reach.ReachModel(),
    data.GeneratorInputGenerator(examples, batch_size=1),
    max_train_steps=20,
    model_dir=str(tmp_path),
    save_checkpoints_steps=5,
    create_exporters_fn=list,
  )
  go_on.set()
  sender.join()
  assert not waited_in_vain
  assert result == {"global_step": 5, "was_stopped": True}


def test_sigterm_ends_the_wait_for_a_replay_to_connect_to(reach, tmp_path):
  def connect():
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError("waited on")

  result = training.train_eval_model(
    reach.ReachModel(),
    replay.ReplayInputGenerator(connect),
    max_train_steps=5,
    model_dir=str(tmp_path),
    create_exporters_fn=list,
  )
  assert result == {"global_step": 0, "was_stopped": True}


def test_sigterm_cuts_an_evaluation_short(reach, record_path, tmp_path):
  class Stopping(reach.ReachModel):
    def model_eval_fn(self, features, labels, inference_outputs, mode):
      tf.py_function(lambda: os.kill(os.getpid(), signal.SIGTERM), [], [])
      return super().model_eval_fn(features, labels, inference_outputs, mode)

  result = reach.train(
    str(tmp_path), record_path, 25, t2r_model=Stopping(), eval_throttle_secs=0
  )
  assert result == {"global_step": 10, "was_stopped": True}
  assert not (tmp_path / "export").exists()


def test_an_interrupted_run_saves_where_it_stopped(reach, tmp_path):
  def examples():
    for index, example in enumerate(_examples(num_good=1000)):
      if index == 20:
        raise KeyboardInterrupt
      yield example

  class Interrupted(data.AbstractInputGenerator):
    def _create_batches(self, mode, batch_size):
      raise NotImplementedError

    def create_dataset(self, mode, params=None):
      for features, labels in examples():
        packed = self._preprocess_fn(*_batched(features, labels))
        yield packed

  with pytest.raises(KeyboardInterrupt):
    training.train_eval_model(
      reach.ReachModel(),
      Interrupted(),
      max_train_steps=100,
      model_dir=str(tmp_path),
      create_exporters_fn=list,
    )
  assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-20")


def _batched(*structures):
  add_axis = lambda x: tf.convert_to_tensor(x)[tf.newaxis]  # noqa: E731
  return [specs.map_leaves(add_axis, structure) for structure in structures]


def _examples(num_good: int):
  for index in range(1000):
    features = specs.TensorSpecStruct(
      {
        "state/image": np.zeros((3, 8, 8, 3), np.uint8),
        "state/velocity": np.ones(2, np.float32),
        "task": np.ones(1, np.float32),
      }
    )
    target = np.full(2, 1.0 if index < num_good else np.nan, np.float32)
    yield features, specs.TensorSpecStruct(target=target)


def test_a_nan_loss_stops_and_keeps_the_last_good_checkpoint(reach, tmp_path):
  with pytest.raises(
    training.NanLossError,
    match=r"step 15: expected a finite loss .*last good checkpoint: .*model.ckpt-10",
  ):
    training.train_eval_model(
      reach.ReachModel(),
      data.GeneratorInputGenerator(lambda: _examples(num_good=14), batch_size=1),
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


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(
  reach, record_path, trained_dir, tmp_path
):
  model_dir = tmp_path / "damaged"
  shutil.copytree(trained_dir, model_dir)
  (path,) = model_dir.glob("model.ckpt-30.data-*")
  options = {"input_generator_eval": None, "create_exporters_fn": list}
  for kept in (100, 0):
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
      errors.SpecError, match="expected a readable checkpoint"
    ) as error:
      reach.train(str(model_dir), record_path, 35, **options)
    assert "model.ckpt-30.* to resume at the one before" in str(error.value)
  for doomed in model_dir.glob("model.ckpt-30.*"):
    doomed.unlink()
  result = reach.train(str(model_dir), record_path, 22, **options)
  assert result["global_step"] == 22
