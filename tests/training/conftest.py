"""A record file of short episodes, and a model trained on it for a few steps."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert

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
def store_path(reach, record_path, tmp_path_factory) -> str:
  """The episodes of the record file in a store."""
  path = str(tmp_path_factory.mktemp("stores") / "store")
  convert.convert(record_path, path, spec=reach.episode_spec(reach.ReachModel()))
  return path


@pytest.fixture(scope="session")
def saved_weights() -> Callable[[Any], dict[str, np.ndarray]]:
  """Reads the model's weights from a checkpoint, or from a folder's newest one."""

  def read(path):
    reader = tf.train.load_checkpoint(str(path))
    names = reader.get_variable_to_shape_map()
    return {n: reader.get_tensor(n) for n in names if n.startswith("model/")}

  return read


@pytest.fixture(scope="session")
def trained_dir(reach, record_path, tmp_path_factory) -> pathlib.Path:
  """The folder of a run of 30 steps, with a binding of gin; for tests that read it."""
  model_dir = tmp_path_factory.mktemp("trained")
  gin.parse_config("train_eval_model.eval_steps = 99")
  reach.train(str(model_dir), record_path, 30)
  return model_dir


@dataclasses.dataclass
class Run:
  """A run that was made for several tests: its model and folder, and what it logged."""

  model: Any
  model_dir: pathlib.Path
  messages: list[str]


@pytest.fixture(scope="session")
def dropping_run(reach, record_path, tmp_path_factory) -> Run:
  """A run of a model that is trained on full windows only."""
  run = Run(reach.ReachModel(padding="drop"), tmp_path_factory.mktemp("drop"), [])
  handler = logging.Handler()
  handler.emit = lambda record: run.messages.append(record.getMessage())
  logger = logging.getLogger("absl")
  logger.addHandler(handler)
  level = logger.level
  logger.setLevel(logging.INFO)
  try:
    reach.train(str(run.model_dir), record_path, 2, t2r_model=run.model)
  finally:
    logger.setLevel(level)
    logger.removeHandler(handler)
  return run
