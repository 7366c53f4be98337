"""The gripper's study from end to end, on next to no data; a step at full size."""

from __future__ import annotations

import pathlib

import gin
import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("gymnasium")

from research.vrgripper import study, vrgripper_env_models
from t2r_seq import meta_learning, specs, store, tensorspec_utils, training
from t2r_seq.training.trainer import Trainer

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_study_writes_its_table_and_its_picture(tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  options = ["--heads", "MSEDecoder", "--models", "--episodes", "4", "--steps", "1"]
  options += ["--fresh", "1", "--out", str(tmp_path)]
  bindings = ["--gin_bindings", "train/StoreInputGenerator.batch_size = 8"]
  assert study.main([*options, *bindings]) == 0
  row = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()[2]
  assert row.split("|")[1].strip() == "squared error"
  assert 0 <= float(row.split("|")[2]) <= 1
  assert "policy of tasks" not in (tmp_path / "table.md").read_text(encoding="utf-8")
  frames = tf.io.decode_png((tmp_path / "episodes.png").read_bytes()).numpy()
  assert frames.shape == (120, 6 * 120, 3)


def test_task_has_a_hand_and_two_demonstrations(tmp_path):
  found = store.EpisodeStore(study.collect_tasks(tmp_path, "maml", 4, 0)["train"])
  kinds = [found.column("kind")[i] for i in range(len(found))]
  assert kinds == [b"hand", b"demo", b"demo"] * 4
  assert all(found.episode(i)["reward"][-1] == 1 for i in range(len(found)))
  is_hand = [bool(found.episode(i)["hand_pose"].any()) for i in range(len(found))]
  assert is_hand == [True, False, False] * 4


def test_retrial_policy_sees_the_trial(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(ROOT)
  options = ["--heads", "--models", "wtl", "--tasks", "3", "--steps", "1"]
  options += ["--fresh", "1", "--out", str(tmp_path)]
  bindings = ["TASKS_PER_BATCH = 2", "VRGripperRegressionModel.fc_layers = (8, 8)"]
  # Of one step nothing is learned.
  assert study.main([*options, "--gin_bindings", *bindings]) == 1
  assert "a demonstration is not understood" in capsys.readouterr().err
  table = (tmp_path / "table.md").read_text(encoding="utf-8")
  assert table.count("| watch") == 2
  trials = store.EpisodeStore(tmp_path / "data/trials_0_train")
  kinds = [trials.column("kind")[i] for i in range(len(trials))]
  assert kinds == [b"demo", b"trial", b"target"] * 3
  policy = study.load(tmp_path, "retrial", 0)
  policy.restore()
  first = trials.episode(0)
  seen = {n: first[n][0] for n in ("blocks", "gripper_pose", "hand_pose")}
  step = {"observation": seen, "action": np.zeros(3, np.float32), "reward": 0.0}
  answers = []
  for reward in (0.0, 1.0):
    policy.adapt([[step], [{**step, "reward": reward}]])
    answers.append(policy.sample_action(seen)[0])
  assert np.abs(answers[1] - answers[0]).max() > 0


def test_hand_is_learned_from_by_what_is_seen_alone():
  tf.keras.utils.set_random_seed(0)
  base = vrgripper_env_models.VRGripperDomainAdaptiveModel(
    image_size=None, context_size=4, fc_layers=(8, 8)
  )
  inner = meta_learning.MAMLInnerLoopGradientDescent(1.0, var_scope="context")
  model = meta_learning.MAMLModel(base, inner_loop=inner)
  model.build()
  assert any("learned_loss" in name for name in model.named_variables)
  rng = np.random.default_rng(0)
  spec = model.get_adaptation_specification()
  given = {
    path: rng.normal(size=[1, 8, *leaf.shape[1:]]).astype(np.float32)
    for path, leaf in spec.items()
  }
  adapted = []
  for other in (None, "condition/labels/target", "condition/features/hand_pose"):
    changed = {p: tf.constant(-v if p == other else v) for p, v in given.items()}
    (context,) = model.adapt(specs.TensorSpecStruct(changed)).values()
    adapted.append(context.numpy())
  assert adapted[0].any()
  np.testing.assert_array_equal(adapted[1], adapted[0])
  assert np.abs(adapted[2] - adapted[0]).max() > 1e-6


def test_trial_is_learned_from_in_frames_too():
  base = vrgripper_env_models.VRGripperRegressionModel(
    image_size=64, embedding_size=4, has_reward=True, fc_layers=(8, 8)
  )
  model = meta_learning.TaskEmbeddingModel(base)
  trainer = Trainer(model, tf.distribute.get_strategy())
  features, labels = (
    tensorspec_utils.make_random_tensors(spec, batch_size=2)
    for spec in (
      model.get_feature_specification("train"),
      model.get_label_specification("train"),
    )
  )
  model.build()
  before = {name: v.numpy() for name, v in model.named_variables.items()}
  trainer.train_step(features, labels)
  moved = {
    n for n, v in model.named_variables.items() if (v.numpy() != before[n]).any()
  }
  assert any("embedding" in name for name in moved)


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
