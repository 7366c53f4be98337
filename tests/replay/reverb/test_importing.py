"""Tests of `import_reverb`: a wrong pair is told what to install. Need no Reverb."""

from __future__ import annotations

import pytest

from t2r_seq.replay.reverb import server

WRONG = {
  "not installed": (("", "2.15.1", (3, 11)), "got no dm-reverb with TensorFlow 2.15.1"),
  "another TensorFlow": (
    ("0.14.0", "2.21.0", (3, 11)),
    "got dm-reverb 0.14.0 with TensorFlow 2.21.0 on CPython 3.11",
  ),
  "another Python": (("0.14.0", "2.15.1", (3, 12)), "on CPython 3.12"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_pair(name, monkeypatch):
  found, message = WRONG[name]
  monkeypatch.setattr(server, "_found", lambda: found)
  with pytest.raises(ImportError, match=message) as caught:
    server.import_reverb()
  caught.match(r"expected dm-reverb 0\.14\.0 with TensorFlow 2\.15 on CPython 3\.10 or")
  caught.match(r"pip install 't2r_seq\[reverb\]'")


def test_libraries_that_do_not_load(monkeypatch):
  def fail(name):
    raise ImportError("undefined symbol: _ZN10tensorflow")

  monkeypatch.setattr(server, "_found", lambda: ("0.14.0", "2.15.0", (3, 10)))
  monkeypatch.setattr(server.importlib, "import_module", fail)
  with pytest.raises(ImportError, match="importing it failed: undefined symbol"):
    server.import_reverb()
