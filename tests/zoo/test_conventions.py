"""Policies that get other conventions than the data has, by bindings alone."""

from __future__ import annotations

import json

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import cli, lite, policies, statistics, store, verification, zoo
from t2r_seq.specs import Convention, Converter, ExtendedTensorSpec

RUN = ["NUM_TRAIN_STEPS = 2", "BATCH_SIZE = 4"]
TINY = [
  *RUN,
  "RunConfig.save_checkpoints_steps = 2",
  "ACTModel.chunk_size = 4",
  "ACTModel.num_executed = 2",
  "ACTNetwork.num_layers = (1, 1, 1)",
  "Transformer.model_size = 16",
  "Transformer.num_heads = 2",
  "Transformer.mlp_size = 16",
]
POSE = Convention(
  control="absolute",
  elements=[
    (0, 3, Convention(unit="m", frame="base")),
    (3, 7, Convention(rotation="quaternion_xyzw", frame="base")),
    (7, 8, Convention(gripper=(1, 0))),
  ],
)
LENGTHS = (9, 12, 15)


def make_episodes(seed=0):
  """Poses that drift, and actions a bit ahead of them."""
  rng = np.random.default_rng(seed)
  for length in LENGTHS:
    poses = np.cumsum(rng.normal(0, 0.1, (length + 1, 8)), axis=0) + 1
    poses[:, 0] += 50 + np.cumsum(rng.normal(0, 3, length + 1))  # Far from 0.
    poses[:, 3:7] /= np.linalg.norm(poses[:, 3:7], axis=1, keepdims=True)
    poses[:, 7] = rng.integers(0, 2, length + 1)
    poses = poses.astype(np.float32)
    yield {"observation.state": poses[:-1], "action": poses[1:]}


@pytest.fixture(scope="module")
def poses_path(tmp_path_factory):
  path = tmp_path_factory.mktemp("poses") / "poses"
  features = {
    name: ExtendedTensorSpec((8,), tf.float32, name, is_sequence=True, convention=POSE)
    for name in ("observation.state", "action")
  }
  with store.EpisodeStore.create(path, features, {"fps": 10}) as writer:
    for episode in make_episodes():
      writer.append_episode(episode)
  return path


@pytest.fixture(scope="module")
def lerobot_path(poses_path):
  """A folder of LeRobot's that declares nothing, as LeRobot writes it."""
  pytest.importorskip("pyarrow")
  path = poses_path.parent / "poses.lerobot"
  gin.clear_config()
  argv = ["convert", str(poses_path), str(path), "--fps", "10", "--task", "push it"]
  assert cli.main(argv) == 0
  (path / "meta" / "t2r_seq.json").unlink()
  info = json.loads((path / "meta" / "info.json").read_text())
  for feature in info["features"].values():
    feature.pop("convention", None)
  (path / "meta" / "info.json").write_text(json.dumps(info))
  return path


def run_main(capsys, *argv):
  gin.clear_config()
  status = cli.main([*map(str, argv)])
  return status, *capsys.readouterr()


def relative_actions(chunk_size, numbers):
  """The relative actions of all real steps of all chunks of some episodes."""
  found = []
  for number, episode in enumerate(make_episodes()):
    if number in numbers:
      state, action = episode["observation.state"], episode["action"]
      for step in range(len(state)):
        found.append(action[step : step + chunk_size] - state[step])
  return np.concatenate(found).astype(np.float64)


def test_relative_chunks_over_a_lerobot_folder(lerobot_path, tmp_path, capsys):
  run = tmp_path / "run"
  argv = ["--policy", "act", "--size", "tiny", "--dataset", lerobot_path]
  argv += ["--model_dir", run, "--gin_bindings", *TINY]
  argv += [
    "find_signature.conventions = {'action': {'control': 'absolute'}}",
    "ACTModel.conventions = {'action': {'control': 'relative'}}",
  ]
  status, out, err = run_main(capsys, "train", *argv)
  assert status == 0 and ", l1_loss " in out, err
  # Statistics of relative actions are of relative actions: of all real steps of all
  # chunks, and not of one step, or of absolute actions.
  found = statistics.load_statistics(run / "statistics.json").paths["target"]
  numbers = np.loadtxt(run / "train_episodes.txt", np.int64, ndmin=1)
  want = relative_actions(4, numbers)
  np.testing.assert_allclose(found.mean, want.mean(0), atol=1e-6)
  np.testing.assert_allclose(found.std, want.std(0), rtol=1e-5)
  assert found.count.tolist() == [len(want)] * 8
  assert np.abs(found.mean[0]) < 5
  # The export gives absolute actions near the state, which a policy without an inverse
  # would give near 0.
  predictor = policies.ExportedSavedModelPredictor(run / "export/latest")
  predictor.restore()
  state = next(make_episodes())["observation.state"][:1]
  action = predictor.predict({"observation.state": state[:, None]})["inference_output"]
  assert np.abs(action[..., 0] - state[:, None, 0]).max() < 25
  report = verification.verify(predictor, lerobot_path)
  assert report.is_identical, str(report)
  status, _, err = run_main(
    capsys, "export", "--lite", run / "export/latest", tmp_path / "robot"
  )
  assert status == 0, err
  policy = lite.LitePolicy(tmp_path / "robot")
  lite_action = policy.step({"observation.state": state[0]})["inference_output"]
  np.testing.assert_allclose(lite_action, action[0, 0], atol=1e-3)


ROBOT = """
import numpy as np

def right(outputs, is_first):
  return outputs["inference_output"]

def reordered(outputs, is_first):
  action = np.array(outputs["inference_output"])
  action[3:7] = np.roll(action[3:7], 1)
  return action
"""
COMMANDS = {"right": (0, "identical"), "reordered": (1, "order: [0, 1, 2, 6, 3, 4")}


def test_rot6d_in_the_tools_frame_over_quaternions(
  poses_path, tmp_path, capsys, monkeypatch
):
  run = tmp_path / "run"
  argv = ["--policy", "mlp", "--size", "tiny", "--dataset", poses_path]
  argv += ["--model_dir", run, "--gin_bindings", *RUN, "MLPModel.chunk_size = 4"]
  argv += [
    "MLPModel.conventions = {'action': {'control': 'tool_relative', "
    "'rotation': 'rot6d_rows'}, 'observation.state': {'rotation': 'rot6d_rows'}}"
  ]
  status, _, err = run_main(capsys, "train", *argv)
  assert status == 0, err
  found = statistics.load_statistics(run / "statistics.json").paths["target"]
  assert found.mean.shape == (10,)
  assert found.spec.convention.elements[1][2].rotation == "rot6d_rows"
  numbers = np.loadtxt(run / "train_episodes.txt", np.int64, ndmin=1)
  model, size = POSE.replace(
    8, rotation="rot6d_rows", control="tool_relative", reference="observation.state"
  )
  convert = Converter(POSE, model, 8, size, state=(POSE, 8))
  chunks = [
    convert(episode["action"][t : t + 4], episode["observation.state"][t], True)
    for number, episode in enumerate(make_episodes())
    if number in numbers
    for t in range(len(episode["action"]))
  ]
  want = np.concatenate(chunks).astype(np.float64)
  np.testing.assert_allclose(found.mean, want.mean(0), atol=1e-5)
  predictor = policies.ExportedSavedModelPredictor(run / "export/latest")
  predictor.restore()
  state = next(make_episodes())["observation.state"][:3]
  action = predictor.predict({"observation.state": state[:, None]})["inference_output"]
  assert action.shape == (3, 4, 8)
  lengths = np.linalg.norm(action[..., 3:7], axis=-1)
  np.testing.assert_allclose(lengths, 1, atol=1e-5)
  report = verification.verify(predictor, poses_path)
  assert report.is_identical, str(report)
  # The robot's code gets what the export gives: quaternions, as the data has them.
  (tmp_path / "robot_of_poses.py").write_text(ROBOT)
  monkeypatch.chdir(tmp_path)
  for name, (expected, text) in COMMANDS.items():
    act = ["--no_model", "--episodes", 2, "--act", f"robot_of_poses:{name}"]
    status, out, err = run_main(
      capsys, "verify", run / "export/latest", poses_path, *act
    )
    assert status == expected and text in out, out + err
  # Statistics of another representation are refused, and both are named.
  other = [str(each).replace("tool_relative", "relative") for each in argv]
  status, _, err = run_main(capsys, "train", *other)
  assert status == 1
  assert "control='relative'" in err and "those of" in err and "'tool_relative'" in err


def test_stats_are_those_of_the_policy(lerobot_path, tmp_path, capsys):
  output = tmp_path / "figures.json"
  argv = [lerobot_path, "--policy", "act", "--output", output, "--gin_bindings"]
  argv += [
    "ACTModel.chunk_size = 4",
    "find_signature.conventions = {'action': {'control': 'absolute'}}",
    "ACTModel.conventions = {'action': {'control': 'relative'}}",
  ]
  status, out, err = run_main(capsys, "stats", *argv)
  assert status == 0, err
  assert "after" in out and "target" in out
  found = statistics.load_statistics(output).paths["target"]
  want = relative_actions(4, range(3))
  np.testing.assert_allclose(found.mean, want.mean(0), atol=1e-6)
  assert found.spec.convention.control == "relative"


def test_lstm_takes_relative_actions(poses_path, tmp_path):
  run = tmp_path / "run"
  bindings = [
    *RUN,
    "SEQUENCE_LENGTH = 5",
    "RunConfig.save_checkpoints_steps = 2",
    "LSTMModel.num_units = 8",
    "LSTMModel.conventions = {'action': {'control': 'relative'}}",
  ]
  zoo.train_policy("lstm", poses_path, run, "tiny", gin_bindings=bindings)
  found = statistics.load_statistics(run / "statistics.json").paths["target"]
  assert np.abs(found.mean[0]) < 5
  predictor = policies.ExportedSavedModelPredictor(run / "export/latest")
  predictor.restore()
  state = next(make_episodes())["observation.state"][:1]
  action = predictor.step({"observation.state": state})["inference_output"]
  assert np.abs(action[0, 0] - state[0, 0]) < 25


@pytest.fixture(scope="module")
def arm_path(tmp_path_factory):
  """A second robot, of 6 joints, whose control is declared."""
  path = tmp_path_factory.mktemp("arm") / "arm"
  joints = {"unit": "rad", "control": "absolute"}
  features = {
    name: ExtendedTensorSpec(
      (6,), tf.float32, name, is_sequence=True, convention=joints
    )
    for name in ("observation.state", "action")
  }
  rng = np.random.default_rng(1)
  with store.EpisodeStore.create(path, features, {"fps": 10}) as writer:
    for length in LENGTHS:
      joints = 7 + np.cumsum(rng.normal(0, 0.1, (length + 1, 6)), 0, np.float32)
      writer.append_episode({"observation.state": joints[:-1], "action": joints[1:]})
  return path


def test_two_robots_of_which_one_declares_rotations(
  poses_path, arm_path, tmp_path, capsys, caplog
):
  run = tmp_path / "run"
  argv = ["train", "--policy", "act", "--size", "tiny", "--dataset", poses_path]
  argv += [arm_path, "--model_dir", run, "--gin_bindings", *TINY]
  changes = {"control": "relative", "rotation": "rot6d_rows"}
  argv += [f"ACTModel.conventions = {{'action': {changes}}}"]
  status, _, err = run_main(capsys, *argv)
  assert status == 0, err
  text = "rotation: expected each robot to declare it, got none of 'arm'"
  assert caplog.text.count(text) == 1
  for name, path, size in (("poses", poses_path, 10), ("arm", arm_path, 6)):
    file = run / "robots" / name / "statistics.json"
    found = statistics.load_statistics(file).paths["target"]
    assert found.mean.shape == (size,)
    assert np.abs(found.mean).max() < 5  # Relative to the state of the robot.
    predictor = policies.ExportedSavedModelPredictor(
      run / "export/latest", timeout=0, robot=name
    )
    predictor.restore()
    report = verification.verify(predictor, path)
    assert report.is_identical, str(report)
  action = predictor.step({"observation.state": np.full((1, 6), 7, np.float32)})
  assert np.abs(action["inference_output"] - 7).max() < 2
  # A change that no robot declares is an error.
  argv = [*argv[:5], "--dataset", arm_path, arm_path, "--model_dir", tmp_path / "two"]
  argv += ["--gin_bindings", "ACTModel.conventions = {'action': {'gripper': (1, 0)}}"]
  status, _, err = run_main(capsys, *argv)
  assert status == 1
  want = "conventions: action: gripper: expected a robot that declares it, got none."
  assert want in " ".join(err.split())


ERRORS = {
  "nothing declared": (
    "ACTModel.conventions = {'action': {'control': 'relative'}}",
    "action: expected a convention that the data declares",
  ),
  "an unknown word": (
    "find_signature.conventions = {'action': {'control': 'absolut'}}",
    "Did you mean 'absolute'?",
  ),
  "an unknown path": (
    "find_signature.conventions = {'actoin': {'control': 'absolute'}}",
    "Did you mean 'action'?",
  ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_before_training(name, lerobot_path, tmp_path, capsys):
  binding, want = ERRORS[name]
  argv = ["--policy", "act", "--size", "tiny", "--dataset", lerobot_path]
  argv += ["--model_dir", tmp_path / "run", "--gin_bindings", binding]
  status, _, err = run_main(capsys, "train", *argv)
  assert status == 1 and want in " ".join(err.split()), err
