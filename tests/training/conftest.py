"""A record file of short episodes, and a model trained on it for a few steps."""

from __future__ import annotations

import glob
import importlib.util
import os
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

_NAME = "reach_model"


def _load() -> types.ModuleType:
  path = pathlib.Path(__file__).with_name(f"{_NAME}.py")
  spec = importlib.util.spec_from_file_location(_NAME, path)
  module = importlib.util.module_from_spec(spec)
  sys.modules[_NAME] = module
  spec.loader.exec_module(module)
  return module


@pytest.fixture(scope="session")
def reach() -> types.ModuleType:
  """The module reach_model."""
  return _load()


@pytest.fixture(scope="session")
def record_path(reach, tmp_path_factory) -> str:
  """A record file of four episodes of 1 to 9 steps."""
  return reach.write_episodes(str(tmp_path_factory.mktemp("data") / "reach.tfrecord"))


@pytest.fixture(scope="session")
def trained_dir(reach, record_path, tmp_path_factory) -> pathlib.Path:
  """The folder of a run of 30 steps."""
  model_dir = tmp_path_factory.mktemp("trained")
  reach.train(str(model_dir), record_path, 30)
  return model_dir


@pytest.fixture(scope="session")
def read_events() -> Callable[[Any], dict[str, tuple[int, str, Any]]]:
  """Reads the event files of a folder: tag -> (step, plugin, array)."""

  def read(logdir):
    found = {}
    for path in sorted(glob.glob(os.path.join(logdir, "events.out.tfevents.*"))):
      for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(record)
        for value in event.summary.value:
          plugin = value.metadata.plugin_data.plugin_name
          found[value.tag] = (event.step, plugin, tf.make_ndarray(value.tensor))
    return found

  return read
