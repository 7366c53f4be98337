from __future__ import annotations

import pytest
import tensorflow as tf

from t2r_seq import data, errors


@pytest.fixture(name="pattern")
def fixture_pattern(tmp_path, kit):
  for i in range(10):
    kit.write_examples(tmp_path / f"{i}.tfrecord", [i])
  return str(tmp_path / "*")


def read(generator, kit, key=""):
  spec = {"x": kit.spec((), tf.int64, "x", dataset_key=key)}
  generator.set_specification_from_model(
    kit.FakeModel(lambda mode: spec, lambda mode: {}), "eval"
  )
  batches = generator.create_dataset("eval")
  return [int(x) for features, _ in batches for x in features["x"]]


@pytest.mark.parametrize(
  ("fraction", "want"), [(1.0, 10), (1, 10), (0.7, 7), (0.29, 2), (0.1, 1)]
)
def test_first_files_are_read(pattern, kit, fraction, want):
  generator = data.FractionalRecordInputGenerator(fraction, file_patterns=pattern)
  assert read(generator, kit) == list(range(want))
  assert generator.count_examples() == want


def test_fraction_is_read_as_a_decimal(tmp_path, kit):
  # 0.29 * 100 is 28.999999999999996.
  for i in range(100):
    (tmp_path / f"{i:02}.tfrecord").touch()
  kit.write_examples(tmp_path / "28.tfrecord", [28])
  kit.write_examples(tmp_path / "29.tfrecord", [29])
  generator = data.FractionalRecordInputGenerator(
    0.29, file_patterns=str(tmp_path / "*")
  )
  assert read(generator, kit) == [28]


def test_fraction_of_each_dataset(pattern, kit):
  generator = data.FractionalRecordInputGenerator(0.2, file_patterns={"k": pattern})
  assert read(generator, kit, "k") == [0, 1]


def test_no_file_left_is_an_error(pattern, kit):
  generator = data.FractionalRecordInputGenerator(0.09, file_patterns=pattern)
  want = r"\*: file_fraction: expected a fraction that leaves .* got 0.09 of 10"
  with pytest.raises(errors.SpecError, match=want):
    read(generator, kit)


@pytest.mark.parametrize("fraction", [0, -0.5, 1.1, "0.5", True, float("nan")])
def test_file_fraction_rejects_invalid_values(fraction):
  with pytest.raises(
    errors.SpecError, match="file_fraction: expected a number above 0"
  ):
    data.FractionalRecordInputGenerator(fraction, file_patterns="a")
