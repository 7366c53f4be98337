"""Without torch, its module says which extra has it, and nothing else needs it."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_error_names_the_extra(monkeypatch):
  name = "t2r_seq.data.torch_windows"
  monkeypatch.delitem(sys.modules, name, raising=False)
  monkeypatch.setitem(sys.modules, "torch", None)
  with pytest.raises(ImportError, match=r"torch is not installed.*t2r_seq\[torch\]"):
    importlib.import_module(name)
