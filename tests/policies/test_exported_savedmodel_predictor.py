"""Restoring, predicting and stepping an export."""

from __future__ import annotations

import gc
import os
import weakref

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, policies
from t2r_seq.policies import predictors


@pytest.fixture(name="predictor")
def fixture_predictor(export_dir):
  predictor = policies.ExportedSavedModelPredictor(export_dir, timeout=0)
  assert predictor.restore()
  return predictor


def _observations(*values):
  """One position per value, the same number three times."""
  return {
    "state/pos": np.array([[v] * 3 for v in values], np.float32),
    "goal": np.zeros([len(values), 1], np.float32),
  }


def _actions(outputs):
  """The action's first number per environment."""
  return outputs["inference_output"][:, 0].tolist()


WINDOWS = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
GOALS = np.array([[100], [200]], np.float32)


@pytest.mark.parametrize(
  "features",
  [
    {"state/pos": WINDOWS, "goal": GOALS},
    {"state": {"pos": WINDOWS}, "goal": GOALS},
    {"state": {"pos": WINDOWS}, "goal": GOALS, "unasked": np.zeros([9])},
  ],
  ids=["flat", "hierarchical", "more features"],
)
def test_predict(predictor, features):
  outputs = predictor.predict(features)
  want = WINDOWS.sum(axis=1) + GOALS
  assert set(outputs) == {"inference_output", "goal_seen"}
  np.testing.assert_array_equal(outputs["inference_output"], want)


# name: (features, the error)
WRONG_FEATURES = {
  "two mismatches": (
    {"state/pos": WINDOWS.astype(np.float64), "gaol": GOALS},
    r"^predict: 2 mismatches:[\s\S]*goal: .*, got nothing. Did you mean 'gaol'\?"
    r"[\s\S]*state/pos: expected \(batch, 2, 3\) float32, got \(2, 2, 3\) float64\.",
  ),
  "another shape": (
    {"state/pos": np.zeros([2, 4, 3], np.float32), "goal": GOALS},
    r"predict: state/pos: expected \(batch, 2, 3\) float32, got \(2, 4,",
  ),
  "another batch size": (
    {"state/pos": WINDOWS, "goal": GOALS[:1]},
    r"predict: goal: expected a batch as large as that of state/pos, got \(1, 1\)",
  ),
}


@pytest.mark.parametrize("case", WRONG_FEATURES)
def test_predict_names_what_does_not_fit(predictor, case):
  features, want = WRONG_FEATURES[case]
  with pytest.raises(errors.SpecError, match=want):
    predictor.predict(features)


@pytest.mark.parametrize("num_envs", [0, -1, 2.0, None])
def test_reset_needs_environments(predictor, num_envs):
  predictor.step(_observations(1))
  with pytest.raises(errors.SpecError, match="num_envs: expected an integer >= 1, got"):
    predictor.reset(num_envs)
  # The history is as it was.
  assert _actions(predictor.step(_observations(10))) == [11]


def test_predict_records(predictor):
  examples = []
  for window, goal in zip(WINDOWS, GOALS, strict=True):
    example = tf.train.Example()
    example.features.feature["pos"].float_list.value.extend(window.ravel())
    example.features.feature["goal"].float_list.value.extend(goal)
    examples.append(example.SerializeToString())
  outputs = predictor.predict_records(examples)
  np.testing.assert_array_equal(
    outputs["inference_output"], WINDOWS.sum(axis=1) + GOALS
  )


def test_stored_specs_and_properties(predictor, export_dir):
  stored = predictor.get_feature_specification()
  assert stored["state/pos"].time_offsets == (-1, 0)
  assert stored["hint"].is_optional
  assert predictor.get_label_specification()["target"].shape == (3,)
  frames = predictor.get_step_specification()
  # Optional features are no part of the signatures.
  assert {path: tuple(spec.shape) for path, spec in frames.items()} == {
    "state/pos": (3,),
    "goal": (1,),
  }
  assert (predictor.model_version, predictor.global_step) == (7, 70)
  assert predictor.model_path == os.path.join(export_dir, "7")


def test_step_keeps_the_history(predictor):
  got = [_actions(predictor.step(_observations(v)))[0] for v in (1, 10, 100)]
  assert got == [1 + 1, 1 + 10, 10 + 100]
  assert predictor.pure.step_specification().keys() == {"state/pos", "goal"}
  predictor.reset()
  assert _actions(predictor.step(_observations(5))) == [10]


def test_step_starts_episodes_per_environment(predictor):
  predictor.reset(num_envs=3)
  predictor.step(_observations(1, 2, 3))
  outputs = predictor.step(_observations(10, 20, 30), np.array([False, True, False]))
  assert _actions(outputs) == [11, 40, 33]
  outputs = predictor.step(_observations(100, 200, 300), is_first=True)
  assert _actions(outputs) == [200, 400, 600]


def test_first_step_starts_an_episode_by_itself(predictor):
  predictor.reset()
  assert _actions(predictor.step(_observations(4), is_first=[False])) == [8]


@pytest.mark.parametrize(
  ("observations", "is_first", "want"),
  [
    (_observations(1, 2), None, r"step: 2 mismatches:[\s\S]*expected 1 environments"),
    (_observations(1), [True, False], r"step: is_first: expected \(1,\) bool"),
    (
      {"state/pos": np.zeros([1, 3], np.float32)},
      None,
      "step: goal: expected .* nothing",
    ),
    (
      {**_observations(1), "state/pos": np.zeros([1, 2, 3], np.float32)},
      None,
      r"step: state/pos: expected \(batch, 3\) float32, got \(1, 2, 3\) float32",
    ),
  ],
  ids=["environments", "is_first", "missing", "stacked"],
)
def test_step_errors(predictor, observations, is_first, want):
  predictor.reset()
  with pytest.raises(errors.SpecError, match=want):
    predictor.step(observations, is_first)


def test_restore_without_export(tmp_path, caplog):
  predictor = policies.ExportedSavedModelPredictor(tmp_path / "none", timeout=0)
  for _ in range(3):  # An actor asks before each of its rounds.
    assert not predictor.restore()
  told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
  assert told == [f"The folder {tmp_path}/none has no export after 0 s."]
  with pytest.raises(ValueError, match=r"no model is loaded from .*none. Call restore"):
    predictor.assert_is_loaded()
  for operation, call in {
    "step": lambda: predictor.step(_observations(1)),
    "predict": lambda: predictor.predict({"state/pos": WINDOWS, "goal": GOALS}),
    "pure": lambda: predictor.pure,
    "predict_records": lambda: predictor.predict_records([b""]),
  }.items():
    with pytest.raises(ValueError, match=f"^{operation}: no model is loaded from"):
      call()


def test_restore_waits_for_the_first_export(tmp_path, write_export, monkeypatch):
  naps = []

  def sleep_and_export(seconds):
    naps.append(seconds)
    if len(naps) == 2:
      write_export(tmp_path, 1)

  monkeypatch.setattr(predictors.time, "sleep", sleep_and_export)
  predictor = policies.ExportedSavedModelPredictor(
    tmp_path, timeout=60, poll_interval=0.5
  )
  assert predictor.restore()
  assert predictor.model_version == 1
  assert naps == [0.5, 0.5]


def test_restore_picks_up_newer_exports(tmp_path, write_export):
  write_export(tmp_path, 9, scale=1.0, global_step=90)
  predictor = policies.ExportedSavedModelPredictor(tmp_path, timeout=0)
  assert predictor.restore()
  predictor.step(_observations(1))
  # 11 is half-written: no assets yet.
  write_export(tmp_path, 10, scale=2.0, global_step=100)
  write_export(tmp_path, 11, scale=3.0, assets=False)
  assert predictor.model_version == 9
  assert predictor.restore()
  assert (predictor.model_version, predictor.global_step) == (10, 100)
  # A new model has no history: its first step starts an episode.
  assert _actions(predictor.step(_observations(5), is_first=False)) == [2 * 10]


def test_restore_keeps_the_model_in_use_and_close_releases_it(predictor):
  predictor.step(_observations(1))
  assert predictor.restore()
  # Nothing newer: the same model, with its history.
  assert _actions(predictor.step(_observations(10))) == [11]
  model = weakref.ref(predictor.pure)
  predictor.close()
  with pytest.raises(ValueError, match="no model is loaded"):
    predictor.assert_is_loaded()
  gc.collect()
  assert model() is None


def test_export_whose_specs_lack_an_input(tmp_path, write_export):
  write_export(tmp_path, 1, features={"goal": tf.TensorSpec([1])})
  with pytest.raises(errors.SpecError, match=r"takes \[state_pos\], which the stored"):
    policies.loaded_export.LoadedExport(policies.list_exports(str(tmp_path))[0])
