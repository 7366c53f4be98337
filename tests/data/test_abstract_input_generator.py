from __future__ import annotations

import functools
import os
import threading

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, specs
from t2r_seq.data import joint


class CountingInputGenerator(data.AbstractInputGenerator):
  """Gives two batches of 'x': 0, 1, 2, ... and of 'y': the same, negative."""

  def _create_batches(self, request):
    mode, batch_size = request.mode, request.batch_size
    x = tf.data.Dataset.range(2 * batch_size).batch(batch_size, drop_remainder=True)

    def batch(x):
      labels = {"y": -x} if len(self._label_spec_for(mode)) else {}
      return specs.TensorSpecStruct(x=x), specs.TensorSpecStruct(labels)

    return x.map(batch)


def scalar(name):
  return {name: specs.ExtendedTensorSpec((), tf.int64, name)}


def build(**kwargs):
  generator = CountingInputGenerator(**kwargs)
  generator.set_feature_specifications(scalar("x"))
  generator.set_label_specifications(scalar("y"))
  return generator


def test_batches_without_a_preprocess_fn_are_unchanged():
  first, second = build(batch_size=2).create_dataset("train")
  np.testing.assert_array_equal(first[0].x, [0, 1])
  np.testing.assert_array_equal(second[1].y, [-2, -3])


def test_batches_are_flat_on_request():
  pairs = list(build(batch_size=2).create_dataset("train"))
  joined = list(build(batch_size=2).create_dataset("train", is_flat=True))
  assert [sorted(batch) for batch in joined] == [["features/x", "labels/y"]] * 2
  for batch, pair in zip(joined, pairs, strict=True):
    for one, other in zip(joint.split(batch), pair, strict=True):
      tf.nest.map_structure(np.testing.assert_array_equal, one, other)
  with pytest.raises(errors.SpecError, match="is_flat: expected True or"):
    build().create_dataset("train", is_flat=1)


def test_preprocess_fn_is_mapped_over_batches():
  generator = build(batch_size=2)

  def preprocess(features, labels, mode):
    assert mode == "train"
    return {"big": features["x"] * 10}, labels

  generator.set_preprocess_fn(functools.partial(preprocess, mode="train"))
  features, _ = next(iter(generator.create_dataset("train")))
  np.testing.assert_array_equal(features.big, [0, 10])


def test_outcome_of_preprocessing_is_validated():
  generator = build(batch_size=2)
  generator.set_feature_specifications(scalar("x"), scalar("big"))
  generator.set_preprocess_fn(lambda features, labels: (features, labels))
  with pytest.raises(errors.SpecError, match="big: expected"):
    generator.create_dataset("train")


def test_preprocess_fn_that_drops_labels_is_an_error():
  generator = build(batch_size=2)
  generator.set_label_specifications(scalar("y"), scalar("y"))
  generator.set_preprocess_fn(lambda features, labels: (features, None))
  with pytest.raises(errors.SpecError, match="y: expected"):
    generator.create_dataset("train")


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_without_labels_they_are_empty(mode):
  generator = build(batch_size=2)
  if mode == "train":
    generator.set_label_specifications({})
  seen = []
  generator.set_preprocess_fn(lambda x, y: (x, seen.append(y)))
  for _, labels in generator.create_dataset(mode):
    assert isinstance(labels, specs.TensorSpecStruct)
    assert len(labels) == 0
  # In mode 'infer' there are no labels; without label specs they are empty.
  assert [labels is None for labels in seen] == [mode == "infer"]


def test_preprocess_fn_must_have_its_mode_bound():
  generator = build()
  with pytest.raises(errors.SpecError, match=r"mode: expected a bound .*functools"):
    generator.set_preprocess_fn(lambda features, labels, mode: (features, labels))


@pytest.mark.parametrize("kind", ["feature", "label"])
def test_specs_must_be_set(kind):
  generator = CountingInputGenerator()
  if kind == "label":
    generator.set_feature_specifications(scalar("x"))
  want = f"CountingInputGenerator: {kind} specs: .*set_specification_from_model"
  with pytest.raises(errors.SpecError, match=want):
    generator.create_dataset("train")
  with pytest.raises(errors.SpecError, match=want):
    generator.create_dataset_input_fn("train")


def test_specs_of_one_mode_do_not_serve_another(kit):
  generator = CountingInputGenerator()
  generator.set_specification_from_model(kit.FakeModel(), "train")
  with pytest.raises(errors.SpecError, match=r"expected 'train'.*got 'eval'"):
    generator.create_dataset("eval")
  with pytest.raises(errors.SpecError, match="Did you mean 'eval'"):
    generator.create_dataset("evla")


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True, "4"])
def test_bad_batch_sizes(batch_size):
  with pytest.raises(errors.SpecError, match=r"batch_size: expected an integer"):
    CountingInputGenerator(batch_size)
  if batch_size:
    with pytest.raises(errors.SpecError, match="batch_size: expected"):
      build().create_dataset("train", batch_size=batch_size)


def test_padding_comes_from_the_model(kit):
  generator = CountingInputGenerator()
  assert generator.padding == "repeat"
  generator.set_specification_from_model(kit.FakeModel(padding="zero"), "train")
  assert generator.padding == "zero"
  with pytest.raises(errors.SpecError, match="Did you mean 'drop'"):
    generator.set_padding("dropp")


def test_plain_tensor_specs_are_specs():
  generator = build(batch_size=2)
  generator.set_feature_specifications({"x": tf.TensorSpec((), tf.int64)})
  features, _ = next(iter(generator.create_dataset("train")))
  assert features.x.shape == (2,)


def test_base_explains_nothing():
  with pytest.raises(RuntimeError, match="as it is"), build().explain_failures():
    raise RuntimeError("as it is")


def test_few_batches_wait_for_a_slow_trainer():
  made = []

  class Noting(CountingInputGenerator):
    def _create_batches(self, request):
      batch_size = request.batch_size

      def note(i):
        made.append(int(i))
        return np.full([batch_size], i)

      def batch(i):
        x = tf.ensure_shape(tf.numpy_function(note, [i], tf.int64), [batch_size])
        return specs.TensorSpecStruct(x=x), specs.TensorSpecStruct(y=-x)

      return tf.data.Dataset.range(10**9).map(batch)

  generator = Noting(batch_size=2)
  generator.set_feature_specifications(scalar("x"))
  generator.set_label_specifications(scalar("y"))
  batches = iter(generator.create_dataset("train"))
  shown, ahead = 0, []
  for _ in range(12):
    # A burst, as after a checkpoint or an evaluation, and then a long step: it lasts
    # until nothing more is made.
    shown += len([next(batches) for _ in range(60)])
    before, still = -1, 0
    while still < 20:
      still = still + 1 if len(made) == before else 0
      before = len(made)
      threading.Event().wait(0.005)
    ahead.append(len(made) - shown)
  # Two that wait; others on their way through the map, one for each core.
  assert max(ahead) <= 4 + 2 * (os.cpu_count() or 1), ahead


READ_ALL = {
  "records": lambda: data.DefaultRecordInputGenerator("x.tfrecord"),
  "a generator": lambda: data.GeneratorInputGenerator(list),
  "a mixture": lambda: data.MixtureInputGenerator(
    {"x": data.DefaultRecordInputGenerator("x.tfrecord")}
  ),
}


@pytest.mark.parametrize("name", READ_ALL)
def test_worker_requires_a_shard(name):
  """Each worker had read all files, as if they were its own."""
  made = READ_ALL[name]()
  made.set_feature_specifications({"x": specs.ExtendedTensorSpec((), tf.float32, "x")})
  made.set_label_specifications({})
  context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1)
  want = "input_context: expected a generator that reads shards, for pip"
  want += "eline 1 of 2, got one that reads all data in each. Give the strategy the wh"
  with pytest.raises(errors.SpecError, match=want):
    made.create_dataset("train", input_context=context)
