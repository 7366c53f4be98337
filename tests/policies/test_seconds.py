"""Policies whose history is by time: they see what training would have seen."""

from __future__ import annotations

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
  store,
  training,
  verification,
  windows,
)
from t2r_seq.specs import Seconds
from t2r_seq.windows.cut import Anchors
from t2r_seq.windows.reader import WindowReader

Spec = specs.ExtendedTensorSpec
OFFSETS = {"state": (-0.2, -0.1, 0.0), "image": (-0.11, 0.0), "force": (-0.15, -0.01)}
SELECTS = {"state": "hold", "image": "nearest", "force": "linear"}
SHAPES = {"state": (2,), "image": (3, 3, 1), "force": (3,)}
DTYPES = {"state": tf.float32, "image": tf.uint8, "force": tf.float32}
PERIOD = 1 / 30


class TimedModel(models.RegressionModel):
  """Reads three sensors by time, and a goal."""

  def get_feature_specification(self, mode):
    del mode
    spec = {
      path: Spec(
        (len(offsets), *SHAPES[path]),
        DTYPES[path],
        path,
        time_offsets=Seconds(
          *offsets, select=SELECTS[path], clock=None if path == "state" else f"t/{path}"
        ),
      )
      for path, offsets in OFFSETS.items()
    }
    spec["turn"] = Spec((4,), tf.float32, "turn", time_offsets=Seconds(-0.04))
    spec["before"] = Spec((2, 2), tf.float32, "state", time_offsets=(-1, 0))
    return windows.add_mask_specs(specs.TensorSpecStruct(spec))

  def get_label_specification(self, mode):
    del mode
    return specs.TensorSpecStruct(target=Spec((2,), tf.float32, "a", time_offsets=0))

  def create_network(self):
    return tf.keras.layers.Dense(2)

  def a_func(self, features, mode):
    del mode
    parts = [tf.cast(features[path], tf.float32) for path in features]
    flat = [tf.reshape(part, [tf.shape(part)[0], -1]) for part in parts]
    sizes = [int(np.prod(part.shape[1:])) for part in parts]
    flat = [tf.ensure_shape(f, [None, n]) for f, n in zip(flat, sizes, strict=True)]
    return {"inference_output": self.network(tf.concat(flat, -1))}


@pytest.fixture(scope="module", params=["repeat", "zero"])
def exported(request, tmp_path_factory):
  """The predictor of an export, and its model."""
  tf.keras.utils.set_random_seed(1)
  model = TimedModel(control_period=PERIOD, padding=request.param)
  model.build()
  folder = str(tmp_path_factory.mktemp("exports"))
  training.export_saved_model(model, folder, global_step=3)
  predictor = policies.ExportedSavedModelPredictor(folder, timeout=0)
  assert predictor.restore()
  return model, predictor


def make_episode(seed, length=60, start=0.0, rate=25):
  """Steps of a robot at 25 Hz with jitter; sensors are late, dropped and repeated."""
  rng = np.random.default_rng(seed)
  steps = start + np.sort(np.arange(length) / rate + rng.normal(0, 0.008, length))
  values = {"timestamp": steps}
  for path, shape in {**SHAPES, "turn": (4,)}.items():
    values[path] = (100 * rng.random((length, *shape))).astype(
      DTYPES.get(path, tf.float32).as_numpy_dtype
    )
  for path in ("image", "force"):
    # The newest message at each step; some steps have none.
    messages = start - 0.3 + np.arange(4 * length) / rng.choice([12, 30])
    messages += rng.normal(0, 0.003, len(messages))
    messages = np.sort(messages[rng.random(len(messages)) > 0.2])
    newest = np.searchsorted(messages, steps - 0.02, "right") - 1
    values[f"t/{path}"] = messages[newest]
    values[path] = values[path][newest % length]
  return values


def training_windows(model, values):
  """Returns the windows that training cuts, with the clock of the steps."""
  element = {
    path: tf.TensorSpec([None, *array.shape[1:]], array.dtype)
    for path, array in values.items()
  }
  cut = windows.Cut(clock="timestamp", padding=model.padding)
  reader = WindowReader(element, model.get_feature_specification("eval"), cut)
  steps = np.arange(len(values["timestamp"]))
  anchors = Anchors(steps, steps, len(steps) - 1 - steps)
  return reader.read_at(lambda path, rows: values[path][rows], anchors)


def observation_at(values, step):
  observed = {path: values[path][step] for path in (*SHAPES, "turn")}
  observed["before"] = observed["state"]
  observed["timestamp"] = values["timestamp"][step]
  observed["stamps"] = {path: values[f"t/{path}"][step] for path in ("image", "force")}
  return observed


def one_row(observed):
  return {path: np.asarray(value)[np.newaxis] for path, value in observed.items()}


@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_windows_are_those_of_training(exported, start):
  model, predictor = exported
  predictor.reset()
  for seed in range(3):
    values = make_episode(seed, start=start)
    want = training_windows(model, values)
    for step in range(len(values["timestamp"])):
      observed = observation_at(values, step)
      stamps = observed.pop("stamps")
      batched = {
        path: np.asarray(value)[np.newaxis] for path, value in observed.items()
      }
      batched |= {f"stamps/{path}": np.array([t]) for path, t in stamps.items()}
      seen = predictor.inspect(batched, is_first=step == 0).seen
      predictor.step(batched, is_first=step == 0)
      assert set(seen) == set(want)
      for path, value in seen.items():
        np.testing.assert_array_equal(value[0], want[path][step], err_msg=path)


def brute_force(received, anchor, offsets):
  """Returns the value held at each time, of (stamp, value) in order of arrival."""
  known = dict(sorted(dict(received).items()))
  stamps = np.array(list(known))
  found = []
  for offset in offsets:
    row = np.searchsorted(stamps, anchor + offset, "right") - 1
    found.append((list(known.values())[max(row, 0)], row >= 0))
  return found


def test_late_repeated_and_reordered_observations_are_sorted(exported):
  """Two environments; each gets messages in another order than they were made."""
  model, predictor = exported
  rng, count = np.random.default_rng(0), 120
  predictor.reset(2)
  received = [[], []]
  values = make_episode(5, count)
  for step in range(count):
    batch = {p: np.repeat(values[p][step][None], 2, 0) for p in (*SHAPES, "turn")}
    now = np.full(2, step / 25)
    # Up to 80 ms late, and every fifth message comes twice.
    made = np.maximum(0, (step // 5 * 5 if step % 5 == 4 else step) / 25)
    stamps = np.round(np.maximum(made - rng.choice([0, 0.04, 0.08], 2), 0), 2)
    state = np.stack([stamps * 100 + 1, stamps * 100 + 2], 1).astype(np.float32)
    batch |= {"state": state, "before": state}
    for env in range(2):
      received[env].append((stamps[env], state[env]))
    is_first = step == 0
    inputs = {**batch, "timestamp": now, "stamps/state": stamps}
    seen = predictor.inspect(inputs, is_first).seen
    predictor.step(batch, is_first, timestamp=now, stamps={"state": stamps})
    for env in range(2):
      want = brute_force(received[env], now[env] + 1e-9, OFFSETS["state"])
      for row, (value, real) in enumerate(want):
        is_zero = model.padding == "zero" and not real
        want_row = np.zeros(2) if is_zero else value
        np.testing.assert_array_equal(seen["state"][env, row], want_row)
        assert seen["state_mask"][env, row] == real


def test_inspect_shows_times_and_masks(exported, capsys):
  assert cli.main(["inspect", exported[1].model_path]) == 0
  shown = [" ".join(line.split()) for line in capsys.readouterr().out.split("\n")]
  assert "turn float32 4 Seconds(-0.04, select='hold') and its mask" in shown
  times = "Seconds(-0.11, 0, select='nearest', clock='t/image')"
  assert f"image uint8 3x3x1 {times} and its mask" in shown


def test_lite_form_and_the_server_take_the_same_steps(exported, recorded, tmp_path):
  pytest.importorskip("ai_edge_litert")
  pytest.importorskip("websockets")
  _, predictor = exported
  policies.export_lite(predictor.model_path, str(tmp_path / "lite"))
  policy = lite.LitePolicy(str(tmp_path / "lite"))
  predictor.reset()
  values = make_episode(2, 30, start=1.7e9)
  with serving.PolicyServer(predictor.pure, port=0) as server:
    client = serving.PolicyClient("127.0.0.1", server.port)
    for step in range(30):
      observed = observation_at(values, step)
      flat = {p: np.asarray(v)[None] for p, v in observed.items() if p != "stamps"}
      want = predictor.step(flat, step == 0, stamps=observed["stamps"])
      served, own = client.step(observed), policy.step(observed)
      for name, value in want.items():
        np.testing.assert_allclose(own[name], value[0], rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(served[name], value[0], rtol=1e-5, atol=1e-5)
    options = {"clock": "timestamp", "num_episodes": 1, "reference": predictor}
    report = verification.verify(client, recorded, **options)
    assert report.is_identical, str(report)
    client.close()
  report = verification.verify(policy, recorded, tolerance=0.05, **options)
  assert report.is_identical, str(report)
  assert "windows by time of force, force_mask" in report.not_compared[1]
  # One time for all environments.
  batch = {
    p: np.stack([v, v]) for p, v in observed.items() if p not in ("timestamp", "stamps")
  }
  actions, _ = policy.sample_actions({**batch, "timestamp": 1.0}, [True, True])
  np.testing.assert_array_equal(*actions)


def test_more_values_than_the_history_has_leave_the_oldest(exported):
  """At 120 Hz the oldest time is before what is kept: it is padded and masked."""
  _, predictor = exported
  predictor.reset()
  values = make_episode(1, 60)
  for step in range(60):
    observed = observation_at(values, step)
    del observed["stamps"]
    observed["timestamp"] = step / 120
    batched = one_row(observed)
    seen = predictor.inspect(batched, is_first=step == 0).seen
    predictor.step(batched, is_first=step == 0)
  assert seen["state_mask"].tolist() == [[False, True, True]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
  """A store of episodes at 25 Hz, whose sensors have their own stamps."""
  spec = {
    path: Spec(value.shape[1:], value.dtype, path, is_sequence=True)
    for path, value in make_episode(0, 2).items()
  }
  folder = str(tmp_path_factory.mktemp("recorded") / "store")
  with store.EpisodeStore.create(folder, spec) as writer:
    for seed in range(2):
      writer.append_episode(make_episode(seed, 25, start=1.7e9))
  return folder


def test_verify_replays_recorded_stamps(exported, recorded):
  model, predictor = exported
  report = verification.verify(predictor, recorded, model, clock="timestamp")
  assert report.is_identical, str(report)
  assert "windows of before, force, image, state, turn, bit for bit" in str(report)

  def observe(observed, is_first):
    """A robot whose stamps of the force are those of its steps."""
    del is_first
    return {**observed, "stamps/force": observed["timestamp"]}

  report = verification.verify(predictor, recorded, observe=observe, clock="timestamp")
  found = {each.path: each.stage for each in report.differences}
  assert found == {"force": "window"}


class TimedChunkModel(TimedModel):
  """Gives chunks of six actions, and overlaps inference with execution."""

  def get_label_specification(self, mode):
    del mode
    target = Spec((6, 2), tf.float32, "a", time_offsets=range(6))
    return specs.TensorSpecStruct(target=target)

  def create_network(self):
    return tf.keras.layers.Dense(12)

  def a_func(self, features, mode):
    flat = super().a_func(features, mode)["inference_output"]
    return {"inference_output": tf.reshape(flat, [-1, 6, 2])}


def test_late_network_sees_windows_by_time_of_each_tick(recorded):
  pytest.importorskip("websockets")
  execution = policies.ChunkExecution(3, overlap="asynchronous")
  model = TimedChunkModel(control_period=PERIOD, execution=execution)
  predictor = policies.CheckpointPredictor(model)
  predictor.init_randomly()
  latency = lite.overlap.SimulatedLatency(0.08, 0.04, 25.0)
  report = verification.verify(
    predictor, recorded, model, clock="timestamp", latency=latency
  )
  assert report.is_identical, str(report)
  values, found = make_episode(2, 40, start=1.7e9), []
  with serving.PolicyServer(predictor.pure, port=0) as server:
    client = serving.PolicyClient("127.0.0.1", server.port)
    for policy in (predictor, client):
      overlapped = lite.OverlappedPolicy(policy, planner=latency)
      overlapped.seed(0)
      overlapped.reset()
      ticks = range(40)
      acted = [overlapped.sample_action(observation_at(values, tick)) for tick in ticks]
      found.append([action for action, _ in acted])
    client.close()
  # Requests carry the stamps of all observations that a window may show.
  np.testing.assert_array_equal(*found)


def call(predictor, **changes):
  observed = observation_at(make_episode(0, 3), 0)
  observed.pop("stamps")
  batched = one_row(observed)
  batched.update(changes)
  return predictor.step({p: v for p, v in batched.items() if v is not None}, True)


INVALID = {
  "no time": (
    {"timestamp": None},
    "timestamp: expected the time of the step in seconds, .* got nothing",
  ),
  "NaN": ({"timestamp": np.nan}, "timestamp: expected seconds, one number for each"),
  "text": ({"stamps/state": "now"}, "stamps/state: expected seconds"),
  "too many": ({"timestamp": np.zeros(3)}, r"each of 1 environments, got \(3,\)"),
  "unknown stamps": (
    {"stamps/stat": 0.0},
    r"stamps/stat: expected one of .* Did you mean 'stamps/state'",
  ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_times(exported, name):
  changes, want = INVALID[name]
  with pytest.raises(errors.SpecError, match=want):
    call(exported[1], **changes)


class AheadModel(TimedModel):
  """Has a feature of the future."""

  def get_feature_specification(self, mode):
    spec = super().get_feature_specification(mode)
    spec["state"] = Spec((2, 2), tf.float32, "state", time_offsets=Seconds(0.0, 0.1))
    del spec["state_mask"]
    return spec


class ClashingModel(TimedModel):
  """Has a feature at the path of the time of a step."""

  def get_feature_specification(self, mode):
    spec = super().get_feature_specification(mode)
    spec["timestamp"] = Spec((), tf.float64, "timestamp")
    return spec


EXPORTS = {
  "offsets ahead": (
    lambda: AheadModel(control_period=PERIOD),
    "state: expected time offsets of at most 0 to export, got Seconds",
  ),
  "no period": (
    TimedModel,
    "state: expected the control period of the data for a history of 0.2 s, got none",
  ),
  "a path of times": (
    lambda: ClashingModel(control_period=PERIOD),
    "expected another path: 'timestamp' is the time of a step",
  ),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_models_that_no_export_can_hold(name, tmp_path):
  make, want = EXPORTS[name]
  model = make()
  model.build()
  with pytest.raises(errors.SpecError, match=want):
    training.export_saved_model(model, str(tmp_path), global_step=3)
