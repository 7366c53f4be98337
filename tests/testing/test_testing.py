"""What users' tests are given: it finds what is wrong with a model, and says so."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, testing, training


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  return testing.train_on_random_data(
    testing.MockT2RModel(), tmp_path_factory.mktemp("run")
  )


def test_model_is_used_as_a_whole(trained):
  assert trained.metrics["global_step"] == 2 and "auc" in trained.metrics
  assert trained.features["x"].shape == (2, 3)
  assert trained.predictions["a_predicted"].shape == (2, 1)
  features = {"x": tf.constant(trained.features["x"])}
  want = trained.model.export_outputs(features)["a_predicted"]
  np.testing.assert_allclose(trained.predictions["a_predicted"], want, rtol=1e-5)


def test_golden_values(trained, tmp_path, monkeypatch):
  path = tmp_path / "golden" / "mock.npz"
  with pytest.raises(errors.SpecError, match=r"got none\. Run the test once with"):
    testing.check_golden(trained.predictions, path)
  monkeypatch.setenv("T2R_SEQ_UPDATE_GOLDEN", "1")
  testing.check_golden(trained.predictions, path)
  monkeypatch.delenv("T2R_SEQ_UPDATE_GOLDEN")
  testing.check_golden(trained.predictions, path)
  changed = {"a_predicted": trained.predictions["a_predicted"] + 0.01, "more": 1.0}
  with pytest.raises(AssertionError, match="differ; if you intend that") as caught:
    testing.check_golden(changed, path)
  caught.match("a_predicted: \n?Not equal")
  caught.match("more: expected no such value")
  column = {"a_predicted": trained.predictions["a_predicted"][:, 0]}
  with pytest.raises(AssertionError, match="shape"):
    testing.check_golden(column, path)


def test_mock_learns_from_its_data(tmp_path):
  result = training.train_eval_model(
    testing.MockT2RModel(),
    testing.MockInputGenerator(),
    testing.MockInputGenerator(),
    max_train_steps=60,
    model_dir=str(tmp_path),
    create_exporters_fn=None,
    run_config=training.RunConfig(seed=0),
  )
  assert result["accuracy"] > 0.9
