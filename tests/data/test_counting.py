"""How many examples a pass has, without making them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, records


def generator_of(patterns, model, mode="eval", **kwargs):
  generator = data.DefaultRecordInputGenerator(patterns, **kwargs)
  generator.set_specification_from_model(model, mode)
  return generator


def num_read(generator):
  dataset = generator.create_dataset("eval").unbatch()
  return sum(1 for _ in dataset)


@pytest.mark.parametrize("padding", ["drop", "repeat"])
@pytest.mark.parametrize("sequence", [{}, {"sequence_length": 2, "stride": 2}])
def test_windows(tmp_path, kit, padding, sequence):
  kit.write_episodes(tmp_path / "a.tfrecord", [5, 2, 9])
  kit.write_episodes(tmp_path / "b.tfrecord.gz", [4])

  def features(mode):
    del mode
    stack = kit.spec((2, 2), tf.float32, "state", time_offsets=(-1, 0))
    fields = {**stack.fields(), "is_sequence": bool(sequence)}
    return {"state": type(stack)(**fields)}

  model = kit.FakeModel(features, lambda mode: {}, padding)
  generator = generator_of(str(tmp_path / "*"), model, **sequence)
  assert generator.num_examples is None
  assert generator.count_examples() == num_read(generator) == generator.num_examples


def test_count_is_unknown_without_specs(tmp_path, kit):
  path = kit.write_examples(tmp_path / "a.tfrecord", range(3))
  assert data.DefaultRecordInputGenerator(path).count_examples() is None


def test_no_image_is_decoded(tmp_path, kit):
  def features(mode):
    del mode
    return {
      "image": kit.spec(
        (1, 4, 4, 3), tf.uint8, "image", data_format="png", time_offsets=(0,)
      )
    }

  flat = {"image": kit.spec((), tf.string, "image", is_sequence=True)}
  path = str(tmp_path / "a.tfrecord")
  records.write_records(path, flat, [{"image": np.array([b"no png"] * 3)}])
  generator = generator_of(path, kit.FakeModel(features, lambda mode: {}))
  assert generator.count_examples() == 3


def test_records_are_not_parsed(tmp_path, kit):
  path = str(tmp_path / "a.tfrecord")
  with tf.io.TFRecordWriter(path) as writer:
    for i in range(300):
      writer.write(b"no proto %d" % i)
  model = kit.FakeModel(lambda mode: {"x": kit.spec((), tf.int64, "x")}, lambda m: {})
  assert generator_of(path, model).count_examples() == 300


def test_datasets_of_different_size_can_not_be_counted(tmp_path, kit):
  patterns = {
    key: kit.write_examples(tmp_path / f"{key}.tfrecord", range(size))
    for key, size in (("a", 3), ("b", 4))
  }
  model = kit.FakeModel(
    lambda mode: {k: kit.spec((), tf.int64, "x", dataset_key=k) for k in patterns},
    lambda mode: {},
  )
  with pytest.raises(errors.RecordError, match="same number of records"):
    generator_of(patterns, model).count_examples()


def test_damaged_file_is_named(tmp_path, kit):
  path = kit.write_examples(tmp_path / "a.tfrecord", range(3))
  with open(path, "rb+") as file:
    file.truncate(file.seek(0, 2) - 3)
  model = kit.FakeModel(lambda mode: {"x": kit.spec((), tf.int64, "x")}, lambda m: {})
  with pytest.raises(errors.RecordError, match=r"record 2 of .*a\.tfrecord"):
    generator_of(path, model).count_examples()
