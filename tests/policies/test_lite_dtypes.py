"""Policies of all dtypes, and of texts, for LiteRT: exported and compared."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  cli,
  data,
  errors,
  lite,
  models,
  policies,
  preprocessors,
  serving,
  specs,
  statistics,
  store,
  training,
  verification,
)

pytest.importorskip("ai_edge_litert")

_SPEC = specs.ExtendedTensorSpec
TEXT = preprocessors.HashedTextPreprocessor


class ReachModel(models.RegressionModel):
  """Two images, a position of each dtype, and an instruction if it has a text."""

  dtypes, cast, has_text, text_offsets = (tf.float32,), None, False, None

  def get_feature_specification(self, mode):
    spec = {
      "image": _SPEC((2, 8, 8, 1), tf.float32, "image", time_offsets=(-1, 0)),
    }
    for dtype in self.dtypes:
      name = f"pos/{dtype.name}"
      spec[name] = _SPEC((2, 3), dtype, name, time_offsets=(-3, 0))
    if self.has_text:
      stack = [] if self.text_offsets is None else [len(self.text_offsets)]
      spec["task/text"] = _SPEC(
        (*stack, 8), tf.float32, "text", time_offsets=self.text_offsets
      )
    return specs.TensorSpecStruct(spec)

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=_SPEC((2,), tf.float32, "target"))

  def create_network(self):
    layers = tf.keras.layers
    convolution = layers.Conv2D(4, 3, activation="relu")
    encoder = [convolution, layers.LayerNormalization(), layers.Flatten()]
    return {"encoder": tf.keras.Sequential(encoder), "out": layers.Dense(2)}

  def a_func(self, features, mode):
    image = tf.transpose(features.image[..., 0], [0, 2, 3, 1])
    if self.cast:
      image = tf.cast(image, self.cast)
    parts = [self.network["encoder"](image)]
    for dtype in self.dtypes:
      part = tf.cast(tf.reshape(features.pos[dtype.name], [-1, 6]), tf.float32)
      parts.append(part / (dtype.max if dtype.is_integer else 1.0))
    if self.has_text:
      text = features.task.text
      parts.append(tf.reshape(text, [-1, int(np.prod(text.shape[1:]))]))
    joined = tf.concat([tf.cast(part, parts[0].dtype) for part in parts], -1)
    return {"inference_output": tf.cast(self.network["out"](joined), tf.float32)}


def _chain(*stages):
  return lambda *specification_fns: preprocessors.ComposedPreprocessor(
    *specification_fns, preprocessor_classes=stages
  )


def _texts(*specification_fns, **options):
  return TEXT(
    *specification_fns, **options, text_paths=["task/text"], num_buckets=64, ngrams=2
  )


def _images(*specification_fns, **options):
  to_float = preprocessors.ImageToFloatPreprocessor
  return to_float(*specification_fns, **options, image_paths=["image"])


def _wrapped(*specification_fns, **options):
  wrapper = preprocessors.TPUPreprocessorWrapper
  return wrapper(
    *specification_fns, **options, preprocessor_cls=_texts, cast_labels=True
  )


_WORDS = {"has_text": True, "preprocessor_cls": _texts}
# Arguments and attributes of the model; and how much the outputs of float32 may differ.
CASES = {
  "mixed_bfloat16": ({"dtype_policy": "mixed_bfloat16"}, 0.05),
  "mixed_float16": ({"dtype_policy": "mixed_float16"}, 0.01),
  "bfloat16": ({"dtype_policy": "bfloat16"}, 0.05),
  "float16": ({"dtype_policy": "float16"}, 0.01),
  "casts to bfloat16": ({"cast": tf.bfloat16, "dtype_policy": "mixed_bfloat16"}, 0.05),
  "features of all dtypes": (
    {"dtypes": (tf.bfloat16, tf.float16, tf.float64, tf.uint16, tf.uint32)},
    1e-5,
  ),
  "text": (_WORDS, 1e-5),
  "window of texts": ({**_WORDS, "text_offsets": (-1, 0)}, 1e-5),
  "text and uint8 image": (
    {"has_text": True, "preprocessor_cls": _chain(_images, _texts)},
    1e-5,
  ),
  "text sent as bfloat16": (
    {"has_text": True, "preprocessor_cls": _wrapped, "dtype_policy": "mixed_bfloat16"},
    0.05,
  ),
}
_ARGUMENTS = ("dtype_policy", "preprocessor_cls")
# The others are exported as they were created: what training changes is the weights.
_TRAINED = ("mixed_float16", "text sent as bfloat16")


def _make(changes):
  given = {name: changes[name] for name in _ARGUMENTS if name in changes}
  own = {name: value for name, value in changes.items() if name not in given}
  return type("CaseModel", (ReachModel,), own)(**given)


def _export(model, folder, is_trained):
  """Exports, perhaps after two steps of training."""
  if not is_trained:
    model.build()
    training.export_saved_model(model, str(folder / "run"), 0)
    return str(folder / "run")
  training.train_eval_model(
    model,
    data.DefaultRandomInputGenerator(batch_size=4),
    model_dir=str(folder / "run"),
    max_train_steps=2,
    create_exporters_fn=lambda: [training.LatestExporter()],
    run_config=training.RunConfig(seed=0, show_progress=False),
  )
  return str(folder / "run/export/latest")


def _observation(spec, number):
  observation = specs.make_random_numpy(spec, 1, seed=number)
  alone = {path: value[0] for path, value in observation.items()}
  if "task/text" in alone:
    alone["task/text"] = ["Push the BLUE cube!", "then, öffne it", ""][number % 3]
  return alone


@pytest.mark.parametrize("name", CASES)
def test_actions_are_those_of_the_export(name, tmp_path, capfd):
  changes, tolerance = CASES[name]
  exports = _export(_make(changes), tmp_path, name in _TRAINED)
  out = str(tmp_path / "lite")
  capfd.readouterr()
  assert cli.main(["export", "--lite", exports, out]) == 0, capfd.readouterr().err
  printed = capfd.readouterr().out
  narrow = {"mixed_", "", "casts to ", "text sent as "}
  dtype = next((d for d in ("bfloat16", "float16") if name.endswith(d)), None)
  if dtype and name.removesuffix(dtype) in narrow:
    assert f"({dtype} became float32)." in printed
  predictor = policies.ExportedSavedModelPredictor(exports, timeout=0)
  predictor.restore()
  policy, step_spec = lite.LitePolicy(out), predictor.get_step_specification()
  for number in range(4):
    observation = _observation(step_spec, number)
    given = {path: np.asarray(value)[None] for path, value in observation.items()}
    want = predictor.step(given, is_first=[number == 0])["inference_output"][0]
    got, _ = policy.sample_action(observation)
    np.testing.assert_allclose(got, want, tolerance, tolerance)


def _write_store(model, folder):
  """Writes an episode of five steps with what a model takes."""
  spec = {
    path: _SPEC(
      leaf.frame_shape, leaf.dtype, leaf.name, is_sequence=leaf.time_offsets is not None
    )
    for path, leaf in model.preprocessor.get_in_feature_specification("train").items()
  }
  spec["target"] = _SPEC((2,), tf.float32, "target", is_sequence=True)
  episode = {
    path: value[0]
    for path, value in specs.make_random_numpy(spec, 1, sequence_length=5).items()
  }
  with store.EpisodeStore.create(folder, spec) as writer:
    writer.append_episode(episode)


@pytest.mark.parametrize("name", ["features of all dtypes", "text", "window of texts"])
def test_verify_finds_no_difference(name, tmp_path):
  pytest.importorskip("websockets")
  model = _make(CASES[name][0])
  model.build()
  exports = str(tmp_path / "exports")
  training.export_saved_model(model, exports, 0)
  policies.export_lite(exports, str(tmp_path / "lite"))
  _write_store(model, tmp_path / "store")
  predictor = policies.ExportedSavedModelPredictor(exports, timeout=0)
  predictor.restore()
  policy = lite.LitePolicy(str(tmp_path / "lite"))
  with (
    serving.PolicyServer(policy, port=0) as lite_server,
    serving.PolicyServer(predictor, port=0) as server,
  ):
    clients = [serving.PolicyClient(port=each.port) for each in (lite_server, server)]
    for each in (policy, predictor, *clients):
      report = verification.verify(each, str(tmp_path / "store"), model)
      assert not report.differences, (each, report.differences)
    for client in clients:
      client.close()


class StringModel(ReachModel):
  """Hashes a text by itself."""

  def get_feature_specification(self, mode):
    spec = super().get_feature_specification(mode)
    spec["word"] = _SPEC((), tf.string, "word")
    return spec

  def a_func(self, features, mode):
    outputs = super().a_func(features, mode)
    bucket = tf.strings.to_hash_bucket_fast(features.word, 7)
    outputs["inference_output"] += tf.cast(bucket, tf.float32)[:, None]
    return outputs


class Float64Model(ReachModel):
  """Computes in float64."""

  dtypes = (tf.float64,)

  def a_func(self, features, mode):
    outputs = super().a_func(features, mode)
    outputs["inference_output"] += tf.cast(
      features.pos.float64[:, 0, :2] - 1e9, tf.float32
    )
    return outputs


class TableModel(ReachModel):
  """Looks its bias up in a table, which no export holds."""

  def create_network(self):
    values = tf.lookup.KeyValueTensorInitializer(tf.constant([0]), tf.constant([1.0]))
    self.table = tf.lookup.StaticHashTable(values, 0.0)
    return super().create_network()

  def a_func(self, features, mode):
    outputs = super().a_func(features, mode)
    outputs["inference_output"] += self.table.lookup(tf.constant([0]))
    return outputs


class UnnormalizingModel(ReachModel):
  """Names a kind of values that there is not."""

  def create_export_outputs_fn(self, features, inference_outputs, mode):
    action = inference_outputs["inference_output"]
    kind = "label"
    return {
      "action": preprocessors.unnormalize(self.preprocessor, "target", action, kind)
    }


def _normalize(folder):
  spec = {"target": _SPEC((2,), tf.float32, "target", is_sequence=True)}
  with store.EpisodeStore.create(folder / "store", spec) as writer:
    writer.append_episode({"target": np.eye(2, dtype=np.float32)})
  path = str(folder / "statistics.json")
  statistics.compute_statistics(folder / "store", path)
  return functools.partial(
    preprocessors.Normalize, statistics_path=path, modes={"target": "mean_std"}
  )


# Of each whether the run also exports for LiteRT.
ERRORS = {
  "a string": (
    StringModel,
    True,
    "word: expected numbers, or texts of a HashedTextPreprocessor, got a string",
  ),
  "arithmetic in float64": (
    Float64Model,
    True,
    r"got the op \[.*Sub.*\].*cast float64 before any arithmetic",
  ),
  "a lookup table": (TableModel, False, "uses the variables of create_network only"),
  "unnormalize of another kind": (
    UnnormalizingModel,
    False,
    r"label/target: expected one of the normalised paths \[labels/target\]",
  ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_unsupported_dtypes_are_refused_before_training(name, tmp_path):
  model_cls, is_lite, message = ERRORS[name]
  with pytest.raises(errors.SpecError, match=message):
    training.train_eval_model(
      model_cls(preprocessor_cls=_normalize(tmp_path)),
      data.DefaultRandomInputGenerator(batch_size=4),
      model_dir=str(tmp_path),
      max_train_steps=2,
      create_exporters_fn=lambda: [training.LatestExporter(lite=is_lite)],
      run_config=training.RunConfig(show_progress=False),
    )
  assert not list(tmp_path.glob("model.ckpt*"))


def test_exporters_write_for_litert_and_change_no_weights(tmp_path):
  weights = []
  for exporters in ([training.LatestExporter(lite=True)], []):
    model = _make(_WORDS)
    training.train_eval_model(
      model,
      data.DefaultRandomInputGenerator(batch_size=4),
      model_dir=str(tmp_path / str(len(exporters))),
      max_train_steps=2,
      create_exporters_fn=lambda exporters=exporters: exporters,
      run_config=training.RunConfig(seed=0, show_progress=False),
    )
    weights.append(model.policy_weights)
  assert weights[0].keys() == weights[1].keys()
  for name, value in weights[0].items():
    np.testing.assert_array_equal(value, weights[1][name])
  (export,) = policies.list_exports(str(tmp_path / "1/export/latest"))
  policy = lite.LitePolicy(f"{export.path}/lite")
  assert policy.global_step == 2
  assert policy.layout.export == export.path


def test_texts_that_are_none_are_refused(tmp_path):
  model = _make(_WORDS)
  model.build()
  exported = training.export_saved_model(model, str(tmp_path / "exports"), 0)
  policies.export_lite(exported, str(tmp_path / "lite"))
  policy = lite.LitePolicy(str(tmp_path / "lite"))
  observation = {
    path: np.zeros(leaf.shape, leaf.dtype)
    for path, leaf in policy.pure.step_specification().items()
  }
  for text, got in ((3, r"\(\) int64"), (["a", "b"], r"\(2,\) object")):
    with pytest.raises(
      errors.SpecError, match=rf"step: task/text: expected \(\) string, got {got}"
    ):
      policy.step({**observation, "task/text": text})
