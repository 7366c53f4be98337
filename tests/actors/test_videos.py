"""Videos of evaluated episodes."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest

from t2r_seq import actors

av = pytest.importorskip("av", reason="the extra `video`")
pytest.importorskip("moviepy", reason="Gymnasium records with it")


class DotEnv(gymnasium.Env):
  """A white dot that moves one pixel to the right each step, three or more steps."""

  metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
  observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
  action_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)

  def __init__(self, length=3, render_mode="rgb_array"):
    self.render_mode = render_mode
    self._length = length
    self._t = 0

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self._t = 0
    return np.float32([0]), {}

  def step(self, action):
    self._t += 1
    return np.float32([self._t]), 0.0, self._t == self._length, False, {}

  def render(self):
    frame = np.zeros([64, 64, 3], np.uint8)
    frame[8:12, 4 * self._t : 4 * self._t + 4] = 255
    return frame


class _Policy:
  def reset(self):
    pass

  def sample_action(self, obs, explore_prob):
    return np.zeros(1, np.float32), None

  def sample_actions(self, observations, is_first, explore_prob):
    return [np.zeros(1, np.float32)] * len(is_first), [None] * len(is_first)


def _dots(path):
  """Returns the column of the dot in each frame."""
  with av.open(str(path)) as container:
    frames = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
  return [int(frame[10].argmax()) // 4 for frame in frames]


VECTOR = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
CASES = {
  # name: (environment, most steps, columns)
  "one": (DotEnv, None, [0, 1, 2, 3]),
  "cut off": (lambda: DotEnv(length=100), 2, [0, 1, 2]),
  "several": (
    lambda: gymnasium.vector.SyncVectorEnv([DotEnv] * 2, **VECTOR),
    None,
    [0, 1, 2, 3],
  ),
}


@pytest.mark.parametrize("case", CASES)
def test_loop_records_the_first_episode(case, tmp_path):
  env, max_steps, want = CASES[case]
  actors.collect_eval_loop(
    eval_env=env,
    policy_class=_Policy,
    num_eval=3,
    run_agent_fn=functools.partial(actors.run_env, max_steps=max_steps),
    root_dir=str(tmp_path),
    record_eval_env_video=True,
  )
  (video,) = (tmp_path / "videos" / "0").iterdir()
  assert _dots(video) == want


def test_environment_that_renders_nothing(tmp_path):
  with pytest.raises(ValueError, match="incompatible with RecordVideo"):
    actors.collect_eval_loop(
      eval_env=DotEnv(render_mode=None),
      policy_class=_Policy,
      root_dir=str(tmp_path),
      record_eval_env_video=True,
    )
