"""What the scripts of the projects share: runs by gin, times, films, figures."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

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


def film_strip(
  policy: Any, env: Any, large: Any, seed: int, num_frames: int = 6
) -> np.ndarray:
  """Acts in an episode; returns some of its frames in a row, [h, w, 3] uint8.

  Args:
    policy: acts; it is restored and reset.
    env: that it sees.
    large: the same environment, which renders frames of another size.
    seed: of the episode.
    num_frames: from the first to the last.
  """
  policy.restore()
  policy.reset()
  observation, _ = env.reset(seed=seed)
  large.reset(seed=seed)
  frames, is_over = [large.render()], False
  while not is_over:
    action, _ = policy.sample_action(observation)
    observation, _, terminated, truncated, _ = env.step(action)
    large.step(action)
    frames.append(large.render())
    is_over = terminated or truncated
  shown = np.linspace(0, len(frames) - 1, num_frames).astype(int)
  return np.concatenate([frames[i] for i in shown], axis=1)


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
