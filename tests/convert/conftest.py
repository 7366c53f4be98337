"""The episodes of conversion_data.py, and an empty current folder."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from types import ModuleType

import pytest

HERE = pathlib.Path(__file__).parent


def load(name: str) -> ModuleType:
  """Imports a module of this folder by its path."""
  if name not in sys.modules:
    module_spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    module_spec.loader.exec_module(module)
  return sys.modules[name]


@pytest.fixture(scope="session")
def data() -> ModuleType:
  """The module conversion_data: specs, episodes, stores and comparisons."""
  return load("conversion_data")


@pytest.fixture(autouse=True)
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
  """An empty current folder."""
  monkeypatch.chdir(tmp_path)
  return tmp_path
