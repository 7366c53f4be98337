"""Optional features of records: the first record decides which of them there are."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, preprocessors, records, specs


def examples_spec(mode=None):
  del mode
  return specs.TensorSpecStruct(
    {
      "x": specs.ExtendedTensorSpec((), tf.int64, "x"),
      "extra": specs.ExtendedTensorSpec((2,), tf.float32, "e", is_optional=True),
    }
  )


def no_labels(mode=None):
  del mode
  return specs.TensorSpecStruct()


def read(path, **arguments):
  generator = data.DefaultRecordInputGenerator(str(path), batch_size=3, **arguments)
  preprocessor = preprocessors.NoOpPreprocessor(examples_spec, no_labels)
  generator.set_feature_specifications(
    preprocessor.get_in_feature_specification("eval")
  )
  generator.set_label_specifications(preprocessor.get_in_label_specification("eval"))
  return generator.create_dataset("eval")


EXTRA = np.array([1, 2], np.float32)

# name: (the feature in each record, what the batch holds)
CASES = {
  "in every record": ([EXTRA, EXTRA, EXTRA], [[1, 2], [1, 2], [1, 2]]),
  "in none": ([None, None, None], None),
  "the first lacks it": ([None, EXTRA, EXTRA], None),
  "a later one lacks it": ([EXTRA, None, EXTRA], [[1, 2], [0, 0], [1, 2]]),
}


@pytest.mark.parametrize("name", CASES)
def test_first_record_decides(name, tmp_path, caplog):
  extras, want = CASES[name]
  rows = [
    {"x": np.int64(i)} if extra is None else {"x": np.int64(i), "extra": extra}
    for i, extra in enumerate(extras)
  ]
  path = tmp_path / "a.tfrecord"
  records.write_records(path, examples_spec(), rows)
  ((features, _),) = read(path)
  warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
  assert any(
    "lacks are left out of all batches: features/extra" in text for text in warned
  ) == (want is None)
  assert features["x"].numpy().tolist() == [0, 1, 2]
  got = features["extra"].numpy().tolist() if "extra" in features else None
  assert got == want


def test_parsing_one_at_a_time_warns_of_nothing(tmp_path):
  path = tmp_path / "a.tfrecord"
  records.write_records(path, examples_spec(), [{"x": np.int64(i)} for i in range(3)])
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    ((features, _),) = read(path, num_parallel_calls=None)
  assert features["x"].numpy().tolist() == [0, 1, 2]
