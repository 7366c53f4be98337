"""Runs policies closed-loop in fresh episodes, and reads what training logged."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from research import runs
from research.pose_env import collect, pose_env
from t2r_seq import actors

_EXPLAINED = {
  "stack of 4, chunks": "stack of 4, 4 of 8 actions executed, averaged",
  "stack of 4, chunks, LiteRT": "the same without TensorFlow, by LiteRT",
  "present position": "present position (the best answer from one frame)",
  "expert": "expert (reads the simulator's state)",
}


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """What a policy did in some episodes of a task.

  Attributes:
    task: 'still' or 'moving'.
    policy: the name that the table and the figure give it.
    error: mean distance of action and target, in metres.
    reward: mean sum of an episode's rewards.
    num_episodes: how many episodes.
    actions: what was answered, [N, 2].
    targets: what would have been right, [N, 2].
    steps: how many steps came before in the episode, [N].
  """

  task: str
  policy: str
  error: float
  reward: float
  num_episodes: int
  actions: np.ndarray
  targets: np.ndarray
  steps: np.ndarray

  @property
  def errors(self) -> np.ndarray:
    """The distance of each action from its target, in metres: [N]."""
    return np.linalg.norm(self.actions - self.targets, axis=1)

  def error_by_step(self) -> np.ndarray:
    """The mean distance at each step of an episode: [T]."""
    totals = np.bincount(self.steps, weights=self.errors)
    return totals / np.bincount(self.steps)


def evaluate(
  env: pose_env.PoseEnv,
  policy: Any,
  task: str,
  name: str,
  num_episodes: int,
  seed: int,
) -> Evaluation:
  """Runs a policy closed-loop.

  Args:
    env: a pose environment; is left open.
    policy: acts in it.
    task: name of the task.
    name: name of the policy.
    num_episodes: how many episodes.
    seed: of the run; one seed gives every policy the same episodes.
  """
  episodes: list[actors.rollouts.Episode] = []
  metrics = actors.run_env(
    env=env,
    policy=policy,
    num_episodes=num_episodes,
    seed=seed,
    episode_writer=episodes.append,
    episode_metrics_fn=collect.pose_error,
  )
  steps = [step for episode in episodes for step in episode]
  return Evaluation(
    task=task,
    policy=name,
    error=metrics["pose_error"],
    reward=metrics["episode_reward"],
    num_episodes=num_episodes,
    actions=np.stack([step["action"] for step in steps]),
    targets=np.stack([step["info"]["target_pose"] for step in steps]),
    steps=np.concatenate([np.arange(len(episode)) for episode in episodes]),
  )


def markdown_table(evaluations: Sequence[Evaluation]) -> str:
  """Returns the evaluations as a table, one line each."""
  rows = [
    (
      result.task,
      _EXPLAINED.get(result.policy, result.policy),
      f"{result.error:.3f}",
      f"{result.reward:.2f}",
      f"{result.num_episodes}",
    )
    for result in evaluations
  ]
  columns = ("task", "policy", "error (m)", "reward per episode", "episodes")
  return runs.table(columns, rows, num_labels=2)


class Point(NamedTuple):
  """One value of a scalar in a TensorBoard file.

  Attributes:
    wall_time: seconds since the epoch.
    step: that it was logged for.
    value: of the scalar.
  """

  wall_time: float
  step: int
  value: float


def read_scalars(logdir: str) -> dict[str, list[Point]]:
  """Reads the scalars of a folder's TensorBoard files.

  A file whose writer was killed, or still writes, counts up to its last whole event.

  Args:
    logdir: the folder of the event files.
  Returns:
    Points by name, file by file, in the order of writing.
  """
  scalars: dict[str, list[Point]] = {}
  pattern = os.path.join(logdir, "events.out.tfevents.*")
  for filename in sorted(tf.io.gfile.glob(pattern)):
    events = tf.data.TFRecordDataset(filename).as_numpy_iterator()
    with contextlib.suppress(tf.errors.DataLossError):
      for record in events:
        event = tf.compat.v1.Event.FromString(record)
        for value in event.summary.value:
          if value.metadata.plugin_data.plugin_name == "scalars":
            number = float(tf.make_ndarray(value.tensor))
            point = Point(event.wall_time, event.step, number)
            scalars.setdefault(value.tag, []).append(point)
  return scalars


def read_curve(logdir: str, tag: str) -> tuple[np.ndarray, np.ndarray]:
  """Reads one scalar of a training run from its TensorBoard files.

  Args:
    logdir: the folder of the event files.
    tag: the scalar's name.
  Returns:
    Steps [N] and values [N], by step.
  Raises:
    ValueError: no such scalar was logged.
  """
  points = {point.step: point.value for point in read_scalars(logdir).get(tag, [])}
  if not points:
    raise ValueError(f"read_curve: {logdir}: found no scalar '{tag}'.")
  steps = sorted(points)
  return np.array(steps), np.array([points[step] for step in steps])
