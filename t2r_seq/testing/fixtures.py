"""Fixtures for tests of models."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import data, errors, files, models, policies, specs, training
from t2r_seq.policies.policy_module import exported_feature_specs

_UPDATE = "T2R_SEQ_UPDATE_GOLDEN"


@dataclasses.dataclass(frozen=True)
class TrainedModel:
  """Results of `train_on_random_data`.

  Attributes:
    model: model with its trained weights.
    metrics: metrics of `train_eval_model`.
    predictor: predictor of the export.
    features: random features for the export, by path.
    predictions: outputs of the export for them, by name.
  """

  model: models.T2RModel
  metrics: dict[str, float]
  predictor: policies.ExportedSavedModelPredictor
  features: Mapping[str, np.ndarray]
  predictions: dict[str, np.ndarray]


def train_on_random_data(
  model: models.T2RModel,
  model_dir: str | os.PathLike[str],
  max_train_steps: int = 2,
  batch_size: int = 2,
  seed: int = 0,
  **arguments: Any,
) -> TrainedModel:
  """Trains a model on synthetic data, evaluates and exports it, and runs the export.

  All that a model declares and computes is used once, through its preprocessor: specs
  of all modes, network, loss, metrics, export. The trained weights are meaningless.
  Replaces Tensor2Robot's `T2RModelFixture.random_train`.

  Args:
    model: the model, which is not built yet.
    model_dir: an empty folder for the run, such as pytest's `tmp_path`.
    max_train_steps: number of train steps.
    batch_size: batch size of training, evaluation and the prediction.
    seed: seed of weights and data; for weights, a `run_config` overrides it.
    **arguments: other arguments of `train_eval_model`.
  Returns:
    The model, metrics, predictor, features and predictions.
  Raises:
    SpecError: arguments contradict each other; and any error of the model.
  """
  config = training.RunConfig(log_every_n_steps=1, seed=seed)
  result = training.train_eval_model(
    t2r_model=model,
    input_generator_train=data.DefaultRandomInputGenerator(
      batch_size=batch_size, seed=seed
    ),
    input_generator_eval=data.DefaultRandomInputGenerator(
      batch_size=batch_size, seed=seed + 1
    ),
    max_train_steps=max_train_steps,
    eval_steps=1,
    model_dir=os.fspath(model_dir),
    **{"run_config": config, **arguments},
  )
  latest = os.path.join(os.fspath(model_dir), "export", "latest")
  predictor = policies.ExportedSavedModelPredictor(latest)
  predictor.restore()
  features = specs.make_random_numpy(
    exported_feature_specs(model), batch_size=batch_size, seed=seed
  )
  predictions = predictor.predict(features)
  return TrainedModel(model, result, predictor, features, predictions)


def check_golden(
  values: Mapping[str, Any],
  path: str | os.PathLike[str],
  rtol: float = 1e-4,
  atol: float = 1e-5,
) -> None:
  """Compares values with those of a file, so that a test detects changes.

  If a change is intended, set the environment variable T2R_SEQ_UPDATE_GOLDEN=1, which
  writes the file instead. Keep the file with the sources.

  Args:
    values: arrays, tensors or numbers by name, such as predictions.
    path: path of the file, `.npz`.
    rtol: relative tolerance of numbers.
    atol: absolute tolerance.
  Raises:
    AssertionError: values differ, are missing or are not in the file; all are listed.
    SpecError: the file is missing.
  """
  arrays = {name: np.asarray(value) for name, value in values.items()}
  place = pathlib.Path(path)
  if os.environ.get(_UPDATE) == "1":
    files.make_folders(place.parent)
    with files.writing_output(place) as temporary, open(temporary, "wb") as f:
      np.savez(f, **arrays)  # type: ignore[arg-type]
    return
  if not place.exists():
    raise errors.SpecError(
      f"check_golden: {place}: expected a file of golden values, got none. Run the "
      f"test once with {_UPDATE}=1, and keep the file with the sources."
    )
  with np.load(place, allow_pickle=False) as archive:
    golden = dict(archive)
  differences = [
    f"{name}: expected a value, got none" for name in golden if name not in arrays
  ]
  for name, array in arrays.items():
    if name not in golden:
      differences.append(
        f"{name}: expected no such value, got {errors.describe(array)}"
      )
      continue
    try:
      np.testing.assert_equal(array.shape, golden[name].shape, "shape")
      np.testing.assert_allclose(array, golden[name], rtol, atol)
    except AssertionError as e:
      differences.append(f"{name}: {e}")
  if differences:
    raise AssertionError(
      f"check_golden: {place}: values differ; if you intend that, run with {_UPDATE}=1."
      "\n" + "\n".join(differences)
    )
