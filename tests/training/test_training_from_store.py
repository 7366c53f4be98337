"""Training from a store: resumed exactly, and the same when the device stacks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import conversions, data, training


@pytest.fixture(scope="module")
def store_path(record_path, reach, tmp_path_factory):
  path = str(tmp_path_factory.mktemp("stores") / "store")
  conversions.convert(record_path, path, spec=reach.episode_spec(reach.ReachModel()))
  return path


@pytest.fixture
def train(reach, store_path, tmp_path):
  """Trains in a folder of that name; returns the weights."""

  def run(name, max_train_steps, **options):
    options = {"batch_size": 8, "seed": 1, **options}
    training.train_eval_model(
      t2r_model=reach.ReachModel(),
      input_generator_train=data.StoreInputGenerator(store_path, **options),
      max_train_steps=max_train_steps,
      model_dir=str(tmp_path / name),
      seed=3,
      create_exporters_fn=list,
    )
    latest = tf.train.latest_checkpoint(str(tmp_path / name))
    reader = tf.train.load_checkpoint(latest)
    names = [n for n in reader.get_variable_to_shape_map() if n.startswith("model/")]
    return {name: reader.get_tensor(name) for name in names}

  return run


@pytest.mark.parametrize("order", ["global", "quasi_random"])
def test_a_resumed_run_ends_where_a_whole_one_does(train, order):
  whole = train("whole", 7, order=order)
  train("parts", 3, order=order)
  resumed = train("parts", 7, order=order)
  assert whole.keys() == resumed.keys() and whole
  for name, want in whole.items():
    np.testing.assert_allclose(resumed[name], want, rtol=1e-5, atol=1e-7)


def test_stacking_on_the_device_trains_the_same(train):
  whole = train("stacked", 5)
  flat = train("flat", 5, stack_on_device=True)
  for name, want in whole.items():
    np.testing.assert_allclose(flat[name], want, rtol=1e-4, atol=1e-6)
