"""Grasps from end to end, on next to no data; and the model at its full size."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")

from research import runs
from research.grasp2vec import grasp2vec_models, outcome_env, study
from t2r_seq import specs

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_study_writes_its_table_and_picture(tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  out = tmp_path / "out"
  quickly = [
    "NUM_TRAIN_STEPS = 1",
    "train/StoreInputGenerator.batch_size = 4",
    "train_eval_model.input_generator_eval = None",
  ]
  sizes = ["--grasps", "8", "--held_out", "8", "--gin_bindings", *quickly]
  study.main(["--out", str(out), *sizes])
  rows = (out / "table.md").read_text(encoding="utf-8").splitlines()[2:]
  assert [row.split("|")[1].strip() for row in rows] == list(study._ROWS.values())
  for row in rows:
    assert all(0 <= float(cell) <= 1 for cell in row.split("|")[2:-1])
  shown = tf.io.decode_png((out / "heatmaps.png").read_bytes())
  num_lifted = shown.shape[1] // (3 * 64 + 4)
  assert shown.shape[0] == 4 * 3 * 64 and 2 <= num_lifted <= 8


def test_lifted_object_leaves_its_pixel():
  env = outcome_env.GraspOutcomeEnv(num_objects=(2, 2))
  policy = outcome_env.PointingPolicy(env, seed=0)
  lifted = 0
  for seed in range(6):
    before, info = env.reset(seed=seed)
    assert env.observation_space.contains(before)
    assert (info["pixel"] < 0).all() and not info["kind"].any()
    after, reward, terminated, _, info = env.step(policy.SelectAction(before))
    assert terminated
    if reward:
      lifted += 1
      column, row = info["pixel"].astype(int)
      color = 255 * info["kind"][1:]
      for scene, is_there in ((before, True), (after, False)):
        seen = scene["state"]["scene"][row, column].astype(float)
        # Light falls on it, but red remains red.
        cosine = seen @ color / np.linalg.norm(seen) / np.linalg.norm(color)
        assert (cosine > 0.97) == is_there
  env.close()
  assert lifted >= 2


def test_thing_is_where_its_middle_is():
  """Its rim may be warmer than the rest of it, and a speck elsewhere than all of it."""
  heat = np.zeros([2, 16, 16, 1], np.float32)
  heat[0, 3:6, 8:11] = 1
  heat[0, 3, 8] = heat[0, 14, 2] = 3
  heat[1, 0:2, 14:16] = 1  # In a corner.
  peaks = grasp2vec_models.peaks(heat).numpy() * 16
  np.testing.assert_allclose(peaks[0], [9.5, 4.5], atol=0.01)
  np.testing.assert_allclose(peaks[1], [15, 1], atol=0.6)


def test_full_size_learns_from_records_of_tensor2robot(monkeypatch):
  monkeypatch.chdir(ROOT)
  small = (
    *(f"{name} = ''" for name in ("TRAIN_DATA", "EVAL_DATA")),
    "Grasp2VecModel.scene_size = (64, 64)",
    "Grasp2VecModel.goal_size = (48, 48)",
    "Grasp2VecPreprocessor.scene_crop = (2, 6, 64, 0, 8, 64)",
    "Grasp2VecPreprocessor.goal_crop = (0, 0, 48, 0, 0, 48)",
    "Grasp2VecPreprocessor.stored_size = (72, 72)",
    "grasp2vec_resnet_tower.resnet_size = 18",
    "grasp2vec_resnet_tower.num_filters = 4",
    "Grasp2VecModel.embedding_loss_fn = @TripletLoss",
  )
  with runs.configured("research/grasp2vec/configs/grasp2vec_full.gin", *small):
    model = grasp2vec_models.Grasp2VecModel()
    mode = specs.ModeKeys.TRAIN
    stored = model.preprocessor.get_in_feature_specification(mode)
    names = {path: (spec.name, spec.shape[0]) for path, spec in stored.items()}
    assert names == {
      "pregrasp_image": ("image", 72),
      "postgrasp_image": ("postgrasp_image", 72),
      "goal_image": ("present_image", 72),
    }
    model.build()
    raw = specs.make_random_numpy(stored, batch_size=3)
    features, labels = model.preprocessor.preprocess(raw, {}, mode)
    loss, scalars = model.train_loss(features, labels)
  assert 0 < float(loss) < 10 and set(scalars) == {"retrieval_accuracy"}
