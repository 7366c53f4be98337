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
  AugmentationPreprocessor,
  ComposedPreprocessor,
  ImageToFloatPreprocessor,
  NoOpPreprocessor,
  Normalize,
  RandomCrop,
  SpecTransformationPreprocessor,
  TPUPreprocessorWrapper,
  unnormalize,
)
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
RNG = np.random.default_rng(0)
STATE = (1e4 + RNG.normal(size=(400, 3)) * [1.0, 5.0, 0.0]).astype(np.float32)
ACTION = RNG.uniform(-7, 3, (400, 2)).astype(np.float32)
IMAGE = RNG.integers(0, 255, (400, 4, 4, 3)).astype(np.uint8)
MODES = ("mean_std", "min_max", "quantile")
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


def test_constant_elements_are_warned_of(path, caplog):
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
  _, processed = preprocessor.preprocess({}, {"action": tf.constant(values)}, "train")
  noise = [0.04, -0.04, 0]
  got = unnormalize(preprocessor, "action", processed["action"] + noise).numpy()
  np.testing.assert_array_equal(got[:, :2], values[:, :2])
  np.testing.assert_allclose(got[:, 2], values[:, 2], atol=1e-6)


def _rare(dtype):
  values = np.zeros(1000, dtype)
  values[10:13] = 1
  return values


NOISE = np.random.default_rng(0).normal(size=1000)
QUANTILES = "not constant, but too rarely different for 'quantile'"
ROUNDING = "constant in the data but for rounding noise, and normalised to 0"
# name: (values, modes, -1 and 1 or the constant, warning)
SMALL_RANGES = {
  "a gripper that is rarely open": (_rare("float32"), ["quantile"], (-1, 1), QUANTILES),
  "of a noisy sensor": (
    (_rare("float64") + 1e-9 * NOISE).astype("float32"),
    ["quantile"], (-1, 1), QUANTILES,
  ),
  "of a noisy sensor in doubles": (
    _rare("float64") + 1e-9 * NOISE, ["quantile"], (-1, 1), QUANTILES,
  ),
  "of integers": (_rare("int32"), ["quantile"], (-1, 1), QUANTILES),
  "by its range": (_rare("float32"), ["min_max"], (-1, 1), None),
  "noise of 1e-8": ((0.3 + 1e-8 * NOISE).astype("float32"), MODES, 0.3, ROUNDING),
  "below zero": ((-3e5 + 0.05 * NOISE).astype("float32"), MODES, -3e5, ROUNDING),
  "noise of 1e-8 of doubles": (0.3 + 1e-8 * NOISE, ["min_max"], None, None),
  "noise of 1e-16 of doubles": (0.3 + 1e-16 * NOISE, MODES, 0.3, ROUNDING),
  "a small range around 0": ((1e-8 * NOISE).astype("float32"), MODES, None, None),
  "one value": (np.full(1000, 0.1, "float32"), MODES, 0.1, "constant in the data, and"),
  "integers that no float tells apart": (
    2**60 + np.arange(1000) % 2, MODES, 2**60, ROUNDING,
  ),
  "integers": (2**40 + np.arange(1000) % 2, MODES, None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL_RANGES)
def test_elements_that_hardly_or_rarely_move(name, tmp_path, caplog):
  values, modes, want, warning = SMALL_RANGES[name]
  stored = tf.as_dtype(values.dtype)
  spec = {"action": Spec((1,), stored, is_sequence=True)}
  with EpisodeStore.create(tmp_path / "store", spec) as writer:
    writer.append_episode({"action": values[:, None]})
  statistics.compute_statistics(tmp_path / "store", tmp_path / "statistics.json")
  dtype = stored if stored.is_floating else tf.float64
  labels = {"action": Spec((1,), dtype)}
  for mode in modes:
    with caplog.at_level(logging.WARNING, "absl"):
      preprocessor = create(tmp_path / "statistics.json", {"action": mode}, {}, labels)
    _, got = preprocessor.preprocess({}, {"action": values[:, None]}, "train")
    back = unnormalize(preprocessor, "action", got["action"]).numpy()
    got = got["action"].numpy()
    if np.size(want) == 2:
      np.testing.assert_allclose((got.min(), got.max()), want, atol=1e-6)
    elif want is not None:
      assert abs(got).max() < 1e-6 * max(1, abs(want))
      noisy = unnormalize(preprocessor, "action", np.ones((1, 1), values.dtype))
      np.testing.assert_allclose(noisy, [[want]], rtol=1e-6)
    else:
      assert 0.5 < abs(got).max() < 10
    np.testing.assert_allclose(
      back[:, 0], values, rtol=1e-6, atol=1e-6 * np.ptp(values)
    )
    assert (warning is None and not caplog.text) or warning in caplog.text
    caplog.clear()


@pytest.mark.parametrize("is_compiled", [False, True], ids=["plain", "XLA"])
@pytest.mark.parametrize("mode", MODES)
def test_normalize_is_exact_in_float32_for_a_center_far_from_the_spread(
  mode, is_compiled, tmp_path
):
  values = (1000 + 0.01 * NOISE).astype("float32")
  spec = {"action": Spec((1,), tf.float32, is_sequence=True)}
  with EpisodeStore.create(tmp_path / "store", spec) as writer:
    writer.append_episode({"action": values[:, None]})
  statistics.compute_statistics(tmp_path / "store", tmp_path / "statistics.json")
  labels = {"action": Spec((1,), tf.float32)}
  preprocessor = create(tmp_path / "statistics.json", {"action": mode}, {}, labels)

  @tf.function(jit_compile=is_compiled)
  def there_and_back(action):
    _, got = preprocessor.preprocess({}, {"action": action}, "train")
    return got["action"], unnormalize(preprocessor, "action", got["action"])

  got, back = there_and_back(tf.constant(values[:, None]))
  np.testing.assert_allclose(got[:, 0], by_hand(values, mode), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(back[:, 0], values, rtol=1.2e-7)
  graph = there_and_back.get_concrete_function(tf.TensorSpec((None, 1))).graph
  dtypes = {tensor.dtype for op in graph.get_operations() for tensor in op.outputs}
  assert tf.float64 not in dtypes, "LiteRT has no arithmetic of it"


def test_normalize_warns_of_values_far_outside_the_quantiles(tmp_path, caplog):
  values = (_rare("float64") + 1e-4 * NOISE)[:, None]
  with EpisodeStore.create(
    tmp_path / "store", {"action": Spec((1,), tf.float64, is_sequence=True)}
  ) as writer:
    writer.append_episode({"action": values})
  statistics.compute_statistics(tmp_path / "store", tmp_path / "statistics.json")
  labels = {"action": Spec((1,), tf.float64)}
  with caplog.at_level(logging.WARNING, "absl"):
    create(tmp_path / "statistics.json", {"action": "min_max"}, {}, labels)
    assert not caplog.text
    create(tmp_path / "statistics.json", {"action": "quantile"}, {}, labels)
  assert "[[0]] are normalised by 'quantile' to values beyond 1,000" in caplog.text


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
    r"features/states: expected \(3,\) float32, got statistics of .* mean 'state'",
  ),
  "another name": (
    "path", ALL, {"state": Spec((3,), tf.float32, "pose")}, "features/state: expected",
  ),
  "shape": (
    "path", ALL, {"state": Spec((2, 4), tf.float32, time_offsets=(0, 1))},
    r"features/state: expected \(4,\) float32, got statistics of \(3,\) float32",
  ),
  "dtype": (
    "path", ALL, {"state": Spec((3,), tf.float64)}, "float64, got .* Declare it as flo",
  ),
  "integers": (
    "path", ALL, {"count": Spec((), tf.int64)}, "count: expected a floating point dt",
  ),
  "bytes": ("path", ALL, {"text": Spec((), tf.float32)}, "no statistics of the bytes"),
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
    rf"features/state: expected finite statistics, got a {figure} that is not finite "
    r"of the elements \[\[1\]\]\. Compute"
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


@pytest.mark.parametrize("operation", ["normalize", "unnormalize"])
def test_unknown_paths_are_named(path, operation):
  preprocessor = create(path, {"action": "mean_std"})
  message = rf"{operation}: labels/actions: .* mean 'labels/action'"
  with pytest.raises(errors.SpecError, match=message):
    getattr(preprocessor, operation)("actions", ACTION)


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


class Relative(NoOpPreprocessor):
  """Actions relative to the state; the state passes through."""

  def _preprocess_fn(self, features, labels, mode):
    if labels is not None:
      labels["action"] = labels["action"] - features["state"][:, :2]
    return features, labels


class Clip(NoOpPreprocessor):
  """Clips the state."""

  def _preprocess_fn(self, features, labels, mode):
    features["state"] = tf.clip_by_value(features["state"], 0.0, 1e4)
    return features, labels


class Jitter(NoOpPreprocessor):
  """Distorts the state, in training only."""

  def _preprocess_fn(self, features, labels, mode):
    if mode == "train":
      features["state"] += tf.random.normal(tf.shape(features["state"]))
    return features, labels


class Renamed(SpecTransformationPreprocessor):
  """Reads the state by another path."""

  def get_in_feature_specification(self, mode):
    specs_ = super().get_in_feature_specification(mode)
    return specs.TensorSpecStruct(
      ("pose" if path == "state" else path, spec) for path, spec in specs_.items()
    )

  def _preprocess_fn(self, features, labels, mode):
    features["state"] = tf.identity(features["pose"])
    return features, labels


class Untraceable(NoOpPreprocessor):
  """Needs values, which no trace has."""

  def _preprocess_fn(self, features, labels, mode):
    features["state"] = tf.constant(features["state"].numpy())
    return features, labels


def crop(features, labels):
  return AugmentationPreprocessor(
    features, labels, [RandomCrop((4, 4))], image_paths=["image"]
  )


STATE_AND_ACTION = {"state": "mean_std", "action": "mean_std"}
RAW, RELATIVE = (), (Relative,)
# name: (stages of the statistics, stages before Normalize, modes, what is refused)
CHAINS = {
  "raw": (RAW, RAW, STATE_AND_ACTION, None),
  "behind stages that change nothing": (
    RAW, (NoOpPreprocessor, Jitter, Renamed), STATE_AND_ACTION, None,
  ),
  "behind a stage, raw": (
    RAW, RELATIVE, STATE_AND_ACTION,
    r"labels/action: expected statistics of what Relative gives, got those of the "
    "values as they are stored. Compute them of what Relative gives: t2r_seq stats SOU",
  ),
  "behind a stage, of a path that it leaves": (
    RAW, RELATIVE, {"state": "min_max"}, None,
  ),
  "behind a stage, of its output": (RELATIVE, RELATIVE, STATE_AND_ACTION, None),
  "alone, of a stage's output": (
    RELATIVE, RAW, STATE_AND_ACTION,
    r"action: expected statistics of the values as they are stored, got those of what "
    r"Relative gives. Compute them without a transform: t2r_seq stats SOURCE",
  ),
  "alone, of a path that the stage left": (RELATIVE, RAW, {"state": "mean_std"}, None),
  "another stage": (
    RELATIVE, (Clip,), STATE_AND_ACTION,
    "2 mismatches:.*state: expected .* what Clip gives, got .* as they are stored",
  ),
  "a stage too few": (
    (Clip,), (Clip, Relative, Clip), {"state": "mean_std"},
    "what Clip > Clip gives, got those of what Clip gives",
  ),
  "a chain of both": ((Clip, Relative), (Clip, Relative), STATE_AND_ACTION, None),
  "another order of stages that don't meet": (
    (Relative, Clip), (Clip, Relative), STATE_AND_ACTION, None,
  ),
  "augmented images": (RAW, (crop,), {"image": "mean_std"}, None),
  "a stage that needs values": (RAW, (Untraceable,), {"state": "mean_std"}, None),
}  # fmt: skip


@pytest.mark.parametrize("where", ["a chain", "a chain in a chain", "a TPU's wrapper"])
@pytest.mark.parametrize("name", CHAINS)
def test_statistics_are_of_what_normalize_receives(path, name, where, tmp_path):
  of_statistics, before, modes, refused = CHAINS[name]
  features = {"state": FEATURES["state"], "image": Spec((4, 4, 3), tf.uint8)}
  if modes != {"image": "mean_std"}:
    del features["image"]
  elif of_statistics == RAW:
    features["image"] = Spec((4, 4, 3), tf.float32)
  computed = str(tmp_path / "computed.json")
  transform = None
  if of_statistics:
    transform = ComposedPreprocessor(
      lambda mode: features, lambda mode: LABELS, of_statistics
    )
  store = pathlib.Path(path).parent / "store"
  statistics.compute_statistics(store, computed, transform=transform)

  def normalize(features, labels):
    return Normalize(features, labels, computed, modes)

  def create():
    model = (lambda mode: features, lambda mode: LABELS)
    last = _by_keyword(normalize)
    if where == "a chain in a chain":
      inner = [NoOpPreprocessor, last]
      last = _by_keyword(lambda *model: ComposedPreprocessor(*model, inner))
    stages = [*map(_by_keyword, before), last]
    if where == "a TPU's wrapper":
      chain = _by_keyword(lambda *model: ComposedPreprocessor(*model, stages))
      return TPUPreprocessorWrapper(*model, chain)
    return ComposedPreprocessor(*model, stages)

  if refused is None:
    create()
  else:
    with pytest.raises(errors.SpecError, match=f"(?s)Normalize: .*{refused}"):
      create()


def _by_keyword(factory):
  def create(model_feature_specification_fn, model_label_specification_fn):
    return factory(model_feature_specification_fn, model_label_specification_fn)

  return create


def test_normalize_alone_rejects_statistics_of_a_function(path, tmp_path):
  def to_deltas(episode):
    return {**episode, "action": episode["action"] - episode["action"][:1]}

  computed = tmp_path / "computed.json"
  store = pathlib.Path(path).parent / "store"
  statistics.compute_statistics(store, computed, transform=to_deltas)
  create(computed, {"state": "mean_std"}, {"state": FEATURES["state"]})
  want = "action: expected statistics of the values .* those of what to_deltas gives"
  with pytest.raises(errors.SpecError, match=want):
    create(computed, {"action": "mean_std"}, {})


def test_files_without_path_transforms_use_the_file_transform(path, tmp_path):
  values = json.loads(pathlib.Path(path).read_text())
  for found in values["paths"].values():
    del found["transform"]
  for transform, refused in {"": False, "my_project:Relative": True}.items():
    values["transform"] = transform
    (tmp_path / "old.json").write_text(json.dumps(values))
    if not refused:
      create(tmp_path / "old.json", {"state": "mean_std"})
      continue
    with pytest.raises(errors.SpecError, match="got those of what Relative gives"):
      create(tmp_path / "old.json", {"state": "mean_std"})


def test_floats_before_statistics_of_stored_integers(path):
  image = {"image": Spec((4, 4, 3), tf.float32, data_format="png")}
  chain = [
    ImageToFloatPreprocessor,
    lambda model_feature_specification_fn, model_label_specification_fn: Normalize(
      model_feature_specification_fn,
      model_label_specification_fn,
      path,
      {"image": "mean_std"},
    ),
  ]
  with pytest.raises(
    errors.SpecError, match=r"statistics are of uint8 .* t2r_seq stats"
  ):
    ComposedPreprocessor(lambda mode: image, lambda mode: {}, chain)
