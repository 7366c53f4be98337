"""Irregular events, counted in intervals of seconds: windows, policies and errors."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  data,
  errors,
  lite,
  models,
  policies,
  specs,
  store,
  training,
  verification,
  windows,
)
from t2r_seq.specs import Seconds

Spec = specs.ExtendedTensorSpec
STORED = {
  "arm": Spec((2,), tf.float32, "arm", is_sequence=True),
  "timestamp": Spec((), tf.float64, "timestamp", is_sequence=True),
  "press": Spec((None,), tf.int32, "press"),
  "clocks/press": Spec((None,), tf.float64, "clocks/press"),
}
CLOCKS = {"press": "clocks/press", "clocks/press": "clocks/press"}
OFFSETS = (-0.3, -0.1, 0.0)
SPEC = {
  "presses": Spec(
    (3,), tf.int32, "press", time_offsets=Seconds(*OFFSETS, select="event")
  ),
  "lately": Spec(
    (), tf.int32, "press", time_offsets=Seconds(0.0, select="event", tolerance=0.15)
  ),
  "arm": Spec((2, 2), tf.float32, "arm", time_offsets=Seconds(-0.05, 0.0)),
}
STARTS = {"presses": np.array([-0.5, -0.3, -0.1]), "lately": np.array(-0.15)}
ENDS = {"presses": np.array(OFFSETS), "lately": np.array(0.0)}
# Of the third episode there are events long before its first step, too.
NUM_EVENTS = (25, 1, 60, 1)


def episode(number, length=40):
  rng, start = np.random.default_rng(number), 10.0 * number
  steps = np.sort(start + np.arange(length) / 20 + rng.normal(0, 0.005, length))
  events = np.sort(rng.uniform(start - 0.5, start + 2, NUM_EVENTS[number]))
  if number == 1:  # None in the episode.
    events -= 20
  events[3:9] = events[2:3] + np.arange(1, len(events[3:9]) + 1) / 500  # A burst.
  return {
    "arm": rng.random((length, 2), np.float32),
    "timestamp": steps,
    "press": np.ones(len(events), np.int32),
    "clocks/press": np.sort(events),
  }


def expected(path, values):
  """Counts events in intervals, as a policy that starts at the first step does."""
  steps, events = values["timestamp"], values["clocks/press"]
  begin = max(int(np.sum(events <= steps[0])) - 1, 0)
  events, counts = events[begin:], []
  for now in steps:
    known = np.append(events[events <= now], np.inf)
    low, high = (now + each[path][..., None] for each in (STARTS, ENDS))
    counts.append(((known > low) & (known <= high)).sum(-1))
  return np.array(counts)


def make_store(path):
  with store.EpisodeStore.create(path, STORED, clocks=CLOCKS) as writer:
    for number in range(len(NUM_EVENTS)):
      writer.append_episode(episode(number))
  return path


GENERATORS = {
  "store": lambda path: data.StoreInputGenerator(path, 7),
  "store in place": lambda path: data.EpisodesInputGenerator(path, 7),
  "by pools": lambda path: data.EpisodesInputGenerator(path, 7, memory_budget=3000),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_counts_equal_a_search_through_all_events(name, tmp_path):
  generator = GENERATORS[name](make_store(str(tmp_path / "own")))
  generator.set_feature_specifications(
    windows.add_mask_specs(specs.TensorSpecStruct(SPEC))
  )
  generator.set_label_specifications({})
  found = [features for features, _ in generator.create_dataset("eval")]
  for path in ENDS:
    counts = np.concatenate([each[path].numpy() for each in found])
    want = [expected(path, episode(number)) for number in range(len(NUM_EVENTS))]
    np.testing.assert_array_equal(counts, np.concatenate(want), err_msg=path)
    assert counts.max() > 5 and counts.dtype == np.int32


class Presses(models.RegressionModel):
  """Counts events."""

  def get_feature_specification(self, mode):
    del mode
    return windows.add_mask_specs(specs.TensorSpecStruct(SPEC))

  def get_label_specification(self, mode):
    del mode
    return specs.TensorSpecStruct(target=Spec((2,), tf.float32, "arm", time_offsets=0))

  def create_network(self):
    return tf.keras.layers.Dense(2)

  def a_func(self, features, mode):
    del mode
    parts = [features.presses, features.lately[:, tf.newaxis]]
    return {"inference_output": self.network(tf.cast(tf.concat(parts, 1), tf.float32))}


@pytest.fixture(name="exported", scope="module")
def make_export(tmp_path_factory):
  """(model, predictor, store)."""
  folder = tmp_path_factory.mktemp("events")
  recorded = make_store(str(folder / "store"))
  generator = data.StoreInputGenerator(recorded, 4)
  model = Presses()
  model.build()
  model.follow_periods(generator.control_period, generator.value_periods)
  training.export_saved_model(model, str(folder / "export"), global_step=1)
  predictor = policies.ExportedSavedModelPredictor(str(folder / "export"), timeout=0)
  assert predictor.restore()
  return model, predictor, recorded


@pytest.mark.parametrize("rate", [None, 9, 50])
def test_policies_count_the_same_events(exported, rate):
  model, predictor, recorded = exported
  replay = verification.Replay(rate=rate, delay=0.03, seed=1)
  report = verification.verify(
    predictor, recorded, model, replay=replay, num_episodes=1
  )
  assert report.is_identical, str(report)
  assert "windows of arm, lately, presses, bit for bit" in report.compared


def test_steps_without_events(exported, tmp_path):
  """None at first; then two, of which the step after the next one still has one."""
  pytest.importorskip("ai_edge_litert")
  predictor = exported[1]
  policies.export_lite(predictor.model_path, str(tmp_path / "lite"))
  policy = lite.LitePolicy(str(tmp_path / "lite"))
  predictor.reset()
  events = {1: [0.03, 0.05], 4: [0.2]}
  for step in range(6):
    stamps = np.array(events.get(step, []))
    observed = {
      **{path: np.ones(len(stamps), np.int32) for path in ENDS},
      "arm": np.zeros(2, np.float32),
      "timestamp": 0.05 * step,
      "stamps": {path: stamps for path in ENDS},
    }
    batched = {p: np.asarray(v)[None] for p, v in observed.items() if p != "stamps"}
    batched |= {f"stamps/{p}": t[None] for p, t in observed["stamps"].items()}
    seen = predictor.inspect(batched).seen
    want = predictor.step(batched)["inference_output"][0]
    happened = np.concatenate([events.get(k, []) for k in range(step + 1)])
    for path in ENDS:
      low, high = (0.05 * step + each[path][..., None] for each in (STARTS, ENDS))
      count = ((happened > low + 1e-9) & (happened <= high + 1e-9)).sum(-1)
      np.testing.assert_array_equal(seen[path][0], count, err_msg=f"{path} {step}")
    np.testing.assert_allclose(policy.step(observed)["inference_output"], want, 1e-4)


INVALID = {
  "falling": (lambda: Seconds(0.0, -0.1, select="event"), "expected rising offsets"),
  "ahead": (
    lambda: Seconds(0.0, 0.1, select="event"),
    "expected rising offsets up to 0",
  ),
  "one without a length": (
    lambda: Seconds(0.0, select="event"),
    "for one offset the length of its interval, tolerance=0.1, got",
  ),
  "with axes": (
    lambda: Spec((2, 3), tf.int32, "x", time_offsets=Seconds(-1, 0, select="event")),
    "x: time_offsets: expected a number or a bool for each offset for 'event'",
  ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid(name):
  make, want = INVALID[name]
  with pytest.raises(errors.SpecError, match=want):
    make()


def test_events_of_one_stamp_are_an_error(tmp_path):
  values = episode(0)
  values["clocks/press"][3] = values["clocks/press"][2]
  with store.EpisodeStore.create(
    str(tmp_path / "own"), STORED, clocks=CLOCKS
  ) as writer:
    writer.append_episode(values)
  want = "episode 0.*clocks/press: expected time stamps of events that rise"
  with pytest.raises(errors.SpecError, match=want):
    next(iter(data.windows_of(str(tmp_path / "own"), SPEC, mode="eval")))
