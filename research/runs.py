"""What the scripts of the projects share: runs by gin, their time, figures of seeds."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence

import gin
import numpy as np

# Student's t: 97.5 % lie below, by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@contextlib.contextmanager
def configured(config: str, *bindings: str) -> Iterator[None]:
  """Configures one run from a gin file, from whatever folder; afterwards none is."""
  gin.clear_config()
  gin.parse_config_files_and_bindings([config], list(bindings))
  try:
    yield
  finally:
    gin.clear_config()


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
  """Says what begins, and how long it took."""
  start = time.monotonic()
  print(f"== {name}", flush=True)
  yield
  print(f"== {name}: {time.monotonic() - start:.0f} s", flush=True)


def mean_and_interval(values: Sequence[float]) -> str:
  """Returns '0.123 ± 0.004': the mean of some seeds and half its 95 % interval.

  Args:
    values: a figure of each seed, up to ten; of one seed there is no interval.
  """
  mean = float(np.mean(values))
  if len(values) < 2:
    return f"{mean:.3f}"
  half = _T[len(values) - 2] * float(np.std(values, ddof=1)) / math.sqrt(len(values))
  return f"{mean:.3f} ± {half:.3f}"
