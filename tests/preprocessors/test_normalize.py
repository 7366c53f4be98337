"""Normalize: the figures it uses, what it refuses, and its constants in an export."""

from __future__ import annotations

import functools
import json
import logging
import pathlib

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, models, policies, specs, statistics, training
from t2r_seq.preprocessors import (
  ComposedPreprocessor,
  NoOpPreprocessor,
  Normalize,
  unnormalize,
)
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
RNG = np.random.default_rng(0)
STATE = (1e4 + RNG.normal(size=(400, 3)) * [1.0, 5.0, 0.0]).astype(np.float32)
ACTION = RNG.uniform(-7, 3, (400, 2)).astype(np.float32)
IMAGE = RNG.integers(0, 255, (400, 4, 4, 3)).astype(np.uint8)
COUNT = RNG.integers(0, 10**12, 400)


@pytest.fixture(name="path", scope="module")
def fixture_path(tmp_path_factory):
  """Statistics of one episode."""
  folder = tmp_path_factory.mktemp("normalize")
  spec = {
    "state": Spec((3,), tf.float32, "state", is_sequence=True),
    "action": Spec((2,), tf.float32, is_sequence=True),
    "image": Spec((4, 4, 3), tf.uint8, is_sequence=True),
    "count": Spec((), tf.int64, is_sequence=True),
    "broken": Spec((2,), tf.float32, is_sequence=True),
    "text": Spec((), tf.string, is_sequence=True),
  }
  with EpisodeStore.create(folder / "store", spec, allow_nan=True) as writer:
    writer.append_episode(
      {
        "state": STATE,
        "action": ACTION,
        "image": IMAGE,
        "count": COUNT,
        "broken": np.full((400, 2), [1, np.nan], np.float32),
        "text": ["x"] * 400,
      }
    )
  path = str(folder / "statistics.json")
  statistics.compute_statistics(folder / "store", path)
  return path


FEATURES = {
  "state": Spec((3,), tf.float32, "state"),
  "image": Spec((4, 4, 3), tf.float32),
  "count": Spec((), tf.float32),
  "mask": Spec((), tf.bool),
}
LABELS = {"action": Spec((2,), tf.float32)}


def create(path, modes, features=None, labels=None):
  """Builds the preprocessor of a model."""
  return Normalize(
    lambda mode: FEATURES if features is None else features,
    lambda mode: LABELS if labels is None else labels,
    statistics_path=path,
    modes=modes,
  )


def run(preprocessor, mode="train"):
  """Preprocesses all values as one batch."""
  features = {
    "state": STATE, "image": IMAGE, "count": COUNT, "mask": np.ones(400, bool)
  }  # fmt: skip
  spec = preprocessor.get_in_feature_specification(mode)
  batch = {key: tf.constant(features[key], spec[key].dtype) for key in spec}
  return preprocessor.preprocess(batch, {"action": tf.constant(ACTION)}, mode)


def by_hand(values, mode):
  """Normalises in float64; constant columns become 0."""
  values = values.astype(np.float64)
  if mode == "mean_std":
    center, scale = values.mean(axis=0), values.std(axis=0)
  else:
    low, high = values.min(axis=0), values.max(axis=0)
    if mode == "quantile":
      low, high = np.quantile(values, [0.01, 0.99], axis=0, method="inverted_cdf")
    center, scale = (low + high) / 2, (high - low) / 2
  return (values - center) / np.where(scale == 0, 1, scale)


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "quantile"])
def test_values(path, mode):
  preprocessor = create(path, {"state": mode, "action": mode, "count": mode})
  features, labels = run(preprocessor)
  want = by_hand(STATE, mode)
  np.testing.assert_allclose(features["state"], want, rtol=1e-5, atol=1e-6)
  assert not np.any(features["state"][:, 2])
  np.testing.assert_allclose(labels["action"], by_hand(ACTION, mode), atol=1e-6)
  np.testing.assert_allclose(features["count"], by_hand(COUNT, mode), atol=1e-6)
  assert features["count"].dtype == tf.float32
  if mode == "min_max":
    action = labels["action"].numpy()
    np.testing.assert_allclose([action.min(), action.max()], [-1, 1], rtol=1e-6)


def test_images_come_as_bytes_and_leave_as_floats(path):
  preprocessor = create(path, {"image": "mean_std"})
  spec = preprocessor.get_in_feature_specification("train")
  assert (spec["image"].dtype, spec["state"].dtype) == (tf.uint8, tf.float32)
  features, _ = run(preprocessor)
  want = by_hand(IMAGE.reshape(-1, 3), "mean_std").reshape(IMAGE.shape)
  np.testing.assert_allclose(features["image"], want, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(features["state"], STATE)


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "quantile"])
def test_unnormalize_is_the_inverse(path, mode):
  preprocessor = create(path, {"state": mode, "action": mode})
  features, labels = run(preprocessor)
  action = unnormalize(preprocessor, "action", labels["action"])
  np.testing.assert_allclose(action, ACTION, rtol=1e-5, atol=1e-5)
  state = preprocessor.unnormalize("state", features["state"], "features")
  np.testing.assert_allclose(state, STATE, rtol=1e-6)
  chunk = tf.reshape(labels["action"], [40, 10, 2])
  np.testing.assert_array_equal(
    unnormalize(preprocessor, "action", chunk), np.reshape(action, [40, 10, 2])
  )


def test_windows_take_the_figures_of_one_step(path):
  stacked = {"state": Spec((4, 3), tf.float32, time_offsets=(-3, -2, -1, 0))}
  sequence = {"state": Spec((3,), tf.float32, is_sequence=True)}
  flat, _ = run(create(path, {"state": "mean_std"}))
  for features, shape in ((stacked, [100, 4, 3]), (sequence, [5, 80, 3])):
    preprocessor = create(path, {"state": "mean_std"}, features)
    batch = {"state": tf.reshape(STATE, shape)}
    got, _ = preprocessor.preprocess(batch, {"action": ACTION}, "train")
    np.testing.assert_array_equal(got["state"], tf.reshape(flat["state"], shape))


def test_names_say_which_figures(path):
  features = {"robot/pose": Spec((3,), tf.float32, "state")}
  preprocessor = create(path, {"robot/*": "mean_std"}, features)
  got, _ = preprocessor.preprocess(
    {"robot/pose": tf.constant(STATE)}, {"action": ACTION}, "train"
  )
  want, _ = run(create(path, {"state": "mean_std"}))
  np.testing.assert_array_equal(got["robot/pose"], want["state"])


def test_first_pattern_counts_and_none_excludes(path):
  preprocessor = create(path, {"mask": None, "image": None, "*": "mean_std"})
  features, labels = run(preprocessor)
  assert preprocessor.is_normalized("state", "features")
  assert not preprocessor.is_normalized("image", "features")
  np.testing.assert_array_equal(features["image"], IMAGE.astype(np.float32))
  assert abs(labels["action"].numpy().mean()) < 1e-5


def test_infer_has_no_labels(path):
  preprocessor = create(path, {"state": "mean_std", "action": "mean_std"})
  spec = preprocessor.get_in_feature_specification("infer")
  batch = specs.make_random_numpy(spec, batch_size=2, seed=0)
  _, labels = preprocessor.preprocess(batch, None, "infer")
  assert labels is None


def test_constant_elements_are_told(path, caplog):
  with caplog.at_level(logging.WARNING, "absl"):
    create(path, {"state": "mean_std"})
  assert "features/state: elements [[2]] are constant in the data" in caplog.text


def test_constant_elements_keep_their_scale(path):
  preprocessor = create(path, {"state": "mean_std"})
  features = specs.make_random_numpy(FEATURES, batch_size=2, seed=0)
  features["state"] = tf.constant(STATE[:2] + np.asarray([0, 0, 0.5], np.float32))
  got, _ = preprocessor.preprocess(features, None, "infer")
  assert got["state"][:, 2].numpy().tolist() == [0.5, 0.5]


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "quantile"])
def test_constant_elements_come_back_exactly(mode, tmp_path):
  values = np.zeros((400, 3), np.float32)  # 0, 0.1, and a gripper that closes twice.
  values[:, 1], values[7:9, 2] = 0.1, 1
  spec = {"action": Spec((3,), tf.float32, is_sequence=True)}
  with EpisodeStore.create(tmp_path / "store", spec) as writer:
    writer.append_episode({"action": values})
  statistics.compute_statistics(tmp_path / "store", tmp_path / "statistics.json")
  labels = {"action": Spec((3,), tf.float32)}
  preprocessor = create(tmp_path / "statistics.json", {"action": mode}, {}, labels)
  _, said = preprocessor.preprocess({}, {"action": tf.constant(values)}, "train")
  noise = [0.04, -0.04, 0]
  got = unnormalize(preprocessor, "action", said["action"] + noise).numpy()
  np.testing.assert_array_equal(got[:, :2], values[:, :2])
  np.testing.assert_allclose(got[:, 2], values[:, 2], atol=1e-6)


ALL = {"*": "mean_std"}
ERRORS = {
  "no file": (None, ALL, {}, "statistics_path: expected a JSON file"),
  "no modes": ("path", None, {}, "modes: expected patterns of paths"),
  "unknown mode": (
    "path", {"state": "meanstd"}, {}, r"state: expected one of \[mean_std.* 'mean_std'",
  ),
  "unused pattern": (
    "path", {"stat": "mean_std"}, {"state": Spec((3,), tf.float32)},
    "stat: expected a pattern of .* Did you mean 'state'",
  ),
  "missing": (
    "path", ALL, {"states": Spec((3,), tf.float32)},
    r"features/states: expected \(3,\) float32, got figures of .* mean 'state'",
  ),
  "another name": (
    "path", ALL, {"state": Spec((3,), tf.float32, "pose")}, "features/state: expected",
  ),
  "shape": (
    "path", ALL, {"state": Spec((2, 4), tf.float32, time_offsets=(0, 1))},
    r"features/state: expected \(4,\) float32, got figures of \(3,\) float32",
  ),
  "dtype": (
    "path", ALL, {"state": Spec((3,), tf.float64)}, "float64, got .* Declare it as flo",
  ),
  "integers": (
    "path", ALL, {"count": Spec((), tf.int64)}, "count: expected a floating point dt",
  ),
  "bytes": ("path", ALL, {"text": Spec((), tf.float32)}, "no figures of the bytes"),
  "NaN": (
    "path", ALL, {"broken": Spec((2,), tf.float32)}, r"none of the elements \[\[1\]\]",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(path, name):
  source, modes, features, match = ERRORS[name]
  with pytest.raises(errors.SpecError, match=match):
    create(path if source else None, modes, features, {})


@pytest.mark.parametrize("figure", ["mean", "std", "min", "max"])
def test_figures_that_are_not_finite(path, figure, tmp_path):
  values = json.loads(pathlib.Path(path).read_text())
  values["paths"]["state"][figure][1] = None
  changed = tmp_path / "changed.json"
  changed.write_text(json.dumps(values))
  want = (
    rf"features/state: expected finite figures, got a {figure} that is not finite of "
    r"the elements \[\[1\]\]\. Compute"
  )
  with pytest.raises(errors.SpecError, match=want):
    create(str(changed), ALL, {"state": Spec((3,), tf.float32)}, {})


def test_all_misfits_are_in_one_error(path):
  features = {"state": Spec((2,), tf.float32), "a": Spec((), tf.float32)}
  labels = {"action": Spec((2,), tf.int32)}
  with pytest.raises(
    errors.SpecError, match=r"3 mismatches:(?s:.*)/a: (?s:.*)/state: "
  ):
    create(path, ALL, features, labels)


def test_unnormalize_names_what_there_is(path):
  preprocessor = create(path, {"action": "mean_std"})
  with pytest.raises(
    errors.SpecError, match=r"labels/actions: .* mean 'labels/action'"
  ):
    unnormalize(preprocessor, "actions", ACTION)
  with pytest.raises(errors.SpecError, match="has a Normalize, got NoOpPreprocessor"):
    unnormalize(NoOpPreprocessor(), "action", ACTION)


def test_gin_and_a_chain(path):
  gin.parse_config(
    f"""
    Normalize.statistics_path = '{path}'
    Normalize.modes = {{'state': 'min_max', 'action': 'min_max'}}
    ComposedPreprocessor.preprocessor_classes = [@NoOpPreprocessor, @Normalize]
    """
  )
  chain = ComposedPreprocessor(lambda mode: FEATURES, lambda mode: LABELS)
  _, labels = run(chain)
  np.testing.assert_allclose(
    unnormalize(chain, "action", labels["action"]), ACTION, atol=1e-5
  )


class Imitator(models.RegressionModel):
  """Regresses normalised actions, and answers in the units of the data."""

  def get_feature_specification(self, mode):
    state = Spec((2, 3), tf.float32, "state", time_offsets=(-1, 0))
    return specs.TensorSpecStruct(state=state)

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=Spec((2,), tf.float32, "target"))

  def create_network(self):
    return tf.keras.layers.Dense(2)

  def a_func(self, features, mode):
    flat = tf.reshape(features.state, [-1, 6])
    return {"inference_output": self.network(flat)}

  def create_export_outputs_fn(self, features, inference_outputs, mode):
    action = inference_outputs["inference_output"]
    return {"action": unnormalize(self.preprocessor, "target", action)}


def test_export(path, tmp_path):
  folder = tmp_path / "gone"
  folder.mkdir()
  loaded = statistics.load_statistics(path)
  loaded.paths["target"] = loaded.paths["action"]
  loaded.save(folder / "statistics.json")
  model = Imitator(
    preprocessor_cls=functools.partial(
      Normalize,
      statistics_path=folder / "statistics.json",
      modes={"state": "mean_std", "target": "min_max"},
    )
  )
  model.build()
  optimizer = model.create_optimizer()
  features, labels = model.preprocessor.preprocess(
    {"state": STATE.reshape(200, 2, 3)}, {"target": ACTION[:200]}, "train"
  )
  with tf.GradientTape() as tape:
    loss, _ = model.train_loss(features, labels)
  gradients = tape.gradient(loss, model.trainable_variables)
  optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
  training.export_saved_model(model, str(tmp_path / "exports"), 1)
  (folder / "statistics.json").unlink()

  predictor = policies.ExportedSavedModelPredictor(str(tmp_path / "exports"), timeout=0)
  assert predictor.restore()
  got = predictor.predict({"state": STATE.reshape(200, 2, 3)})["action"]
  state = by_hand(STATE, "mean_std").reshape(200, 6)
  kernel, bias = (variable.numpy() for variable in model.network.weights)
  low, high = ACTION.min(axis=0), ACTION.max(axis=0)
  want = (state @ kernel + bias) * (high - low) / 2 + (high + low) / 2
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
