"""An environment as a policy sees it, and `t2r_seq evaluate`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import cli, errors, zoo
from t2r_seq.zoo import environment
from t2r_seq.zoo.environment import policy_environment
from t2r_seq.zoo.evaluate import evaluate_export

gymnasium = pytest.importorskip("gymnasium")
Box = gymnasium.spaces.Box


class Reach(gymnasium.Env):
  """Three numbers and a frame; solved when the first action has been positive."""

  metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
  observation_space = gymnasium.spaces.Dict(
    {
      "agent_pos": Box(-np.inf, np.inf, (3,), np.float64),
      "pixels": gymnasium.spaces.Dict({"top": Box(0, 255, (24, 32, 3), np.uint8)}),
    }
  )
  action_space = Box(-1, 1, (2,), np.float32)

  def __init__(self, render_mode=None):
    self.render_mode = render_mode

  def _see(self):
    pixels = {"top": np.full((24, 32, 3), self.t, np.uint8)}
    return {"agent_pos": self.np_random.normal(size=3), "pixels": pixels}

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.t = 0
    return self._see(), {}

  def step(self, action):
    assert self.action_space.contains(action)
    self.t += 1
    info = {"is_success": bool(action[0] > 0)}
    return self._see(), float(action[0]), False, self.t == 3, info

  def render(self):
    return np.full((48, 64, 3), 40 * self.t, np.uint8)


class Wide(Reach):
  """The same with an action more."""

  action_space = Box(-1, 1, (3,), np.float32)


for cls in (Reach, Wide):
  gymnasium.register(f"T2RTest{cls.__name__}-v0", cls)
ENV = "T2RTestReach-v0"
STATE, TOP = "observation.state", "observation.images.top"
WANTED = {
  STATE: tf.TensorSpec((3,), tf.float32),
  TOP: tf.TensorSpec((24, 32, 3), tf.uint8),
}
BY_NAME = {STATE: "agent_pos", TOP: "pixels/top"}


def test_observations_by_name_and_shape():
  space = Reach.observation_space
  assert environment.match_observations(ENV, space, WANTED) == BY_NAME
  chosen = environment.match_observations(ENV, space, WANTED, {"render": TOP})
  assert chosen == {**BY_NAME, TOP: "render"}


MISMATCHES = {
  "no such shape": (
    {STATE: tf.TensorSpec((4,), tf.float32)},
    {},
    r"observation.state: expected one observation that is \(4,\) float32, got "
    r"\[agent_pos \(3,\) float64, .*Name it: --observe KEY=observation.state",
  ),
  "no such path": (WANTED, {"agent_pos": "observation.stat"}, "Did you mean"),
  "no such key": (WANTED, {"agent_po": STATE}, "got 'agent_po'. Did you mean"),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_observations_that_do_not_fit(name):
  expected, observe, want = MISMATCHES[name]
  with pytest.raises(ValueError, match=want):
    environment.match_observations(ENV, Reach.observation_space, expected, observe)


def test_rendered_frames_are_resized():
  env = policy_environment(ENV, {**BY_NAME, TOP: "render"}, {TOP: [24, 32, 3]})
  seen, _ = env.reset(seed=0)
  seen, *_ = env.step(np.array([9.0, 0.0]))
  assert seen[TOP].shape == (24, 32, 3) and (seen[TOP] == 40).all()
  assert seen[STATE].dtype == np.float32
  env.close()


def run_main(capsys, *argv):
  status = cli.main([*map(str, argv)])
  out, err = capsys.readouterr()
  return status, out, err


@pytest.fixture(scope="module")
def run_dir(lerobot_path, tmp_path_factory):
  """A policy that is trained with the environment's success as its measure."""
  folder = tmp_path_factory.mktemp("closed_loop") / "run"
  zoo.train_policy(
    "mlp",
    lerobot_path,
    folder,
    "tiny",
    gin_bindings=[
      "NUM_TRAIN_STEPS = 1",
      "ImageEncoder.num_filters = 8",
      "ImageEncoder.num_block_layers = 1",
    ],
    env_id=ENV,
  )
  return folder


def test_best_export_by_success(run_dir):
  best = json.loads((run_dir / "export/best/best.json").read_text())
  assert "closed_loop/success_rate" in str(best)


def test_evaluate(run_dir, tmp_path, capsys):
  export = run_dir / "export/best"
  argv = ["evaluate", export, "--env", ENV, "--episodes", 2, "--seed", 1]
  status, out, err = run_main(capsys, *argv)
  assert status == 0, err
  assert "| policy | success | 95 % |" in out and out.rstrip().endswith("| 3.0 | 2 |")
  pytest.importorskip("av")
  status, again, err = run_main(capsys, *argv, "--video", tmp_path / "videos")
  assert status == 0 and again == out, err
  assert len([*(tmp_path / "videos").glob("*.mp4")]) == 2


BAD = {
  "no such environment": (["--env", "T2RTestReech-v0"], "T2RTestReach"),
  "no package": (["--env", "no_such_pkg/Push-v0"], "needs the package no_such_pkg"),
  "no Atari": (["--env", "ALE/Pong-v5"], "pip install ale-py"),
  "no such option": (
    ["--env", ENV, "--env_options", '{"speed": 2}'],
    f"environment: {ENV}: options: Reach.__init__() got an unexpected keyword argument "
    "'speed'",
  ),
  "other actions": (
    ["--env", "T2RTestWide-v0"],
    "action: expected (3,), of Box(-1.0, 1.0, (3,), float32), got (2,) of the policy",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_evaluate_errors(name, run_dir, capsys):
  argv, want = BAD[name]
  status, _, err = run_main(capsys, "evaluate", run_dir / "export/best", *argv)
  assert status == 1 and want in " ".join(err.split()), err


def test_evaluate_export_rejects_a_negative_seed():
  with pytest.raises(errors.SpecError, match="seed: expected an integer of at least 0"):
    evaluate_export(None, ENV, seed=-1)


def test_train_errors_before_training(lerobot_path, tmp_path, capsys):
  argv = ["train", "--policy", "mlp", "--dataset", lerobot_path]
  argv += ["--model_dir", tmp_path / "run", "--env", "T2RTestWide-v0"]
  status, _, err = run_main(capsys, *argv)
  assert status == 1 and "got (2,) of the policy" in err
  assert not (tmp_path / "run").exists()
