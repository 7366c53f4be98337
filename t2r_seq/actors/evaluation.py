"""Success rates and rewards of policies over seeds, with their intervals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, training
from t2r_seq import policies as policies_lib
from t2r_seq.actors import rollouts
from t2r_seq.training.callbacks import Run

# The quantile of the standard normal distribution that leaves 2.5 % above it.
_Z = 1.959964
_NUM_RESAMPLES = 2000
_MEASURES = ("success_rate", "reward", "num_steps")

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A policy's results; intervals have 95 % confidence.

  Attributes:
    num_episodes: number of episodes of all seeds.
    success_rate: None if no episode has a success flag.
    success_interval: Wilson's.
    reward: mean of the episodes' sums.
    reward_interval: by resampling episodes.
    episode_length: mean.
    reward_by_seed: means.
  """

  num_episodes: int
  success_rate: float | None
  success_interval: Interval | None
  reward: float
  reward_interval: Interval
  episode_length: float
  reward_by_seed: dict[int, float]


def ends_in_success(episode: rollouts.Episode) -> bool | None:
  """Returns `is_success`, or `success`, of the last info; None without either."""
  info = episode[-1]["next_info"]
  for name in ("is_success", "success"):
    if name in info:
      return bool(info[name])
  return None


@gin.configurable(denylist=["policies", "env"])
def evaluate_policies(
  policies: Mapping[str, Any],
  env: Any,
  num_episodes: int = 20,
  seeds: Sequence[int] = (0, 1, 2),
  max_steps: int | None = None,
  success_fn: Callable[[rollouts.Episode], bool | None] = ends_in_success,
) -> dict[str, Evaluation]:
  """Runs policies in the same episodes.

  Args:
    policies: by name; each is restored first, if it has `restore()`.
    env: environment as for `run_env`; several at once need `policy.sample_actions`.
    num_episodes: number of episodes for each seed.
    seeds: seeds of the runs, each >= 0.
    max_steps: steps after which an episode is truncated.
    success_fn: returns whether an episode succeeded, or None.
  Returns:
    One `Evaluation` per policy, by name; `evaluation_table` shows them.
  Raises:
    SpecError: `seeds` is empty or has duplicates.
  """
  if not seeds or len(set(seeds)) < len(seeds):
    raise errors.SpecError(
      f"evaluate_policies: seeds: expected at least one seed, each once, got "
      f"{list(seeds)}."
    )
  results = {}
  for name, policy in policies.items():
    rollouts.restore_policy(policy)
    rewards: dict[int, list[float]] = {}
    lengths: list[int] = []
    successes: list[bool | None] = []
    for seed in seeds:
      for episode in rollouts.generate_episodes(
        env, policy, num_episodes, seed, max_steps=max_steps
      ):
        rewards.setdefault(seed, []).append(sum(step["reward"] for step in episode))
        lengths.append(len(episode))
        successes.append(success_fn(episode))
    results[name] = _evaluation(rewards, lengths, successes)
  return results


@gin.configurable
class ClosedLoopEvaluation(training.Callback):
  """At each evaluation, runs the current policy in an environment.

  Adds success rate and reward to the metrics. To export by them, set
  `BestExporter.metric = "closed_loop/success_rate"` and `larger_is_better = True`. Each
  robot of a model of several has an environment: `"closed_loop/ur5/success_rate"`.
  """

  def __init__(
    self,
    env: Any = gin.REQUIRED,
    policy_class: Callable[..., Any] = policies_lib.RegressionPolicy,
    num_episodes: int = 10,
    seed: int = 0,
    max_steps: int | None = None,
    success_fn: Callable[[rollouts.Episode], bool | None] = ends_in_success,
    name: str = "closed_loop",
  ) -> None:
    """Creates the callback.

    Args:
      env: environment as for `run_env`, or environments by robot.
      policy_class: makes a policy from a predictor.
      num_episodes: per evaluation, and robot; every evaluation has the same episodes.
      seed: seed of the episodes.
      max_steps: steps after which an episode is truncated.
      success_fn: returns whether an episode succeeded.
      name: prefix of the metrics.
    """
    self._envs = env if isinstance(env, Mapping) else {"": env}
    self._policy_class, self._name = policy_class, name
    self._num_episodes = errors.check_count(
      "ClosedLoopEvaluation", "num_episodes", num_episodes
    )
    self._seed, self._max_steps, self._success_fn = seed, max_steps, success_fn
    self._policies: dict[str, Any] = {}

  @property
  def eval_metric_names(self) -> Sequence[str]:
    """See the base class."""
    robots = ["", *(f"{robot}/" for robot in self._envs if robot)]
    return [f"{self._name}/{robot}{key}" for robot in robots for key in _MEASURES]

  def evaluate(self, run: Run) -> Mapping[str, float]:
    """See the base class; without a success rate if no episode has one."""
    found = {robot: self._evaluate(run, robot) for robot in self._envs}
    means = np.array([[*each.values()] for each in found.values()], float).mean(0)
    by_robot = {"": dict(zip(_MEASURES, means, strict=True)), **found}
    return {
      f"{self._name}/{robot and f'{robot}/'}{key}": float(value)
      for robot, measures in by_robot.items()
      for key, value in measures.items()
      if value is not None and not np.isnan(value)
    }

  def _evaluate(self, run: Run, robot: str) -> dict[str, float | None]:
    """Returns the measures of a robot; '' is that of a model of one."""
    if robot not in self._policies:
      # The weights of several robots are those of training: no copy for each.
      predictor = policies_lib.ModelPredictor(
        run.model.as_robot(robot) if robot else run.model, copies_weights=not robot
      )
      self._policies[robot] = self._policy_class(predictor)
    found = evaluate_policies(
      {robot: self._policies[robot]},
      self._envs[robot],
      self._num_episodes,
      (self._seed,),
      self._max_steps,
      self._success_fn,
    )[robot]
    values = (found.success_rate, found.reward, found.episode_length)
    return dict(zip(_MEASURES, values, strict=True))


def evaluation_table(evaluations: Mapping[str, Evaluation]) -> str:
  """Returns evaluations as a table in Markdown."""
  rows = [
    "| policy | success | 95 % | reward | 95 % | steps | episodes |",
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
  ]
  for name, each in evaluations.items():
    success, interval = "-", "-"
    if each.success_rate is not None and each.success_interval is not None:
      success = f"{each.success_rate:.0%}"
      interval = " to ".join(f"{edge:.0%}" for edge in each.success_interval)
    reward = " to ".join(f"{edge:.2f}" for edge in each.reward_interval)
    rows.append(
      f"| {name} | {success} | {interval} | {each.reward:.2f} | {reward} | "
      f"{each.episode_length:.1f} | {each.num_episodes} |"
    )
  return "\n".join(rows)


def _evaluation(
  rewards: Mapping[int, list[float]], lengths: list[int], successes: list[bool | None]
) -> Evaluation:
  flags = [success for success in successes if success is not None]
  values = np.concatenate([np.asarray(each, np.float64) for each in rewards.values()])
  return Evaluation(
    num_episodes=len(lengths),
    success_rate=float(np.mean(flags)) if flags else None,
    success_interval=_wilson(sum(flags), len(flags)) if flags else None,
    reward=float(values.mean()),
    reward_interval=_bootstrap(values),
    episode_length=float(np.mean(lengths)),
    reward_by_seed={seed: float(np.mean(each)) for seed, each in rewards.items()},
  )


def _wilson(count: int, total: int) -> Interval:
  """Returns Wilson's interval (1927) of a rate."""
  rate, spread = count / total, _Z**2 / total
  center = (rate + spread / 2) / (1 + spread)
  half = math.sqrt(rate * (1 - rate) * spread + spread**2 / 4) / (1 + spread)
  return max(center - half, 0.0), min(center + half, 1.0)


def _bootstrap(values: np.ndarray) -> Interval:
  """Returns an interval of a mean; the same for the same values."""
  rng = np.random.default_rng(0)
  means = [rng.choice(values, len(values)).mean() for _ in range(_NUM_RESAMPLES)]
  low, high = np.percentile(means, [2.5, 97.5])
  return float(low), float(high)
