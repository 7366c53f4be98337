"""Every command as a user runs it: collect, inspect, train, predict, collect again."""

from __future__ import annotations

import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import policies, records, specs, store
from tests import warm_python

COLLECT = """
import drift_project
collect_episodes.env = @DriftEnv
collect_episodes.policy = @ExpertPolicy()
collect_episodes.spec = @episode_spec
collect_episodes.num_episodes = 20
collect_episodes.episodes_per_file = 15
collect_episodes.output_path = 'data/train.tfrecord'
"""
TRAIN = """
import drift_project
train_eval_model.t2r_model = @DriftModel()
train_eval_model.model_dir = 'runs/drift'
train_eval_model.input_generator_train = @DefaultRecordInputGenerator()
DefaultRecordInputGenerator.file_patterns = 'data/train*.tfrecord'
DefaultRecordInputGenerator.batch_size = 16
DefaultRecordInputGenerator.seed = 0
"""
EXPORT = "runs/drift/export/latest"


@pytest.fixture(name="project", scope="module")
def fixture_project(tmp_path_factory):
  """A folder with the project, its gin files, and what `collect` and `train` made."""
  folder = tmp_path_factory.mktemp("project")
  shutil.copy(pathlib.Path(__file__).parent / "drift_project.py", folder)
  (folder / "collect.gin").write_text(COLLECT)
  (folder / "train.gin").write_text(TRAIN)
  collect = warm_python.run(
    "-m", "t2r_seq", "collect", "--gin_configs", "collect.gin", cwd=folder
  )
  assert collect.returncode == 0, collect.stderr
  train = warm_python.run(
    "-m", "t2r_seq", "train", "--gin_configs", "train.gin", "--gin_bindings",
    "train_eval_model.max_train_steps = 20", "RunConfig.log_every_n_steps = 10",
    cwd=folder,
  )  # fmt: skip
  assert train.returncode == 0, train.stderr
  return folder, collect, train


@pytest.fixture(name="folder")
def fixture_folder(project, monkeypatch):
  """The project's folder, as the current one."""
  monkeypatch.chdir(project[0])
  return project[0]


def test_collect(project):
  folder, collect, _ = project
  assert collect.stdout.startswith("Collected 20 episodes (100 steps, mean reward ")
  assert collect.stdout.endswith(
    " in 2 files, data/train-00000-of-00002.tfrecord to "
    "data/train-00001-of-00002.tfrecord.\n"
  )
  assert sorted(path.name for path in (folder / "data").iterdir()) == [
    "train-00000-of-00002.tfrecord",
    "train-00001-of-00002.tfrecord",
  ]


def test_train(project):
  folder, _, train = project
  assert "step 20/20: loss" in train.stderr
  assert "Sharding callback" not in train.stderr
  assert train.stdout.startswith("Trained to step 20: loss ")
  assert train.stdout.endswith("; exports in runs/drift/export/latest.\n")
  (export,) = policies.list_exports(str(folder / EXPORT))
  predictor = policies.ExportedSavedModelPredictor(export.path, timeout=0)
  assert predictor.restore()
  assert predictor.global_step == 20


def test_collect_with_the_exported_policy(folder, run_main):
  status, out, err = run_main(
    "collect",
    "--gin_configs",
    "collect.gin",
    "--gin_bindings",
    "collect_episodes.policy = @RegressionPolicy()",
    "RegressionPolicy.predictor = @ExportedSavedModelPredictor()",
    "ExportedSavedModelPredictor.export_dir = 'runs/drift/export/latest'",
    "collect_episodes.episodes_per_file = None",
    "collect_episodes.output_path = 'more/policy.tfrecord.gz'",
  )
  assert (status, err) == (0, ""), err
  assert out.endswith(" in more/policy.tfrecord.gz.\n")
  assert records.inspect_records("more/policy.tfrecord.gz").num_records == 20


def test_inspect(run_python, folder):
  shown = run_python("-m", "t2r_seq", "inspect", "data/train*.tfrecord", cwd=folder)
  assert shown.returncode == 0, shown.stderr
  assert "cuInit" not in shown.stderr
  table, _, code = shown.stdout.partition("A spec that parses them:\n")
  assert "2 files: 20 records, tf.train.SequenceExample" in table
  namespace = {}
  exec(code, namespace)
  want = {
    name: specs.ExtendedTensorSpec((2,), np.float32, name, is_sequence=True)
    for name in ("pos", "velocity")
  }
  assert list(namespace["SPEC"]) == list(want)
  for name, spec in want.items():
    assert namespace["SPEC"][name].is_identical_to(spec)


def test_inspect_against_specs(folder, run_main):
  (export,) = policies.list_exports(EXPORT)
  (folder / "specs.json").write_text(
    specs.TensorSpecStruct(
      [("p", specs.ExtendedTensorSpec((2,), np.float32, "pos", is_sequence=True))]
    ).to_json()
  )
  for source in (
    "drift_project:episode_spec",
    "drift_project:FEATURES",
    f"{export.path}/assets.extra/t2r_assets.pbtxt",
    "specs.json",
  ):
    status, out, err = run_main("inspect", "data/train*.tfrecord", "--spec", source)
    assert (status, err) == (0, "")
    assert out.endswith(f"All records fit {source}.\n")


def test_inspect_names_the_bad_record(folder, run_main):
  status, out, err = run_main(
    "inspect", "data/train*.tfrecord", "--spec", "drift_project:wrong_spec",
    "--max_records", 3,
  )  # fmt: skip
  assert status == 1
  assert "the first 3 records" in out
  assert err.startswith("t2r_seq inspect: ")
  for part in ("data/train-00000-of-00002.tfrecord", "pos", "expected 7 values"):
    assert part in err


@pytest.mark.parametrize(
  ("argv", "want"),
  [
    (["nothing*.tfrecord"], "nothing*.tfrecord: expected at least one file, got none"),
    (["train.gin"], "train.gin: expected a TFRecord file"),
    (["data/*", "--max_records", "0"], "--max_records must be >= 1, got 0"),
    (["data/*", "--spec", "nothing"], "--spec takes MODULE:NAME, "),
    (["data/*", "--spec", "no_such:spec"], "No module named 'no_such'"),
    (["data/*", "--spec", "no.json"], "No such file or directory: 'no.json'"),
    (["data/*", "--spec", "no.pbtxt"], "no.pbtxt: expected a text-format T2RAssets"),
    (
      ["data/*", "--spec", "drift_project:episode_spce"],
      "drift_project has no 'episode_spce'. Did you mean 'episode_spec'?",
    ),
    (["data/*", "--spec", "drift_project:COLLECT"], "drift_project has no 'COLLECT'"),
    (["data/*", "--spec", "drift_project:__name__"], "expected"),
  ],
)
def test_inspect_errors(folder, run_main, argv, want):
  status, _, err = run_main("inspect", *argv)
  assert status == 1
  assert err.startswith("t2r_seq inspect: ")
  assert want in err


def test_inspect_an_empty_file(folder, run_main):
  (folder / "empty.tfrecord").write_bytes(b"")
  status, _, err = run_main("inspect", "empty.tfrecord")
  assert (status, err) == (
    1,
    "t2r_seq inspect: there are no records in empty.tfrecord.\n",
  )


def test_predict_records(folder):
  shown = warm_python.run(
    "-m", "t2r_seq", "predict", EXPORT, "--records",
    "data/train*.tfrecord", "--max_records", 3, "--json", cwd=folder,
  )  # fmt: skip
  assert shown.returncode == 0, shown.stderr
  got = [json.loads(line)["inference_output"] for line in shown.stdout.splitlines()]
  # An episode's prediction is that of its last step.
  predictor = policies.ExportedSavedModelPredictor(str(folder / EXPORT), timeout=0)
  predictor.restore()
  flat = specs.TensorSpecStruct(
    [("pos", specs.ExtendedTensorSpec((2,), np.float32, "pos", is_sequence=True))]
  )
  parse = records.create_parse_tf_example_fn(flat)
  path = str(folder / "data/train-00000-of-00002.tfrecord")
  episodes = records.record_dataset([path]).take(3).map(parse)
  windows = np.stack([episode["pos"].numpy()[-2:] for episode in episodes])
  want = predictor.predict({"pos": windows})["inference_output"]
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_predict_random(folder, run_main):
  argv = ("predict", EXPORT, "--random", "--max_records", 2)
  status, out, err = run_main(*argv)
  assert (status, err) == (0, "")
  lines = out.splitlines()
  assert [line.split()[0] for line in lines] == ["input", "─────", "0", "1"]
  assert run_main(*argv)[1] == out
  assert run_main(*argv, "--seed", 1)[1] != out


@pytest.mark.parametrize(
  ("argv", "want"),
  [
    (["nowhere", "--random"], "there is no folder nowhere.\n"),
    (
      ["runs/drift", "--random"],
      "no finished export in runs/drift. Did you mean runs/drift/export/latest?",
    ),
    (
      [EXPORT, "--random", "--max_records", "0"],
      "--max_records must be >= 1, got 0",
    ),
    ([EXPORT, "--records", "no*"], "no*: expected at least one"),
    (
      [EXPORT, "--records", "my_store"],
      "got a folder. Make them of this store: t2r_seq convert my_store records.tfr",
    ),
    (
      [EXPORT, "--records", "runs"],
      "got a folder. It has none; `t2r_seq inspect` shows what it is.",
    ),
  ],
)
def test_predict_errors(folder, run_main, argv, want):
  spec = {"x": specs.ExtendedTensorSpec((), tf.float32, "x", is_sequence=True)}
  if not os.path.exists("my_store"):
    store.EpisodeStore.create("my_store", spec).close()
  status, _, err = run_main("predict", *argv)
  assert status == 1
  assert err.startswith("t2r_seq predict: ")
  assert want in err


def test_predict_names_the_bad_record(folder, run_main):
  flat = {"x": specs.ExtendedTensorSpec((3,), np.float32, "pos", is_sequence=True)}
  records.write_records("bad.tfrecord", flat, [{"x": np.zeros([4, 3], np.float32)}])
  status, _, err = run_main("predict", EXPORT, "--records", "bad.tfrecord")
  assert status == 1
  assert "bad.tfrecord" in err
  assert "pos" in err
  assert "expected 2 values" in err


def test_predict_with_a_broken_export(folder, run_main):
  broken = folder / "broken" / "5"
  (export,) = policies.list_exports(EXPORT)
  shutil.copytree(export.path, broken)
  (broken / "saved_model.pb").write_bytes(b"no model")
  status, _, err = run_main("predict", "broken", "--random")
  assert status == 1
  assert "t2r_seq predict: the newest export, broken/5, cannot be loaded" in err


# Command lines for the export, and options without an effect in them.
IGNORED = {
  "export of an export": (["verify", EXPORT, "none", "--export", EXPORT], "--export"),
  "text": (["evaluate", EXPORT, "--env", "none", "--task", "t"], "--task"),
  "gin": (
    ["verify", EXPORT, "none", "--no_model", "--gin_configs", "a"],
    "--gin_configs",
  ),
}


@pytest.mark.parametrize("name", IGNORED)
def test_options_without_effect_are_named(name, folder, run_main):
  argv, option = IGNORED[name]
  status, _, err = run_main(*argv)
  assert status == 1 and f": {option}" in err and ": no effect" in err, err


def test_verify(folder, run_main):
  argv = ["verify", EXPORT, "data/train*.tfrecord"]
  # The model's code and the checkpoint are found by the export.
  status, out, err = run_main(*argv, "--json")
  assert status == 0, err
  report = json.loads(out)
  assert (report["identical"], report["num_episodes"], report["num_steps"]) == (
    True, 10, 50,
  )  # fmt: skip
  compared = "\n".join(report["compared"])
  assert "network inputs pos, bit for bit" in compared
  assert "inference_output with the checkpoint's network" in compared
  (folder / "glue.py").write_text(
    "def turn(observed, begins):\n  return {**observed, 'pos': observed['pos'][::-1]}\n"
  )
  status, out, _ = run_main(*argv, "--no_model", "--observe", "glue:turn")
  assert status == 1
  assert "pos differs first, in step 0 of episode 0:" in out
  assert "Likely cause: its elements are in another order: [1, 0]." in out
