"""`time_offsets='last'`: the episode's last step, such as the image of a goal."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  cli,
  data,
  errors,
  models,
  policies,
  records,
  replay,
  specs,
  store,
  training,
  verification,
  windows,
)
from t2r_seq.specs import ExtendedTensorSpec
from t2r_seq.windows.cut import time_span

LENGTHS = (6, 3, 8, 1)
SPEC = specs.TensorSpecStruct(
  {
    "x": ExtendedTensorSpec((3,), tf.float32, "x", time_offsets=(-1, 0, 1)),
    "goal": ExtendedTensorSpec((), tf.float32, "x", time_offsets="last"),
  }
)


def values_of(episode):
  return 100 * (episode + 1) + np.arange(LENGTHS[episode], dtype=np.float32)


def expected(front, end):
  """Returns (newest x of the stack, goal) of every window, in order."""
  rows = []
  for episode, length in enumerate(LENGTHS):
    first, stop = front == "drop", length - (end == "drop")
    x = values_of(episode)
    rows += [(x[step], x[-1]) for step in range(int(first), stop)]
  return rows


def shown(window):
  return float(window["x"][1]), float(window["goal"])


PADDINGS = list(itertools.product(("repeat", "zero", "drop"), repeat=2))


@pytest.mark.parametrize("padding", PADDINGS)
def test_windows_show_the_last_step_under_any_padding(padding):
  episodes = tf.data.Dataset.from_generator(
    lambda: ({"x": values_of(e)} for e in range(len(LENGTHS))),
    output_signature={"x": tf.TensorSpec([None], tf.float32)},
  )
  found = windows.windows(episodes, SPEC, padding=padding, masks=True)
  found = list(found.as_numpy_iterator())
  assert [shown(window) for window in found] == expected(*padding)
  assert "goal_mask" not in found[0] and "x_mask" in found[0]


@pytest.fixture(name="paths", scope="module")
def fixture_paths(tmp_path_factory):
  """A store and a file of the same episodes."""
  folder = tmp_path_factory.mktemp("episodes")
  flat = {"x": ExtendedTensorSpec((), tf.float32, "x", is_sequence=True)}
  episodes = [{"x": values_of(e)} for e in range(len(LENGTHS))]
  with store.EpisodeStore.create(folder / "store", flat) as writer:
    for episode in episodes:
      writer.append_episode(episode)
  records.write_records(folder / "a.tfrecord", flat, episodes)
  records.write_index(folder / "a.tfrecord")
  return {"store": str(folder / "store"), "records": str(folder / "a.tfrecord")}


GENERATORS = {
  "store, in order": ("store", {}, "eval"),
  "store, shuffled": ("store", {}, "train"),
  "store, in pools": ("store", {"order": "quasi_random"}, "train"),
  "store, stacked on the device": ("store", {"stack_on_device": True}, "train"),
  "records, streamed": ("records", {"index": None}, "eval"),
  "records, shuffled": ("records", {"index": None}, "train"),
  "records, by an index": ("records", {"index": "require"}, "train"),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_show_the_last_step(name, paths):
  source, options, mode = GENERATORS[name]
  if source == "store":
    generator = data.StoreInputGenerator(paths[source], batch_size=3, seed=0, **options)
  else:
    generator = data.DefaultRecordInputGenerator(
      paths[source], batch_size=3, seed=0, **options
    )
  generator.set_feature_specifications(SPEC)
  generator.set_label_specifications({})
  generator.set_padding("repeat")
  want = expected("repeat", "repeat")
  found = []
  for features, _ in generator.create_dataset(mode).take(len(want) // 3):
    newest = features["x"][:, 1 if features["x"].shape[1] == 3 else 0]
    found += zip(
      newest.numpy().tolist(), features["goal"].numpy().tolist(), strict=True
    )
  assert set(found) <= {(float(x), float(goal)) for x, goal in want}
  assert len(set(found)) == len(want)


def test_numpy_windows_show_the_last_step(paths):
  reader = store.EpisodeStore(paths["store"]).windows(SPEC, padding="repeat")
  found = [shown(reader[index]) for index in range(sum(LENGTHS))]
  assert found == expected("repeat", "repeat")


def test_specs_with_the_last_step_are_read_back():
  spec = SPEC["goal"]
  for copy in (
    ExtendedTensorSpec.from_proto(spec.to_proto()),
    ExtendedTensorSpec.from_json(spec.to_json()),
    ExtendedTensorSpec.from_spec(spec),
  ):
    assert copy.time_offsets == "last" and copy.is_identical_to(spec)
  assert time_span(SPEC) == (-1, 1)
  assert windows.flat_specs(SPEC)["goal"].is_sequence


ERRORS = {
  "another word": (
    lambda: ExtendedTensorSpec((), tf.float32, "x", time_offsets="end"),
    "an int or a tuple of ints, got 'end'. 'last' is the last step of an episode",
  ),
  "a sequence": (
    lambda: ExtendedTensorSpec(
      (), tf.float32, "x", is_sequence=True, time_offsets="last"
    ),
    "x: time_offsets: expected offsets for a sequence, got 'last'",
  ),
  "a replay": (
    lambda: replay.ReplayBuffer(SPEC, 10),
    "ReplayBuffer: goal: expected steps around the anchor, got time_offsets='last'",
  ),
  "n steps": (
    lambda: windows.windows(
      tf.data.Dataset.from_tensors(
        {"x": [1.0], "reward": [1.0], "done": [True], "goal": [1.0]}
      ),
      {
        "goal": SPEC["goal"],
        "x": ExtendedTensorSpec((), tf.float32, "x", time_offsets=0),
        "reward": ExtendedTensorSpec((), tf.float32, "reward", time_offsets=0),
        "done": ExtendedTensorSpec((), tf.bool, "done", time_offsets=0),
      },
      n_step=(2, 0.9),
    ),
    "n_step: goal: expected time offsets, got 'last'",
  ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
  call, match = ERRORS[name]
  with pytest.raises(errors.SpecError, match=match):
    call()


class GoalModel(models.RegressionModel):
  """Moves to the last position of an episode."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      {
        "x": ExtendedTensorSpec((2, 1), tf.float32, "x", time_offsets=(-1, 0)),
        "goal": ExtendedTensorSpec((1,), tf.float32, "x", time_offsets="last"),
      }
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(
      target=ExtendedTensorSpec((1,), tf.float32, "action", time_offsets=0)
    )

  def create_network(self):
    return tf.keras.layers.Dense(1)

  def a_func(self, features, mode):
    seen = tf.concat([features.x[:, -1], features.goal], -1)
    return {"inference_output": self.network(seen)}


def test_goal_conditioned_behaviour_cloning(tmp_path, capsys):
  flat = {
    name: ExtendedTensorSpec((1,), tf.float32, name, is_sequence=True)
    for name in ("x", "action")
  }
  rng = np.random.default_rng(0)
  with store.EpisodeStore.create(tmp_path / "store", flat) as writer:
    for length in (5, 9, 7, 6):
      x = rng.uniform(-1, 1, (length, 1)).astype(np.float32)
      writer.append_episode({"x": x, "action": x[-1] - x})
  generator = data.StoreInputGenerator(str(tmp_path / "store"), batch_size=8, seed=0)
  result = training.train_eval_model(
    GoalModel(create_optimizer_fn=lambda: tf.keras.optimizers.Adam(0.1)),
    input_generator_train=generator,
    max_train_steps=150,
    model_dir=str(tmp_path / "run"),
    create_exporters_fn=lambda: [training.LatestExporter()],
    input_generator_eval=data.StoreInputGenerator(
      str(tmp_path / "store"), batch_size=8
    ),
  )
  assert result["loss"] < 1e-3
  exports = str(tmp_path / "run/export/latest")
  predictor = policies.ExportedSavedModelPredictor(exports, timeout=0)
  predictor.restore()
  assert predictor.get_feature_specification()["goal"].time_offsets == "last"
  policy = policies.RegressionPolicy(predictor)
  for x, goal in ((0.5, -0.25), (0.0, 0.75)):
    action, _ = policy.sample_action({"x": [x], "goal": [goal]})
    np.testing.assert_allclose(action, [goal - x], atol=0.05)
  assert cli.main(["inspect", predictor.model_path]) == 0
  assert re.search(r"goal .*last", capsys.readouterr().out)
  report = verification.verify(predictor, str(tmp_path / "store"))
  assert report.is_identical, str(report)
