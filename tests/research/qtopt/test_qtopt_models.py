"""QT-Opt's critic at its full size: trains, exports averages, values many actions."""

from __future__ import annotations

import pathlib

import gin
import numpy as np
import tensorflow as tf

from research.qtopt import qtopt_models
from t2r_seq import policies, specs, training

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_trains_exports_averages_and_values_64_actions(tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  gin.parse_config_files_and_bindings(
    ["research/qtopt/configs/train_qtopt.gin"],
    [
      # So fast that averages are told from weights, and statistics of what was seen.
      "Grasping44Layers.batch_norm_momentum = 0.0",
      "create_exp_decaying_learning_rate.initial_learning_rate = 0.1",
      "TRAIN_DATA = 'unused'",
      "EVAL_DATA = 'unused'",
      "train_eval_model.input_generator_train = @DefaultRandomInputGenerator()",
      "train_eval_model.input_generator_eval = None",
      "DefaultRandomInputGenerator.batch_size = 1",
      "train_eval_model.max_train_steps = 2",
      f"train_eval_model.model_dir = '{tmp_path}'",
    ],
    skip_unknown=False,
  )
  model = qtopt_models.QTOptCritic()
  training.train_eval_model(t2r_model=model, run_config=training.RunConfig(seed=0))
  in_spec = model.preprocessor.get_in_feature_specification("infer")
  assert in_spec["state/image"].shape == (512, 640, 3)
  asked = specs.make_random_numpy(in_spec, batch_size=1, seed=0)
  sizes = []
  encode = model.state_func
  monkeypatch.setattr(
    model, "state_func", lambda s, mode: sizes.append(s.image.shape) or encode(s, mode)
  )
  raw = model.export_outputs(tf.nest.map_structure(tf.constant, asked))
  assert sizes == [(1, 472, 472, 3)]
  with model.averaged_weights():
    averaged = model.export_outputs(tf.nest.map_structure(tf.constant, asked))
  predictor = policies.ExportedSavedModelPredictor(str(tmp_path / "export/latest"))
  predictor.restore()
  values = predictor.predict(asked)["q_predicted"]
  assert values.shape == (1, 64, 1) and np.ptp(values) > 0
  np.testing.assert_allclose(values, averaged["q_predicted"], rtol=1e-4)
  assert np.abs(values - raw["q_predicted"].numpy()).max() > 1e-3
