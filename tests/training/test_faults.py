"""Runs that are killed, interrupted or damaged, and what is left of them."""

from __future__ import annotations

import itertools
import logging
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, files, replay, specs, training
from t2r_seq.training.checkpoints import Checkpoints, NanLossError
from t2r_seq.training.trainer import Trainer
from tests import warm_python

_SCRIPT = str(pathlib.Path(__file__).with_name("reach_model.py"))


def _saved_step(model_dir) -> int | None:
  latest = tf.train.latest_checkpoint(str(model_dir))
  return int(latest.rsplit("-", 1)[1]) if latest else None


def test_killed_run_resumes_at_its_last_checkpoint(
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
    run_config=training.RunConfig(save_checkpoints_steps=5),
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


def test_sigterm_cuts_an_evaluation_short(reach, tmp_path):
  class Stopping(reach.ReachModel):
    def model_eval_fn(self, features, labels, inference_outputs, mode):
      tf.py_function(lambda: os.kill(os.getpid(), signal.SIGTERM), [], [])
      return super().model_eval_fn(features, labels, inference_outputs, mode)

  class Closing(training.Callback):
    def on_end(self, run):
      ended.append(run.step)

  ended = []
  options = {"eval_throttle_secs": 0, "callbacks": [Closing()]}
  result = reach.train(str(tmp_path), None, 25, t2r_model=Stopping(), **options)
  assert result == {"global_step": 10, "was_stopped": True}
  assert ended == [10]
  assert not (tmp_path / "export").exists()


def test_interrupted_run_saves_where_it_stopped(reach, tmp_path):
  def examples():
    for index, example in enumerate(_examples(num_good=1000)):
      if index == 20:
        raise KeyboardInterrupt
      yield example

  class Interrupted(data.AbstractInputGenerator):
    def _create_batches(self, request):
      raise NotImplementedError

    def create_dataset(self, mode, **options):
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


def test_nan_loss_stops_and_keeps_the_last_good_checkpoint(
  reach, tmp_path, saved_weights
):
  with pytest.raises(
    NanLossError,
    match=r"step 15: expected a finite loss .*last good checkpoint: .*model.ckpt-10",
  ):
    training.train_eval_model(
      reach.ReachModel(),
      data.GeneratorInputGenerator(lambda: _examples(num_good=14), batch_size=1),
      max_train_steps=100,
      model_dir=str(tmp_path),
      run_config=training.RunConfig(save_checkpoints_steps=10, log_every_n_steps=10),
    )
  assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-10")
  assert all(np.isfinite(value).all() for value in saved_weights(tmp_path).values())


def test_checkpoint_of_another_model_is_refused(reach, trained_dir):
  class Other(reach.ReachModel):
    def create_network(self):
      return {**super().create_network(), "more": tf.keras.layers.Dense(3)}

    def a_func(self, features, mode):
      outputs = super().a_func(features, mode)
      self.network["more"](outputs["normed"])
      return outputs

  message = (
    r"another with 2 other weights: \[more/bias missing, expected \(3,\), more/k"
  )
  with pytest.raises(errors.SpecError, match=message):
    reach.train(str(trained_dir), None, 40, t2r_model=Other())


_BARE = {"input_generator_eval": None, "create_exporters_fn": None}


@pytest.fixture
def model_dir(trained_dir, tmp_path) -> pathlib.Path:
  """A copy of the run of 30 steps, with a checkpoint at each ten."""
  return shutil.copytree(trained_dir, tmp_path / "run")


@pytest.fixture(scope="module")
def trainer(reach) -> Trainer:
  """Of a model like that of the run; at a step that earlier tests have left it at."""
  return Trainer(reach.ReachModel(), tf.distribute.get_strategy())


@pytest.fixture
def checkpoints(trainer, model_dir) -> Checkpoints:
  """Of the run."""
  return Checkpoints(trainer, str(model_dir), 5)


_STATES = {
  "missing": None,
  "empty": b"",
  "garbage": b"\xff\xfe\x00garbage",
  "stale": b'model_checkpoint_path: "model.ckpt-10"\n',
  "of a folder that is gone": b'model_checkpoint_path: "/gone/model.ckpt-99"\n',
}


@pytest.mark.parametrize("case", _STATES)
def test_checkpoints_are_found_without_a_valid_state_file(
  case, trainer, checkpoints, model_dir
):
  (model_dir / "checkpoint").unlink()
  if _STATES[case] is not None:
    (model_dir / "checkpoint").write_bytes(_STATES[case])
  assert checkpoints.restore()
  assert trainer.global_step == 30


def test_state_file_is_mended_by_the_next_checkpoint(reach, model_dir):
  (model_dir / "checkpoint").write_bytes(_STATES["garbage"])
  assert reach.train(str(model_dir), None, 31, **_BARE)["global_step"] == 31
  assert tf.train.latest_checkpoint(str(model_dir)).endswith("model.ckpt-31")


def _flip(path, at):
  data = bytearray(path.read_bytes())
  data[at] ^= 0x40
  path.write_bytes(bytes(data))


def _cut(path, size):
  path.write_bytes(path.read_bytes()[:size])


_DAMAGES = {
  "data cut": lambda data, index: _cut(data, 100),
  "data empty": lambda data, index: _cut(data, 0),
  "data missing": lambda data, index: data.unlink(),
  "data with a bit flipped": lambda data, index: _flip(data, 1000),
  "data with its end zero": lambda data, index: data.write_bytes(
    data.read_bytes()[:-512] + bytes(512)
  ),
  "index cut": lambda data, index: _cut(index, -20),
  "index empty": lambda data, index: _cut(index, 0),
  "index missing": lambda data, index: index.unlink(),
  "index with a bit flipped": lambda data, index: _flip(index, 200),
  "index is text": lambda data, index: index.write_text("no index" * 100),
}


def _damage(model_dir, step, case) -> dict[str, bytes]:
  """Damages a checkpoint; returns its files."""
  (data,) = model_dir.glob(f"model.ckpt-{step}.data-*")
  _DAMAGES[case](data, model_dir / f"model.ckpt-{step}.index")
  return {p.name: p.read_bytes() for p in model_dir.glob(f"model.ckpt-{step}.*")}


@pytest.mark.parametrize("case", _DAMAGES)
def test_one_before_a_damaged_checkpoint_serves(
  case, trainer, checkpoints, model_dir, caplog
):
  kept = _damage(model_dir, 30, case)
  assert checkpoints.restore()
  assert trainer.global_step == 20
  place = model_dir / "damaged-model.ckpt-30"
  assert {path.name: path.read_bytes() for path in place.iterdir()} == kept
  assert not list(model_dir.glob("model.ckpt-30*"))
  assert f"model.ckpt-30 was moved to {place}" in caplog.text


def test_two_damaged_checkpoints_of_one_step_are_both_kept(
  checkpoints, trained_dir, model_dir
):
  for place in ("damaged-model.ckpt-30", "damaged-model.ckpt-30-2"):
    for path in trained_dir.glob("model.ckpt-30.*"):
      shutil.copy(path, model_dir)
    _damage(model_dir, 30, "data cut")
    assert checkpoints.restore()
    assert (model_dir / place / "model.ckpt-30.index").is_file()


def test_run_with_damaged_checkpoints_only_is_an_error(reach, model_dir):
  for step, case in ((10, "index missing"), (20, "data cut"), (30, "data missing")):
    _damage(model_dir, step, case)
  before = sorted(path.name for path in model_dir.glob("*model*"))
  for _ in range(2):
    with pytest.raises(
      errors.SpecError,
      match=r"(?s)3 mismatches:.*ckpt-10: expected a readable checkpoint, got .*None",
    ):
      reach.train(str(model_dir), None, 40, **_BARE)
  assert sorted(path.name for path in model_dir.glob("*model*")) == before


def test_checkpoint_under_the_name_of_another_step_is_refused(checkpoints, model_dir):
  for path in model_dir.glob("model.ckpt-30.*"):
    path.rename(str(path).replace("ckpt-30", "ckpt-90"))
  with pytest.raises(errors.SpecError, match=r"of step 90, got one of step 30\. Rena"):
    checkpoints.restore()


def test_save_that_was_killed_is_finished_or_removed(trainer, checkpoints, model_dir):
  for folder, step in (
    ("whole-model.ckpt-30", 30),
    (f".whole-model.ckpt-20.{'0' * 32}.tmp", 20),
  ):
    (model_dir / folder).mkdir()
    for path in model_dir.glob(f"model.ckpt-{step}.*"):
      path.rename(model_dir / folder / path.name)
  # As if it was killed between its two files.
  (data,) = (model_dir / "whole-model.ckpt-30").glob("*.data-*")
  data.rename(model_dir / data.name)
  assert checkpoints.restore()
  assert trainer.global_step == 30
  assert not [
    path for path in model_dir.iterdir() if "ckpt" in path.name and path.is_dir()
  ]
  assert {p.stem for p in model_dir.glob("*.index")} == {
    "model.ckpt-10",
    "model.ckpt-30",
  }


@pytest.fixture
def unsaved(trainer, checkpoints, model_dir) -> Checkpoints:
  """Of the run at step 30, as if that was not saved yet."""
  assert checkpoints.restore()
  return Checkpoints(trainer, str(model_dir), 5)


def test_full_disk_is_one_error_and_older_checkpoints_stay(unsaved, model_dir):
  before = {path: path.read_bytes() for path in model_dir.glob("*model.ckpt*")}
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
  try:
    with pytest.raises(
      OSError, match=r"ckpt-30: expected to save a checkpoint, got: .*ckpt-30\. Make"
    ):
      unsaved.save()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert before == {path: path.read_bytes() for path in model_dir.glob("*model.ckpt*")}
  time_before = (model_dir / "model.ckpt-30.index").stat().st_mtime_ns
  unsaved.save()
  assert (model_dir / "model.ckpt-30.index").stat().st_mtime_ns > time_before


def test_checkpoint_is_read_back_before_it_gets_its_name(
  unsaved, model_dir, monkeypatch
):
  write = tf.train.Checkpoint.write

  def write_badly(self, prefix, *args, **kwargs):
    result = write(self, prefix, *args, **kwargs)
    _flip(pathlib.Path(f"{prefix}.data-00000-of-00001"), 1000)
    return result

  monkeypatch.setattr(tf.train.Checkpoint, "write", write_badly)
  before = sorted(path.name for path in model_dir.iterdir())
  with pytest.raises(OSError, match=r"expected to save a checkpoint, got: .*hecksum"):
    unsaved.save()
  assert sorted(path.name for path in model_dir.iterdir()) == before


_UNFINISHED_EXPORTS = ("partial-1764", f".1764.{'0' * 32}.tmp")


def test_folder_has_one_run_at_a_time(reach, model_dir):
  lock = files.FileLock(str(model_dir / "train.lock"), RuntimeError)
  only_evaluates = {"input_generator_train": None, "create_exporters_fn": None}
  for options in ({}, {"input_generator_train": None}):
    with pytest.raises(
      errors.SpecError,
      match=rf"process to train in .*, got process {os.getpid()} on .* Wait for it",
    ):
      reach.train(str(model_dir), None, 40, **options)
  # It leaves everything as it is, a damaged checkpoint and others' exports too.
  _damage(model_dir, 30, "data cut")
  leavings = [model_dir / "export/latest" / name for name in _UNFINISHED_EXPORTS]
  for leaving in leavings:
    leaving.mkdir()
  result = reach.train(str(model_dir), None, 40, **only_evaluates)
  assert result["global_step"] == 20 and "loss" in result
  assert (model_dir / "model.ckpt-30.index").is_file()
  assert all(leaving.is_dir() for leaving in leavings)
  lock.release()
  reach.train(str(model_dir), None, 20, **_BARE)
  assert not any(leaving.exists() for leaving in leavings)
  assert training.exports.export_versions(str(model_dir / "export/latest"))


_BURSTS = {
  "SIGINT twice": ("INT", "INT"),
  "all of them": ("HUP", "INT", "TERM", "INT", "TERM", "HUP"),
}


@pytest.fixture
def signals_heard():
  """A suite that is started in the background or under nohup ignores two of them."""
  previous = {
    number: signal.signal(number, handler)
    for number, handler in [
      (signal.SIGINT, signal.default_int_handler),
      (signal.SIGHUP, signal.SIG_DFL),
    ]
  }
  yield
  for number, handler in previous.items():
    signal.signal(number, handler)


@pytest.mark.usefixtures("signals_heard")
@pytest.mark.parametrize("case", _BURSTS)
def test_burst_of_signals_loses_nothing(case, reach, tmp_path):
  numbers = [getattr(signal, f"SIG{name}") for name in _BURSTS[case]]

  class Told(reach.ReachModel):
    def model_train_fn(self, features, labels, inference_outputs, mode):
      steps.append(tf.py_function(self.tell, [], []))
      return super().model_train_fn(features, labels, inference_outputs, mode)

    def tell(self):
      count.append(1)
      if len(count) == 5:
        for number in numbers:
          os.kill(os.getpid(), number)

  steps, count = [], []
  options = {"t2r_model": Told(), "save_checkpoints_steps": 1000, **_BARE}
  if numbers[0] == signal.SIGINT:
    with pytest.raises(KeyboardInterrupt):
      reach.train(str(tmp_path), None, 20, **options)
  else:
    result = reach.train(str(tmp_path), None, 20, **options)
    assert result["was_stopped"]
  assert _saved_step(tmp_path) in (5, 6)


_EXITS = pathlib.Path(__file__).with_name("exits.py")


def test_finished_and_stopped_runs_exit_with_0():
  run = subprocess.run(
    [sys.executable, _EXITS, "--runs", "4", "--at_once", "4"],
    cwd=_EXITS.parents[2],
    env={**os.environ, "PYTHONPATH": str(_EXITS.parents[2])},
    capture_output=True,
    text=True,
    timeout=280,
    check=False,
  )
  assert run.returncode == 0, run.stdout
  assert run.stdout.count("1 x ") == 4
