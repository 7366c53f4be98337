"""A ready policy finds its inputs in every format, and gets batches of them."""

from __future__ import annotations

import copy

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq.zoo.train import configure_policy
from tests import format_data


def read_batch(path, run, options=None):
  """Returns a training batch, and checks that it is preprocessed."""
  bindings = ["MLPModel.chunk_size = 3", "BATCH_SIZE = 2"]
  configure_policy(
    "mlp", path, run, "tiny", gin_bindings=bindings, open_options=options
  )
  names = ("t2r_model", "input_generator_train")
  model, generator = (
    copy.deepcopy(gin.query_parameter(f"train_eval_model.{name}")) for name in names
  )
  generator.set_specification_from_model(model, "train")
  features, labels = next(iter(generator.create_dataset("train")))
  assert labels["target"].shape == (2, 3, 2) and labels["target_mask"].shape == (2, 3)
  assert all(np.abs(value).max() < 5 for value in features.values())
  return features, labels


@pytest.mark.parametrize("name", format_data.FORMATS)
def test_batches_from_every_format(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  known = format_data.FORMATS[name]
  features, _ = read_batch(known.make(), "run", dict(known.options))
  assert [*features] == [known.state] and features[known.state].shape == (2, 1, 3)


def test_numbers_of_64_bits(tmp_path):
  h5py = pytest.importorskip("h5py")
  path = tmp_path / "demos.hdf5"
  rng = np.random.default_rng(0)
  with h5py.File(path, "w") as file:
    for demo in range(3):
      group = file.create_group(f"data/demo_{demo}")
      group["obs/joints"] = rng.normal(size=(6, 4))
      group["obs/gripper"] = rng.normal(size=(6,))
      group["next_obs/joints"] = rng.normal(size=(6, 4))
      group["states"] = rng.normal(size=(6, 20))
      group["rewards"] = np.zeros(6)
      group["actions"] = rng.normal(size=(6, 2))
      group.attrs["num_samples"] = 6
  features, labels = read_batch(path, tmp_path / "run")
  assert sorted(features) == ["obs/gripper", "obs/joints"]
  assert features["obs/gripper"].shape == (2, 1)
  assert features["obs/joints"].dtype == labels["target"].dtype == tf.float32
