"""Success rates and rewards of policies over seeds, with confidence intervals."""

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
    success_rate: rate among episodes with a success flag; None without such.
    success_interval: Wilson's interval; None without a success rate.
    reward: mean return, the sum of an episode's rewards.
    reward_interval: bootstrap interval over episodes.
    episode_length: mean number of steps.
    reward_by_seed: mean return of each seed.
  """

  num_episodes: int
  success_rate: float | None
  success_interval: Interval | None
  reward: float
  reward_interval: Interval
  episode_length: float
  reward_by_seed: dict[int, float]


def ends_in_success(episode: rollouts.Episode) -> bool | None:
  """Returns `is_success`, or else `success`, of the last info; None without both."""
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
    policies: policies by name; each is restored first, if it has `restore()`.
    env: environment as for `run_env`; several at once need `policy.sample_actions`.
    num_episodes: number of episodes for each seed.
    seeds: seeds of the runs, each >= 0.
    max_steps: steps after which an episode is truncated; None for no limit.
    success_fn: returns whether an episode succeeded, or None if it has no flag.
  Returns:
    One `Evaluation` per policy, by name; `evaluation_table` shows them.
  Raises:
    SpecError: `seeds` is empty or has duplicates.
    ValueError: a count is below 1, a seed is negative, or `env` is not a Gymnasium
      environment that the policies can act in.
    policies.predictors.NoModelError: a policy has no model.
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
  """Runs the current policy in an environment at each evaluation.

  Adds success rate, reward and number of steps to the metrics. To export by them, set
  `BestExporter.metric = "closed_loop/success_rate"` and `larger_is_better = True`. A
  model of several robots has an environment for each; `"closed_loop/ur5/success_rate"`
  is a metric of one robot, `"closed_loop/success_rate"` the mean of all.
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
      num_episodes: episodes of each robot per evaluation; each time the same ones.
      seed: seed of the episodes.
      max_steps: steps after which an episode is truncated; None for no limit.
      success_fn: returns whether an episode succeeded, or None if it has no flag.
      name: prefix of the metrics.
    Raises:
      SpecError: num_episodes is not an integer of at least 1.
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
    """See the base class; without a success rate if no episode has a success flag."""
    measured = {robot: self._evaluate(run, robot) for robot in self._envs}
    means = np.array([[*each.values()] for each in measured.values()], float).mean(0)
    by_robot = {"": dict(zip(_MEASURES, means, strict=True)), **measured}
    return {
      f"{self._name}/{robot and f'{robot}/'}{key}": float(value)
      for robot, measures in by_robot.items()
      for key, value in measures.items()
      if value is not None and not np.isnan(value)
    }

  def _evaluate(self, run: Run, robot: str) -> dict[str, float | None]:
    """Returns the measures of a robot; '' for a model of one robot."""
    if robot not in self._policies:
      # Several robots share training's weights, so that there is no copy for each.
      predictor = policies_lib.ModelPredictor(
        run.model.as_robot(robot) if robot else run.model, copies_weights=not robot
      )
      self._policies[robot] = self._policy_class(predictor)
    result = evaluate_policies(
      {robot: self._policies[robot]},
      self._envs[robot],
      self._num_episodes,
      (self._seed,),
      self._max_steps,
      self._success_fn,
    )[robot]
    values = (result.success_rate, result.reward, result.episode_length)
    return dict(zip(_MEASURES, values, strict=True))


def evaluation_table(evaluations: Mapping[str, Evaluation]) -> str:
  """Returns evaluations as a Markdown table."""
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
  """Returns Wilson's score interval (1927) of a rate."""
  rate, spread = count / total, _Z**2 / total
  center = (rate + spread / 2) / (1 + spread)
  half = math.sqrt(rate * (1 - rate) * spread + spread**2 / 4) / (1 + spread)
  return max(center - half, 0.0), min(center + half, 1.0)


def _bootstrap(values: np.ndarray) -> Interval:
  """Returns a bootstrap interval of a mean; equal values give equal intervals."""
  rng = np.random.default_rng(0)
  means = [rng.choice(values, len(values)).mean() for _ in range(_NUM_RESAMPLES)]
  low, high = np.percentile(means, [2.5, 97.5])
  return float(low), float(high)
