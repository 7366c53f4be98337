"""Policies without TensorFlow; of each family of models see `tests/verification`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  cli,
  errors,
  lite,
  models,
  policies,
  serving,
  specs,
  training,
  windows,
)
from t2r_seq.lite import lite_policy, policy_io

pytest.importorskip("ai_edge_litert")
pytest.importorskip("websockets")

_SPEC = specs.ExtendedTensorSpec


class ChunkModel(models.RegressionModel):
  """Chunks of four actions from two images, positions with gaps, masks, and a goal."""

  def get_feature_specification(self, mode):
    spec = {
      "image": _SPEC((2, 4, 4, 1), tf.float32, "image", time_offsets=(-1, 0)),
      "state/pos": _SPEC((2, 3), tf.float32, "pos", time_offsets=(-3, 0)),
      "goal": _SPEC((1,), tf.float32, "goal"),
    }
    return windows.add_mask_specs(specs.TensorSpecStruct(spec))

  def get_label_specification(self, mode):
    target = _SPEC((4, 2), tf.float32, "target", time_offsets=(0, 1, 2, 3))
    return specs.TensorSpecStruct(target=target)

  def create_network(self):
    return tf.keras.layers.Dense(8)

  def embed(self, features):
    mask = tf.cast(features.state.pos_mask, tf.float32)
    seen = [tf.reshape(features[path], [-1, n]) for path, n in SIZES.items()]
    return tf.concat([*seen, mask], axis=-1)

  def a_func(self, features, mode):
    predicted = self.network(self.embed(features))
    return {"inference_output": tf.reshape(predicted, [-1, 4, 2])}


SIZES = {"image": 32, "state/pos": 6, "goal": 1}


class DigammaModel(ChunkModel):
  """Has an op that LiteRT lacks."""

  def a_func(self, features, mode):
    outputs = super().a_func(features, mode)
    return {"inference_output": tf.math.digamma(outputs["inference_output"])}


def _export(model, folder):
  tf.keras.utils.set_random_seed(1)
  model.build()
  return training.export_saved_model(model, str(folder), global_step=3)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
  """The export of a small model, and its lite form by the command line."""
  folder = tmp_path_factory.mktemp("exported")
  _export(ChunkModel(), folder / "exports")
  exports, out = str(folder / "exports"), str(folder / "lite")
  assert cli.main(["export", "--lite", exports, out]) == 0
  return exports, out


def test_inspect_shows_what_both_forms_see_remember_and_give(exported, capsys):
  for folder in exported:
    assert cli.main(["inspect", folder]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.split("\n"))) <= 100
    shown = [" ".join(line.split()) for line in printed.split("\n")]
    for line in (
      "state/pos float32 3 -3 0 and its mask",
      "goal float32 1 the current step",
      "history/state/pos float32 4x3 48 frames of earlier steps",
      "padding: repeat",
    ):
      assert line in shown, printed
  assert f"step.tflite {os.path.getsize(f'{folder}/step.tflite'):,}" in shown
  assert cli.main(["inspect", folder, "--max_records", "1"]) != 0
  assert "--max_records: no effect for a policy, " in capsys.readouterr().err


@pytest.mark.parametrize("command", [["serve"], ["verify", "none"]])
def test_lite_folder_has_no_robot_to_choose(command, exported, capsys):
  name, *dataset = command
  assert cli.main([name, exported[1], *dataset, "--robot", "left"]) == 1
  assert "--robot: no effect: " in capsys.readouterr().err


def test_inspect_of_an_export_loads_no_tensorflow(exported):
  script = (
    "import sys; from t2r_seq import cli\n"
    "assert cli.main(['inspect', sys.argv[1]]) == 0\n"
    "print('tensorflow' in sys.modules)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", script, exported[0]],
    capture_output=True,
    text=True,
    check=True,
    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
  )
  assert "\n  serving_default: takes goal, image" in done.stdout
  assert done.stdout.endswith("False\n")


def test_environments_that_are_stepped_together_are_as_alone(exported):
  rng = np.random.default_rng(0)
  policy, alone = lite.LitePolicy(exported[1]), lite.LitePolicy(exported[1])
  seen = {"image": rng.random([6, 2, 4, 4, 1]), "state/pos": rng.random([6, 2, 3])}
  seen["goal"] = np.ones([6, 2, 1])
  is_first = np.array([[t == 0, t in (0, 3)] for t in range(6)])
  together = []
  for t in range(6):
    observations = {path: value[t] for path, value in seen.items()}
    together.append(policy.sample_actions(observations, is_first[t])[0])
  for env in range(2):
    for t in range(6):
      if is_first[t, env]:
        alone.reset()
      observation = {path: value[t, env] for path, value in seen.items()}
      want, _ = alone.sample_action(observation)
      np.testing.assert_array_equal(together[t][env], want)


def _observation():
  return {
    "image": np.zeros([4, 4, 1], np.float32),
    "state": {"pos": [0.0, 1.0, 2.0]},
    "goal": np.ones([1]),
    "more": 3,
  }


def test_lite_policy_imports_numpy_and_litert_only(exported):
  script = (
    "import sys, numpy as np\n"
    "from t2r_seq import lite\n"
    "policy = lite.LitePolicy(sys.argv[1])\n"
    "observation = {p: np.zeros(s.shape, s.dtype)\n"
    "               for p, s in policy.layout.observation.items()}\n"
    "action, _ = policy.sample_action(observation)\n"
    "assert action.shape == (4, 2), action\n"
    "own = sorted(m for m in sys.modules if m.startswith('t2r_seq.'))\n"
    "print('tensorflow' in sys.modules, own)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", script, exported[1]],
    capture_output=True,
    text=True,
    check=True,
    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
  )
  parts = [
    "errors",
    "imports",
    "lite",
    "lite.lite_policy",
    "lite.overlap",
    "lite.policy_io",
    "lite.sensor_values",
    "lite.texts",
    "stamps",
  ]
  modules = [f"t2r_seq.{part}" for part in parts]
  assert done.stdout.split("\n")[0] == f"False {modules}"


def test_int8_weights_are_near_and_a_state_is_its_models_own(exported, tmp_path):
  exports, folder = exported
  policies.export_lite(exports, str(tmp_path / "int8"), weights="int8")
  exact, coarse = lite.LitePolicy(folder), lite.LitePolicy(str(tmp_path / "int8"))
  action, _ = exact.sample_action(_observation())
  np.testing.assert_allclose(coarse.sample_action(_observation())[0], action, atol=0.1)
  assert coarse.layout.weights == "int8"
  with pytest.raises(
    errors.SpecError, match=r"state: expected one of the model .* got"
  ):
    coarse.pure.step({}, exact.pure.initial_state())


def test_observation_that_does_not_fit_is_refused(exported):
  policy = lite.LitePolicy(exported[1])
  bad = {**_observation(), "image": np.zeros([4, 4, 3], np.float32), "goal": [1, 2]}
  with pytest.raises(
    errors.SpecError,
    match=r"step: 2 mismatches:\n  goal: expected \(1,\) float32, got \(2,\) .*\n"
    r"  image: expected \(4, 4, 1\) float32, got \(4, 4, 3\) float32",
  ):
    policy.step(bad)


def _pure(policy):
  spec, state = policy.pure.step_specification(), policy.pure.initial_state()

  def step(observation):
    nonlocal state
    packed = policy_io.pack(observation, spec)
    rows = {path: value[np.newaxis] for path, value in packed.items()}
    outputs, state = policy.pure.step(rows, state)
    return outputs["inference_output"][0]

  return step


def _acting(policy):
  return lambda observation: policy.sample_action(observation)[0]


def _predictor(exports, allow_nan):
  predictor = policies.ExportedSavedModelPredictor(
    exports, timeout=0, allow_nan=allow_nan
  )
  predictor.restore()
  return predictor


def _ensemble(exports, allow_nan):
  predictor = policies.EnsembleExportedSavedModelPredictor(
    exports, timeout=0, allow_nan=allow_nan
  )
  predictor.restore()
  return predictor


def _in_memory(allow_nan):
  tf.keras.utils.set_random_seed(1)
  predictor = policies.ModelPredictor(ChunkModel(), allow_nan=allow_nan)
  predictor.restore()
  return predictor


def _served(policy, stack):
  server = stack.enter_context(serving.PolicyServer(policy, port=0))
  client = serving.PolicyClient(port=server.port)
  stack.callback(client.close)
  return _acting(client)


# Each returns a function that steps a new policy.
RUNTIMES = {
  "lite": lambda e, f, n, _: _acting(lite.LitePolicy(f, allow_nan=n)),
  "lite, pure": lambda e, f, n, _: _pure(lite.LitePolicy(f, allow_nan=n)),
  "lite, served": lambda e, f, n, s: _served(lite.LitePolicy(f, allow_nan=n), s),
  "export": lambda e, f, n, _: _acting(policies.RegressionPolicy(_predictor(e, n))),
  "export, pure": lambda e, f, n, _: _pure(_predictor(e, n)),
  "export, served": lambda e, f, n, s: _served(_predictor(e, n), s),
  "ensemble": lambda e, f, n, _: _acting(policies.RegressionPolicy(_ensemble(e, n))),
  "in memory": lambda e, f, n, _: _acting(policies.RegressionPolicy(_in_memory(n))),
}
NOT_FINITE = {
  "NaN": ("state/pos", [0.0, np.nan, 2.0], r"\(3,\) float32, got NaN at \(1,\)"),
  "infinity": ("goal", [-np.inf], r"\(1,\) float32, got -inf at \(0,\)"),
  "beyond float32": (
    "goal", [1e300], r"finite \(1,\) float32, got inf at \(0,\)\. Numbers beyond",
  ),
  "a pixel": (
    "image",
    np.where(np.arange(16).reshape([4, 4, 1]) == 9, np.nan, 0.0),
    r"\(4, 4, 1\) float32, got NaN at \(2, 1, 0\)",
  ),
}  # fmt: skip


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_not_finite_observations_are_refused_and_change_no_state(exported, runtime):
  good = policy_io.flatten_observation(_observation())
  with contextlib.ExitStack() as stack:
    step, untouched, lenient = (
      RUNTIMES[runtime](*exported, allow_nan, stack)
      for allow_nan in (False, False, True)
    )
    np.testing.assert_array_equal(step(good), untouched(good))
    for path, value, message in NOT_FINITE.values():
      with pytest.raises(
        errors.SpecError, match=f"step: {path}: expected .*{message}.*allow_nan=True"
      ):
        step({**good, path: value})
    moved = {**good, "state/pos": [3.0, 4.0, 5.0]}
    np.testing.assert_array_equal(step(moved), untouched(moved))
    assert np.isnan(lenient({**good, "state/pos": [0.0, np.nan, 2.0]})).any()


def test_predict_and_several_environments_name_where_a_value_is_not_finite(exported):
  predictor = _predictor(exported[0], False)
  features = specs.make_random_numpy(predictor.get_feature_specification(), 2, seed=0)
  features["goal"][1, 0] = np.inf
  with pytest.raises(errors.SpecError, match=r"predict: goal: .*got inf at \(1, 0\)"):
    predictor.predict(features)
  predictor.reset(3)
  frames = specs.make_random_numpy(predictor.get_step_specification(), 3, seed=0)
  frames["state/pos"][2, 1] = np.nan
  with pytest.raises(
    errors.SpecError, match=r"step: state/pos: .*NaN at \(1,\) of environment 2\."
  ):
    predictor.step(frames)


def test_server_equals_the_export_and_survives_a_kill(exported):
  exports, folder = exported
  predictor = policies.ExportedSavedModelPredictor(exports, timeout=0)
  predictor.restore()
  command = [sys.executable, "-m", "t2r_seq", "serve", folder, "--port", "0"]
  environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
  with (
    serving.PolicyServer(predictor, port=0) as server,
    subprocess.Popen(
      command, stdout=subprocess.PIPE, text=True, env=environment
    ) as process,
  ):
    own = serving.PolicyClient(port=server.port)
    port = int(process.stdout.readline().rpartition(":")[2])
    other = serving.PolicyClient(port=port)
    policy = lite.LitePolicy(folder)
    for t in range(3):
      observation = {**_observation(), "goal": np.array([t], np.float32)}
      want = policy.step(observation)["inference_output"]
      for client in (own, other):
        got, _ = client.sample_action(observation)
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)
    process.kill()
    with pytest.raises(ConnectionError, match="at step 3 of the episode, got"):
      other.step(_observation())
    own.close()


def _with_fields(**changes):
  def damage(folder):
    path = os.path.join(folder, lite_policy.LAYOUT_FILE)
    with open(path, encoding="utf-8") as f:
      fields = json.load(f)
    with open(path, "w", encoding="utf-8") as f:
      json.dump({**fields, **changes}, f)
    lite_policy.write_checksums(folder)

  return damage


def _cut_off(folder):
  os.truncate(os.path.join(folder, lite_policy.STEP_FILE), 100)


def _cut_off_in_an_older_folder(folder):
  _cut_off(folder)
  os.remove(os.path.join(folder, lite_policy.CHECKSUMS_FILE))


def _flip(name):
  def damage(folder):
    path = os.path.join(folder, name)
    with open(path, "r+b") as f:
      place = os.path.getsize(path) // 2
      f.seek(place)
      byte = f.read(1)[0]
      f.seek(place)
      f.write(bytes([byte ^ 1]))

  return damage


def _no_list_of_checksums(folder):
  with open(
    os.path.join(folder, lite_policy.CHECKSUMS_FILE), "w", encoding="utf-8"
  ) as f:
    f.write("7")


DAMAGES = {
  "another version": (
    _with_fields(version=2),
    "expected version 1 of a .*, got version 2",
  ),
  "a record of another type": (
    _with_fields(record=[["texts", 1]]),
    r"expected a whole policy\.json, got none: AttributeError",
  ),
  "texts of another type": (
    _with_fields(record={"texts": {"task": {"size": [1]}}}),
    r"expected a whole policy\.json, got none: TypeError",
  ),
  "no layout": (
    lite_policy.LAYOUT_FILE,
    r"expected a folder with policy\.json, got none",
  ),
  "no model": (lite_policy.STEP_FILE, r"step\.tflite: expected a file, got none"),
  "no state": (
    lite_policy.STATE_FILE,
    r"initial_state\.npz: expected a file, got none",
  ),
  "cut off": (_cut_off, r"step\.tflite: expected the exported file, CRC-32 "),
  "cut off, no checksums": (
    _cut_off_in_an_older_folder,
    r"step\.tflite: expected \d+ bytes, got 100",
  ),
  **{
    f"a bit of {name}": (
      _flip(name),
      rf"{name}: expected the exported file, CRC-32 .{{8}}, got CRC-32 .{{8}}\. Write",
    )
    for name in (
      lite_policy.STEP_FILE,
      lite_policy.LAYOUT_FILE,
      lite_policy.STATE_FILE,
      lite_policy.SPECS_FILE,
    )
  },
  "checksums": (_no_list_of_checksums, r"checksums\.json: expected checksums by file"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_other_folders_are_refused(exported, tmp_path, case):
  damage, message = DAMAGES[case]
  folder = str(tmp_path / "lite")
  shutil.copytree(exported[1], folder)
  if callable(damage):
    damage(folder)
  else:
    os.remove(os.path.join(folder, damage))
  with pytest.raises(errors.SpecError, match=message):
    lite.LitePolicy(folder)


def test_folder_without_checksums_still_loads(exported, tmp_path):
  folder = str(tmp_path / "lite")
  shutil.copytree(exported[1], folder)
  os.remove(os.path.join(folder, lite_policy.CHECKSUMS_FILE))
  want = lite.LitePolicy(exported[1]).step(_observation())["inference_output"]
  got = lite.LitePolicy(folder).step(_observation())["inference_output"]
  np.testing.assert_array_equal(got, want)


def test_export_lite_names_operations_that_litert_lacks(tmp_path, capfd):
  _export(DigammaModel(), tmp_path / "exports")
  capfd.readouterr()
  arguments = ["export", "--lite", str(tmp_path / "exports"), str(tmp_path / "lite")]
  assert cli.main(arguments) == 1
  printed = capfd.readouterr().err.strip().split("\n")
  assert len(printed) == 1
  assert "expected ops that LiteRT has, got the op [Digamma]. Use others" in printed[0]
  assert [path.name for path in tmp_path.iterdir()] == ["exports"]


def test_export_lite_rejects_unsupported_exports(exported, tmp_path):
  exports, folder = exported
  for arguments, message in (
    ((str(tmp_path), str(tmp_path / "x")), "expected a finished export"),
    ((exports, folder), "expected a new or empty folder, got files there"),
    ((exports, str(tmp_path / "x"), "int4"), "weights: expected one of"),
  ):
    with pytest.raises(errors.SpecError, match=message):
      policies.export_lite(*arguments)
