"""Several environments at once: the same episodes as one after the other."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import policies, specs
from t2r_seq.actors.rollouts import generate_episodes, generate_steps
from t2r_seq.actors.sinks import make_step_to_features


def vector_env(make_env, num_envs, vector_class=gymnasium.vector.SyncVectorEnv):
  mode = gymnasium.vector.AutoresetMode.DISABLED
  return vector_class([make_env] * num_envs, autoreset_mode=mode)


class LineEnv(gymnasium.Env):
  """Moves right by the action from a random place; ends after 2 to 6 steps."""

  observation_space = gymnasium.spaces.Dict(
    {
      "state": gymnasium.spaces.Dict(
        {"pos": gymnasium.spaces.Box(-100, 100, (2,), np.float32)}
      )
    }
  )
  action_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self._pos = self.np_random.random(2).astype(np.float32)
    self._left = int(self.np_random.integers(2, 7))
    return self._observe(), {"left": self._left, "name": "start"}

  def step(self, action):
    self._pos = self._pos + action
    self._left -= 1
    return self._observe(), float(action[0]), self._left == 0, False, self._info()

  def _observe(self):
    return {"state": {"pos": self._pos.copy()}}

  def _info(self):
    return {"left": self._left} | ({"last": {"pos": self._pos}} if self._left else {})


class NoisyPolicy(policies.Policy):
  """Moves by some noise of the environment's own, and counts its calls."""

  def __init__(self):
    super().__init__()
    self._rngs = {}
    self.num_calls = 0

  def seed(self, seed, env=0):
    self._rngs[env] = np.random.default_rng(seed)

  def SelectAction(self, state, context, timestep):
    return self._rngs[0].random(2).astype(np.float32)

  def sample_actions(self, observations, is_first, explore_prob=0.0):
    self.num_calls += 1
    assert observations["state"]["pos"].shape == (len(is_first), 2)
    actions = [
      self._rngs[env].random(2).astype(np.float32) for env in range(len(is_first))
    ]
    return actions, [bool(first) for first in is_first]


def _describe(steps):
  """What an episode holds, as plain values that can be compared and ordered."""
  return [
    (
      step["observation"]["state"]["pos"].tolist(),
      np.asarray(step["action"]).tolist(),
      step["reward"],
      step["terminated"],
      step["truncated"],
      step["next_observation"]["state"]["pos"].tolist(),
      int(step["info"]["left"]),
      sorted(step["info"]),
      sorted(step["next_info"]),
    )
    for step in steps
  ]


def _run(env, num_episodes, **kwargs):
  episodes = generate_episodes(env, NoisyPolicy(), num_episodes, **kwargs)
  return [_describe(steps) for steps in episodes]


@pytest.mark.parametrize(
  ("name", "num_envs", "num_episodes", "max_steps"),
  [
    ("SyncVectorEnv", 3, 8, None),
    ("SyncVectorEnv", 4, 2, None),
    ("SyncVectorEnv", 3, 7, 4),
    ("AsyncVectorEnv", 3, 8, None),
  ],
)
def test_episodes_are_those_of_one_environment(name, num_envs, num_episodes, max_steps):
  want = _run(LineEnv, num_episodes, seed=5, max_steps=max_steps)
  got = _run(
    lambda: vector_env(LineEnv, num_envs, getattr(gymnasium.vector, name)),
    num_episodes,
    seed=5,
    max_steps=max_steps,
  )
  assert len({len(steps) for steps in want}) > 1
  assert sorted(got) == sorted(want)


def test_one_call_of_the_policy_a_step_of_all():
  policy = NoisyPolicy()
  env = vector_env(LineEnv, 4)
  steps = list(generate_steps(env, policy, 4, seed=1))
  assert policy.num_calls == max(
    sum(number == env_number for number, _ in steps) for env_number in range(4)
  )
  # What the policy keeps beside its actions: whether the episode starts.
  for number in range(4):
    firsts = [step["debug"] for other, step in steps if other == number]
    assert firsts == [True] + [False] * (len(firsts) - 1)
  env.close()


class ButtonsEnv(gymnasium.Env):
  """Three steps whose rewards tell which action arrived."""

  observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)

  def __init__(self, action_space):
    self.action_space = action_space

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self._t = 0
    return np.zeros(1, np.float32), {}

  def step(self, action):
    self._t += 1
    parts = tf.nest.flatten(action)
    reward = sum(np.sum(part) * 10.0**i for i, part in enumerate(parts))
    return np.zeros(1, np.float32), float(reward), False, self._t == 3, {}


class SamplingPolicy(policies.Policy):
  """Samples from an action space."""

  def __init__(self, space):
    super().__init__()
    self._spaces = [copy.deepcopy(space) for _ in range(3)]

  def seed(self, seed, env=0):
    self._spaces[env].seed(seed)

  def SelectAction(self, state, context, timestep):
    return self._spaces[0].sample()

  def sample_actions(self, observations, is_first, explore_prob=0.0):
    return [space.sample() for space in self._spaces], [None] * len(is_first)


BOX = gymnasium.spaces.Box(0, 1, (2, 3), np.float32)
DISCRETE = gymnasium.spaces.Discrete(7, start=-3)
SPACES = {
  "box": BOX,
  "discrete": DISCRETE,
  "multi-discrete": gymnasium.spaces.MultiDiscrete([4, 9]),
  "multi-binary": gymnasium.spaces.MultiBinary(5),
  "tuple": gymnasium.spaces.Tuple([DISCRETE, BOX]),
  "dict": gymnasium.spaces.Dict(
    {"arm": BOX, "hand": gymnasium.spaces.Dict({"grip": DISCRETE})}
  ),
}


@pytest.mark.parametrize("name", SPACES)
def test_actions_of_any_space(name):
  space = SPACES[name]

  def run(env):
    steps = generate_episodes(env, SamplingPolicy(space), 5, seed=2)
    return sorted([step["reward"] for step in episode] for episode in steps)

  want = run(lambda: ButtonsEnv(space))
  got = run(lambda: vector_env(lambda: ButtonsEnv(space), 3))
  assert len({reward for rewards in want for reward in rewards}) > 3
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_parts_of_an_action_are_stored_by_path():
  env = vector_env(lambda: ButtonsEnv(SPACES["dict"]), 3)
  policy = SamplingPolicy(SPACES["dict"])
  _, step = next(generate_steps(env, policy, 3, seed=2))
  grip = specs.ExtendedTensorSpec((), tf.int64, "grip", is_sequence=True)
  got = make_step_to_features({"action": {"hand": {"grip": grip}}})(step)
  assert got["action/hand/grip"] == step["action"]["hand"]["grip"]
  env.close()


WRONG_ACTIONS = {
  "shape": (BOX, gymnasium.spaces.MultiBinary(5), r"Box\(.* got \(5,\) int8"),
  "kind": (DISCRETE, gymnasium.spaces.Box(0, 1, ()), r"Discrete\(7.* float32"),
  "no dict": (SPACES["dict"], DISCRETE, r"Dict\(.*got \(\) int64 for the first"),
  "key": (SPACES["dict"], gymnasium.spaces.Dict({"arm": BOX}), "KeyError: 'hand'"),
}


@pytest.mark.parametrize("name", WRONG_ACTIONS)
def test_actions_of_another_space_are_refused(name):
  space, of_policy, want = WRONG_ACTIONS[name]
  env = vector_env(lambda: ButtonsEnv(space), 3)
  message = "run episodes: the policy's actions: expected one of .*"
  with pytest.raises(ValueError, match=message + want):
    list(generate_steps(env, SamplingPolicy(of_policy), 1, seed=2))
  env.close()


def test_vector_environment_that_resets_itself_is_refused():
  env = gymnasium.vector.SyncVectorEnv([LineEnv])
  with pytest.raises(ValueError, match=r"autoreset_mode: expected DISABLED.*NEXT_STEP"):
    list(generate_steps(env, NoisyPolicy(), 1))


def test_policy_for_one_environment_is_refused():
  class OneByOne(policies.Policy):
    def SelectAction(self, state, context, timestep):
      return np.zeros(2, np.float32)

  class Bare:
    pass

  env = vector_env(LineEnv, 2)
  with pytest.raises(NotImplementedError, match="OneByOne acts in one environment at"):
    list(generate_steps(env, OneByOne(), 1))
  with pytest.raises(ValueError, match="Bare: expected a method sample_actions"):
    list(generate_steps(env, Bare(), 1))
  env.close()
