"""The wheel t2r_seq_lite, in processes that can import numpy and LiteRT only."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import lite, models, policies, preprocessors, specs, training

pytest.importorskip("ai_edge_litert")
pytest.importorskip("websockets")
pytest.importorskip("setuptools")

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What the wheel requires, its extra, and what LiteRT imports.
ALLOWED = (
  *("numpy", "ai_edge_litert", "websockets", "msgpack"),
  *("backports", "flatbuffers", "google", "ml_dtypes", "tqdm", "typing_extensions"),
)
_SPEC = specs.ExtendedTensorSpec

# Without site-packages, and the folder of the tests; then those of the wheel.
BOOTSTRAP = """
import json, sys

allowed, wheel, packages = json.loads(sys.argv[1])
names = {*sys.stdlib_module_names, *allowed, "t2r_seq"}

class Finder:
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] not in names:
      raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Finder())
sys.path += [wheel, packages]
arguments = sys.argv[2:]
"""

STEPS = """
import numpy as np, t2r_seq
from t2r_seq import lite, serving

assert t2r_seq.__file__.startswith(wheel), t2r_seq.__file__
folder, port, text = arguments
policy, client = lite.LitePolicy(folder), serving.PolicyClient(port=int(port))
for number in range(3):
  observation = {"pos": np.full([3], number, np.float32), "task": {"text": text}}
  for acts in (policy, client):
    print(json.dumps(acts.sample_action(observation)[0].tolist()))
client.close()
assert not {"tensorflow", "keras", "gin"} & set(sys.modules)
"""

COMMAND = """
from t2r_seq.cli.main import main

sys.exit(main(arguments))
"""


class TextModel(models.RegressionModel):
  """Acts by positions and a text."""

  def get_feature_specification(self, mode):
    spec = {
      "pos": _SPEC((2, 3), tf.float32, "pos", time_offsets=(-1, 0)),
      "task/text": _SPEC((8,), tf.float32, "text"),
    }
    return specs.TensorSpecStruct(spec)

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=_SPEC((2,), tf.float32, "target"))

  def create_network(self):
    return tf.keras.layers.Dense(2)

  def a_func(self, features, mode):
    seen = tf.concat([tf.reshape(features.pos, [-1, 6]), features.task.text], -1)
    return {"inference_output": self.network(seen)}


def _texts(*specification_fns):
  return preprocessors.HashedTextPreprocessor(
    *specification_fns, text_paths=["task/text"]
  )


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
  """An export, and its lite form."""
  folder = tmp_path_factory.mktemp("exported")
  tf.keras.utils.set_random_seed(1)
  model = TextModel(preprocessor_cls=_texts)
  model.build()
  export = training.export_saved_model(model, str(folder / "exports"), global_step=3)
  policies.export_lite(export, str(folder / "lite"))
  return export, str(folder / "lite")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  """The folder that the wheel is installed to."""
  folder = tmp_path_factory.mktemp("wheel")
  ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
  for name in ("lite", "t2r_seq"):  # A build writes to its folder.
    shutil.copytree(ROOT / name, folder / name, symlinks=False, ignore=ignored)
  pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
  offline = ["--no-index", "--no-deps"]
  build = ["wheel", "--no-build-isolation", "-w", str(folder), str(folder / "lite")]
  subprocess.run([*pip, *build, *offline], check=True)
  (built,) = folder.glob("*.whl")
  installed = folder / "installed"
  install = ["install", "--target", str(installed), str(built)]
  subprocess.run([*pip, *install, *offline], check=True)
  assert sum(p.stat().st_size for p in installed.rglob("*.py")) < 200_000
  return installed


def _command(wheel, script, *arguments):
  """Returns the command that runs a script in a process without TensorFlow."""
  given = json.dumps([ALLOWED, str(wheel), sysconfig.get_path("purelib")])
  isolated = [sys.executable, "-I", "-S", "-c", BOOTSTRAP + script]
  return [*isolated, given, *map(str, arguments)]


def _run(wheel, script, *arguments):
  command = _command(wheel, script, *arguments)
  return subprocess.run(command, capture_output=True, text=True, check=False)


@contextlib.contextmanager
def _served(wheel, folder):
  """Serves a folder; gives the port."""
  command = _command(wheel, COMMAND, "serve", folder, "--port", 0)
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    try:
      yield int(process.stdout.readline().rpartition(":")[2])
    finally:
      process.terminate()
      printed, _ = process.communicate()
  assert (process.returncode, printed) == (0, "serve: stopped\n")


def test_policies_act_as_with_tensorflow(wheel, exported):
  text = "Push the BLUE cube, öffne sie"
  with _served(wheel, exported[1]) as port:
    done = _run(wheel, STEPS, exported[1], port, text)
  assert done.returncode == 0, done.stderr
  got = [json.loads(line) for line in done.stdout.splitlines()]
  predictor = policies.ExportedSavedModelPredictor(exported[0], timeout=0)
  predictor.restore()
  saved = policies.RegressionPolicy(predictor)
  policy = lite.LitePolicy(exported[1])
  for number in range(3):
    observation = {"pos": np.full([3], number, np.float32), "task": {"text": text}}
    want = policy.sample_action(observation)[0]
    assert got[2 * number : 2 * number + 2] == [want.tolist()] * 2
    np.testing.assert_allclose(want, saved.sample_action(observation)[0], 1e-5, 1e-5)


REFUSED = {
  "an export": (
    ["serve", "EXPORT"],
    "serve: TensorFlow is not installed. t2r_seq_",
  ),
  "another command": (["train"], "no command 'train'. t2r_seq_lite has `serve` only"),
  "no such command": (["serv"], "no command 'serv'. Did you mean 'serve'?"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_commands_that_need_tensorflow_are_refused(wheel, exported, case):
  arguments, message = REFUSED[case]
  arguments = [exported[0] if each == "EXPORT" else each for each in arguments]
  done = _run(wheel, COMMAND, *arguments)
  assert done.returncode and message in done.stderr.splitlines()[-1], done.stderr


def test_modules_that_need_tensorflow_are_refused(wheel):
  done = _run(wheel, "from t2r_seq import models")
  assert done.stderr.splitlines()[-1] == (
    "ImportError: t2r_seq.models is not a part of t2r_seq_lite, which runs policies "
    "only: install t2r_seq instead"
  )


def test_missing_packages_name_the_small_wheel(wheel):
  script = (
    "names -= {'websockets'}\nfrom t2r_seq import serving\nserving.PolicyClient()"
  )
  done = _run(wheel, script)
  assert "without TensorFlow, in a clone: pip install './lite[serve]'" in done.stderr


def test_requirements_are_those_of_the_extras(wheel):
  (metadata,) = wheel.glob("*.dist-info/METADATA")
  required = set()
  for line in metadata.read_text().splitlines():
    if line.startswith("Requires-Dist: "):
      required.add(line.removeprefix("Requires-Dist: ").partition(";")[0].strip())
  setup = (ROOT / "setup.py").read_text()
  names = {each.partition(">")[0].partition("<")[0] for each in required}
  assert names == {"numpy", "ai-edge-litert", "websockets", "msgpack"}
  for each in required - {"numpy<3,>=1.23.5"}:
    assert f'"{each}"' in setup
