"""From a data set to a policy by one command: what a run decides, and what it makes."""

from __future__ import annotations

import numpy as np
import pytest

from t2r_seq import cli, zoo

# Sizes for seconds; whatever the policy calls its own.
FAST = [
  "RunConfig.save_checkpoints_steps = 2",
  "ImageEncoder.num_filters = 8",
  "ImageEncoder.num_block_layers = 1",
  "ImageEncoder.num_points = 4",
]


def run_main(capsys, *argv):
  """Runs a command; an earlier one of this process leaves nothing of its config."""
  status = cli.main([*map(str, argv)])
  out, err = capsys.readouterr()
  return status, out, err


def train(capsys, *argv):
  return run_main(capsys, "train", *argv)


def test_mlp_from_a_lerobot_folder(lerobot_path, tmp_path, capsys):
  run = tmp_path / "run"
  argv = ["--policy", "mlp", "--size", "tiny", "--dataset", lerobot_path]
  argv += ["--frames_by", "timestamp"]
  argv += ["--model_dir", run, "--steps", 2, "--gin_bindings", *FAST]
  status, out, err = train(capsys, *argv)
  assert status == 0, err
  assert "Trained to step 2" in out
  assert "observation.images.top 24x32x3, observation.state 3 -> action 2" in err
  assert f"statistics of the training episodes: {run}/statistics.json" in err
  export = f"{run}/export/best"
  assert f"then: t2r_seq verify {export} {lerobot_path} --frames_by timestamp &&" in err
  held_out = np.loadtxt(run / "eval_episodes.txt", np.int64, ndmin=1)
  trained = np.loadtxt(run / "train_episodes.txt", np.int64, ndmin=1)
  assert sorted([*held_out, *trained]) == [0, 1, 2, 3] and len(held_out) == 1
  # The same command resumes.
  status, out, err = train(capsys, *argv[: -len(FAST) - 2], 4, "--gin_bindings", *FAST)
  assert status == 0 and "Trained to step 4" in out, err
  assert "statistics of" not in err
  other = ["--gin_bindings", *FAST, "MLPModel.hidden_sizes = (7, 7)"]
  status, _, err = train(capsys, *argv[: -len(FAST) - 2], 6, *other)
  assert status == 1 and "model.ckpt-4" in err, err
  # The export keeps the config, so that verify needs no model's code.
  status, out, err = run_main(capsys, "verify", export, lerobot_path)
  assert status == 0 and "identical." in out, err
  assert "network inputs" in out
  status, _, err = run_main(capsys, "export", "--lite", export, tmp_path / "robot")
  assert status == 0, err


UNREAD = {
  "mlp, of the file": ("mlp", (), None),
  "diffusion, of the file": ("diffusion", (), None),
  "of the user": ("mlp", ("ImageEncoder.num_points = 3",), "ImageEncoder.num_points"),
  "of the user, unchanged": ("mlp", ("ImageEncoder.num_points = 32",), None),
}


@pytest.mark.parametrize("name", UNREAD)
def test_unread_bindings_are_warned_of_if_the_user_chose_them(
  name, lerobot_path, tmp_path, caplog
):
  policy, bindings, want = UNREAD[name]
  small = ["DiffusionDecoder.create_denoiser_fn = @DiffusionTransformer"]
  state = 'find_signature.observations = ["observation.state"]'
  no_exports = "train_eval_model.create_exporters_fn = None"
  zoo.train_policy(
    policy,
    lerobot_path,
    tmp_path / "run",
    "tiny",
    gin_bindings=[
      "NUM_TRAIN_STEPS = 1",
      "BATCH_SIZE = 4",
      no_exports,
      state,
      *(small if policy == "diffusion" else []),
      *bindings,
    ],
  )
  warned = [m for m in caplog.messages if m.startswith("Nothing reads")]
  assert len(warned) == bool(want)
  assert not want or f"[{want}]" in warned[0]


def test_config_is_complete(lerobot_path, tmp_path, capsys):
  argv = ["--policy", "mlp", "--dataset", lerobot_path, "--print_config"]
  argv += ["--model_dir", tmp_path / "run"]
  status, out, _ = train(capsys, *argv)
  assert status == 0 and not (tmp_path / "run").exists()
  assert "Signature.states = {'observation.state': [3]}" in out
  assert "\ninclude " not in out and "MLPModel.hidden_sizes = (1024, 1024)" in out


def test_gin_shows_a_policy(capsys):
  status, out, err = run_main(capsys, "gin", "flow")
  assert status == 0, err
  assert "t2r_seq/configs/policies/flow.gin" in out
  assert "FlowModel.num_layers = 6" in out and "FlowModel.chunk_size = 1" in out
  status, _, err = run_main(capsys, "gin", "flwo")
  assert status == 1 and "Did you mean 'flow'?" in err


ERRORS = {
  "an unknown policy": (["--policy", "mpl"], "got 'mpl'. Did you mean 'mlp'?"),
  "an unknown parameter": (
    ["--policy", "mlp", "--gin_bindings", "MLPModel.hiden_sizes = (3,)"],
    "MLPModel.hiden_sizes: there is no such parameter. Did you mean 'hidden_sizes'?",
  ),
  "an unknown parameter of a layer": (
    ["--policy", "act", "--gin_bindings", "ACTNetwork.num_layer = (1, 1, 0)"],
    "ACTNetwork.num_layer: there is no such parameter. Did you mean 'num_layers'?",
  ),
  "no such action": (
    ["--policy", "mlp", "--action", "acton"],
    "action: expected a path of the data set, got 'acton'. Did you mean 'action'?",
  ),
  "no cameras for an image policy": (
    ["--policy", "bc-z", "--observations", "observation.state"],
    "cameras: expected uint8 images for the policy bc-z, got [action (2,) float32, "
    "observation.images.top (24, 32, 3) uint8,",
  ),
  "no such observation": (
    ["--policy", "mlp", "--observations", "observation.stat"],
    "got 'observation.stat'. Did you mean 'observation.state'?",
  ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_before_training(name, lerobot_path, tmp_path, capsys):
  argv, want = ERRORS[name]
  run = tmp_path / "run"
  status, _, err = train(capsys, *argv, "--dataset", lerobot_path, "--model_dir", run)
  assert status == 1 and want in " ".join(err.split()), err
  assert not run.exists()


@pytest.mark.parametrize("name", ["LSTM", "Transformer"])
def test_policy_that_predicts_by_step_rejects_chunks(
  name, lerobot_path, tmp_path, capsys
):
  argv = ["--policy", name.lower(), "--dataset", lerobot_path]
  argv += ["--model_dir", tmp_path / "run"]
  argv += ["--gin_bindings", f"{name}Model.chunk_size = 8"]
  status, _, err = train(capsys, *argv)
  want = f"{name}Model: chunk_size: expected 1, as each step predicts its "
  assert status == 1 and want in " ".join(err.split()), err


def test_run_refuses_a_smaller_data_set_than_it_began_with(
  lerobot_path, tmp_path, capsys
):
  run = tmp_path / "run"
  run.mkdir()
  for split in ("train", "eval"):
    (run / f"{split}_episodes.txt").write_text("0\n99\n")
  argv = ["--policy", "mlp", "--dataset", lerobot_path, "--model_dir", run]
  status, _, err = train(capsys, *argv)
  assert status == 1
  assert "which has an episode 99, got one of" in " ".join(err.split())
