"""Counts of what a pipeline windowed, and of what it had to leave out."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

_as_it_is = tf.autograph.experimental.do_not_convert


class WindowReport:
  """Counts episodes, steps and windows as a dataset is read.

  An episode that is too short for a single window under padding 'drop' gives nothing;
  it is counted here, so that nothing is lost silently. Counts add up over passes;
  where all episodes are known before they are read, they are those of one pass.
  """

  def __init__(self) -> None:
    """Creates a report with all counts zero."""
    names = ("episodes", "steps", "windows", "too_short", "longest_too_short")
    # On the host and outside of any strategy: input pipelines run there.
    with tf.init_scope(), tf.device("cpu:0"):
      self._counts = {
        name: tf.Variable(0, dtype=tf.int64, trainable=False, name=name)
        for name in names
      }

  @classmethod
  def of_episodes(cls, num_steps: np.ndarray, num_windows: np.ndarray) -> WindowReport:
    """Makes the report of a pass over episodes whose lengths are known.

    Args:
      num_steps: int64 [episodes].
      num_windows: int64 [episodes], 0 for an episode that is too short.
    Returns:
      The report.
    """
    report = cls()
    short = num_steps[num_windows < 1]
    with tf.init_scope():
      report._counts["episodes"].assign(len(num_steps))
      report._counts["steps"].assign(num_steps.sum())
      report._counts["windows"].assign(num_windows.sum())
      report._counts["too_short"].assign(len(short))
      report._counts["longest_too_short"].assign(short.max(initial=0))
    return report

  def count(
    self, num_steps: tf.Tensor, num_windows: tf.Tensor, num_episodes: Any = 1
  ) -> tf.Operation:
    """Adds an episode; called inside the input pipeline.

    Args:
      num_steps: int64 scalar.
      num_windows: int64 scalar, 0 for an episode that is too short.
      num_episodes: 1; or 0, int64 scalar, where there is none and so has no steps.
    Returns:
      The op that counts.
    """
    short = num_episodes * tf.cast(num_windows < 1, tf.int64)
    longest = self._counts["longest_too_short"]
    return tf.group(
      self._counts["episodes"].assign_add(num_episodes),
      self._counts["steps"].assign_add(num_steps),
      self._counts["windows"].assign_add(num_windows),
      self._counts["too_short"].assign_add(short),
      longest.assign(tf.maximum(longest, short * num_steps)),
    )

  def take_back(
    self, num_steps: tf.Tensor, num_windows: tf.Tensor, num_episodes: tf.Tensor
  ) -> tf.Operation:
    """Takes away what was counted of episodes with windows, that turned out bad.

    Args:
      num_steps: of all of them, int64 scalar.
      num_windows: int64 scalar.
      num_episodes: int64 scalar.
    Returns:
      The op that counts.
    """
    return tf.group(
      self._counts["episodes"].assign_sub(num_episodes),
      self._counts["steps"].assign_sub(num_steps),
      self._counts["windows"].assign_sub(num_windows),
    )

  @property
  def episodes(self) -> int:
    """Episodes read."""
    return int(self._counts["episodes"].numpy())

  @property
  def steps(self) -> int:
    """Steps in all episodes read."""
    return int(self._counts["steps"].numpy())

  @property
  def windows(self) -> int:
    """Windows (or sequences of stacks) that the episodes gave."""
    return int(self._counts["windows"].numpy())

  @property
  def too_short(self) -> int:
    """Episodes that gave no window at all."""
    return int(self._counts["too_short"].numpy())

  @property
  def longest_too_short(self) -> int:
    """Steps of the longest episode that gave no window."""
    return int(self._counts["longest_too_short"].numpy())

  def __str__(self) -> str:
    line = f"{self.windows} windows from {self.episodes} episodes ({self.steps} steps)"
    if not self.too_short:
      return line
    return (
      f"{line}; {self.too_short} episodes too short for a window, the longest of them "
      f"with {self.longest_too_short} steps"
    )


@_as_it_is
def print_too_short(
  num_steps: tf.Tensor, num_windows: tf.Tensor, min_steps: int
) -> tf.Operation:
  """Says on stderr that an episode gave no window, where no report counts it.

  Args:
    num_steps: int64 scalar.
    num_windows: int64 scalar; nothing is printed if the episode gave any.
    min_steps: the shortest episode that gives a window.
  Returns:
    The op that prints.
  """

  def say() -> tf.Operation:
    return tf.print(
      "windows: left out an episode of",
      num_steps,
      f"steps: a window needs {min_steps}. Pass a WindowReport to count instead.",
    )

  return tf.cond(num_windows < 1, _as_it_is(say), tf.no_op)
