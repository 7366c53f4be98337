"""Several exports that answer as one."""

from __future__ import annotations

import os

import numpy as np
import pytest

from t2r_seq import errors, policies
from t2r_seq.policies.predictors import NoModelError

_SCALES = (1.0, 2.0, 4.0)
_WINDOWS = {
  "state/pos": np.ones([2, 2, 3], np.float32),
  "goal": np.full([2, 1], 5, np.float32),
}


@pytest.fixture(name="export_dirs", scope="module")
def fixture_export_dirs(tmp_path_factory, write_export):
  """Three folders with an export each, whose actions are 2 * scale + goal."""
  root = tmp_path_factory.mktemp("ensemble")
  folders = [str(root / f"member{number}") for number in range(3)]
  for number, (folder, scale) in enumerate(zip(folders, _SCALES, strict=True)):
    write_export(folder, number + 1, scale, global_step=10 * number)
  return folders


def _predictor(export_dirs, **kwargs):
  return policies.EnsembleExportedSavedModelPredictor(
    ",".join(export_dirs), timeout=0, **kwargs
  )


SAID = 2 * np.array(_SCALES) + 5
RESTORING = [
  policies.RestoreOptions.RESTORE_SYNCHRONOUSLY,
  policies.RestoreOptions.RESTORE_ASYNCHRONOUSLY,
]
AGGREGATIONS = {
  "mean": ({}, SAID.mean()),
  "min": ({"aggregation": "min"}, SAID.min()),
  "lcb": (
    {"aggregation": "lcb", "lcb_coefficient": 0.5},
    SAID.mean() - 0.5 * SAID.std(),
  ),
}


@pytest.mark.parametrize("case", AGGREGATIONS)
def test_members_become_one(case, export_dirs):
  options, want = AGGREGATIONS[case]
  predictor = _predictor(export_dirs, ensemble_size=3, **options)
  assert predictor.global_step == -1
  with pytest.raises(NoModelError):
    predictor.predict(_WINDOWS)
  assert predictor.restore(is_async=False)
  outputs = predictor.predict(_WINDOWS)["inference_output"]
  np.testing.assert_allclose(outputs, np.full([2, 3], want), rtol=1e-6)
  predictor.reset(2)
  step = {"state/pos": _WINDOWS["state/pos"][:, 0], "goal": _WINDOWS["goal"]}
  np.testing.assert_allclose(
    predictor.step(step)["inference_output"], outputs, rtol=1e-6
  )
  assert predictor.global_step == -1
  assert len(predictor.model_path.split(",")) == 3


@pytest.mark.parametrize("option", RESTORING)
def test_ensemble_can_restore_when_it_is_made(option, export_dirs):
  predictor = _predictor(export_dirs, ensemble_size=3, restore_model_option=option)
  outputs = predictor.predict(_WINDOWS)["inference_output"]
  np.testing.assert_allclose(outputs, np.full([2, 3], SAID.mean()), rtol=1e-6)


def test_repeated_members_count_in_steps_as_in_predictions(export_dirs):
  predictor = _predictor(export_dirs, ensemble_size=4, seed=0)
  predictor.restore()
  outputs = predictor.predict(_WINDOWS)["inference_output"]
  predictor.reset(2)
  step = {"state/pos": _WINDOWS["state/pos"][:, 0], "goal": _WINDOWS["goal"]}
  np.testing.assert_allclose(predictor.step(step)["inference_output"], outputs, 1e-6)


def test_one_of_several_is_drawn(export_dirs):
  predictor = _predictor(export_dirs, seed=0)
  predictor.restore()
  seen = set()
  for _ in range(20):
    predictor.resample_ensemble()
    action = predictor.predict(_WINDOWS)["inference_output"][0, 0]
    seen.add(float(action))
    assert predictor.global_step == 10 * list(SAID).index(action)
  assert seen == set(SAID)


def test_folders_can_be_elsewhere(export_dirs):
  root = os.path.dirname(export_dirs[0])
  predictor = _predictor(["/gone/member1/"], local_export_root=root)
  assert predictor.restore()
  assert predictor.model_version == 2
  with pytest.raises(errors.SpecError, match=r"expected the folder .*/member9, got"):
    _predictor(["/gone/member9"], local_export_root=root)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"aggregation": "max"}, r"aggregation: expected one of \[lcb, mean, min\], got"),
    ({"ensemble_size": 0}, "an ensemble_size of at least 1, got 3 folders and 0"),
  ],
)
def test_wrong_options_are_refused(options, message, export_dirs):
  with pytest.raises(errors.SpecError, match=message):
    _predictor(export_dirs, **options)


@pytest.mark.parametrize("option", RESTORING)
def test_predictor_can_restore_when_it_is_made(option, export_dirs):
  predictor = policies.ExportedSavedModelPredictor(
    export_dirs[0], timeout=0, restore_model_option=option
  )
  assert predictor.model_version == 1
  assert predictor.global_step == 0


def test_newer_export_is_loaded_beside_a_running_episode(tmp_path, write_export):
  write_export(str(tmp_path), 1, scale=1.0, global_step=1)
  predictor = policies.ExportedSavedModelPredictor(
    tmp_path, 0, restore_model_option=policies.RestoreOptions.RESTORE_ASYNCHRONOUSLY
  )
  policy = policies.RegressionPolicy(predictor)
  assert policy.restore()
  observation = {"state/pos": np.ones([3]), "goal": np.zeros([1])}
  assert policy.sample_action(observation)[0][0] == 2
  write_export(str(tmp_path), 2, scale=10.0, global_step=2)
  predictor.restore()
  predictor._loading.result()
  # The episode goes on with the model that it began with.
  assert policy.sample_action(observation)[0][0] == 2
  policy.reset()
  assert policy.sample_action(observation)[0][0] == 20
  assert predictor.global_step == 2
