"""What is measured over the episodes of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t2r_seq.actors import rollouts

EpisodeMetricsFn = Callable[[rollouts.Episode], Mapping[str, float]]


class EpisodeTally:
  """Counts episodes and their rewards, lengths and the user's own measures."""

  def __init__(self, episode_metrics_fn: EpisodeMetricsFn | None = None) -> None:
    """Starts at nothing.

    Args:
      episode_metrics_fn: steps -> numbers; the run's metrics have their means.
    """
    self._episode_metrics_fn = episode_metrics_fn
    self._rewards: list[float] = []
    self._lengths: list[int] = []
    self._extras: dict[str, list[float]] = {}

  @property
  def num_episodes(self) -> int:
    """How many episodes were added."""
    return len(self._rewards)

  def add(self, steps: rollouts.Episode) -> None:
    """Adds one finished episode."""
    self._rewards.append(sum(step["reward"] for step in steps))
    self._lengths.append(len(steps))
    if self._episode_metrics_fn is not None:
      for name, value in self._episode_metrics_fn(steps).items():
        self._extras.setdefault(name, []).append(float(value))

  def metrics(self) -> dict[str, float]:
    """Returns the run's numbers.

    Returns:
      'num_episodes', 'num_steps', 'episode_reward' (mean of the sums of rewards),
      'episode_reward_std', 'episode_reward_min', 'episode_reward_max',
      'episode_length' (mean), and the means of the user's own measures. Without an
      episode there are only the two counts.
    """
    counts: dict[str, float] = {
      "num_episodes": len(self._rewards),
      "num_steps": sum(self._lengths),
    }
    if not self._rewards:
      return counts
    rewards = np.asarray(self._rewards, np.float64)
    numbers = {
      **counts,
      "episode_reward": float(rewards.mean()),
      "episode_reward_std": float(rewards.std()),
      "episode_reward_min": float(rewards.min()),
      "episode_reward_max": float(rewards.max()),
      "episode_length": float(np.mean(self._lengths)),
    }
    extras = {name: float(np.mean(values)) for name, values in self._extras.items()}
    return {**numbers, **extras}


def restore_policy(policy: Any) -> None:
  """Loads the policy's newest parameters, where it has any to load."""
  restore = getattr(policy, "restore", None)
  if callable(restore):
    restore()
