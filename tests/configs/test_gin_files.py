"""Every .gin file of the tree parses, names what exists, and its objects are built.

What a file leaves to its caller stands in its leading comments, in one of two forms:

    # Needs: TRAIN_DATA, train_eval_model.model_dir
    # Needs: BATCH_SIZE = 4

The first lists macros and parameters that are paths: here a folder where the name ends
in `dir`, otherwise an empty TFRecord file. The second gives one example value as gin.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator

import gin
import numpy as np
import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "configs", "docs", "research", "tests")
GIN_FILES = sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.gin"))
# The functions that the command line calls; what they are given has to be buildable.
ENTRY_POINTS = ("train_eval_model", "collect_episodes", "run_env")
NAME = re.compile(r"[\w/.]+")


def leading_comments(text: str) -> Iterator[str]:
  """Yields the text of the comment lines above a file's first statement."""
  for line in text.splitlines():
    if line.strip() and not line.startswith("#"):
      return
    yield line.lstrip("#").strip()


def needed_bindings(text: str, folder: pathlib.Path) -> list[str]:
  """Reads the `# Needs:` lines of a gin file.

  Args:
    text: the file's text.
    folder: where the paths are made that the file asks for.

  Returns:
    One gin binding for each name.
  """
  bindings = []
  for line in leading_comments(text):
    _, marker, needs = line.partition("Needs:")
    if not marker:
      continue
    if "=" in needs:
      bindings.append(needs.strip())
      continue
    for name in (name.strip() for name in needs.split(",")):
      if not NAME.fullmatch(name):
        raise ValueError(f"# Needs:{needs}: {name!r} is neither macro nor parameter")
      path = folder / re.sub(r"\W", "_", name)
      if name.lower().endswith("dir"):
        path.mkdir(exist_ok=True)
      else:
        path = path.with_suffix(".tfrecord")
        path.touch()
      bindings.append(f"{name} = {str(path)!r}")
  return bindings


def parse_and_build(
  path: pathlib.Path, folder: pathlib.Path, entry_points: tuple[str, ...]
) -> dict[str, object]:
  """Parses a gin file as the command line does and builds what it refers to.

  Args:
    path: the gin file.
    folder: an empty folder for the paths that the file leaves to its caller.
    entry_points: names of the configurables whose bindings are resolved.

  Returns:
    What is bound to the parameters of the entry points, references resolved, under
    'entry_point.parameter'.

  Raises:
    Exception: whatever gin or a constructor has to say against the file.
  """
  gin.clear_config()
  gin.parse_config_files_and_bindings(
    [str(path)],
    needed_bindings(path.read_text(encoding="utf-8"), folder),
    skip_unknown=False,
    finalize_config=True,
  )
  return {
    f"{name}.{parameter}": value
    for name in entry_points
    for parameter, value in gin.get_bindings(name).items()
  }


@pytest.mark.parametrize("path", [str(path.relative_to(ROOT)) for path in GIN_FILES])
def test_gin_file(path, tmp_path, monkeypatch):
  # A clone is run from its root: gin's includes and imports are relative to it.
  monkeypatch.chdir(ROOT)
  from t2r_seq import actors, data, models, training  # noqa: F401 - registers them

  parse_and_build(pathlib.Path(path), tmp_path, ENTRY_POINTS)


@gin.configurable(module="test_gin_files")
class Thing:
  """Stands for a model or a generator in the cases below."""

  def __init__(self, size: int = 1):
    if size < 0:
      raise ValueError(f"size {size} is negative")
    self.size = size


@gin.configurable(module="test_gin_files")
def train(thing=None, model_dir=None):
  """Stands for `train_eval_model`."""
  return thing, model_dir


GOOD = {
  "built": (
    "train.thing = @Thing()\nThing.size = 3",
    "train.thing.size",
    3,
  ),
  "macro of the caller": (
    "# A file.\n#\n# Needs: SIZE = 4\n\nThing.size = %SIZE\ntrain.thing = @Thing()",
    "train.thing.size",
    4,
  ),
  "folder of the caller": (
    "# Needs: DATA, train.model_dir\ntrain.thing = %DATA",
    "train.model_dir",
    "train_model_dir",
  ),
  "file of the caller": (
    "# Needs: DATA, train.model_dir\ntrain.thing = %DATA",
    "train.thing",
    "DATA.tfrecord",
  ),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_files_are_built(name, tmp_path):
  text, key, want = GOOD[name]
  path = tmp_path / "file.gin"
  path.write_text(text, encoding="utf-8")
  built = parse_and_build(path, tmp_path, ("train",))
  parameter, _, attribute = key.removeprefix("train.").partition(".")
  got = built[f"train.{parameter}"]
  if attribute:
    assert getattr(got, attribute) == want
  else:
    assert str(got) == str(tmp_path / want)
    assert pathlib.Path(str(got)).exists()


BAD = {
  "unknown configurable": (
    "NoSuchThing.size = 1",
    "No configurable matching 'NoSuchThing'",
  ),
  "unknown reference": (
    "train.thing = @NoSuchThing()",
    "No configurable matching reference '@NoSuchThing",
  ),
  "unknown parameter": ("Thing.weight = 1", "parameter named 'weight'"),
  "unbound macro": ("train.thing = %SIZE", "No bindings specified for 'SIZE"),
  "syntax": ("Thing.size = = 1", "Unable to parse value"),
  "object that cannot be built": (
    "Thing.size = -1\ntrain.thing = @Thing()",
    "size -1 is negative",
  ),
  "bad needs": ("# Needs: two words\n", "'two words' is neither macro nor parameter"),
  "needs below the first statement": (
    "Thing.size = %SIZE\n# Needs: SIZE = 4\ntrain.thing = @Thing()",
    "No bindings specified for 'SIZE",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(name, tmp_path):
  text, match = BAD[name]
  path = tmp_path / "file.gin"
  path.write_text(text, encoding="utf-8")
  with pytest.raises((ValueError, SyntaxError), match=match):
    parse_and_build(path, tmp_path, ("train",))


def test_entry_point_that_does_not_exist(tmp_path):
  (tmp_path / "file.gin").write_text("Thing.size = 1", encoding="utf-8")
  with pytest.raises(ValueError, match="train_no_thing"):
    parse_and_build(tmp_path / "file.gin", tmp_path, ("train_no_thing",))


@gin.configurable(module="test_gin_files")
def line_model():
  """Finds twice a number."""
  from t2r_seq import models, specs

  class LineModel(models.RegressionModel):
    def get_feature_specification(self, mode):
      return specs.TensorSpecStruct(x=line_specs()["x"])

    def get_label_specification(self, mode):
      return specs.TensorSpecStruct(target=line_specs()["target"])

    def create_network(self):
      return tf.keras.layers.Dense(1)

    def a_func(self, features, mode):
      return {"inference_output": self.network(features.x)}

  return LineModel(create_optimizer_fn=lambda: tf.keras.optimizers.Adam(0.1))


def line_specs():
  """The specs of a step: a number, and what is to be found."""
  from t2r_seq import specs

  leaf = specs.ExtendedTensorSpec((1,), tf.float32, time_offsets=0)
  return {"x": leaf, "target": leaf}


def line_steps(first):
  """Twenty steps; each replay and store has numbers of its own."""
  x = first + np.linspace(0, 1, 20, dtype=np.float32)[:, np.newaxis]
  return {"x": x, "target": 2 * x}


@gin.configurable(module="test_gin_files")
def live_replay():
  """Stands for `ReverbReplay`: a replay that an actor has written to."""
  from t2r_seq import replay

  buffer = replay.ReplayBuffer(line_specs(), capacity_steps=100, seed=0)
  with buffer.writer() as writer:
    steps = line_steps(first=1.0)
    for x, target in zip(steps["x"], steps["target"], strict=True):
      writer.append({"x": x, "target": target})
  return buffer


@pytest.mark.parametrize("name", ["replay", "store_and_replay"])
def test_training_from_a_live_replay(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # The package has them, wherever one is.
  from t2r_seq import store, training, windows

  path = tmp_path / "store"
  with store.EpisodeStore.create(path, windows.flat_specs(line_specs())) as writer:
    writer.append_episode(line_steps(first=-1.0))
  gin.parse_config_files_and_bindings(
    [f"t2r_seq/configs/train_from_{name}.gin"],
    [
      "train_eval_model.t2r_model = @line_model()",
      "ReplayInputGenerator.replay = @live_replay",
      "REPLAY_ADDRESS = 'not asked'",
      "NUM_TRAIN_STEPS = 600",
      f"train_eval_model.model_dir = {str(tmp_path / 'run')!r}",
      *(f"{part}_STORE = {str(path)!r}" for part in ("TRAIN", "EVAL")),
    ],
  )
  result = training.train_eval_model()
  assert result["global_step"] == 600
  assert result["loss"] < 0.1
  assert training.exports.export_versions(str(tmp_path / "run/export/latest"))


INCLUDE = """
import importlib.util, json, site, sys  # gin uses `util`, which `site` imports.

installed, packages = json.loads(sys.argv[1])
if installed:
  site.addsitedir(installed)  # With the .pth file of an editable install.
else:
  sys.path.append(".")
sys.path.append(packages)
import gin
gin.parse_config("include 't2r_seq/configs/train_from_store.gin'", skip_unknown=True)
import t2r_seq
print(json.dumps([t2r_seq.__file__, gin.query_parameter("%NUM_TRAIN_STEPS")]))
"""
BUILD = """
import sys
from setuptools import build_meta

getattr(build_meta, sys.argv[1])(".")
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
  """A copy of what an install needs."""
  folder = tmp_path_factory.mktemp("clone")
  ignored = shutil.ignore_patterns("__pycache__")
  for name in ("t2r_seq", "configs"):
    shutil.copytree(ROOT / name, folder / name, ignore=ignored)
  shutil.copy(ROOT / "setup.py", folder)
  return folder


# name: (setuptools' hook; the folder that t2r_seq is imported from)
INSTALLS = {
  "clone": (None, "clone"),
  "editable install": ("build_editable", "clone"),
  "wheel": ("build_wheel", "installed"),
}


@pytest.mark.parametrize("name", INSTALLS)
def test_shared_files_are_found(name, clone, tmp_path):
  hook, want = INSTALLS[name]
  installed = tmp_path / "installed"
  if hook:
    pytest.importorskip("setuptools")
    subprocess.run([sys.executable, "-c", BUILD, hook], cwd=clone, check=True)
    (wheel,) = clone.glob("*.whl")
    shutil.unpack_archive(wheel, installed, "zip")
    wheel.unlink()
  given = json.dumps([str(installed) if hook else "", sysconfig.get_path("purelib")])
  done = subprocess.run(
    [sys.executable, "-I", "-S", "-c", INCLUDE, given],
    cwd=tmp_path if hook else clone,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  path, num_steps = json.loads(done.stdout)
  folders = {"clone": clone, "installed": installed}
  assert pathlib.Path(path).resolve().parents[1] == folders[want].resolve()
  assert num_steps == 1500
