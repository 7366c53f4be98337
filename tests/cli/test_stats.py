"""`t2r_seq stats` as a user runs it."""

from __future__ import annotations

import json

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs, statistics
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
SPEC = specs.TensorSpecStruct(
  state=Spec((2,), tf.float32, "state", is_sequence=True),
  task=Spec((), tf.string, "task"),
)
EPISODES = [
  {"state": np.asarray([[i, 1.0]] * (i + 2), np.float32), "task": np.array(b"a", "O")}
  for i in range(4)
]
MODULE = """
import numpy as np
def to_deltas(episode):
  return {"delta": np.diff(episode["state"], axis=0)}
"""


@pytest.fixture(name="folder")
def fixture_folder(tmp_path, monkeypatch):
  """A folder with a store, record files and a module, as the current one."""
  monkeypatch.chdir(tmp_path)
  with EpisodeStore.create("store", SPEC) as writer:
    for episode in EPISODES:
      writer.append_episode(episode)
  (tmp_path / "data").mkdir()
  records.write_records("data/a.tfrecord", SPEC, EPISODES)
  (tmp_path / "project_of_stats.py").write_text(MODULE)
  return tmp_path


def test_store(folder, run_main):
  status, out, err = run_main("stats", "store")
  assert (status, err) == (0, "")
  lines = out.splitlines()
  assert lines[0].startswith("4 episodes of 2 to 5 steps, mean 3.5, 14 in all (1 %: 2")
  assert lines[2].split()[:4] == ["path", "one", "step", "rows"]
  assert lines[4].split() == [
    *("state", "(2,)", "float32", "per", "element", "14"),
    *("1..1.857", "0..1.059", "0..1", "0..1", "1..2", "1..3", "1..3", "exact"),
  ]
  assert lines[-3:] == [
    "state: constant in element 1.",
    "task: bytes, counted only.",
    "Written to store/statistics.json",
  ]
  saved = json.loads((folder / "store/statistics.json").read_text())
  assert saved["paths"]["state"]["max"] == [3, 1]


def test_records_elements_and_check(folder, run_main):
  assert run_main("stats", "data/*.tfrecord", "--num_workers", 2)[0] == 0
  status, out, _ = run_main("stats", "data/*.tfrecord", "--check", "--elements")
  assert status == 0 and out.endswith("data/statistics.json is up to date.\n")
  assert [line.split()[0] for line in out.splitlines()[4:7]] == [
    "state[0]", "state[1]", "task",
  ]  # fmt: skip
  records.write_records("data/a.tfrecord", SPEC, EPISODES[:2])
  status, _, err = run_main("stats", "data/*.tfrecord", "--check")
  assert status == 1
  assert err == (
    "t2r_seq stats: statistics: data/statistics.json: expected the source that they "
    "were computed from, got another: a.tfrecord has changed. Compute them again.\n"
  )


def test_patterns_leave_out_what_it_writes(folder, run_main):
  for _ in range(2):
    status, out, _ = run_main("stats", "data/*")
    assert status == 0 and "Written to data/statistics.json" in out
  status, out, _ = run_main("stats", "data/*", "--check")
  assert status == 0 and "is up to date" in out


def test_transform(folder, run_main):
  transform = "project_of_stats:to_deltas"
  status, out, _ = run_main(
    "stats", "store", "--transform", transform, "--output", "deltas.json"
  )
  assert status == 0 and "after project_of_stats:to_deltas" in out
  assert list(json.loads((folder / "deltas.json").read_text())["paths"]) == ["delta"]


CONVENTIONS = """
import tensorflow as tf
from t2r_seq.specs import Convention, ExtendedTensorSpec as Spec

STORED = Convention(unit="m", control="absolute")
RELATIVE = Convention(unit="mm", control="relative", reference="state")
equal = {"state": Spec((2,), tf.float32, "state", time_offsets=0, convention=STORED)}
relative = {
  **equal,
  "action": Spec((2, 2), tf.float32, "state", time_offsets=(0, 1), convention=RELATIVE),
}
"""


@pytest.mark.parametrize("source", ["store", "data/a.tfrecord"])
def test_spec_of_another_convention_converts(folder, run_main, source):
  """As `--policy` does; numbers of the same convention stay."""
  (folder / "specs_of_stats.py").write_text(CONVENTIONS)
  declared = json.dumps({"state": {"unit": "m", "control": "absolute"}})
  for name in ("store", "data"):
    (folder / name / "conventions.json").write_text(declared)
  states = [episode["state"] for episode in EPISODES]
  chunks = [state[t : t + 2] - state[t] for state in states for t in range(len(state))]
  wants = {"relative": 1000 * np.concatenate(chunks), "equal": None}
  for name, want in wants.items():
    output = folder / f"{name}.json"
    argv = [source, "--spec", f"specs_of_stats:{name}", "--output", str(output)]
    status, out, err = run_main("stats", *argv)
    assert status == 0, err
    found = statistics.load_statistics(output)
    assert ("after" in out) == (want is not None)
    if want is not None:
      np.testing.assert_allclose(found.paths["action"].mean, want.mean(0), atol=1e-4)
      np.testing.assert_allclose(found.paths["action"].std, want.std(0), rtol=1e-5)
      assert found.paths["action"].spec.convention.control == "relative"


MODEL = """
import gin
import tensorflow as tf
from t2r_seq import models, preprocessors, specs

Spec = specs.ExtendedTensorSpec

@gin.configurable
class Relative(preprocessors.NoOpPreprocessor):
  def _preprocess_fn(self, features, labels, mode):
    if labels is not None:
      labels["action"] -= features["state"][:, None]
    return features, labels

@gin.configurable
class Imitator(models.RegressionModel):
  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(state=Spec((2,), tf.float32, "state", time_offsets=0))

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(
      action=Spec((3, 2), tf.float32, "state", time_offsets=(0, 1, 2)))

  def create_network(self):
    return tf.keras.layers.Dense(6)

  def a_func(self, features, mode):
    return {"inference_output": tf.reshape(self.network(features.state), [-1, 3, 2])}
"""
CONFIG = """
import project_of_stats_model
train_eval_model.t2r_model = @Imitator()
train_eval_model.input_generator_train = @StoreInputGenerator()
StoreInputGenerator.store_path = 'store'
StoreInputGenerator.shift = 2
Imitator.preprocessor_cls = @ComposedPreprocessor
ComposedPreprocessor.preprocessor_classes = [@Relative, @Normalize]
Normalize.statistics_path = 'none.json'
Normalize.modes = {'action': 'min_max'}
"""


def test_model_of_a_gin_config(folder, run_main):
  """Statistics of what Normalize gets, before there are any; as training cuts."""
  (folder / "project_of_stats_model.py").write_text(MODEL)
  (folder / "train.gin").write_text(CONFIG)
  status, _, err = run_main(
    "stats", "store", "--gin_configs", "train.gin", "-o", "a.json"
  )
  assert (status, err) == (0, "")
  found = statistics.load_statistics("a.json")
  want = [
    episode["state"][t : t + 3] - episode["state"][t]
    for episode in EPISODES
    for t in range(0, len(episode["state"]), 2)
  ]
  assert found.paths["action"].rows == len(np.concatenate(want))
  assert found.paths["action"].transform == "Relative"
  assert found.paths["state"].rows == len(want) and not found.paths["state"].transform

  assert run_main("stats", "store", "-o", "raw.json")[0] == 0
  gin.parse_config_file("train.gin")
  with gin.unlock_config():
    gin.bind_parameter("Normalize.modes", {"action": "min_max"})
    gin.bind_parameter("Normalize.statistics_path", "a.json")
  assert gin.get_configurable("Imitator")().preprocessor
  with gin.unlock_config():
    gin.bind_parameter("Normalize.statistics_path", "raw.json")
  with pytest.raises(errors.SpecError, match=r"labels/action: .* what Relative gives"):
    _ = gin.get_configurable("Imitator")().preprocessor


ERRORS = {
  "two transforms": (
    ["store", "--transform", "a:b", "--gin_configs", "c.gin"], "both name a transform",
  ),
  "workers": (["store", "--num_workers", "0"], "--num_workers must be >= 1, got 0."),
  "its own output": (
    ["data/*", "--output", "data/mine.json"],
    "data/* would match the statistics, data/mine.json. Name",
  ),
  "no source": (["nowhere/*"], "file patterns: nowhere/*: expected at least one file"),
  "never computed": (["store", "--check"], "No such file or directory"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(folder, run_main, name):
  arguments, want = ERRORS[name]
  status, _, err = run_main("stats", *arguments)
  assert status == 1 and want in err and len(err.splitlines()) == 1
