"""Evaluation runs and their metrics."""

from __future__ import annotations

import pytest

from t2r_seq import actors
from t2r_seq.actors.rollouts import EpisodeTally


def test_metrics(make_env, policy):
  metrics = actors.run_env(
    make_env(length=2),
    policy,
    num_episodes=5,
    explore_prob=0.25,
    episode_metrics_fn=lambda steps: {"last_t": steps[-1]["next_info"]["t"]},
  )
  assert metrics == {
    "num_episodes": 5,
    "num_steps": 10,
    "episode_reward": 2.0,
    "episode_reward_std": 0.0,
    "episode_reward_min": 2.0,
    "episode_reward_max": 2.0,
    "episode_length": 2.0,
    "last_t": 2.0,
  }
  assert policy.num_restores == 1
  assert policy.explore_probs == {0.25}


def test_metrics_are_over_episodes():
  tally = EpisodeTally()
  for rewards in ([1.0], [2.0, 3.0]):
    tally.add([{"reward": reward} for reward in rewards])
  metrics = tally.metrics()
  assert metrics["episode_reward"] == 3.0
  assert metrics["episode_reward_std"] == 2.0
  assert (metrics["episode_reward_min"], metrics["episode_reward_max"]) == (1.0, 5.0)
  assert (metrics["episode_length"], metrics["num_steps"]) == (1.5, 3)


def test_policy_without_restore(env, policy):
  class Bare:
    reset = policy.reset
    sample_action = policy.sample_action

  assert actors.run_env(env, Bare(), num_episodes=1)["num_episodes"] == 1


def test_writer_gets_every_episode(make_env, policy):
  episodes = []
  actors.run_env(make_env(length=2), policy, 3, seed=0, episode_writer=episodes.append)
  assert [len(steps) for steps in episodes] == [2, 2, 2]


def test_failed_run_closes_the_environment(make_env, policy):
  def fail(steps):
    raise OSError("disk full")

  env = make_env(length=2)
  with pytest.raises(OSError, match="disk full"):
    actors.run_env(lambda: env, policy, 3, episode_writer=fail)
  assert env.is_closed
