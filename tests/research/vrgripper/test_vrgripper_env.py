"""The gripper's table: its contract, its tasks, its expert, and the post in the way."""

from __future__ import annotations

import numpy as np
import pytest

env_checker = pytest.importorskip("gymnasium.utils.env_checker")

from research.vrgripper import vrgripper_env  # noqa: E402
from t2r_seq import actors  # noqa: E402


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("has_post", [False, True])
def test_keeps_the_gymnasium_contract(has_post):
  env = vrgripper_env.VRGripperEnv(has_post, image_size=16, render_mode="rgb_array")
  env_checker.check_env(env)


@pytest.mark.parametrize("options", [{"has_post": True}, {}])
def test_expert_succeeds_and_its_seed_repeats_it(options):
  env = vrgripper_env.VRGripperEnv(**options)
  policy = vrgripper_env.VRGripperExpertPolicy(env)
  runs = []
  for seed in (3, 3, 4):
    found: list[actors.rollouts.Episode] = []
    metrics = actors.run_env(env, policy, 20, seed, episode_writer=found.append)
    assert metrics["episode_reward"] == 1.0
    runs.append([(step["observation"], step["action"]) for e in found for step in e])
  np.testing.assert_equal(runs[1], runs[0])
  with pytest.raises(AssertionError):
    np.testing.assert_equal(runs[2], runs[0])
  if env.has_post:  # On either side of it.
    x = [seen["gripper_pose"][0] for seen, _ in runs[0]]
    assert min(x) < -0.35 and max(x) > 0.35


def test_straight_on_is_a_blow_against_the_post():
  env = vrgripper_env.VRGripperEnv(has_post=True)
  env.reset(seed=0)
  for _ in range(5):
    _, reward, is_over, _, info = env.step(np.array([0.0, 1.0, -1.0]))
    if is_over:
      break
  assert is_over and reward == 0 and not info["is_success"]


def test_task_is_a_color_and_no_frame_tells_which():
  env, found = vrgripper_env.VRGripperEnv(image_size=24), []
  for task in range(12):
    env.reset_task(task)
    for seed in range(6):
      observation, _ = env.reset(seed=seed)
      found.append((env.hue, seed, env.meant, env.hues[env.meant], observation))
  for hue, _, _, shown, _ in found:
    assert abs((shown - hue + 0.5) % 1 - 0.5) < 0.06
  places = {(hue, meant) for hue, _, meant, _, _ in found}
  assert len(places) == 9  # Each color is found at each place.
  first, other = [each for each in found if each[1] == 0][:2]
  np.testing.assert_equal(first[-1], other[-1])


def test_first_episode_of_a_task_may_be_a_hands():
  env = vrgripper_env.VRGripperEnv(starts_by_hand=True)
  env.reset_task(1)
  hand, robot = (env.reset(seed=0)[0] for _ in range(2))
  assert not hand["gripper_pose"].any() and robot["gripper_pose"].any()
  assert (hand["image"] != robot["image"]).any()


def test_lamp_leaves_two_colors_that_may_be_meant():
  env, shown = vrgripper_env.VRGripperEnv(has_lamp=True, image_size=None), set()
  for task in range(60):
    env.reset_task(task)
    env.reset(seed=task + 100)
    away = (env.hues[env.meant] - env.hue + 0.5) % 1 - 0.5
    assert 0.1 < abs(away) < 0.25  # Half the way to the next, and each block's own.
    shown.add((round(env.hue * 3), bool(away > 0)))
    observation, _ = env.reset()
    away = (env.hues[env.meant] - env.hue + 0.5) % 1 - 0.5
    assert abs(away) < 0.06
    assert "image" not in observation and env.observation_space.contains(observation)
  assert len(shown) == 6
