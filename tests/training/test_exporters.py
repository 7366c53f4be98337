"""When exports are made, and which are kept."""

from __future__ import annotations

import os

import pytest

from t2r_seq import errors, training


@pytest.fixture(scope="module")
def model(reach):
  """A built model with random weights."""
  model = reach.ReachModel()
  model.build()
  return model


def _versions(model_dir, name):
  return training.export_versions(os.path.join(model_dir, "export", name))


def test_latest_exports_always_and_keeps_the_newest(model, tmp_path):
  exporter = training.LatestExporter(exports_to_keep=2)
  made = [exporter.export(model, str(tmp_path), step, {}) for step in range(3)]
  kept = _versions(tmp_path, "latest")
  assert [os.path.basename(path) for path in made[1:]] == [str(v) for v in kept]


@pytest.mark.parametrize(
  ("larger_is_better", "values", "want"),
  [
    (False, (3.0, 4.0, 2.0, 2.0), [True, False, True, False]),
    (True, (3.0, 4.0, 2.0, 4.5), [True, True, False, True]),
  ],
)
def test_best_exports_what_beats_every_export_before(
  larger_is_better, values, want, model, tmp_path
):
  got = []
  for step, value in enumerate(values):
    # A new exporter each time: the best value must outlive the process.
    exporter = training.BestExporter(metric="score", larger_is_better=larger_is_better)
    metrics = {"score": value}
    got.append(exporter.is_due(str(tmp_path), metrics))
    if got[-1]:
      exporter.export(model, str(tmp_path), step, metrics)
  assert got == want
  assert len(_versions(tmp_path, "best")) == 1


def test_keeping_no_export_is_refused():
  with pytest.raises(
    errors.SpecError, match=r"LatestExporter: exports_to_keep: .*got 0"
  ):
    training.LatestExporter(exports_to_keep=0)


def test_best_waits_for_an_evaluation_and_a_finite_value(model, tmp_path):
  exporter = training.BestExporter()
  assert not exporter.is_due(str(tmp_path), {})
  assert not exporter.is_due(str(tmp_path), {"loss": float("nan")})
  exporter.export(model, str(tmp_path), 1, {"loss": 1.0})
  assert not exporter.is_due(str(tmp_path), {"loss": float("nan")})
  other = training.BestExporter(metric="score", larger_is_better=True)
  assert other.is_due(str(tmp_path), {"score": 0.5})


def test_best_names_the_metrics_that_there_are(tmp_path):
  exporter = training.BestExporter(metric="losss")
  with pytest.raises(errors.SpecError, match=r"\[loss\], got 'losss'. Did you mean 'l"):
    exporter.is_due(str(tmp_path), {"loss": 1.0})


def test_default_exporters_can_be_replaced():
  def only_latest():
    return training.LatestExporter("mine")

  (exporter,) = training.create_default_exporters([only_latest])
  assert isinstance(exporter, training.LatestExporter)
  kinds = [type(exporter) for exporter in training.create_default_exporters()]
  assert kinds == [training.LatestExporter, training.BestExporter]


class _TextExporter(training.Exporter):
  """Exports in a way of its own, and knows no other arguments."""

  def is_due(self, model_dir, metrics):
    return True

  def export(self, model, model_dir, global_step, metrics):
    path = os.path.join(model_dir, f"step-{global_step}.txt")
    with open(path, "w") as file:
      file.write("weights")
    return path


def test_an_exporter_may_export_in_a_way_of_its_own(reach, record_path, tmp_path):
  reach.train(
    str(tmp_path), record_path, 2, input_generator_eval=None,
    create_exporters_fn=lambda: [
      training.LatestExporter(), _TextExporter("text"), training.LatestExporter("too")
    ],
  )  # fmt: skip
  assert (tmp_path / "step-2.txt").read_text() == "weights"
  for name in ("latest", "too"):
    (version,) = _versions(tmp_path, name)
    assert (tmp_path / "export" / name / str(version) / "saved_model.pb").is_file()
