"""Tests of `import_reverb`: who lacks it is told what to install. Need no Reverb."""

from __future__ import annotations

import pytest
import tensorflow as tf

from t2r_seq.replay.reverb import items

WRONG = {
  "not installed": ImportError("No module named 'reverb'"),
  "another TensorFlow": tf.errors.NotFoundError(None, None, "undefined symbol: _ZN1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_import_error_names_the_versions_of_the_build(name, monkeypatch):
  def fail(_):
    raise WRONG[name]

  monkeypatch.setattr(items.importlib, "import_module", fail)
  with pytest.raises(
    ImportError, match=r"dm-reverb 0\.14\.0 with TensorFlow 2\.15"
  ) as it:
    items.import_reverb()
  it.match(f"got TensorFlow {tf.__version__} on CPython 3.*{WRONG[name]}")
  it.match(r"pip install 't2r_seq\[reverb\]'")
