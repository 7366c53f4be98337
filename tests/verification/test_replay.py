"""A robot gets none or several values of a sensor in a step: late, lost, reordered."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  actors,
  cli,
  data,
  errors,
  lite,
  models,
  policies,
  serving,
  specs,
  store,
  training,
  verification,
  windows,
)
from t2r_seq.specs import Seconds
from t2r_seq.verification import Replay

Spec = specs.ExtendedTensorSpec
COLUMNS = {
  "arm": Spec((2,), tf.float32, "arm", is_sequence=True),
  "action": Spec((2,), tf.float32, "action", is_sequence=True),
  "timestamp": Spec((), tf.float64, "timestamp", is_sequence=True),
  "camera": Spec((None, 4, 4, 3), tf.uint8, "camera", data_format="png"),
  "clocks/camera": Spec((None,), tf.int64, "clocks/camera"),
  "force": Spec((None, 3), tf.float32, "force"),
  "clocks/force": Spec((None,), tf.float64, "clocks/force"),
}
CLOCKS = {p: f"clocks/{n}" for n in ("camera", "force") for p in (n, f"clocks/{n}")}
SPEC = {
  "camera": Spec(
    (2, 4, 4, 3), tf.uint8, "camera", time_offsets=Seconds(-0.2, 0.0, select="nearest")
  ),
  "force": Spec(
    (5, 3), tf.float32, "force", time_offsets=Seconds(-0.2, -0.105, -0.033, -0.01, 0.0)
  ),
  "mixed": Spec(
    (3, 3),
    tf.float32,
    "force",
    time_offsets=Seconds(-0.1, -0.033, -0.004, select="linear", tolerance=0.02),
  ),
  "slow": Spec((3, 2), tf.float32, "arm", time_offsets=Seconds(-0.15, -0.05, 0.0)),
  "arm": Spec((2, 2), tf.float32, "arm", time_offsets=(-1, 0)),
}


def times(rng, rate, start, count):
  return np.sort(start + np.arange(count) / rate + rng.normal(0, 0.1 / rate, count))


def make_episode(number, length=30):
  """An arm at 20 Hz, a camera at 10 Hz, a force at 100 Hz; with jitter."""
  rng, start = np.random.default_rng(number), 100.0 * number
  force = times(rng, 100, start - 0.2, 5 * length + 20)
  camera = times(rng, 10, start - 0.2, length // 2 + 4)
  return {
    "arm": rng.random((length, 2), np.float32),
    "action": rng.random((length, 2), np.float32),
    "timestamp": times(rng, 20, start, length),
    "camera": rng.integers(0, 255, (len(camera), 4, 4, 3)).astype(np.uint8),
    "clocks/camera": np.rint(camera * 1e9).astype(np.int64),
    "force": rng.random((len(force), 3), np.float32),
    "clocks/force": force,
  }


class ThreeRates(models.RegressionModel):
  """Looks at a camera and a force by time, and at an arm by time and by steps."""

  def get_feature_specification(self, mode):
    del mode
    return windows.add_mask_specs(specs.TensorSpecStruct(SPEC))

  def get_label_specification(self, mode):
    del mode
    return specs.TensorSpecStruct(
      target=Spec((2,), tf.float32, "action", time_offsets=0)
    )

  def create_network(self):
    return tf.keras.layers.Dense(2)

  def a_func(self, features, mode):
    del mode
    flat = [
      tf.reshape(tf.cast(x, tf.float32), [-1, int(np.prod(x.shape[1:]))])
      for x in features.values()
    ]
    return {"inference_output": self.network(tf.concat(flat, -1))}


@pytest.fixture(scope="module", params=["repeat", "zero"])
def exported(request, tmp_path_factory):
  """(model, predictor of its export, store)."""
  tf.keras.utils.set_random_seed(1)
  folder = tmp_path_factory.mktemp("replay")
  recorded = str(folder / "store")
  with store.EpisodeStore.create(recorded, COLUMNS, clocks=CLOCKS) as writer:
    for number in range(2):
      writer.append_episode(make_episode(number))
  generator = data.StoreInputGenerator(recorded, 4)
  assert generator.value_periods["force"] == pytest.approx(0.01, rel=0.2)
  model = ThreeRates(padding=request.param)
  model.build()
  model.follow_periods(generator.control_period, generator.value_periods)
  training.export_saved_model(model, str(folder / "export"), global_step=1)
  predictor = policies.ExportedSavedModelPredictor(str(folder / "export"), timeout=0)
  assert predictor.restore()
  return model, predictor, recorded


REPLAYS = {
  "all values of each step": Replay(),
  "another rate": Replay(rate=25),
  "jitter, drops and delays": Replay(rate=25, jitter=0.005, drop=0.05, delay=0.02),
  "slow, and much is lost or late": Replay(rate=7, drop=0.3, delay=0.1, seed=2),
  "fast": Replay(rate=50, jitter=0.01, seed=1),
}


@pytest.mark.parametrize("name", REPLAYS)
def test_windows_equal_those_of_training(exported, name):
  model, predictor, recorded = exported
  report = verification.verify(predictor, recorded, model, replay=REPLAYS[name])
  assert report.is_identical, str(report)
  shown = "windows of arm, camera, force, mixed, slow, bit for bit"
  assert shown in report.compared and not report.not_compared
  assert f"as a robot gets them, {REPLAYS[name]}" in report.compared[-1]


def test_newest_values_alone_are_warned_of(exported):
  model, predictor, recorded = exported
  report = verification.verify(predictor, recorded, model)
  assert {each.path for each in report.differences} == {"force", "mixed"}
  assert "give the policy all values of each step" in report.warnings[0]


def observations(rate=10, count=12):
  """Observations of a robot: what each sensor measured since the step before."""
  values = make_episode(3)
  clocks = {"slow": "timestamp", "arm": "timestamp", "camera": "clocks/camera"}
  clocks |= dict.fromkeys(("force", "mixed"), "clocks/force")
  columns = {path: {"slow": "arm", "mixed": "force"}.get(path, path) for path in SPEC}
  before = -np.inf
  for tick in 300.15 + np.arange(count) / rate:
    observed, stamps = {"timestamp": np.int64(tick * 1e9)}, {}
    for path, clock in clocks.items():
      given = values[clock] * (1e-9 if clock == "clocks/camera" else 1)
      rows = np.flatnonzero((given > before) & (given <= tick))
      observed[path] = values[columns[path]][rows]
      stamps[path] = np.rint(given[rows] * 1e9).astype(np.int64)
    observed["arm"] = values["arm"][np.searchsorted(values["timestamp"], tick) - 1]
    del stamps["arm"]
    yield observed | {"stamps": stamps}
    before = tick


@pytest.mark.parametrize("rate", [10, 40])
def test_all_runtimes_take_several_values(exported, rate, tmp_path):
  pytest.importorskip("ai_edge_litert")
  pytest.importorskip("websockets")
  _, predictor, _ = exported
  policies.export_lite(predictor.model_path, str(tmp_path / "lite"))
  policy = lite.LitePolicy(str(tmp_path / "lite"))
  acting = policies.RegressionPolicy(predictor)
  acting.reset()
  counts = set()
  rename = {"wrench": "force"}
  with serving.PolicyServer(predictor.pure, port=0, rename=rename) as server:
    client = serving.PolicyClient("127.0.0.1", server.port)
    for observed in observations(rate):
      counts.add(len(observed["camera"]))
      want, _ = acting.sample_action(observed)
      sent, stamps = dict(observed), dict(observed["stamps"])
      sent["wrench"], stamps["wrench"] = sent.pop("force"), stamps.pop("force")
      served, own = client.step({**sent, "stamps": stamps}), policy.step(observed)
      np.testing.assert_array_equal(served["inference_output"], want)
      np.testing.assert_allclose(own["inference_output"], want, 1e-4, 1e-3)
    client.close()
  assert 0 in counts or rate == 10


def test_robot_of_another_rate_is_not_warned_of(exported, caplog):
  policy, seen = policies.RegressionPolicy(exported[1]), observations()
  run = actors.run_robot(policy, lambda: next(seen), id, rate_hz=200, max_steps=3)
  assert run.num_steps == 3 and "rate_hz" not in caplog.text


def test_order_of_values_in_a_step_does_not_matter(exported):
  """Nor whether they come in one step or, late, in the next one."""
  predictor = exported[1]
  *earlier, last = observations(20)
  outputs = []
  for swap in (False, True):
    predictor.reset()
    rng = np.random.default_rng(0)
    for observed in earlier:
      changed, stamps = dict(observed), dict(observed["stamps"])
      for path in stamps if swap else ():
        order = rng.permutation(len(stamps[path]))
        changed[path], stamps[path] = changed[path][order], stamps[path][order]
      flat = {p: np.asarray(v)[None] for p, v in changed.items() if p != "stamps"}
      predictor.step(flat, stamps={p: t[None] for p, t in stamps.items()})
    flat = {p: np.asarray(v)[None] for p, v in last.items() if p != "stamps"}
    flat |= {f"stamps/{p}": t[None] for p, t in last["stamps"].items()}
    outputs.append(predictor.inspect(flat).seen)
  for path, value in outputs[0].items():
    np.testing.assert_array_equal(outputs[1][path], value, err_msg=path)


BAD_VALUES = {
  "no stamps": (
    lambda seen: seen["stamps"].pop("force"),
    r"step: stamps/force: expected seconds, one for each of \d+ values in 1 env",
  ),
  "fewer stamps": (
    lambda seen: seen["stamps"].update(force=seen["stamps"]["force"][1:]),
    "stamps/force: expected seconds, one for each of",
  ),
  "NaN stamps": (
    lambda seen: seen["stamps"].update(force=seen["stamps"]["force"] * np.nan),
    "stamps/force: expected seconds, one for each of",
  ),
  "a NaN among the values": (
    lambda seen: seen["force"].__setitem__((0, 1), np.nan),
    r"step: force: expected finite .* got NaN at \(0, 1\)",
  ),
  "values of another size": (
    lambda seen: seen.update(force=np.zeros((len(seen["force"]), 5), np.float32)),
    r"force: expected \(3,\) for each of several values, got \(\d+, 5\) float32",
  ),
  "no value at the first step": (
    lambda seen: seen.update(
      camera=seen["camera"][:0], stamps={**seen["stamps"], "camera": np.zeros(0)}
    ),
    "step: camera: expected a value at the first step of an episode, got none. Wait",
  ),
  "several values by steps": (
    lambda seen: seen.update(arm=np.zeros((4, 2), np.float32)),
    r"arm: expected \(batch, 2\) float32, got \(1, 4, 2\)",
  ),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_bad_values_are_one_error(exported, name):
  change, want = BAD_VALUES[name]
  first = next(observations())
  change(first)
  policy = policies.RegressionPolicy(exported[1])
  policy.reset()
  with pytest.raises(errors.SpecError, match=want):
    policy.sample_action(first)
  assert np.isfinite(policy.sample_action(next(observations()))[0]).all()


OPTIONS = {
  "rate": (
    {"rate": 0.0},
    "replay: rate: expected steps per second, > 0, or None, got 0",
  ),
  "jitter": ({"jitter": -1.0}, "replay: jitter: expected seconds >= 0, got -1"),
  "drop": ({"drop": 1.0}, r"replay: drop: expected a probability in \[0, 1\), got 1"),
  "delay": ({"delay": np.nan}, "replay: delay: expected seconds >= 0, got nan"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_bad_options_are_one_error(name):
  given, want = OPTIONS[name]
  with pytest.raises(errors.SpecError, match=want):
    Replay(**given)


def test_what_cannot_be_replayed(exported):
  model, predictor, recorded = exported
  with pytest.raises(errors.SpecError, match=r"replay: .*expected a value by the last"):
    verification.verify(predictor, recorded, model, replay=Replay(drop=0.9999))


def test_command_line(exported, capsys):
  _, predictor, recorded = exported
  command = ["verify", predictor.model_path, recorded, "--no_model", "--episodes", "1"]
  assert cli.main([*command, "--replay", "rate=25", "drop=0.05", "seed=3"]) == 0
  shown = " ".join(capsys.readouterr().out.split())
  assert "as a robot gets them, at 25 Hz, drop 0.05" in shown
  assert cli.main([*command, "--replay", "rat=25"]) == 1
  assert "got 'rat'. Did you mean 'rate'" in " ".join(capsys.readouterr().err.split())
