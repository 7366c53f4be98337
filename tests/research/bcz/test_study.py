"""BC-Z from end to end, on next to no data; one step at full size."""

from __future__ import annotations

import pathlib

import gin
import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("gymnasium")

from research.bcz import bcz_models, study, table_env
from t2r_seq import errors, training

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
  """What a study of one training step leaves."""
  folder = tmp_path_factory.mktemp("study")
  options = ["--models", "bcz", "--episodes", "8", "--steps", "1", "--fresh", "1"]
  with pytest.MonkeyPatch.context() as patched:
    patched.chdir(ROOT)
    kinds = {kind: texts[:1] for kind, texts in study.INSTRUCTIONS.items()}
    patched.setattr(study, "INSTRUCTIONS", kinds)
    assert study.main([*options, "--out", str(folder)]) == 1  # Nothing is learned.
  return folder


def test_study_writes_its_table_and_its_picture(out):
  rows = (out / "table.md").read_text(encoding="utf-8").splitlines()
  assert rows[0] == "| success | BC-Z | the same, told nothing |"
  names = [row.split("|")[1].strip() for row in rows[2:]]
  seen, held_out = table_env.SEEN, table_env.HELD_OUT
  assert names == ["**seen**", seen[0], "**held out**", held_out[0]]
  frames = tf.io.decode_png((out / "episode.png").read_bytes()).numpy()
  assert frames.shape == (3 * 192, 6 * 192, 3)


def test_export_takes_the_instruction_as_text(out):
  policy = study.load(out, "bcz", 0)
  policy.restore()
  observation, _ = table_env.TableEnv().reset(seed=0)
  actions = []
  for text in ("pick the red block", "Pick the RED block!", "push the red block"):
    policy.reset()
    actions.append(policy.SelectAction({**observation, "instruction": text}))
  assert actions[0].shape == (5,)
  np.testing.assert_array_equal(actions[0], actions[1])
  assert np.abs(actions[0] - actions[2]).max() > 0


def test_full_size_is_built_and_trains_a_step(tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  gin.parse_config_files_and_bindings(
    ["research/bcz/configs/train_bcz_full.gin"],
    [
      "TRAIN_STORE = 'unused'",
      "EVAL_STORE = 'unused'",
      "train_eval_model.input_generator_train = @DefaultRandomInputGenerator()",
      "train_eval_model.input_generator_eval = None",
      "DefaultRandomInputGenerator.batch_size = 1",
      "train_eval_model.max_train_steps = 1",
      f"train_eval_model.model_dir = '{tmp_path}'",
      "train_eval_model.create_exporters_fn = None",
    ],
  )
  model = bcz_models.BCZModel()
  result = training.train_eval_model(t2r_model=model)
  assert result["global_step"] == 1
  sizes = [np.prod(v.shape) for v in model.trainable_variables]
  assert 11e6 < sum(sizes) < 22e6


def test_unknown_loss_is_an_error():
  with pytest.raises(errors.SpecError, match="gripper: loss: expected one of"):
    bcz_models.ActionComponent("gripper", 1, "hinge")
