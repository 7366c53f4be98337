"""The bin and its gripper: what is lifted is a success, and seeds say all."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")

from research.qtopt import grasp_env, grasp_policies

make_action = grasp_policies.make_action


@pytest.fixture(scope="module")
def env():
  env = grasp_env.GraspEnv(image_size=(24, 32))
  yield env
  env.close()


def _grasp(env, seed, commands=("close_gripper",), num_steps=5):
  """Goes down at the first object, knowing where it is; returns the last step."""
  env.reset(seed=seed)
  for step in range(num_steps):
    x, y, _, yaw = env.pose
    away = env.object_positions[0][:2] - (x, y)
    turn = np.array([[np.cos(yaw), np.sin(yaw)], [-np.sin(yaw), np.cos(yaw)]])
    at = turn @ away
    plan = [
      make_action((*at, 0.0), 0.0),
      make_action((*at, 0.0), 0.0),
      make_action((*at, -0.16), 0.0, *commands),
      make_action((0.0, 0.0, 0.16), 0.0),
      make_action(np.zeros(3), 0.0, "terminate_episode"),
    ]
    result = env.step(plan[step])
  return result


def test_object_that_hangs_in_the_air_at_the_end_is_a_success(env):
  results = [_grasp(env, seed) for seed in range(8)]
  rewards = [reward for _, reward, *_ in results]
  assert sum(rewards) >= 7  # Others may be in the way.
  for observation, reward, terminated, truncated, info in results:
    assert terminated and not truncated
    assert reward == info["is_success"]
    assert 0.15 < observation["state"]["height_to_bottom"][0] < 0.19
    if reward:  # Something is between the fingers.
      assert 0.2 < observation["state"]["gripper_closed"][0] < 0.9


def test_lift_at_the_time_limit_is_no_success():
  env = grasp_env.GraspEnv(max_steps=4, image_size=(8, 8))
  ends = [_grasp(env, seed, num_steps=4)[1:] for seed in range(4)]
  env.close()
  assert any(info["is_lifted"] for *_, info in ends)
  for reward, terminated, truncated, info in ends:
    assert (reward, terminated, truncated, info["is_success"]) == (0, 0, 1, 0)


@pytest.mark.parametrize("commands", [(), ("close_gripper", "open_gripper")])
def test_open_gripper_lifts_no_object(env, commands):
  observation, reward, *_ = _grasp(env, 0, commands)
  assert reward == 0
  assert observation["state"]["gripper_closed"][0] < 0.05


def test_same_seed_gives_the_same_bytes_after_any_episode(env):
  def run():
    random = np.random.default_rng(0)
    observation, _ = env.reset(seed=3)
    seen = [observation["state"]]
    for _ in range(4):
      vector = random.uniform(-0.08, 0.08, 3)
      seen.append(env.step(make_action(vector, 0.5, "close_gripper"))[0]["state"])
    return [value.tobytes() for state in seen for value in state.values()]

  first = run()
  _grasp(env, 5)
  assert run() == first


def test_displacements_are_in_the_gripper_frame(env):
  before, _ = env.reset(seed=1)
  yaw = env.pose[3]
  start = env.pose
  moved = env.step(make_action((0.03, 0.0, 0.0), 0.0))[0]
  np.testing.assert_allclose(
    env.pose[:2] - start[:2], 0.03 * np.array([np.cos(yaw), np.sin(yaw)]), atol=1e-6
  )
  assert (before["state"]["image"] != moved["state"]["image"]).any()
  env.step(make_action(np.zeros(3), 0.4))
  assert env.pose[3] == pytest.approx(yaw + 0.4, abs=1e-6)


def test_episode_that_takes_too_long_is_cut_off():
  env = grasp_env.GraspEnv(max_steps=2, image_size=(512, 640), camera="shoulder")
  observation, _ = env.reset(seed=0)
  assert env.observation_space.contains(observation)
  ends = [env.step(make_action(np.zeros(3), 0.0))[1:4] for _ in range(2)]
  env.close()
  assert ends == [(0.0, False, False), (0.0, False, True)]


@pytest.mark.parametrize(
  ("options", "want"),
  [
    ({"num_objects": (0, 3)}, r"num_objects: expected .* from 1 to 5, got \(0, 3\)"),
    ({"camera": "wrist"}, "camera: expected 'carriage' or 'shoulder', got 'wrist'"),
  ],
)
def test_options_that_make_no_sense_are_refused(options, want):
  with pytest.raises(ValueError, match=want):
    grasp_env.GraspEnv(**options)
