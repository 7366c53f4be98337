"""Running a policy for whole episodes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from t2r_seq.actors.rollouts import episode_seed, generate_episodes


def _positions(episodes):
  return [
    [step["observation"]["state"]["pos"].tolist() for step in e] for e in episodes
  ]


def test_steps_follow_each_other(env, policy):
  (steps,) = generate_episodes(env, policy, 1, seed=0)
  assert len(steps) >= 2
  for step, following in itertools.pairwise(steps):
    assert step["next_observation"] is following["observation"]
    assert step["next_info"] is following["info"]
    assert not (step["terminated"] or step["truncated"])
  assert [step["info"]["t"] for step in steps] == list(range(len(steps)))
  assert steps[-1]["next_info"]["t"] == len(steps)
  last = steps[-1]
  assert last["terminated"] is True
  assert last["truncated"] is False
  moved = last["next_observation"]["state"]["pos"] - last["observation"]["state"]["pos"]
  np.testing.assert_allclose(moved, last["action"], atol=1e-6)
  np.testing.assert_array_equal(
    last["debug"]["seen"], last["observation"]["state"]["pos"]
  )


def test_seeds_make_episodes_repeatable(make_env, make_policy):
  def run(num_episodes, seed, max_steps=None):
    episodes = generate_episodes(
      make_env(), make_policy(), num_episodes, seed, max_steps=max_steps
    )
    return _positions(episodes)

  three = run(3, seed=1)
  assert run(3, seed=1) == three
  assert run(3, seed=2) != three
  assert three[0] != three[1]
  # Each episode depends on its number only, not on those before it.
  short = run(3, seed=1, max_steps=1)
  assert [episode[0] for episode in short] == [episode[0] for episode in three]


def test_environment_and_policy_are_seeded_apart(env, policy, monkeypatch):
  policy_seeds = []
  monkeypatch.setattr(policy, "seed", policy_seeds.append)
  list(generate_episodes(env, policy, 2, seed=5))
  assert env.reset_seeds == [episode_seed(5, episode) for episode in range(2)]
  assert policy_seeds == [episode_seed(5, e, stream=1) for e in range(2)]


def test_all_seeds_differ():
  seeds = {
    episode_seed(seed, episode, stream)
    for seed in range(3)
    for episode in range(3)
    for stream in range(2)
  }
  assert len(seeds) == 18


def test_without_a_seed_the_environment_is_not_seeded(env, policy):
  list(generate_episodes(env, policy, 2))
  assert env.reset_seeds == [None, None]
  assert policy.num_resets == 2


def test_max_steps_truncates(env, policy):
  episodes = list(generate_episodes(env, policy, 2, max_steps=2))
  assert [len(steps) for steps in episodes] == [2, 2]
  assert episodes[0][-1]["truncated"] is True
  assert episodes[0][0]["truncated"] is False


def test_given_environment_stays_open(env, policy):
  list(generate_episodes(env, policy, 1))
  assert not env.is_closed


@pytest.mark.parametrize("is_class", [True, False])
def test_environment_made_here_is_closed(make_env, policy, is_class):
  made = []

  class Recorded(make_env):
    def __init__(self):
      super().__init__()
      made.append(self)

  list(generate_episodes(Recorded if is_class else lambda: Recorded(), policy, 1))
  assert [env.is_closed for env in made] == [True]


class _OldEnv:
  """Has the methods of the Gym API before Gymnasium."""

  def __init__(self, reset_result, step_result):
    self._reset_result, self._step_result = reset_result, step_result

  def reset(self, seed=None):
    return self._reset_result

  def step(self, action):
    return self._step_result


OBSERVATION = {"state": {"pos": np.zeros([2])}}


@pytest.mark.parametrize(
  ("env", "kwargs", "want"),
  [
    (_OldEnv(OBSERVATION, ()), {}, r"env.reset\(\) must return 2 values .* got dict"),
    (
      _OldEnv((OBSERVATION, {}), (OBSERVATION, 0.0, True, {})),
      {},
      r"env.step\(\) must return 5 values as in Gymnasium, got 4 values",
    ),
    (None, {"num_episodes": 0}, "num_episodes must be >= 1, got 0"),
    (None, {"max_steps": 0}, "max_steps must be >= 1, got 0"),
  ],
  ids=["reset", "step", "num_episodes", "max_steps"],
)
def test_errors(make_env, policy, env, kwargs, want):
  arguments = {"num_episodes": 1, **kwargs}
  with pytest.raises(ValueError, match=want):
    list(generate_episodes(env or make_env(), policy, **arguments))


def test_real_gymnasium_environment(policy):
  gymnasium = pytest.importorskip("gymnasium")

  class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
      {"state": gymnasium.spaces.Dict({"pos": gymnasium.spaces.Box(0, 1, (2,))})}
    )
    action_space = gymnasium.spaces.Box(-2, 2, (2,))

    def reset(self, *, seed=None, options=None):
      super().reset(seed=seed)
      return {"state": {"pos": self.np_random.random(2, np.float32)}}, {}

    def step(self, action):
      return {"state": {"pos": np.zeros([2], np.float32)}}, 0.5, False, False, {}

  limited = gymnasium.wrappers.TimeLimit(Env(), max_episode_steps=4)
  episodes = list(generate_episodes(limited, policy, 2, seed=0))
  assert [len(steps) for steps in episodes] == [4, 4]
  assert episodes[0][-1]["truncated"] is True
