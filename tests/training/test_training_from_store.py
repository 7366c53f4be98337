"""Training from a store: resumed exactly, and the same when the device stacks."""

from __future__ import annotations

import functools
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, data, training


@pytest.fixture(scope="module")
def store_path(record_path, reach, tmp_path_factory):
  path = str(tmp_path_factory.mktemp("stores") / "store")
  convert.convert(record_path, path, spec=reach.episode_spec(reach.ReachModel()))
  return path


@pytest.fixture(scope="module")
def train(reach, store_path):
  """Trains seven steps in a folder, with a checkpoint at the third; returns weights."""

  def run(model_dir, **options):
    options = {"batch_size": 8, "seed": 1, **options}
    training.train_eval_model(
      t2r_model=reach.ReachModel(),
      input_generator_train=data.StoreInputGenerator(store_path, **options),
      max_train_steps=7,
      save_checkpoints_steps=3,
      model_dir=str(model_dir),
      seed=3,
      create_exporters_fn=list,
    )
    latest = tf.train.latest_checkpoint(str(model_dir))
    reader = tf.train.load_checkpoint(latest)
    names = [n for n in reader.get_variable_to_shape_map() if n.startswith("model/")]
    return {name: reader.get_tensor(name) for name in names}

  return run


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
  """Returns the folder and the weights of a run in an order, made once."""

  @functools.cache
  def run(order):
    folder = tmp_path_factory.mktemp(order)
    return folder, train(folder, order=order)

  return run


@pytest.mark.parametrize("order", ["global", "quasi_random"])
def test_a_resumed_run_ends_where_a_whole_one_does(
  train, whole, tmp_path, caplog, order
):
  folder, want = whole(order)
  for path in folder.glob("model.ckpt-3.*"):
    shutil.copy(path, tmp_path)
  names = ("model_checkpoint_path", "all_model_checkpoint_paths")
  state = "".join(f'{name}: "model.ckpt-3"\n' for name in names)
  (tmp_path / "checkpoint").write_text(state)
  with caplog.at_level("INFO", logger="absl"):
    resumed = train(tmp_path, order=order)
  assert "model.ckpt-3 at step 3." in caplog.text
  assert want.keys() == resumed.keys() and want
  for name, value in want.items():
    np.testing.assert_allclose(resumed[name], value, rtol=1e-5, atol=1e-7)


def test_stacking_on_the_device_trains_the_same(train, whole, tmp_path, caplog):
  _, want = whole("global")  # The default of what is not encoded.
  logger = tf.get_logger()
  logger.addHandler(caplog.handler)
  try:
    flat = train(tmp_path, stack_on_device=True)
  finally:
    logger.removeHandler(caplog.handler)
  assert "AutoGraph could not transform" not in caplog.text
  for name, value in want.items():
    np.testing.assert_allclose(flat[name], value, rtol=1e-4, atol=1e-6)
