"""Videos of evaluated episodes."""

from __future__ import annotations

import functools
import sys

import gin
import gymnasium
import numpy as np
import pytest
from PIL import Image

from t2r_seq import actors
from t2r_seq.actors.videos import write_video


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
    frame = np.zeros([20, 30, 3], np.uint8)
    frame[10, self._t] = 255
    return frame


class _Policy:
  def reset(self):
    pass

  def sample_action(self, obs, explore_prob):
    return np.zeros(1, np.float32), None

  def sample_actions(self, observations, is_first, explore_prob):
    return [np.zeros(1, np.float32)] * len(is_first), [None] * len(is_first)


def _dots(path):
  """Returns the column of the dot in each frame, and the milliseconds of a frame."""
  with Image.open(path) as image:
    columns = []
    for index in range(image.n_frames):
      image.seek(index)
      frame = np.asarray(image.convert("L"))
      rows, cols = np.nonzero(frame > 128)
      scale = frame.shape[1] // 30
      assert frame.shape == (20 * scale, 30 * scale)
      assert min(frame.shape) > 200
      assert set(rows // scale) == {10}
      columns.append(int(cols[0] // scale))
    return columns, image.info["duration"]


def test_the_first_episodes_are_filmed(tmp_path):
  env = actors.FilmedEnv(DotEnv(), num_videos=2)
  actors.run_env(env, _Policy(), num_episodes=1)
  env.set_video_output_dir(str(tmp_path / "a" / "7"))
  actors.run_env(env, _Policy(), num_episodes=3)
  names = [path.name for path in sorted((tmp_path / "a" / "7").iterdir())]
  assert names == ["episode-00000.gif", "episode-00001.gif"]
  assert _dots(tmp_path / "a" / "7" / names[1]) == ([0, 1, 2, 3], 50)


def test_an_episode_that_is_cut_off(tmp_path):
  env = actors.FilmedEnv(DotEnv(length=100))
  env.set_video_output_dir(str(tmp_path))
  actors.run_env(env, _Policy(), num_episodes=1, max_steps=2)
  assert not list(tmp_path.iterdir())
  env.close()
  assert _dots(tmp_path / "episode-00000.gif")[0] == [0, 1, 2]


def test_the_first_of_several_environments_is_filmed(tmp_path):
  env = actors.FilmedEnv(actors.make_vector_env(DotEnv, 2))
  env.set_video_output_dir(str(tmp_path))
  metrics = actors.run_env(env, _Policy(), num_episodes=4)
  assert metrics["num_episodes"] == 4
  assert _dots(tmp_path / "episode-00000.gif")[0] == [0, 1, 2, 3]
  env.close()


def test_the_loop_films_each_policy(tmp_path):
  actors.collect_eval_loop(
    eval_env=DotEnv(),
    policy_class=_Policy,
    num_eval=2,
    root_dir=str(tmp_path),
    record_eval_env_video=True,
  )
  assert _dots(tmp_path / "videos" / "0" / "episode-00000.gif")[0] == [0, 1, 2, 3]


def test_videos_by_gin(tmp_path):
  gin.parse_config("""
    collect_eval_loop.num_eval = 1
    collect_eval_loop.record_eval_env_video = True
    FilmedEnv.fps = 4
  """)
  actors.collect_eval_loop(
    eval_env=DotEnv(), policy_class=_Policy, root_dir=str(tmp_path)
  )
  video = tmp_path / "videos" / "0" / "episode-00000.gif"
  assert _dots(video) == ([0, 1, 2, 3], 250)


def test_the_loop_films_an_episode_that_is_cut_off(tmp_path):
  actors.collect_eval_loop(
    eval_env=actors.FilmedEnv(DotEnv(), fps=5),
    policy_class=_Policy,
    num_eval=1,
    run_agent_fn=functools.partial(actors.run_env, max_steps=1),
    root_dir=str(tmp_path),
    record_eval_env_video=True,
  )
  video = tmp_path / "videos" / "0" / "episode-00000.gif"
  assert _dots(video) == ([0, 1], 200)


def test_mp4(tmp_path):
  av = pytest.importorskip("av")
  path = str(tmp_path / "a.mp4")
  frames = [np.full([31, 33, 3], 60 * t, np.uint8) for t in range(4)]
  write_video(path, frames, fps=10)
  assert [entry.name for entry in tmp_path.iterdir()] == ["a.mp4"]
  with av.open(path) as container:
    assert container.streams.video[0].average_rate == 10
    read = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
  assert [frame.shape for frame in read] == [(248, 264, 3)] * 4
  for t, frame in enumerate(read):
    np.testing.assert_allclose(frame, 60 * t, atol=4)


ERRORS = {
  "format": (
    lambda: actors.FilmedEnv(DotEnv(), video_format="avi"),
    ValueError,
    r"video_format: expected one of \[gif, mp4\], got 'avi'",
  ),
  "no frames": (
    lambda: actors.FilmedEnv(DotEnv(render_mode=None)),
    ValueError,
    "expected an environment with render_mode 'rgb_array', got None",
  ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
  make, error, want = ERRORS[case]
  with pytest.raises(error, match=want):
    make()


@pytest.mark.parametrize(
  ("video_format", "module", "want"),
  [("gif", "PIL", r"t2r_seq\[plots\]"), ("mp4", "av", r"t2r_seq\[video\]")],
)
def test_a_missing_package_is_named(monkeypatch, video_format, module, want):
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(ImportError, match=want):
    actors.FilmedEnv(DotEnv(), video_format=video_format)


def test_frames_are_checked(tmp_path):
  class FloatEnv(DotEnv):
    def render(self):
      return super().render() / 255

  env = actors.FilmedEnv(FloatEnv())
  env.set_video_output_dir(str(tmp_path))
  with pytest.raises(
    ValueError, match=r"render\(\): expected .* uint8, got .* float64"
  ):
    env.reset()
