"""Every ability reads every format: inspect, doctor, stats, view and verify."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  checks,
  errors,
  models,
  policies,
  specs,
  statistics,
  verification,
  viewing,
)
from t2r_seq.episodes import open_episodes
from tests.format_data import EPISODES, FORMATS, LENGTHS

Spec = specs.ExtendedTensorSpec
every_format = pytest.mark.parametrize("name", FORMATS)
TOTAL = f"{len(LENGTHS)} episodes, {sum(LENGTHS)} steps"


@pytest.fixture(name="make")
def fixture_make(tmp_path, monkeypatch):
  """Writes a data set: returns its path, its names, and the command's options."""
  monkeypatch.chdir(tmp_path)

  def make(name):
    known = FORMATS[name]
    flags = {"format": "--from"}
    argv = []
    for key, value in known.options:
      argv += [flags.get(key, f"--{key}"), value]
    return known.make(), known, argv

  return make


@every_format
def test_inspect(name, make, run_main):
  path, known, argv = make(name)
  status, out, err = run_main("inspect", path, *argv)
  assert (status, err) == (0, ""), err
  leaf = known.state.rpartition("/")[2]
  if name in ("SequenceExamples", "RLDS", "ArrayRecord"):  # Whose records are shown.
    assert f"{len(LENGTHS)} records" in out and leaf in out
    return
  assert re.search(rf"^{re.escape(known.state)} +float32 +3 +", out, re.MULTILINE), out
  if open_episodes(path, **dict(known.options)).lengths is not None:
    assert f"{path}: {known.name}\n{TOTAL}\n" in out or name == "a store", out


# A value in the second episode, and what is reported.
BAD_NUMBERS = {"good": (0.5, ""), "NaN": (np.nan, "NaN"), "infinite": (-np.inf, "-inf")}


@every_format
@pytest.mark.parametrize("number", BAD_NUMBERS)
def test_doctor(name, number, make, run_main, monkeypatch):
  value, want = BAD_NUMBERS[number]
  state = EPISODES[1]["state"].copy()
  state[2, 1] = value
  monkeypatch.setitem(EPISODES[1], "state", state)
  path, known, argv = make(name)
  status, out, err = run_main("doctor", path, *argv)
  assert (status, err) == (int(bool(want)), ""), out + err
  assert (f"expected numbers, got {want} at step 2" in " ".join(out.split())) == bool(
    want
  ), out
  if want:
    assert run_main("doctor", path, *argv, "--allow_nan")[0] == 0
  report = checks.check(path, **dict(known.options))
  assert sum(report.counts.values()) == len(LENGTHS)
  assert {problem.kind for problem in report.problems} == ({"nan"} if want else set())
  by_path = {each.path: each.num_nan for each in report.paths}
  assert by_path[known.state] == report.num_bad == bool(want)


@every_format
def test_check_rejects_specs_that_it_ignores(name, make):
  path, known, _ = make(name)
  options = dict(known.options)
  label = {"action": Spec((2,), tf.float32, "action", is_sequence=True)}
  if name not in ("SequenceExamples", "RLDS"):
    with pytest.raises(errors.SpecError, match="label_spec: expected None, got specs"):
      checks.check(path, label_spec=label, **options)
  with pytest.raises(errors.SpecError, match="spec: expected None for open episodes"):
    checks.check(open_episodes(path, **options), label)
  if known.name not in ("store", "tfrecord"):
    with pytest.raises(errors.SpecError, match=": spec: expected None, got specs"):
      checks.check(path, label, **options)


@every_format
def test_stats(name, make, run_main):
  path, known, argv = make(name)
  status, out, err = run_main("stats", path, *argv, "--output", "stats.json")
  assert status == 0, err
  found = statistics.load_statistics("stats.json")
  for path_of, own in ((known.state, "state"), (known.action, "action")):
    values = np.concatenate([episode[own] for episode in EPISODES])
    got = found.paths[path_of]
    np.testing.assert_allclose(got.measure("mean"), values.mean(0), rtol=1e-4)
    np.testing.assert_array_equal(got.measure("max"), values.max(0))
    assert got.rows == sum(LENGTHS)
  assert found.lengths.num_episodes == len(LENGTHS)
  status, out, err = run_main("stats", path, *argv, "-o", "stats.json", "--check")
  assert status == 0 and "is up to date" in out, err


@every_format
def test_view(name, make, run_main):
  path, known, argv = make(name)
  status, out, err = run_main("view", path, *argv, "-o", "page.html")
  assert status == 0, err
  assert TOTAL in out
  made = viewing.view(open_episodes(path, **dict(known.options)), "page.html")
  survey = made.surveys[0]
  assert [each.num_steps for each in survey.episodes] == list(LENGTHS)
  values = np.concatenate([episode["state"] for episode in EPISODES])
  got = survey.statistics[known.state].measure("min")
  np.testing.assert_array_equal(got, values.min(0))


class Model(models.RegressionModel):
  """Sees the last two states, by the names of a format."""

  def __init__(self, known, **options):
    self._known = known
    super().__init__(action_size=2, **options)

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      seen=Spec((2, 3), tf.float32, self._known.state, time_offsets=(-1, 0))
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(
      target=Spec((2,), tf.float32, self._known.action, time_offsets=0)
    )

  def create_network(self):
    return tf.keras.layers.Dense(2)

  def a_func(self, features, mode):
    return {"inference_output": self.network(tf.reshape(features.seen, [-1, 6]))}


@every_format
def test_verify(name, make):
  path, known, _ = make(name)
  model = Model(known)
  predictor = policies.CheckpointPredictor(model)
  predictor.init_randomly()
  options = dict(known.options)
  report = verification.verify(predictor, path, model, **options)
  assert report.is_identical, str(report)
  assert (report.num_episodes, report.num_steps) == (len(LENGTHS), sum(LENGTHS))

  def shifted(observation, begins):
    return {"seen": observation["seen"] + np.float32(1)}

  report = verification.verify(predictor, path, model, observe=shifted, **options)
  assert not report.is_identical
