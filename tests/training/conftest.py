"""A record file of short episodes, and a model trained on it for a few steps."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import types

import pytest

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
