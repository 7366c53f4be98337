"""Meta-examples: made of batches and of records, and preprocessed sample by sample."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, preprocessors, records, specs
from t2r_seq.meta_learning.preprocessors import (
  FixedLenMetaExamplePreprocessor,
  MAMLPreprocessorV2,
  create_metaexample_spec,
  make_meta_example,
  stack_intra_task_episodes,
)
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct


class HalvingPreprocessor(preprocessors.AbstractPreprocessor):
  """Images become floats of half the size; the reward is doubled."""

  def get_in_feature_specification(self, mode):
    return TensorSpecStruct(
      image=ExtendedTensorSpec((8, 6, 3), tf.uint8, "state/image", data_format="png"),
      action=ExtendedTensorSpec((5,), tf.float32, "state/action"),
    )

  def get_out_feature_specification(self, mode):
    features = self.get_in_feature_specification(mode)
    features.image = ExtendedTensorSpec((4, 3, 3), tf.float32, "state/image")
    return features

  def get_in_label_specification(self, mode):
    return TensorSpecStruct(reward=ExtendedTensorSpec((1,), tf.float32, "reward"))

  get_out_label_specification = get_in_label_specification

  def _preprocess_fn(self, features, labels, mode):
    images = tf.image.convert_image_dtype(features.image, tf.float32)
    features.image = images[:, ::2, ::2]
    if labels is not None:
      labels.reward = labels.reward * 2
    return features, labels


BASE = HalvingPreprocessor()


def samples(batch_size, seed=0):
  """Returns what the base preprocessor takes."""
  make = functools.partial(specs.make_random_numpy, batch_size=batch_size, seed=seed)
  return (
    make(BASE.get_in_feature_specification("train")),
    make(BASE.get_in_label_specification("train")),
  )


def assert_preprocessed(given, meta_features, meta_labels, task, first, last):
  """Compares a task with what the base preprocessor makes of some samples."""
  features, labels = BASE.preprocess(*given, "train")
  for path, want in features.items():
    seen = meta_features[f"condition/features/{path}"][task]
    np.testing.assert_allclose(seen, want[first:last][: len(seen)])
    later = meta_features[f"inference/features/{path}"][task]
    np.testing.assert_allclose(later, want[first:last][len(seen) :])
  seen = meta_features["condition/labels/reward"][task]
  np.testing.assert_allclose(seen, labels.reward[first:last][: len(seen)])
  later = meta_labels["reward"][task]
  np.testing.assert_allclose(later, labels.reward[first:last][len(seen) :])


@pytest.mark.parametrize("counts", [(1, 1), (1, 2), (2, 1), (3, 2)])
def test_meta_map_and_preprocess(counts):
  total = sum(counts)
  given = samples(2 * total)
  preprocessor = MAMLPreprocessorV2(BASE)
  dataset = tf.data.Dataset.from_tensor_slices(given).batch(total, drop_remainder=True)
  dataset = dataset.map(preprocessor.create_meta_map_fn(*counts))
  features, labels = next(iter(dataset))
  np.testing.assert_array_equal(
    features.condition.features.image, given[0].image[: counts[0]]
  )
  np.testing.assert_array_equal(labels.reward, given[1].reward[counts[0] : total])
  dataset = dataset.batch(2, drop_remainder=True).map(
    functools.partial(preprocessor.preprocess, mode="train")
  )
  features, labels = next(iter(dataset))
  assert features["condition/features/image"].shape == (2, counts[0], 4, 3, 3)
  for task in range(2):
    span = task * total, (task + 1) * total
    assert_preprocessed(given, features, labels, task, *span)


@pytest.mark.parametrize("counts", [(None, 1), (1, None), (0, 1), (1, -1)])
def test_meta_map_rejects_invalid_counts(counts):
  with pytest.raises(errors.SpecError, match="samples_per_task: expected"):
    MAMLPreprocessorV2(BASE).create_meta_map_fn(*counts)


@pytest.mark.parametrize(
  ("size", "is_whole"), [(2, True), (4, True), (3, False)], ids=["few", "many", "any"]
)
def test_meta_map_rejects_other_batch_sizes(size, is_whole):
  dataset = tf.data.Dataset.from_tensor_slices(samples(8)).batch(size, is_whole)
  to_meta = MAMLPreprocessorV2(BASE).create_meta_map_fn(1, 2)
  with pytest.raises(errors.SpecError, match=r"meta map: .*\n.*expected 3 samples"):
    dataset.map(to_meta)


@pytest.mark.parametrize("is_sequence", [False, True])
def test_records_of_whole_tasks(is_sequence):
  """What `make_meta_example` joins is read as if the samples had come one by one."""
  given = samples(3)
  preprocessor = FixedLenMetaExamplePreprocessor(BASE, 2, 1)
  features, labels = [
    getattr(preprocessor, f"get_in_{kind}_specification")("train")
    for kind in ("feature", "label")
  ]
  assert features["condition/features/image/1"].name == "condition_ep1/state/image"
  assert set(labels) == {"reward/0"}
  own = TensorSpecStruct(
    {
      **BASE.get_in_feature_specification("train"),
      **BASE.get_in_label_specification("train"),
    }
  )
  examples = [
    records.encode_example(own, {p: v[i] for part in given for p, v in part.items()})
    for i in range(3)
  ]
  parsed = [tf.train.Example.FromString(example) for example in examples]
  if is_sequence:
    lists = tf.train.FeatureLists(feature_list={"x": tf.train.FeatureList()})
    parsed = [
      tf.train.SequenceExample(context=each.features, feature_lists=lists)
      for each in parsed
    ]
  meta_example = make_meta_example(parsed[:2], parsed[2:])
  assert isinstance(meta_example, type(parsed[0]))
  if is_sequence:
    found = {*meta_example.feature_lists.feature_list}
    assert found == {"condition_ep0/x", "condition_ep1/x", "inference_ep0/x"}
    meta_example = tf.train.Example(features=meta_example.context)
  parse = records.create_parse_tf_example_fn(features, labels)
  batch = parse(tf.constant([meta_example.SerializeToString()]))
  done = preprocessor.preprocess(*batch, "train")
  assert_preprocessed(given, *done, 0, 0, 3)
  with pytest.raises(errors.SpecError, match="make_meta_example: condition_examples"):
    make_meta_example([], parsed)


def test_samples_by_number_are_stacked_by_path():
  spec = TensorSpecStruct({"a/b": ExtendedTensorSpec((2,), tf.float32, "x")})
  numbered = create_metaexample_spec(spec, 12, "condition")
  assert numbered["a/b/11"].name == "condition_ep11/x"
  tensors = {path: np.full([3, 2], i) for i, path in enumerate(numbered)}
  stacked = stack_intra_task_episodes(TensorSpecStruct(tensors), 12)["a/b"]
  assert stacked.shape == (3, 12, 2)
  np.testing.assert_array_equal(stacked[0, :, 0], range(12))
