from __future__ import annotations

import pytest
import tensorflow as tf

from t2r_seq import data, errors


@pytest.fixture(name="patterns")
def fixture_patterns(tmp_path, kit):
  """Two patterns, of two files and of one; values below 100, and from there on."""
  kit.write_examples(tmp_path / "a0.tfrecord", range(3))
  kit.write_examples(tmp_path / "a1.tfrecord", range(3, 6))
  kit.write_examples(tmp_path / "b.tfrecord", range(100, 102))
  return [str(tmp_path / "a*"), str(tmp_path / "b.tfrecord")]


def batches(generator, kit, mode="train", count=6):
  spec = {"x": kit.spec((), tf.int64, "x")}
  generator.set_specification_from_model(
    kit.FakeModel(lambda mode: spec, lambda mode: {}), mode
  )
  dataset = generator.create_dataset(mode).take(count)
  return [features["x"].numpy().tolist() for features, _ in dataset]


def num_small(batch):
  return sum(value < 100 for value in batch)


# weights: examples of the first pattern in each batch of eight
WEIGHTS = {
  "equal": (None, 4),
  "of another sum": ([6, 2], 6),
  "by size": ("by_size", 6),
}


@pytest.mark.parametrize("form", ["list", "string"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_each_batch_has_the_patterns_by_weight(patterns, kit, name, form):
  weights, want = WEIGHTS[name]
  given = patterns if form == "list" else ",".join(patterns)
  generator = data.WeightedRecordInputGenerator(given, weights, batch_size=8)
  got = batches(generator, kit)
  assert [num_small(batch) for batch in got] == [want] * 6
  assert {value for batch in got for value in batch} == {*range(6), 100, 101}


def test_weights_by_pattern_and_the_report(patterns, kit):
  weights = {patterns[1]: 3, patterns[0]: 1}
  generator = data.WeightedRecordInputGenerator(patterns, weights, batch_size=4)
  assert [num_small(batch) for batch in batches(generator, kit)] == [1] * 6
  assert list(generator.report.examples) == patterns


def test_weights_must_match_distinct_patterns(patterns):
  with pytest.raises(errors.SpecError, match="a weight for each of"):
    data.WeightedRecordInputGenerator(patterns, [1, 2, 3])
  with pytest.raises(errors.SpecError, match="What is listed twice is one source"):
    data.WeightedRecordInputGenerator(2 * patterns[:1], [1, 1])


def test_seed_is_that_of_all_shuffles(patterns, kit):
  def order(seed):
    return batches(data.WeightedRecordInputGenerator(patterns, seed=seed), kit)

  assert order(1) == order(1) != order(2)


def test_eval_reads_each_pattern_once(patterns, kit):
  generator = data.WeightedRecordInputGenerator(patterns, batch_size=4)
  assert batches(generator, kit, "eval") == [[0, 1, 2, 3], [4, 5], [100, 101]]
