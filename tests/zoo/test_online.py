"""Policies that learn in an environment: exact targets, resume, exports, errors."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  actors,
  cli,
  errors,
  lite,
  models,
  policies,
  replay,
  serving,
  specs,
  zoo,
)
from t2r_seq.zoo import online
from t2r_seq.zoo.environment import make_environment
from t2r_seq.zoo.spaces import EnvSignature

gymnasium = pytest.importorskip("gymnasium")


class Chain(gymnasium.Env):
  """Five cells; the left end gives 0.1, the right end 1; both are terminal."""

  num_cells, gamma = 5, 0.9
  observation_space = gymnasium.spaces.Discrete(5)
  action_space = gymnasium.spaces.Discrete(2)

  def __init__(self, max_steps=20):
    self._max_steps = max_steps

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.cell, self.t = int(self.np_random.integers(1, 4)), 0
    return self.cell, {}

  def step(self, action):
    self.cell, self.t = self.cell + (1 if action else -1), self.t + 1
    reward = {0: 0.1, 4: 1.0}.get(self.cell, 0.0)
    return self.cell, reward, self.cell in (0, 4), self.t == self._max_steps, {}


def chain_values():
  """Returns the values of actions in the cells 1 to 3, by value iteration."""
  values = np.zeros((5, 2))
  for _ in range(200):
    for cell in (1, 2, 3):
      for action, after in ((0, cell - 1), (1, cell + 1)):
        reward = {0: 0.1, 4: 1.0}.get(after, 0.0)
        is_end = after in (0, 4)
        values[cell, action] = reward + Chain.gamma * values[after].max() * (not is_end)
  return values[1:4]


class Point(gymnasium.Env):
  """A point on a line, pushed by an action in [-2, 6], and an image of it."""

  observation_space = gymnasium.spaces.Dict(
    {
      "pos": gymnasium.spaces.Box(-9, 9, (2,), np.float64),
      "image": gymnasium.spaces.Box(0, 255, (8, 8, 1), np.uint8),
    }
  )
  action_space = gymnasium.spaces.Box(-2, 6, (1,), np.float32)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.pos, self.t = self.np_random.uniform(-1, 1, 2), 0
    return self._see(), {}

  def step(self, action):
    assert self.action_space.contains(action), action
    return self._push(action - 2)

  def _push(self, push):
    self.t += 1
    self.pos = np.clip(self.pos + 0.1 * push, -9, 9)
    return self._see(), -float(np.abs(self.pos[0])), False, self.t == 8, {}

  def _see(self):
    image = np.full((8, 8, 1), int(abs(self.pos[0]) * 20), np.uint8)
    return {"pos": self.pos.copy(), "image": image}


class Position(Point):
  """The same without the image."""

  observation_space = gymnasium.spaces.Dict({"pos": Point.observation_space["pos"]})

  def _see(self):
    return {"pos": self.pos.copy()}


class Pixels(Point):
  """The same with three actions, the first of which is 4."""

  action_space = gymnasium.spaces.Discrete(3, start=4)

  def step(self, action):
    assert self.action_space.contains(action), action
    return self._push(action - 5)


SCHEDULE = zoo.OnlineSchedule(
  num_steps=60,
  learning_starts=12,
  steps_per_round=4,
  updates_per_round=2,
  num_evaluations=2,
  eval_episodes=2,
)
SMALL = {"hidden_sizes": (8,), "num_frames": 2}
MODELS = {
  "dqn": (functools.partial(zoo.DQNModel, is_dueling=True, n_step=2, **SMALL), Pixels),
  "sac": (functools.partial(zoo.SACModel, **SMALL), Point),
  # Its actor and critics have the encoders of sac's.
  "td3": (functools.partial(zoo.TD3Model, **SMALL), Position),
  "qtopt": (functools.partial(zoo.QTOptModel, lag_steps=3, **SMALL), Point),
}
# What a run has besides. By priorities, a rounding error may draw another item: one
# policy is enough. A run of td3 collects before each update.
OPTIONS = {
  "dqn": {"sampler": replay.Prioritized(0.6)},
  "sac": {"schedule": dataclasses.replace(SCHEDULE, num_envs=2)},
  "td3": {
    "schedule": dataclasses.replace(SCHEDULE, steps_per_round=2, updates_per_round=1)
  },
}


@dataclasses.dataclass
class Trained:
  """A run: its folder, its model, and what training returned.

  `middle` is a copy of the folder two updates after the first checkpoint: what a run
  leaves that dies there. `early` has the weights before each of the first updates.
  """

  folder: pathlib.Path
  model: models.T2RModel
  result: dict[str, float]
  middle: pathlib.Path
  early: list[dict[str, np.ndarray]]


def train(name, folder, seed=0, before_update=None):
  """Trains a policy; calls `before_update(update, model)` before each collection."""
  model_class, env = MODELS[name]
  made, collect = [], online.Collector.collect

  def watched(self, num_steps, update):
    if before_update is not None:
      before_update(update, made[0])
    return collect(self, num_steps, update)

  def create(signature):
    made.append(model_class(signature))
    return made[0]

  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(online.Collector, "collect", watched)
    result = zoo.train_online(
      create,
      env,
      str(folder),
      **{"schedule": SCHEDULE, **OPTIONS.get(name, {})},
      batch_size=8,
      replay_steps=200,
      seed=seed,
      show_progress=False,
    )
  return result, made[0]


def weights(model):
  return {name: value.numpy() for name, value in model.named_variables.items()}


@pytest.fixture(scope="module", name="trained")
def fixture_trained(tmp_path_factory):
  """Trains a policy, once for all tests."""

  @functools.cache
  def trained(name):
    made = tmp_path_factory.mktemp(name)
    folder, middle, early = made / "run", made / "middle", []

    def look(update, model):
      if update < 4:
        early.append(weights(model))
      if update == 14:
        shutil.copytree(folder, middle)

    result, model = train(name, folder, before_update=look)
    return Trained(folder, model, result, middle, early)

  return trained


@pytest.mark.parametrize("name", MODELS)
def test_policy_trains_and_resumes(name, trained):
  whole = trained(name)
  assert whole.result["global_step"] == 24 and np.isfinite(whole.result[online.METRIC])
  result, model = train(name, whole.middle)
  # Equal but for the order in which threads add up.
  assert result == pytest.approx(whole.result, rel=1e-4)
  want, got = weights(whole.model), weights(model)
  assert want.keys() == got.keys() and len(want) > 4
  for path, value in want.items():
    # Adam magnifies the rounding of single gradients near 0.
    is_equal = np.isclose(got[path], value, rtol=1e-3, atol=1e-4)
    assert is_equal.mean() > 0.99, path


@pytest.mark.parametrize("name", MODELS)
def test_export_acts_verifies_and_serves(name, trained, tmp_path, capsys):
  """As a SavedModel, in LiteRT, and from a server on loopback."""
  pytest.importorskip("websockets")
  export = str(trained(name).folder / "export/best")
  robot, store = str(tmp_path / "robot"), str(tmp_path / "episodes")
  policy = policies.RegressionPolicy(policies.ExportedSavedModelPredictor(export))
  metrics = record(MODELS[name][1], policy, store)
  assert metrics["num_steps"] == 16
  assert cli.main(["verify", export, store]) == 0, capsys.readouterr()
  assert cli.main(["export", "--lite", export, robot]) == 0
  assert cli.main(["verify", robot, store]) == 0, capsys.readouterr()
  assert capsys.readouterr().out.count("2 episodes, 16 steps, identical") == 2
  with serving.PolicyServer(lite.LitePolicy(robot), port=0) as server:
    place = f"ws://127.0.0.1:{server.port}"
    assert cli.main(["verify", place, store, "--export", export]) == 0
  assert "2 episodes, 16 steps, identical" in capsys.readouterr().out


def record(create_env, policy, path):
  """Writes two episodes to a store."""
  signature = EnvSignature.of(create_env())
  stored = {**signature.observations, "action": signature.action_spec}
  spec = {
    name: specs.ExtendedTensorSpec(each.shape, each.dtype, name, is_sequence=True)
    for name, each in stored.items()
  }

  def features(step):
    found = {**step["observation"], "action": step["action"]}
    return {n: np.asarray(v, spec[n].dtype.as_numpy_dtype) for n, v in found.items()}

  sink = actors.StoreSink(path, spec, step_to_features_fn=features)
  return actors.collect_episodes(create_env, policy, num_episodes=2, seed=3, sink=sink)


def test_another_seed_is_another_run(trained, tmp_path):
  """Of environments and weights, and of the noise in train steps."""
  first = trained("sac")
  result, other = train("sac", tmp_path, seed=1)
  assert result != pytest.approx(first.result, rel=1e-2)
  like = tf.zeros([4, 3])
  draws = [model.normal(like, 0).numpy() for model in (first.model, first.model, other)]
  draws += [first.model.normal(like, 1).numpy()]
  assert len({draw.tobytes() for draw in draws}) == 3
  np.testing.assert_array_equal(draws[0], draws[1])


def test_dqn_learns_the_values_of_a_small_mdp(tmp_path):
  """Q-learning comes to value iteration: targets, terminals, time limits."""
  model_class = functools.partial(
    zoo.DQNModel,
    gamma=Chain.gamma,
    hidden_sizes=(),
    loss="squared",
    target_rate=0.1,
    epsilon=(1.0, 1.0),
    create_optimizer_fn=lambda: tf.keras.optimizers.Adam(0.03),
  )
  made = []

  def create(signature):
    made.append(model_class(signature))
    return made[0]

  # A time limit of two steps is no terminal: it must not change the values.
  zoo.train_online(
    create,
    functools.partial(Chain, max_steps=2),
    str(tmp_path),
    zoo.OnlineSchedule(1500, 500, 1, 1, num_evaluations=1),
    batch_size=32,
    show_progress=False,
  )
  cells = {"observation": np.array([[1], [2], [3]])}
  values = made[0].network["online"](cells).numpy()
  np.testing.assert_allclose(values, chain_values(), atol=0.02)


def test_collection_keeps_its_ratio_and_acts_by_the_newest_weights(tmp_path):
  seen = []

  class Watched(zoo.DQNModel):
    def explore(self, output, rng, done):
      seen.append((int(self.global_step), output.copy()))
      return super().explore(output, rng, done)

  made = []

  def create(signature):
    made.append(Watched(signature, hidden_sizes=(4,)))
    return made[0]

  schedule = zoo.OnlineSchedule(100, 20, 4, 2, num_evaluations=1, eval_episodes=1)
  zoo.train_online(
    create, Chain, str(tmp_path), schedule, batch_size=8, show_progress=False
  )
  # Four environment steps for two train steps, after the first random ones.
  steps = [step for step, _ in seen]
  assert steps == [2 * (number // 4) for number in range(80)]
  # The same state is valued in another way after each round.
  assert len({output.tobytes() for _, output in seen}) > 20


def test_target_networks_begin_as_exact_copies():
  env = Point()
  model = zoo.TD3Model(EnvSignature.of(env), hidden_sizes=(8,))
  model.build()
  named = model.named_variables
  targets = [name for name in named if name.startswith("target_")]
  assert len(targets) == 3 * len([n for n in targets if "target_actor" in n])
  for name in targets:
    source = named[name.removeprefix("target_")]
    np.testing.assert_array_equal(named[name].numpy(), source.numpy(), err_msg=name)


def test_td3_updates_its_actor_every_second_step(trained):
  _, first, second, third = trained("td3").early
  for name in (n for n in first if n.startswith("actor")):
    assert not np.array_equal(first[name], second[name]), name
    np.testing.assert_array_equal(second[name], third[name])
  critic = next(n for n in first if n.startswith("critic_0") and "kernel" in n)
  assert not np.array_equal(second[critic], third[critic])


def test_sac_log_probabilities_match_a_numerical_density():
  model = zoo.SACModel(EnvSignature.of(Point()), hidden_sizes=(8,))
  distribution = tf.constant([[0.3, -0.5]] * 4000)
  action, log_prob = model._sample(distribution, 0)
  edges = np.linspace(-1, 1, 21)
  count, _ = np.histogram(action.numpy(), edges)
  middle = np.digitize(action.numpy()[:, 0], edges) - 1
  density = count / 4000 / 0.1
  for cell in np.flatnonzero(count > 250):
    mean = np.exp(log_prob.numpy()[middle == cell]).mean()
    np.testing.assert_allclose(mean, density[cell], rtol=0.15)


def test_action_element_without_a_range_is_normalized_to_0():
  low, high = np.float32([-2, 3]), np.float32([2, 3])
  signature = EnvSignature({}, low=low, high=high)
  actions = signature.normalize(tf.constant([[1.0, 3.0]]))
  np.testing.assert_array_equal(actions, [[0.5, 0.0]])
  np.testing.assert_array_equal(signature.unnormalize(actions), [[1.0, 3.0]])


class Tuples(Chain):
  observation_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2)])


class Unbounded(Point):
  action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


ERRORS = {
  "continuous actions": (
    "dqn",
    Point,
    "DQNModel: action_space: expected Discrete, got Box. Train sac, td3 or qtopt",
  ),
  "discrete actions": (
    "sac",
    Chain,
    "SACModel: action_space: expected Box, got Discrete. Train dqn",
  ),
  "observations": (
    "dqn",
    Tuples,
    "Tuples: observation: expected an observation of Box",
  ),
  "no bounds": ("sac", Unbounded, "action_space: expected finite bounds, got Box"),
  "unknown environment": (
    "dqn",
    "CartPoel-v1",
    "environment: CartPoel-v1: .*Did you mean: `CartPole`",
  ),
  "an environment that was made": ("dqn", Chain(), "a function that makes an env"),
}


@pytest.mark.parametrize(("name", "env", "want"), ERRORS.values(), ids=ERRORS)
def test_bad_environment_is_an_error_before_training(name, env, want, tmp_path):
  with pytest.raises(errors.SpecError, match=want):
    zoo.train_online(MODELS[name][0], env, str(tmp_path / "run"), SCHEDULE)
  assert not (tmp_path / "run").exists()


def test_missing_packages_are_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "gymnasium", None)
  with pytest.raises(ImportError, match=r"t2r_seq\[envs\]"):
    make_environment("CartPole-v1")
  monkeypatch.undo()
  with pytest.raises(ImportError, match="no_such_package"):
    make_environment("no_such_package:Env-v0")


def test_checkpoint_of_another_architecture_is_an_error(trained):
  with pytest.raises(errors.SpecError, match="checkpoint"):
    train("td3", trained("sac").folder)


BAD_SCHEDULES = {
  "nothing to train": ({"num_steps": 10, "learning_starts": 10}, "num_steps: expected"),
  "uneven rounds": ({"steps_per_round": 3, "num_envs": 2}, "a multiple of num_envs, 2"),
  "no update": ({"updates_per_round": 0}, "updates_per_round"),
}


@pytest.mark.parametrize(("fields", "want"), BAD_SCHEDULES.values(), ids=BAD_SCHEDULES)
def test_bad_schedules(fields, want):
  with pytest.raises(errors.SpecError, match=want):
    zoo.OnlineSchedule(**fields)


def test_command_trains_and_prints_its_config(tmp_path, capsys):
  def run(*argv):
    status = cli.main(["train", *map(str, argv)])
    return status, *capsys.readouterr()

  argv = ["--policy", "dqn", "--size", "tiny", "--env", "CartPole-v1"]
  fast = ["--gin_bindings", "OnlineSchedule.num_evaluations = 1", "BATCH_SIZE = 4"]
  fast += ["OnlineSchedule.eval_episodes = 2"]
  run_dir = tmp_path / "run"
  options = ["--env_options", '{"max_episode_steps": 5}']
  status, out, err = run(*argv, "--model_dir", run_dir, "--steps", 520, *options, *fast)
  assert status == 0, err
  assert "Trained to step 20: " in out and "closed_loop/reward 5 " in out
  assert f"next: t2r_seq evaluate {run_dir}/export/best --env CartPole-v1" in err
  assert f"--env_options '{options[1]}' && t2r_seq export" in err
  status, out, _ = run(*argv, "--print_config")
  assert status == 0 and "DQNModel.n_step = 3" in out and "\ninclude " not in out
  status, _, err = run("--policy", "dqn", "--model_dir", run_dir)
  assert status != 0 and "needs --env" in err
  status, _, err = run(
    "--policy", "mlp", "--env", "CartPole-v1", "--model_dir", run_dir
  )
  assert status != 0 and "--env: no effect without --dataset PATH" in err
