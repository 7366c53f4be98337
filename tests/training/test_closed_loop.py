"""Success in an environment, as a metric of a run; and what the run says meanwhile."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from t2r_seq import actors, data, errors, models, policies, specs, training
from t2r_seq.actors.sinks import EpisodeSink
from t2r_seq.training.screen import Screen


class CoinEnv:
  """One step; succeeds where the action is above a number that the seed draws."""

  def __init__(self, says_success=True):
    self._says_success = says_success

  def close(self):
    pass

  def reset(self, seed=None, options=None):
    self.number = np.random.default_rng(seed).random()
    return {"x": np.zeros(1, np.float32)}, {}

  def step(self, action):
    is_success = bool(action[0] > self.number)
    info = {"is_success": is_success} if self._says_success else {}
    return {"x": np.zeros(1, np.float32)}, float(action[0]), True, False, info


class Coin(models.RegressionModel):
  """Learns to answer 1, by halves."""

  def get_feature_specification(self, mode):
    x = specs.ExtendedTensorSpec((1,), tf.float32, "x")
    return specs.TensorSpecStruct(x=x)

  def get_label_specification(self, mode):
    y = specs.ExtendedTensorSpec((1,), tf.float32, "y")
    return specs.TensorSpecStruct(target=y)

  def create_network(self):
    return tf.keras.layers.Dense(1)

  def a_func(self, features, mode):
    return {"inference_output": self.network(features.x)}


def _examples():
  for _ in range(4):
    yield {"x": np.zeros(1, np.float32)}, {"target": np.ones(1, np.float32)}


def _train(folder, callback, **options):
  return training.train_eval_model(
    Coin(create_optimizer_fn=lambda: tf.keras.optimizers.SGD(0.25)),
    data.GeneratorInputGenerator(_examples, batch_size=2),
    model_dir=str(folder),
    max_train_steps=4,
    callbacks=[callback],
    **options,
  )


@pytest.fixture(name="quiet_log", autouse=True)
def fixture_quiet_log():
  before = logging.get_verbosity()
  logging.set_verbosity(logging.WARNING)
  yield
  logging.set_verbosity(before)


def test_best_export_is_the_one_that_succeeds_most(tmp_path, capsys, read_events):
  result = _train(
    tmp_path,
    actors.ClosedLoopEvaluation(CoinEnv, num_episodes=9),
    eval_throttle_secs=0,
    run_config=training.RunConfig(save_checkpoints_steps=1, log_every_n_steps=2),
    create_exporters_fn=lambda: [
      training.BestExporter(
        metric="closed_loop/success_rate", larger_is_better=True, exports_to_keep=9
      )
    ],
  )
  # After n steps it answers 1 - 0.5 ** n.
  assert result["closed_loop/reward"] == pytest.approx(1 - 0.5**4)
  assert result["closed_loop/num_steps"] == 1
  printed = capsys.readouterr().err
  rates = [
    float(rate)
    for rate in re.findall(
      r"eval at step \d: closed_loop/.*success_rate ([\d.]+)", printed
    )
  ]
  assert len(rates) == 4 and rates == sorted(rates) and rates[0] < rates[-1]
  assert rates[-1] == pytest.approx(result["closed_loop/success_rate"], abs=1e-4)
  best = training.exports.export_versions(str(tmp_path / "export" / "best"))
  assert len(best) == len(set(rates))
  for line in (
    f"Coin: 2 parameters, 2 of them trained, on CPU:0; step 0 of 4 in {tmp_path}\n",
    "\ntrains on GeneratorInputGenerator: batches of 2\n",
    "\nstep 2/4: loss ",
    "s/s, waiting for input ",
    "\ndone at step 4: eval closed_loop/",
    f"; exports: {tmp_path}/export/best/{best[-1]}\n",
  ):
    assert line in printed
  assert "closed_loop/reward" in read_events(tmp_path / "eval_callbacks")
  table = read_events(tmp_path)["seen/samples"][2].item().decode()
  assert "| x | float32 (1,) | 0 | 0 |" in table
  assert "| label target | float32 (1,) | 1 | 1 |" in table


def test_environment_without_success_has_no_success_rate(tmp_path):
  callback = actors.ClosedLoopEvaluation(lambda: CoinEnv(says_success=False))
  result = _train(tmp_path, callback, create_exporters_fn=None)
  assert "closed_loop/reward" in result and "closed_loop/success_rate" not in result
  exporters = lambda: [training.BestExporter(metric="closed_loop/success_rate")]  # noqa: E731
  with pytest.raises(errors.SpecError, match=r"metric: expected one of \[closed_loop/"):
    _train(tmp_path / "again", callback, create_exporters_fn=exporters)


class Zeros(policies.Policy):
  """Answers 0."""

  def SelectAction(self, state, context=None, timestep=None):
    return np.zeros(1, np.float32)


class Rewards(EpisodeSink):
  """Keeps the rewards of the steps that it gets."""

  def __init__(self):
    self.rewards, self.is_closed = [], False

  def append(self, step, env=0):
    self.rewards.append(step["reward"])

  def end_episode(self, env=0):
    pass

  def close(self):
    self.is_closed = True


def test_each_export_collects_and_before_the_first_another_policy(tmp_path):
  def newest():
    exports = str(tmp_path / "export" / "latest")
    # A long timeout, since the first round must not wait for an export.
    predictor = policies.ExportedSavedModelPredictor(exports, timeout=600.0)
    return policies.RegressionPolicy(predictor)

  with pytest.raises(RuntimeError, match="initial_policy_class"):
    actors.CollectByExport(CoinEnv, newest, Rewards())
  sink = Rewards()
  collecting = actors.CollectByExport(CoinEnv, newest, sink, 2, Zeros)
  _train(
    tmp_path,
    collecting,
    eval_throttle_secs=0,
    run_config=training.RunConfig(save_checkpoints_steps=2, show_progress=False),
  )
  # After n steps it answers 1 - 0.5 ** n.
  assert sink.rewards == pytest.approx([0, 0, 0.75, 0.75, 1 - 0.5**4, 1 - 0.5**4])
  assert sink.is_closed


class Terminal:
  """What is written to a terminal."""

  text = ""

  def write(self, text):
    self.text += text

  def flush(self):
    pass

  def isatty(self):
    return True


def test_terminal_shows_a_bar_with_the_remaining_time():
  terminal = Terminal()
  screen = Screen(200, stream=terminal)
  screen.advance(50)
  run = type("Run", (), {"step": 100})
  screen.after_log(run, {"loss": 0.25})
  bar = terminal.text.split("\x1b[K")[-1]
  assert bar.startswith("████████████░░░░░░░░░░░░ 100/200, loss 0.25, ")
  assert re.search(r" steps/s, ETA \d+:\d\d\r$", bar)
  screen.say("a line")
  assert terminal.text.endswith("\r\x1b[Ka line\n")
  silent = Terminal()
  Screen(200, is_shown=False, stream=silent).advance(1)
  assert silent.text == ""
