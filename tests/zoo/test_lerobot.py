"""Checkpoints of LeRobot act here as they do there.

`make_lerobot_checkpoints.py` made the checkpoints and the actions, with its package.
"""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import cli, errors, policies
from t2r_seq.zoo import act, lerobot
from t2r_seq.zoo.lerobot import import_policy

CHECKPOINTS = pathlib.Path(__file__).parent / "lerobot_checkpoints"
NAMES = sorted(path.name for path in CHECKPOINTS.iterdir())
OLDER = "act_ensembling"


def choose_actions(export, name):
  """Returns the actions of an episode with the observations of a rollout."""
  predictor = policies.ExportedSavedModelPredictor(export)
  predictor.restore()
  with np.load(CHECKPOINTS / name / "rollout.npz") as rollout:
    observations = {key: rollout[key] for key in rollout if key != "action"}
    expected = rollout["action"]
  actions = []
  for t in range(len(expected)):
    step = {key: value[t : t + 1] for key, value in observations.items()}
    actions.append(predictor.step(step)["inference_output"])
  return np.reshape(actions, expected.shape), expected


def write_safetensors(path, tensors):
  header, data = {}, b""
  for name, value in tensors.items():
    value = np.ascontiguousarray(value, np.float32)
    ends = [len(data), len(data) + value.nbytes]
    header[name] = {"dtype": "F32", "shape": value.shape, "data_offsets": ends}
    data += value.tobytes()
  text = json.dumps(header).encode()
  path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def copy_checkpoint(name, path, tensors=lambda found: found, **config):
  """Copies a checkpoint with other tensors and options; ... leaves an option out."""
  shutil.copytree(CHECKPOINTS / name, path)
  options = {**json.loads((path / "config.json").read_text()), **config}
  options = {name: value for name, value in options.items() if value is not ...}
  (path / "config.json").write_text(json.dumps(options))
  file = path / "model.safetensors"
  found = {k: np.array(v) for k, v in lerobot.read_safetensors(file).items()}
  write_safetensors(file, tensors(found))
  return path


def copy_as_older(name, path):
  """Copies a checkpoint as LeRobot wrote it before: statistics among the weights."""
  (file,) = (CHECKPOINTS / name).glob("policy_preprocessor_*normalizer*.safetensors")
  found = lerobot.read_safetensors(file)

  def add(tensors):
    for tensor, value in found.items():
      key, _, measure = tensor.rpartition(".")
      group = "unnormalize_outputs" if key == "action" else "normalize_inputs"
      tensors[f"{group}.buffer_{key.replace('.', '_')}.{measure}"] = value
    return tensors

  copy_checkpoint(name, path / "pretrained_model", add)
  for written in path.glob("pretrained_model/policy_*"):
    written.unlink()
  return path


@pytest.mark.parametrize("name", NAMES)
def test_actions_equal_those_of_lerobot(name, tmp_path, capsys):
  source, out = CHECKPOINTS / name, str(tmp_path / "policy")
  if name == OLDER:
    source = copy_as_older(name, tmp_path / "run")
  argv = ["import", "--lerobot", str(source), out]
  if name.startswith("act"):
    assert cli.main([*argv, "--seed", "0"]) == 1
    assert "seed: ACT draws no random numbers" in capsys.readouterr().err
    assert cli.main(argv) == 0
  else:
    assert cli.main([*argv, "--seed", "0"]) == 0
  assert f"acts as {source}" in capsys.readouterr().out
  actions, expected = choose_actions(out, name)
  assert np.ptp(expected, axis=0).min() > 1e-3
  np.testing.assert_allclose(actions, expected, atol=1e-5)


def without(name):
  return lambda tensors: {key: v for key, v in tensors.items() if key != name}


ERRORS = {
  "another architecture": (
    {"type": "smolvla"},
    r"config.json: type: expected one of \[act, diffusion\], got 'smolvla'",
  ),
  "a missing tensor": (
    {"tensors": without("model.encoder.layers.1.self_attn.in_proj_weight")},
    r"model.safetensors: 3 mismatches:\s+"
    r"model.encoder.layers.1.self_attn.in_proj_weight: expected a tensor for "
    r"encoder/transformer_block_1/self_attention/query/kernel",
  ),
  "a tensor too many": (
    {"tensors": lambda tensors: {**tensors, "model.extra": np.zeros(2)}},
    r"model.extra: expected no such tensor in a policy 'act', got it",
  ),
  "a wrong shape": (
    {"dim_feedforward": 32},
    r"model.decoder.layers.0.linear1.weight: expected the weights of decoder/"
    r"transformer_block/mlp_in/kernel, \(16, 32\) float32, got \(24, 16\)",
  ),
  "an option": (
    {"vision_backbone": "resnet101"},
    r"config.json: vision_backbone: expected one of .*, got 'resnet101'",
  ),
  "an option that is missing": (
    {"dim_model": ...},
    r"checkpoint/config.json: dim_model: expected an option of this LeRobot policy, ",
  ),
  "features of another kind": (
    {"input_features": {"observation.task": {"type": "LANGUAGE", "shape": [1]}}},
    r"observation.task: expected a type of \[ENV, STATE, VISUAL\], got LANGUAGE",
  ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_checkpoints_that_do_not_fit(name, tmp_path):
  changes, message = ERRORS[name]
  path = copy_checkpoint("act", tmp_path / "checkpoint", **changes)
  with pytest.raises(errors.SpecError, match=message):
    import_policy(path, tmp_path / "export")
  assert not (tmp_path / "export").exists()


def test_file_that_is_cut_short(tmp_path):
  path = copy_checkpoint("act", tmp_path / "checkpoint")
  file = path / "model.safetensors"
  file.write_bytes(file.read_bytes()[:-8])
  with pytest.raises(errors.SpecError, match=r"expected a safetensors file, got"):
    import_policy(path, tmp_path / "export")


def test_folder_that_is_missing(tmp_path, capsys):
  source, out = str(tmp_path / "none"), tmp_path / "export"
  assert cli.main(["import", "--lerobot", source, str(out)]) == 1
  error = capsys.readouterr().err
  # The command's name stands once, though the error begins with it, too.
  assert error.startswith(f"t2r_seq import: {source}/config.json: expected a policy")
  assert not out.exists()


def test_kl_divergence_is_that_of_normal_distributions():
  mean, log_variance = np.array([[0.5, -1.0]]), np.array([[0.2, -0.7]])
  got = act.kl_divergence(tf.constant(mean), tf.constant(log_variance))
  # Of N(m, s^2) from N(0, 1): -log(s) + (s^2 + m^2) / 2 - 1 / 2 for each component.
  std = np.exp(log_variance / 2)
  want = (-np.log(std) + (std**2 + mean**2) / 2 - 0.5).sum(-1)
  np.testing.assert_allclose(got, want)


@pytest.mark.parametrize("steps", (1, 3))
def test_act_encodes_the_style_in_training_alone(steps):
  tf.random.set_seed(0)
  network = act.ACTNetwork(
    (steps, 2),
    1,
    0,
    (1, 1, 1),
    4,
    lambda **kwargs: act.layers.Transformer(
      num_heads=2, model_size=8, mlp_size=8, **kwargs
    ),
  )
  state = tf.ones([2, 5])
  is_real = tf.constant([[*[True] * (steps - 1), False]] * 2)
  actions = np.random.default_rng(0).normal(size=(2, steps, 2)).astype(np.float32)
  before = network([state], [], state, tf.constant(actions), is_real)
  actions[:, -1] += 9.0  # A padded action does not count.
  after = network([state], [], state, tf.constant(actions), is_real)
  np.testing.assert_allclose(before["mean"], after["mean"], atol=1e-6)
  assert before["mean"].shape == (2, 4)
  acting = network([state], [])
  assert list(acting) == ["inference_output"]
  np.testing.assert_array_equal(
    acting["inference_output"], network([state], [])["inference_output"]
  )
