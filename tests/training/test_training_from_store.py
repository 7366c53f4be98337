"""Training from a store: resumed exactly, and the same when the device stacks."""

from __future__ import annotations

import functools
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, training


class Watched(data.StoreInputGenerator):
  """Keeps the numbers of the batches that it begins with."""

  def __init__(self, starts, **options):
    super().__init__(**options)
    self._starts = starts

  def create_dataset(self, mode, **options):
    if self._starts is not None:
      self._starts.append(options["start_step"])
    return super().create_dataset(mode, **options)


@pytest.fixture(scope="module")
def train(reach, store_path, saved_weights):
  """Trains seven steps in a folder, with a checkpoint at the third; returns weights."""

  def run(model_dir, starts=None, max_train_steps=7, **options):
    options = {"batch_size": 8, "seed": 1, "store_path": store_path, **options}
    training.train_eval_model(
      t2r_model=reach.ReachModel(),
      input_generator_train=Watched(starts, **options),
      max_train_steps=max_train_steps,
      run_config=training.RunConfig(save_checkpoints_steps=3, seed=3),
      model_dir=str(model_dir),
      create_exporters_fn=list,
    )
    return saved_weights(model_dir)

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
def test_resumed_run_ends_where_a_whole_one_does(train, whole, tmp_path, caplog, order):
  folder, want = whole(order)
  _copy_third_step(folder, tmp_path)
  with caplog.at_level("INFO", logger="absl"):
    resumed = train(tmp_path, order=order)
  assert "model.ckpt-3 at step 3." in caplog.text
  assert want.keys() == resumed.keys() and want
  for name, value in want.items():
    np.testing.assert_allclose(resumed[name], value, rtol=1e-5, atol=1e-7)


def _copy_third_step(folder, copy):
  for path in [*folder.glob("model.ckpt-3.*"), folder / "train.input.json"]:
    shutil.copy(path, copy)
  names = ("model_checkpoint_path", "all_model_checkpoint_paths")
  state = "".join(f'{name}: "model.ckpt-3"\n' for name in names)
  (copy / "checkpoint").write_text(state)


# Of 20 windows, 3 batches of 8 are an epoch of 16 and 8 windows of the next.
# name: (order, options that change, the batch to begin with, what is logged)
RESUMED = {
  "the same": ("global", {}, 3, None),
  "half the batch size": (
    "global", {"batch_size": 4}, 5 + 2, "continues at sample 8 of epoch 1, with 0 ",
  ),
  "no divisor": (
    "global", {"batch_size": 5}, 4 + 2, "continues at sample 10 of epoch 1, with 2 ",
  ),
  "pools": (
    "quasi_random", {"batch_size": 4}, 3,
    "got another one: batch_size 8, now 4. After step 3 samples of this pass are",
  ),
  "another seed": ("global", {"seed": 2}, 3, "got another one: seed 1, now 2. After"),
  "the remainder kept": (
    "global", {"drop_remainder": False}, 3, "drop_remainder True, now False",
  ),
  "other episodes": (
    "global", {"episodes": [0, 3]}, 3, "examples 20, now 16. .* in another model_dir",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESUMED)
def test_resumed_run_with_other_options(train, whole, tmp_path, caplog, name):
  order, options, want, logged = RESUMED[name]
  _copy_third_step(whole(order)[0], tmp_path)
  starts = []
  with caplog.at_level("INFO", logger="absl"):
    train(tmp_path, starts, order=order, **options)
  assert starts == [want]
  found = [line for line in caplog.messages if "the input " in line]
  assert len(found) == (logged is not None)
  if logged is not None:
    assert re.search(logged, found[0]), found
  # Once more, at the seventh step: batches are counted on.
  train(tmp_path, starts, max_train_steps=8, order=order, **options)
  assert starts == [want, want + 4]


def test_stacking_on_the_device_trains_the_same(train, whole, tmp_path, caplog):
  _, want = whole("quasi_random")  # The default of encoded images.
  logger = tf.get_logger()
  logger.addHandler(caplog.handler)
  try:
    flat = train(tmp_path, stack_on_device=True)
  finally:
    logger.removeHandler(caplog.handler)
  assert "AutoGraph could not transform" not in caplog.text
  for name, value in want.items():
    np.testing.assert_allclose(flat[name], value, rtol=1e-4, atol=1e-6)
