"""The gripper's study from end to end, on next to no data; a step at full size."""

from __future__ import annotations

import pathlib

import gin
import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("gymnasium")

from research.vrgripper import study, vrgripper_env_models
from t2r_seq import store, training

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
  """What a study of one training step leaves."""
  folder = tmp_path_factory.mktemp("study")
  options = ["--heads", "FlowMatchingDecoder", "--models", "daml"]
  options += ["--episodes", "4", "--steps", "1", "--fresh", "1", "--gin_bindings"]
  with pytest.MonkeyPatch.context() as patched:
    patched.chdir(ROOT)
    small = ["TASKS_PER_BATCH = 2", "train/StoreInputGenerator.batch_size = 8"]
    assert study.main([*options, *small, "--out", str(folder)]) == 1
  return folder


def test_study_writes_its_tables_and_its_picture(out):
  rows = {
    name: (out / f"{name}.md").read_text(encoding="utf-8").splitlines()[2:]
    for name in ("heads", "tasks")
  }
  assert [row.split("|")[1].strip() for row in rows["heads"]] == ["flow matching"]
  (row,) = rows["tasks"]
  assert row.split("|")[1].strip().startswith("MAML by a learned loss")
  frames = tf.io.decode_png((out / "episodes.png").read_bytes()).numpy()
  assert frames.shape == (120, 6 * 120, 3)


def test_tasks_have_a_hand_and_demonstrations(out):
  path = out / "data/tasks_eval"
  before = store.EpisodeStore(str(path))
  kinds = [before.column("kind")[i] for i in range(len(before))]
  assert kinds == [b"hand", b"demo", b"demo"] * 4
  assert all(before.episode(i)["reward"][-1] == 1 for i in range(len(before)))


def test_full_size_is_built_and_trains_a_step(tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  gin.parse_config_files_and_bindings(
    ["research/vrgripper/configs/train_vrgripper_full.gin"],
    [
      "TRAIN_STORE = 'unused'",
      "EVAL_STORE = 'unused'",
      "train_eval_model.input_generator_train = @DefaultRandomInputGenerator()",
      "train_eval_model.input_generator_eval = None",
      "DefaultRandomInputGenerator.batch_size = 2",
      "train_eval_model.max_train_steps = 1",
      f"train_eval_model.model_dir = '{tmp_path}'",
      "train_eval_model.create_exporters_fn = None",
    ],
  )
  model = vrgripper_env_models.VRGripperRegressionModel()
  result = training.train_eval_model(t2r_model=model)
  assert result["global_step"] == 1
  assert sum(np.prod(v.shape) for v in model.trainable_variables) > 4e5
