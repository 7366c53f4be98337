"""The environments: seeding, rewards, motion, the Gymnasium contract, closing."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pybullet")
env_checker = pytest.importorskip("gymnasium.utils.env_checker")

from research.pose_env import pose_env  # noqa: E402

ENVS = {"still": pose_env.PoseEnv, "moving": pose_env.MovingPoseEnv}


@pytest.fixture(params=ENVS)
def env(request):
  made = ENVS[request.param]()
  yield made
  made.close()


@pytest.fixture
def moving():
  made = pose_env.MovingPoseEnv(num_steps=5)
  yield made
  made.close()


def rollout(env, seed, num_steps=3):
  """Returns what an episode shows: frames [T + 1, ...], rewards and infos."""
  observation, info = env.reset(seed=seed)
  frames, rewards, infos = [observation["state"]["image"]], [], [info]
  for _ in range(min(num_steps, env.num_steps)):
    observation, reward, _, _, info = env.step(np.zeros(2, np.float32))
    frames.append(observation["state"]["image"])
    rewards.append(reward)
    infos.append(info)
  return np.stack(frames), rewards, infos


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_keeps_the_gymnasium_contract(env):
  env_checker.check_env(env)


def test_same_seed_gives_same_bytes(env):
  frames, rewards, infos = rollout(env, seed=7)
  rollout(env, seed=8)
  again, rewards_again, infos_again = rollout(env, seed=7)
  assert frames.tobytes() == again.tobytes()
  assert rewards == rewards_again
  for info, info_again in zip(infos, infos_again, strict=True):
    for name in info:
      np.testing.assert_array_equal(info[name], info_again[name])


def test_same_seed_gives_same_bytes_in_another_instance(env):
  other = type(env)()
  try:
    assert rollout(env, 3)[0].tobytes() == rollout(other, 3)[0].tobytes()
  finally:
    other.close()


def test_other_seeds_give_other_episodes(env):
  frames, _, infos = rollout(env, seed=1)
  other_frames, _, other_infos = rollout(env, seed=2)
  assert (frames != other_frames).any()
  assert not np.allclose(infos[0]["target_pose"], other_infos[0]["target_pose"])


def test_unseeded_resets_continue_from_the_seed(env):
  env.reset(seed=5)
  first = env.reset()[1]["target_pose"]
  second = env.reset()[1]["target_pose"]
  env.reset(seed=5)
  np.testing.assert_array_equal(env.reset()[1]["target_pose"], first)
  assert not np.allclose(first, second)


def test_duck_is_in_the_picture(env):
  for seed in range(20):
    frame = env.reset(seed=seed)[0]["state"]["image"].astype(int)
    red, green, blue = frame[..., 0], frame[..., 1], frame[..., 2]
    duck = (red > 150) & (green > 90) & (blue < 80)
    assert duck.sum() >= 8, f"seed {seed}: {duck.sum()} yellow pixels"


def test_reward_is_minus_the_distance_to_the_target_of_the_observation(env):
  _, info = env.reset(seed=4)
  action = info["target_pose"] + np.float32([0.3, -0.4])
  _, reward, *_ = env.step(action)
  assert reward == pytest.approx(-0.5, abs=1e-6)
  assert isinstance(reward, float)


def test_expert_actions_get_no_punishment(moving):
  _, info = moving.reset(seed=0)
  terminated, rewards = False, []
  while not terminated:
    _, reward, terminated, truncated, info = moving.step(info["target_pose"])
    rewards.append(reward)
    assert not truncated
  assert rewards == [0.0] * 5


def test_still_target_is_where_the_object_is():
  env = pose_env.PoseEnv(num_steps=3)
  frames, _, infos = rollout(env, seed=9)
  env.close()
  for info in infos:
    np.testing.assert_array_equal(info["target_pose"], info["object_pose"][:2])
    np.testing.assert_array_equal(info["object_velocity"], [0.0, 0.0])
  assert (frames == frames[0]).all()


def test_frames_are_not_shared(env):
  observation, _ = env.reset(seed=0)
  before = observation["state"]["image"].copy()
  observation["state"]["image"][:] = 0
  np.testing.assert_array_equal(env.reset(seed=0)[0]["state"]["image"], before)
  observation, _ = env.reset(seed=0)
  observation["state"]["image"][:] = 0
  np.testing.assert_array_equal(env._observe()["state"]["image"], before)


def test_velocity_is_constant_and_the_target_lies_a_horizon_ahead(moving):
  for seed in range(5):
    frames, _, infos = rollout(moving, seed, num_steps=5)
    positions = np.stack([info["object_pose"][:2] for info in infos])
    velocity = infos[0]["object_velocity"]
    np.testing.assert_allclose(
      np.diff(positions, axis=0), np.tile(velocity, (5, 1)), atol=1e-6
    )
    assert 0.04 <= np.linalg.norm(velocity) <= 0.07
    for info in infos:
      want = info["object_pose"][:2] + moving.horizon * velocity
      np.testing.assert_allclose(info["target_pose"], want, atol=1e-6)
    assert (frames[0] != frames[1]).any()


def test_one_position_tells_nothing_about_the_velocity(moving):
  positions, velocities = [], []
  for seed in range(300):
    moving.reset(seed=seed)
    for step in range(moving.num_steps):
      positions.append(moving._position(step))
      velocities.append(moving._velocity)
  for axis in range(2):
    correlation = np.corrcoef(
      np.stack(positions)[:, axis], np.stack(velocities)[:, axis]
    )
    assert abs(correlation[0, 1]) < 0.1


def test_velocity_survives_no_reset(moving):
  first = moving.reset(seed=0)[1]["object_velocity"]
  second = moving.reset()[1]["object_velocity"]
  assert not np.allclose(first, second)


def test_close_may_be_called_twice_and_ends_the_environment():
  env, other = pose_env.PoseEnv(), pose_env.PoseEnv()
  env.close()
  env.close()
  with pytest.raises(RuntimeError, match=r"used after close\(\)"):
    env.reset(seed=0)
  other.reset(seed=0)  # Has a world of its own.
  other.close()


def test_render_mode_gives_the_frame():
  env = pose_env.PoseEnv(render_mode="rgb_array")
  observation, _ = env.reset(seed=0)
  np.testing.assert_array_equal(env.render(), observation["state"]["image"])
  env.close()
  quiet = pose_env.PoseEnv()
  quiet.reset(seed=0)
  assert quiet.render() is None
  quiet.close()


@pytest.mark.parametrize("num_steps", [0, -1])
def test_episode_has_steps(num_steps):
  with pytest.raises(ValueError, match=f"num_steps: expected >= 1, got {num_steps}"):
    pose_env.PoseEnv(num_steps=num_steps)
