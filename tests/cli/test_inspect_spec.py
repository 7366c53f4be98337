"""`t2r_seq inspect` writes the spec that it proposes; the file is used elsewhere."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, models, preprocessors, records, specs, store, training
from tests.records import rlds_data

Spec = specs.ExtendedTensorSpec
# What the files hold; nothing below is told of it.
_SPEC = {
  "camera": Spec(
    (8, 8, 3), tf.uint8, "obs/camera", is_sequence=True, data_format="jpeg"
  ),
  "pose": Spec((2,), tf.float32, "obs/pose", is_sequence=True),
  "tags": Spec((3,), tf.int64, "tags", varlen_default_value=0),
  "task": Spec((), tf.string, "task"),
  "score": Spec((), tf.float32, "score", is_optional=True),
}


@pytest.fixture(autouse=True)
def fixture_files(tmp_path, monkeypatch):
  """Episodes of unlike lengths, some with a score, in the current folder."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr("sys.dont_write_bytecode", True)
  rng = np.random.default_rng(0)
  episodes = [
    {
      "camera": rng.integers(0, 255, (n, 8, 8, 3), dtype=np.uint8),
      "pose": np.cumsum(rng.normal(size=(n, 2)), 0).astype(np.float32),
      "tags": np.arange(n % 4),
      "task": "reach",
      "score": 0.5 if n % 2 else None,
    }
    for n in (5, 6, 7)
  ]
  records.write_records("a.tfrecord", _SPEC, episodes)


WANT = {
  "obs/camera": _SPEC["camera"],
  "obs/pose": _SPEC["pose"],
  "score": Spec((1,), tf.float32, "score", is_optional=True),
  "tags": Spec((3,), tf.int64, "tags", varlen_default_value=0),
  "task": _SPEC["task"],
}
FILES = {
  "json": ("spec.json", "spec.json"),
  "pbtxt": ("spec.pbtxt", "spec.pbtxt"),
  "python": ("written_spec.py", "written_spec:SPEC"),
}


@pytest.mark.parametrize("text_format", FILES)
def test_file_is_a_spec(text_format, run_main, monkeypatch):
  name, source = FILES[text_format]
  monkeypatch.syspath_prepend(".")
  monkeypatch.delitem(__import__("sys").modules, "written_spec", raising=False)
  status, out, err = run_main("inspect", "a.tfrecord", "--output", name)
  assert (status, err) == (0, "")
  assert out.endswith(
    f"Wrote a spec that parses them to {name}; use it with --spec {source}\n"
  )
  status, out, _ = run_main("inspect", "a.tfrecord", "--spec", source)
  assert status == 0
  assert out.endswith(f"All records fit {source}.\n")
  status, out, _ = run_main("convert", "a.tfrecord", "a_store", "--spec", source)
  assert status == 0
  got = store.EpisodeStore("a_store").spec
  assert list(got) == sorted(WANT)
  assert all(got[path].is_identical_to(want) for path, want in WANT.items())


@pytest.mark.parametrize("text_format", FILES)
def test_format_alone_is_printed(text_format, run_main):
  status, out, err = run_main("inspect", "a.tfrecord", "--format", text_format)
  assert (status, err) == (0, "")
  name, _ = FILES[text_format]
  run_main("inspect", "a.tfrecord", "--output", name)
  assert out == pathlib.Path(name).read_text()
  if text_format == "json":
    assert json.loads(out)["obs/pose"]["shape"] == [2]


def test_files_that_the_shell_has_listed(run_main):
  pathlib.Path("b.tfrecord").write_bytes(pathlib.Path("a.tfrecord").read_bytes())
  status, out, err = run_main(
    "inspect", "a.tfrecord", "b.tfrecord", "--output", "s.json"
  )
  assert (status, err) == (0, "")
  assert out.startswith("2 files: 6 records")
  status, out, _ = run_main("inspect", "a.tfrecord", "b.tfrecord", "--spec", "s.json")
  assert status == 0 and out.endswith("All records fit s.json.\n")
  pathlib.Path("folder").mkdir()
  status, _, err = run_main("inspect", "a.tfrecord", "folder")
  assert status == 1 and "folder: expected TFRecord files, got a folder" in err


MISTAKES = {
  "suffix": (["--output", "spec.txt"], "a name that ends in .py, .pbtxt or .json"),
  "no folder": (
    ["--output", "gone/spec.json"],
    "--output gone/spec.json: expected a fil",
  ),
  "with a spec": (
    ["--format", "json", "--spec", "x:y"],
    "leave out --spec",
  ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, run_main):
  argv, message = MISTAKES[name]
  status, _, err = run_main("inspect", "a.tfrecord", *argv)
  assert status == 1 and message in err


def test_rlds_by_the_written_spec(run_main):
  assert run_main("inspect", rlds_data.FILES, "--output", "rlds.json")[0] == 0
  status, out, _ = run_main("inspect", rlds_data.FILES, "--spec", "rlds.json")
  assert status == 0 and "(RLDS episodes)" in out
  status, out, _ = run_main(
    *("convert", rlds_data.FILES, "a_store", "--from", "rlds", "--spec", "rlds.json")
  )
  assert status == 0
  assert out.startswith("Converted 2 episodes (8 steps), 0.0 MB, from rlds to store")


class InferredModel(models.RegressionModel):
  """Two frames and a pose in, the next pose out, of specs that were inferred."""

  inferred: specs.TensorSpecStruct

  def get_feature_specification(self, mode):
    camera, pose = self.inferred["obs/camera"], self.inferred["obs/pose"]
    return specs.TensorSpecStruct(
      camera=Spec.from_spec(
        *(camera, (2, *camera.shape), tf.float32),
        is_sequence=False,
        time_offsets=(-1, 0),
      ),
      pose=Spec.from_spec(pose, is_sequence=False, time_offsets=0),
    )

  def get_label_specification(self, mode):
    pose = self.inferred["obs/pose"]
    target = Spec.from_spec(pose, is_sequence=False, time_offsets=1)
    return specs.TensorSpecStruct(target=target)

  @property
  def default_preprocessor_cls(self):
    return preprocessors.ImageToFloatPreprocessor

  def create_network(self):
    return tf.keras.layers.Dense(self.action_size)

  def a_func(self, features, mode):
    frames = tf.reshape(features.camera, [-1, 2 * 8 * 8 * 3])
    return {"inference_output": self.network(tf.concat([frames, features.pose], -1))}


def test_infer_then_train(run_main):
  assert run_main("inspect", "a.tfrecord", "--output", "spec.json")[0] == 0
  InferredModel.inferred = specs.TensorSpecStruct.from_json(
    pathlib.Path("spec.json").read_text()
  )
  result = training.train_eval_model(
    InferredModel(action_size=2, padding="drop"),
    input_generator_train=data.DefaultRecordInputGenerator(
      "a.tfrecord", batch_size=4, seed=0
    ),
    max_train_steps=3,
    model_dir="run",
  )
  assert result["global_step"] == 3
