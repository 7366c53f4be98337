"""What a distributed job leaves behind: its returns over time, as a table."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from research import runs
from research.pose_env import evaluation

COLLECT, EVAL = "collect", "eval"
# Where `collect_eval_loop` writes its summaries.
_FOLDERS = {COLLECT: "policy_collect", EVAL: "eval"}


@dataclasses.dataclass(frozen=True)
class Round:
  """Some episodes of one actor, all with one policy.

  Attributes:
    actor: its name.
    kind: COLLECT, with exploration, or EVAL, without.
    wall_time: when they were done, in seconds since the epoch.
    step: the training step of the policy; 0 is the random one, before any export.
    reward: mean sum of an episode's rewards.
    num_episodes: how many.
  """

  actor: str
  kind: str
  wall_time: float
  step: int
  reward: float
  num_episodes: int


@dataclasses.dataclass(frozen=True)
class Progress:
  """How far a job is.

  Attributes:
    wall_time: in seconds since the epoch.
    inserted: steps that the actors have put into the replay.
    sampled: windows that left it.
    learner_step: of the newest scalars that the learner has logged.
  """

  wall_time: float
  inserted: int
  sampled: int
  learner_step: int


def read_rounds(actor_dirs: Iterable[pathlib.Path]) -> list[Round]:
  """Reads the rounds of actors from their TensorBoard files.

  Args:
    actor_dirs: the `root_dir` of each; their names are the actors'.
  Returns:
    All rounds, by time.
  """
  rounds = []
  for folder in actor_dirs:
    for kind, name in _FOLDERS.items():
      scalars = evaluation.read_scalars(str(folder / name))
      rewards = scalars.get(f"{kind}/episode_reward", [])
      counts = scalars.get(f"{kind}/num_episodes", [])
      # A killed actor may have left the one without the other.
      for reward, count in zip(rewards, counts, strict=False):
        rounds.append(
          Round(
            actor=folder.name,
            kind=kind,
            wall_time=reward.wall_time,
            step=reward.step,
            reward=reward.value,
            num_episodes=int(count.value),
          )
        )
  return sorted(rounds, key=lambda found: found.wall_time)


def mean_reward(rounds: Iterable[Round]) -> float:
  """Returns the mean over the episodes of rounds; nan without any."""
  found = list(rounds)
  if not found:
    return float("nan")
  weights = [each.num_episodes for each in found]
  return float(np.average([each.reward for each in found], weights=weights))


def returns_by_step(rounds: Sequence[Round], kind: str) -> dict[int, float]:
  """Returns the mean return of each policy, over all actors, by training step."""
  chosen = [each for each in rounds if each.kind == kind]
  return {
    step: mean_reward(each for each in chosen if each.step == step)
    for step in sorted({each.step for each in chosen})
  }


def markdown_table(rounds: Sequence[Round], start: float) -> str:
  """Returns a line for each policy that acted, in the order of training.

  Args:
    rounds: of all actors.
    start: of the job, in seconds since the epoch.
  """
  collected = returns_by_step(rounds, COLLECT)
  evaluated = returns_by_step(rounds, EVAL)
  rows = []
  for step in sorted({*collected, *evaluated}):
    acted = [each for each in rounds if each.step == step]
    episodes = sum(each.num_episodes for each in acted if each.kind == COLLECT)
    seconds = min(each.wall_time for each in acted) - start
    name = str(step) if step else "none: random"
    returns = [_number(by_step.get(step)) for by_step in (collected, evaluated)]
    rows.append((name, f"{seconds:.0f} s", str(episodes), *returns))
  columns = ("export of step", "first acted after", "episodes", "exploring", "greedy")
  return runs.table(columns, rows, num_labels=0)


def _number(value: float | None) -> str:
  return "" if value is None else f"{value:.2f}"
