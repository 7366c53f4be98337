"""What all tests share: quiet logs, patient property tests, a clean gin config."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")

import gin
import hypothesis
import pytest

# The first example traces TensorFlow graphs, the others don't: no deadline fits
# both. Derandomized, so that a red run can be repeated.
hypothesis.settings.register_profile("t2r_seq", deadline=None, derandomize=True)
hypothesis.settings.load_profile("t2r_seq")


@pytest.fixture(autouse=True)
def clean_gin() -> Iterator[None]:
  """Keeps one test's gin bindings away from the next."""
  gin.clear_config()
  yield
  gin.clear_config()
