"""Float features travel as bfloat16, and the model takes float32."""

from __future__ import annotations

import functools

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  data,
  errors,
  models,
  preprocessors,
  specs,
  tensorspec_utils,
  training,
)
from t2r_seq.training.trainer import Trainer

_SPEC = specs.ExtendedTensorSpec


@gin.configurable
class Line(models.RegressionModel):
  """Fits a line; keeps what it was given."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      x=_SPEC((1,), tf.float32, "x"), n=_SPEC((1,), tf.int32, "n")
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=_SPEC((1,), tf.float32, "y"))

  def create_network(self):
    return tf.keras.layers.Dense(1, kernel_initializer="ones")

  def a_func(self, features, mode):
    assert features.x.dtype == tf.float32
    return {"inference_output": self.network(features.x)}


def _examples():
  yield (
    {"x": np.array([1.001], np.float32), "n": np.array([3], np.int32)},
    {"target": np.array([1.001], np.float32)},
  )


@pytest.mark.parametrize("cast_labels", [False, True])
def test_wrapper_sends_bfloat16_and_receives_float32(cast_labels, tmp_path):
  gin.parse_config(f"""
    Line.preprocessor_cls = @TPUPreprocessorWrapper
    TPUPreprocessorWrapper.preprocessor_cls = @NoOpPreprocessor
    TPUPreprocessorWrapper.cast_labels = {cast_labels}
  """)
  model = Line(action_size=1)
  generator = data.GeneratorInputGenerator(_examples, batch_size=1)
  generator.set_specification_from_model(model, "train")
  dataset = generator.create_dataset("train")
  features, labels = next(iter(dataset))
  assert (features["x"].dtype, features["n"].dtype) == (tf.bfloat16, tf.int32)
  assert labels["target"].dtype == (tf.bfloat16 if cast_labels else tf.float32)

  trainer = Trainer(model, tf.distribute.get_strategy())
  loss = float(trainer.train_step(features, labels)["loss"])
  # bfloat16 has no number between 1 and 1.0078.
  assert loss == pytest.approx(0.0 if cast_labels else 0.001**2, rel=1e-3)

  model.network.set_weights([np.ones((1, 1)), np.zeros(1)])
  loaded = tf.saved_model.load(training.export_saved_model(model, str(tmp_path), 0))
  outputs = loaded.signatures["serving_default"](
    x=tf.constant([[1.001]]), n=tf.constant([[3]])
  )
  np.testing.assert_allclose(outputs["inference_output"], [[1.001]], rtol=1e-6)
  assert isinstance(model.preprocessor, preprocessors.TPUPreprocessorWrapper)


_OPTIONAL = _SPEC((1,), tf.int32, "optional", is_optional=True)
_FLOAT = specs.TensorSpecStruct(x=_SPEC((1,), tf.float32, "x"), optional=_OPTIONAL)
_BFLOAT16 = specs.TensorSpecStruct(x=_SPEC((1,), tf.bfloat16, "x"), optional=_OPTIONAL)
_LABEL = specs.TensorSpecStruct(
  text=_SPEC((1,), tf.string, "text"),
  optional=_SPEC((1,), tf.bfloat16, "optional", is_optional=True),
)


class _ReadsIntegers(preprocessors.NoOpPreprocessor):
  def get_in_feature_specification(self, mode):
    return tensorspec_utils.replace_dtype(
      super().get_in_feature_specification(mode), tf.bfloat16, tf.int32
    )


def _wrap(feature_spec, wrapped_cls=preprocessors.NoOpPreprocessor):
  wrapped = wrapped_cls(lambda mode: feature_spec, lambda mode: _LABEL)
  return preprocessors.TPUPreprocessorWrapper(preprocessor=wrapped)


@pytest.mark.parametrize("mode", specs.ModeKeys.ALL)
@pytest.mark.parametrize("feature_spec", [_FLOAT, _BFLOAT16], ids=["float", "bfloat16"])
def test_specs(feature_spec, mode):
  wrapper = _wrap(feature_spec)
  in_features = wrapper.get_in_feature_specification(mode)
  in_labels = wrapper.get_in_label_specification(mode)
  assert {k: s.dtype for k, s in in_features.items()} == {
    "x": tf.float32,
    "optional": tf.int32,
  }
  assert in_labels["optional"].dtype == tf.float32
  sent = wrapper.get_out_feature_specification(mode)
  is_float = mode == "infer" and feature_spec is _FLOAT
  want = tf.float32 if is_float else tf.bfloat16
  assert {k: s.dtype for k, s in sent.items()} == {"x": want}
  assert list(wrapper.get_out_label_specification(mode)) == ["text"]


@pytest.mark.parametrize("has_labels", [True, False])
@pytest.mark.parametrize("feature_spec", [_FLOAT, _BFLOAT16], ids=["float", "bfloat16"])
def test_optional_tensors_are_not_sent(feature_spec, has_labels):
  wrapper = _wrap(feature_spec)
  features = {"x": tf.constant([[1.001]]), "optional": tf.constant([[1]])}
  labels = {"text": tf.constant([["a"]]), "optional": tf.constant([[1.0]])}
  got, got_labels = wrapper.preprocess(
    features, labels if has_labels else None, "train"
  )
  assert {k: t.dtype for k, t in got.items()} == {"x": tf.bfloat16}
  assert (None if got_labels is None else list(got_labels)) == (
    ["text"] if has_labels else None
  )


@pytest.mark.parametrize("labels", [{"text": tf.constant([["a"]])}, None])
def test_integers_are_not_cast_to_bfloat16(labels):
  wrapper = _wrap(_BFLOAT16, _ReadsIntegers)
  with pytest.raises(
    errors.SpecError, match=r"x: expected float32, got \(1, 1\) int32"
  ):
    wrapper.preprocess({"x": tf.constant([[1]])}, labels, "train")


class _Scaled(preprocessors.NoOpPreprocessor):
  """Takes an option first and passes the rest on, as research projects do."""

  def __init__(self, scale=2.0, **kwargs):
    super().__init__(**kwargs)
    self._scale = scale

  def _preprocess_fn(self, features, labels, mode):
    features.x = features.x * self._scale
    return features, labels


@pytest.mark.parametrize(
  "preprocessor_cls",
  [
    _Scaled,
    functools.partial(preprocessors.TPUPreprocessorWrapper, preprocessor_cls=_Scaled),
    functools.partial(
      preprocessors.ComposedPreprocessor, preprocessor_classes=[_Scaled]
    ),
    lambda features, labels: _Scaled(
      model_feature_specification_fn=features, model_label_specification_fn=labels
    ),
  ],
  ids=["model", "wrapper", "composed", "by position"],
)
def test_preprocessors_take_options_first(preprocessor_cls):
  model = Line(action_size=1, preprocessor_cls=preprocessor_cls)
  features = {"x": tf.constant([[1.0]]), "n": tf.constant([[1]])}
  features, _ = model.preprocessor.preprocess(features, None, "infer")
  assert features.x.numpy().tolist() == [[2.0]]


def _chain(*stages):
  spec_fns = (lambda mode: _FLOAT, lambda mode: {})
  return preprocessors.ComposedPreprocessor(*spec_fns, stages)


_PARTIAL = r"Give {0} itself, with its options by functools.partial\({0}, ...\)"
# name: what is created, and the error.
MISUSES = {
  "an instance as a stage": (
    lambda: _chain(preprocessors.NoOpPreprocessor, _wrap(_FLOAT)),
    "ComposedPreprocessor: stage 2 of 2: preprocessor: expected a class, .* got an "
    "instance of TPUPreprocessorWrapper. " + _PARTIAL.format("TPUPreprocessorWrapper"),
  ),
  "an instance as preprocessor_cls": (
    lambda: preprocessors.TPUPreprocessorWrapper(
      lambda mode: _FLOAT, lambda mode: {}, _wrap(_FLOAT).preprocessor
    ),
    "expected a class, .* got an instance of NoOpPreprocessor",
  ),
  "a model's": (
    lambda: Line(action_size=1, preprocessor_cls=_wrap(_FLOAT)).preprocessor,
    "expected a class, .* got an instance of TPUPreprocessorWrapper",
  ),
  "around an instance, as a stage": (
    lambda: _chain(lambda features, labels: _wrap(_FLOAT)),
    "stage 1 of 1: TPUPreprocessorWrapper: the out specs do not meet .* received by "
    r"the model alone: wrap the whole chain, TPUPreprocessorWrapper\(preprocessor_cls",
  ),
  "a class as the instance": (
    lambda: preprocessors.TPUPreprocessorWrapper(
      preprocessor=preprocessors.NoOpPreprocessor
    ),
    "preprocessor: expected an instance, got the class NoOpPreprocessor. Give it as",
  ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_instances_and_classes_in_the_wrong_place(name):
  create, match = MISUSES[name]
  with pytest.raises(errors.SpecError, match=match):
    create()


def test_sources_of_mixtures_take_options_first():
  mixture = data.MixtureInputGenerator(
    {"a": data.GeneratorInputGenerator(_examples)},
    preprocessors={"a": _Scaled},
    batch_size=1,
  )
  mixture.set_specification_from_model(Line(action_size=1), "train")
  features, _ = next(iter(mixture.create_dataset("train")))
  np.testing.assert_allclose(features["x"], [[2.002]])
