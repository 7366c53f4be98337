from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, preprocessors, specs


def feature_spec(mode):
  del mode
  return {"state": specs.ExtendedTensorSpec((2,), tf.float32, "state")}


def label_spec(mode):
  del mode
  return {"target": specs.ExtendedTensorSpec((1,), tf.float32, "target")}


class ScalePreprocessor(preprocessors.AbstractPreprocessor):
  """Multiplies by a factor that it stores after the base's `__init__`."""

  def __init__(self, features=None, labels=None, factor=2.0, out=feature_spec):
    super().__init__(features, labels)
    self.factor = factor
    self.out = out

  def get_in_feature_specification(self, mode):
    del mode
    return {"raw": specs.ExtendedTensorSpec((2,), type(self.factor), "raw")}

  def get_in_label_specification(self, mode):
    return label_spec(mode)

  def get_out_feature_specification(self, mode):
    return self.out(mode)

  def get_out_label_specification(self, mode):
    return label_spec(mode)

  def _preprocess_fn(self, features, labels, mode):
    return {"state": tf.cast(features["raw"] * self.factor, tf.float32)}, labels


def batch():
  return {"raw": np.ones((3, 2), np.float64)}, {"target": np.zeros((3, 1), np.float32)}


def build(**kwargs):
  kwargs = {"factor": np.float64(2), **kwargs}
  return ScalePreprocessor(feature_spec, label_spec, **kwargs)


def test_validates_and_transforms():
  features, labels = build().preprocess(*batch(), mode="train")
  assert isinstance(features, specs.TensorSpecStruct)
  np.testing.assert_array_equal(features.state, np.full((3, 2), 2, np.float32))
  np.testing.assert_array_equal(labels.target, np.zeros((3, 1), np.float32))


def test_labels_may_be_none():
  features, labels = build().preprocess(batch()[0], None, "infer")
  assert labels is None
  assert list(features) == ["state"]


def test_further_paths_are_dropped():
  features, labels = batch()
  features["more"] = np.zeros((3,), np.float32)
  features, _ = build().preprocess(features, labels, "eval")
  assert list(features) == ["state"]


def test_batch_that_does_not_fit_names_every_path():
  with pytest.raises(
    errors.SpecError, match=r"raw: expected .*2.* float64, got \(3, 4\)"
  ):
    build().preprocess({"raw": np.ones((3, 4))}, None, "train")
  with pytest.raises(errors.SpecError, match="target"):
    build().preprocess(batch()[0], {}, "train")


def test_outcome_that_does_not_fit_is_an_error():
  class Broken(ScalePreprocessor):
    def _preprocess_fn(self, features, labels, mode):
      return {"state": features["raw"][:, :1]}, labels

  broken = Broken(feature_spec, label_spec, factor=np.float64(1))
  with pytest.raises(
    errors.SpecError, match=r"state: expected .*2.* float32, got \(3, 1\)"
  ):
    broken.preprocess(*batch(), mode="train")


def test_hook_that_drops_labels_is_an_error():
  class Dropping(ScalePreprocessor):
    def _preprocess_fn(self, features, labels, mode):
      return super()._preprocess_fn(features, None, mode)

  dropping = Dropping(feature_spec, label_spec, factor=np.float64(1))
  with pytest.raises(errors.SpecError, match="target"):
    dropping.preprocess(*batch(), mode="train")


def test_unknown_mode_is_named():
  with pytest.raises(
    errors.SpecError, match=r"mode: .*got 'trian'. Did you mean 'train'"
  ):
    build().preprocess(*batch(), mode="trian")


def not_a_spec_in_eval(mode):
  return {"state": "float32" if mode == "eval" else feature_spec(mode)["state"]}


def other_shape_in_infer(mode):
  shape = (3,) if mode == "infer" else (2,)
  return {"state": specs.ExtendedTensorSpec(shape, tf.float32, "state")}


def misspelt(mode):
  return {"stat": feature_spec(mode)["state"]}


def optional_only(mode):
  spec = feature_spec(mode)["state"]
  return {"state": specs.ExtendedTensorSpec.from_spec(spec, is_optional=True)}


def sequence(mode):
  spec = feature_spec(mode)["state"]
  return {"state": specs.ExtendedTensorSpec.from_spec(spec, is_sequence=True)}


@pytest.mark.parametrize(
  ("out", "want"),
  [
    (sequence, r"features/state .*: expected .*float32, got .*float32 sequence"),
    (not_a_spec_in_eval, r"get_out_feature_specification\('eval'\).*state"),
    (
      other_shape_in_infer,
      r"features/state \(mode infer\): expected \(2,\) float32, got \(3,\) float32",
    ),
    (
      misspelt,
      r"features/state \(mode train, eval, infer\): .*got nothing. Did you mean 'stat'",
    ),
    (optional_only, "expected required .*got optional"),
  ],
)
def test_specs_of_all_modes_are_checked_at_construction(out, want):
  with pytest.raises(errors.SpecError, match=want):
    build(out=out)


def test_all_mismatches_come_at_once():
  def wanted(mode):
    return {"a": feature_spec(mode)["state"], "b": feature_spec(mode)["state"]}

  with pytest.raises(errors.SpecError, match=r"(?s)features/a .*features/b .*labels/x"):
    ScalePreprocessor(
      wanted, lambda mode: {"x": label_spec(mode)["target"]}, factor=np.float64(1)
    )


def test_without_model_specs_nothing_is_compared():
  preprocessor = ScalePreprocessor(factor=np.float64(3))
  features, _ = preprocessor.preprocess(batch()[0], None, "train")
  np.testing.assert_array_equal(features.state, np.full((3, 2), 3, np.float32))


def test_runs_in_tf_data():
  preprocessor = build()
  dataset = tf.data.Dataset.from_tensor_slices(batch()).batch(2)
  dataset = dataset.map(lambda f, y: preprocessor.preprocess(f, y, "train"))
  features, labels = next(iter(dataset))
  np.testing.assert_array_equal(features.state, np.full((2, 2), 2, np.float32))
  assert labels.target.shape == (2, 1)


def test_runs_in_a_saved_model(tmp_path):
  preprocessor = build()

  class Module(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.float64)])
    def run(self, raw):
      return preprocessor.preprocess({"raw": raw}, None, "infer")[0].to_dict()

  tf.saved_model.save(Module(), str(tmp_path))
  got = tf.saved_model.load(str(tmp_path)).run(tf.ones((1, 2), tf.float64))
  np.testing.assert_array_equal(got["state"], [[2, 2]])


def test_hook_may_branch_on_tensors():
  class Branching(ScalePreprocessor):
    def _preprocess_fn(self, features, labels, mode):
      raw = features["raw"]
      if tf.reduce_sum(raw) > 5:  # AutoGraph turns it into a tf.cond.
        raw = -raw
      return {"state": tf.cast(raw, tf.float32)}, labels

  preprocessor = Branching(feature_spec, label_spec, factor=np.float64(1))
  dataset = tf.data.Dataset.from_tensor_slices(batch()).batch(3)
  dataset = dataset.map(lambda f, y: preprocessor.preprocess(f, y, "train"))
  ((features, _),) = dataset
  np.testing.assert_array_equal(features.state, np.full((3, 2), -1, np.float32))
