"""Strategies: several replicas, several processes, and a caller's scope."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
import textwrap

import numpy as np
import tensorflow as tf

from t2r_seq import conversions, training

_FOLDER = str(pathlib.Path(__file__).parent)
_ROOT = str(pathlib.Path(__file__).parents[2])
_NUM_STEPS = 12

# Batch statistics are per replica, so the model that is compared has none.
_PREAMBLE = """
import sys
sys.path.insert(0, sys.argv[1])
import tensorflow as tf
{setup}
import reach_model
from t2r_seq import data

def store_generator():
  return data.StoreInputGenerator(f"{{sys.argv[3]}}/store", 8, "global", seed=1)

class Model(reach_model.ReachModel):
  def create_network(self):
    return {{"norm": tf.keras.layers.Activation("linear"),
            "out": tf.keras.layers.Dense(2)}}

def train(name, strategy, **kwargs):
  reach_model.train(f"{{sys.argv[3]}}/{{name}}", sys.argv[2], {num_steps},
                    strategy=strategy, **{{"t2r_model": Model(), **kwargs}})
"""


def _start(setup, body, record_path, model_dir, **env):
  script = _PREAMBLE.format(setup=textwrap.dedent(setup), num_steps=_NUM_STEPS)
  command = [sys.executable, "-c", script + textwrap.dedent(body)]
  return subprocess.Popen(
    [*command, _FOLDER, record_path, str(model_dir)],
    env={**os.environ, "PYTHONPATH": _ROOT, **env},
    stderr=subprocess.PIPE,
    text=True,
  )


def _finish(*processes):
  try:
    for process in processes:
      _, stderr = process.communicate(timeout=300)
      assert process.returncode == 0, stderr[-3000:]
  finally:
    for process in processes:
      process.kill()


def _weights(model_dir):
  reader = tf.train.load_checkpoint(str(model_dir))
  names = [n for n in reader.get_variable_to_shape_map() if n.startswith("model/")]
  return {name: reader.get_tensor(name) for name in names}


def _assert_trained_alike(one, other):
  one, other = _weights(one), _weights(other)
  assert one.keys() == other.keys() and one
  for name in one:
    np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5)


def test_two_replicas_train_like_one(record_path, tmp_path):
  setup = """
    cpu = tf.config.list_physical_devices("CPU")[0]
    half = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [half, half])
  """
  body = """
    train("one", None)
    train("two", tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"]))
  """
  _finish(_start(setup, body, record_path, tmp_path))
  _assert_trained_alike(tmp_path / "one", tmp_path / "two")
  assert training.export_versions(str(tmp_path / "two" / "export" / "latest"))


def test_two_workers_train_like_one(record_path, reach, tmp_path):
  """Real processes: they share a folder, one writes, both resume."""
  with socket.socket() as a, socket.socket() as b:
    for one in (a, b):
      one.bind(("127.0.0.1", 0))
    cluster = {"worker": [f"127.0.0.1:{one.getsockname()[1]}" for one in (a, b)]}
  setup = "strategy = tf.distribute.MultiWorkerMirroredStrategy()"
  body = """
    # Moving averages are gathered from all workers when they are saved.
    train("averaged", strategy, t2r_model=reach_model.ReachModel())
    train("two", strategy)
    train("two", strategy)
    train("two from a store", strategy, input_generator_train=store_generator())
  """
  spec = reach.episode_spec(reach.ReachModel())
  conversions.convert(record_path, tmp_path / "store", spec=spec)
  workers = []
  for index in range(2):
    config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
    env = {"TF_CONFIG": json.dumps(config)}
    workers.append(_start(setup, body, record_path, tmp_path, **env))
  _finish(*workers)
  alone = """
    train("one", None)
    train("one from a store", None, input_generator_train=store_generator())
  """
  _finish(_start("", alone, record_path, tmp_path))
  for name in ("", " from a store"):
    _assert_trained_alike(tmp_path / f"one{name}", tmp_path / f"two{name}")
  for name in ("two", "averaged"):
    written = {p.name.split(".")[0] for p in (tmp_path / name).iterdir()}
    config = f"operative_config-{_NUM_STEPS}"
    assert written >= {"checkpoint", "model", "eval", "export", "events", config}
  assert len(training.export_versions(str(tmp_path / "averaged/export/latest"))) == 1


def test_a_caller_may_be_in_the_scope_of_its_strategy(reach, record_path, tmp_path):
  with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
    reach.train(str(tmp_path), record_path, 2)
  (version,) = training.export_versions(str(tmp_path / "export" / "latest"))
  loaded = tf.saved_model.load(str(tmp_path / "export" / "latest" / str(version)))
  assert "step" in loaded.signatures
