"""Strategies: several replicas, several processes, and a caller's scope."""

from __future__ import annotations

import json
import pathlib
import socket
import textwrap

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, training
from t2r_seq.training.workers import (
  create_mirrored_strategy,
  create_multi_worker_mirrored_strategy,
  create_tpu_strategy,
)
from tests import warm_python

_FOLDER = str(pathlib.Path(__file__).parent)
_NUM_STEPS = 12
_PREAMBLE = """
import os
import signal
import sys
sys.path.insert(0, sys.argv[1])
import tensorflow as tf
from t2r_seq import data, training
{setup}
import reach_model

def train(name, strategy, t2r_model=None, **kwargs):
  reach_model.train(f"{{sys.argv[3]}}/{{name}}", sys.argv[2], {num_steps},
                    strategy=strategy,
                    t2r_model=t2r_model or reach_model.LinearReachModel(), **kwargs)
"""


def _start(setup, body, record_path, model_dir, *argv, **env):
  script = _PREAMBLE.format(setup=textwrap.dedent(setup), num_steps=_NUM_STEPS)
  script += textwrap.dedent(body)
  argv = (_FOLDER, record_path, str(model_dir), *argv)
  return warm_python.start("-c", script, *argv, env=env)


def _finish(*processes):
  try:
    for process in processes:
      _, stderr = process.communicate(timeout=300)
      assert process.returncode == 0, stderr[-3000:]
  finally:
    for process in processes:
      process.kill()


@pytest.fixture(name="train_alone", scope="module")
def fixture_train_alone(record_path, reach, tmp_path_factory):
  """Trains in this process, on one replica; returns the folder."""

  def train(**kwargs):
    model_dir = tmp_path_factory.mktemp("one")
    kwargs |= {"input_generator_eval": None, "create_exporters_fn": list}
    model = reach.LinearReachModel()
    reach.train(str(model_dir), record_path, _NUM_STEPS, t2r_model=model, **kwargs)
    return model_dir

  return train


@pytest.fixture(name="one", scope="module")
def fixture_one(train_alone):
  """The folder of a run on the records."""
  return train_alone()


@pytest.fixture(name="assert_trained_alike")
def fixture_assert_trained_alike(saved_weights):
  """Compares the weights of two folders."""

  def compare(one, other):
    one, other = saved_weights(one), saved_weights(other)
    assert one.keys() == other.keys() and one
    for name in one:
      np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5)

  return compare


def test_two_replicas_train_like_one(one, record_path, tmp_path, assert_trained_alike):
  setup = """
    cpu = tf.config.list_physical_devices("CPU")[0]
    half = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [half, half])
  """
  body = 'train("two", tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"]))'
  _finish(_start(setup, body, record_path, tmp_path))
  assert_trained_alike(one, tmp_path / "two")
  assert training.exports.export_versions(str(tmp_path / "two" / "export" / "latest"))


def test_two_workers_train_like_one(
  one, train_alone, store_path, record_path, tmp_path, assert_trained_alike
):
  """Real processes: they share a folder, one writes, both resume."""
  with socket.socket() as a, socket.socket() as b:
    for each in (a, b):
      each.bind(("127.0.0.1", 0))
    cluster = {"worker": [f"127.0.0.1:{each.getsockname()[1]}" for each in (a, b)]}
  options = {"store_path": store_path, "batch_size": 8, "order": "global", "seed": 1}
  setup = 'strategy = training.workers.create_multi_worker_mirrored_strategy("ring")'
  body = """
    # Moving averages are gathered from all workers when they are saved.
    train("averaged", strategy, t2r_model=reach_model.ReachModel())
    for _ in range(2):
      train("two", strategy, input_generator_eval=None, create_exporters_fn=list)
  """
  # The second worker is killed in the middle of a run, and both are started again.
  killed = f"""
    class Death(training.Callback):
      def after_step(self, run, scalars):
        if not run.is_chief and run.step == 7 and sys.argv[4:] == ["dies"]:
          os.kill(os.getpid(), signal.SIGKILL)

    train("two from a store", strategy, input_generator_eval=None,
          create_exporters_fn=list, save_checkpoints_steps=5, callbacks=[Death()],
          input_generator_train=data.StoreInputGenerator(**{options}))
  """

  def start(body, *argv):
    for index in range(2):
      config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
      env = {"TF_CONFIG": json.dumps(config)}
      yield _start(setup, body, record_path, tmp_path, *argv, **env)

  died = list(start(body + killed, "dies"))
  try:
    for worker in reversed(died):
      worker.communicate(timeout=300)
      assert worker.returncode != 0
  finally:
    for worker in died:
      worker.kill()
  written = tmp_path / "two from a store"
  assert tf.train.latest_checkpoint(str(written)) == str(written / "model.ckpt-5")
  _finish(*start(killed))
  assert_trained_alike(one, tmp_path / "two")
  stored = train_alone(input_generator_train=data.StoreInputGenerator(**options))
  assert_trained_alike(stored, tmp_path / "two from a store")
  written = {p.name.split(".")[0] for p in (tmp_path / "averaged").iterdir()}
  config = f"operative_config-{_NUM_STEPS}"
  assert written >= {"checkpoint", "model", "eval", "export", "events", config}
  assert (
    len(training.exports.export_versions(str(tmp_path / "averaged/export/latest"))) == 1
  )


def test_caller_may_be_in_the_scope_of_its_strategy(reach, tmp_path):
  with create_mirrored_strategy(["cpu:0"]).scope():
    reach.train(str(tmp_path), None, 2, input_generator_eval=None)
  (version,) = training.exports.export_versions(str(tmp_path / "export" / "latest"))
  loaded = tf.saved_model.load(str(tmp_path / "export" / "latest" / str(version)))
  assert "step" in loaded.signatures


def test_strategy_comes_from_gin(reach, tmp_path):
  gin.parse_config("""
    RunConfig.strategy = @create_mirrored_strategy()
    create_mirrored_strategy.devices = ['CPU:0']
  """)
  kwargs = {"input_generator_eval": None, "create_exporters_fn": None}
  assert reach.train(str(tmp_path), None, 1, **kwargs)["global_step"] == 1


_NO_STRATEGIES = {
  "no TPU": (
    lambda: create_tpu_strategy(),
    "create_tpu_strategy: tpu: expected a TPU at '', got: ",
  ),
  "no such communication": (
    lambda: create_multi_worker_mirrored_strategy("post"),
    r"communication: expected one of \[auto, nccl, ring\], got 'post'",
  ),
}


@pytest.mark.parametrize("case", _NO_STRATEGIES)
def test_strategies_that_cannot_be_are_refused(case):
  create, message = _NO_STRATEGIES[case]
  with pytest.raises(errors.SpecError, match=message):
    create()
