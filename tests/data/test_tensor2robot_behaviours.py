"""What Tensor2Robot's users rely on, from the file to the batch.

Elsewhere: lists and comma strings of patterns (test_arguments.py, and in tests/records
test_files.py); `params['batch_size']` and one feature name in two datasets
(test_record_input_generator.py); the parser's part of the rest (tests/records).
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, records
from t2r_seq.specs.packing import encode_image


@pytest.fixture(name="read")
def fixture_read(tmp_path, kit):
  """Reads records, lists of values by feature name, as the spec of 'x' says."""

  def read(rows, spec, mode="eval", **kwargs):
    path = str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
      for row in rows:
        writer.write(example(row))
    generator = data.DefaultRecordInputGenerator(path, batch_size=4, **kwargs)
    model = kit.FakeModel(lambda mode: {"x": spec}, lambda mode: {})
    generator.set_specification_from_model(model, mode)
    dataset = generator.create_dataset(mode)
    with generator.explain_failures():
      return dataset, next(iter(dataset))[0]["x"]

  return read


def example(row):
  proto = tf.train.Example()
  for name, values in row.items():
    kinds = {int: "int64_list", float: "float_list", bytes: "bytes_list"}
    kind = kinds[type(values[0])] if values else "int64_list"
    feature = proto.features.feature[name]
    getattr(feature, kind).SetInParent()
    getattr(feature, kind).value.extend(values)
  return proto.SerializeToString()


def png(image):
  return encode_image(image, "png")


WHITE = np.full((2, 3, 1), 255, np.uint8)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_missing_images_are_black(read, kit, mode):
  spec = kit.spec((2, 3, 1), tf.uint8, "i", data_format="png")
  _, images = read([{"i": [png(WHITE)]}, {"i": [b""]}], spec, mode, seed=0)
  assert set(images.numpy().max(axis=(1, 2, 3))) == {0, 255}
  assert images.shape[1:] == (2, 3, 1)


def test_wrong_image_sizes_fail_at_run_time_with_the_path(read, kit):
  spec = kit.spec((3, 3, 1), tf.uint8, "i", data_format="png")
  want = r"record 1 of .*a\.tfrecord.*x \(feature 'i'\): expected an image of "
  with pytest.raises(errors.RecordError, match=want + r"size \(3, 3, 1\), got .*2, 3,"):
    read([{"i": [b""]}, {"i": [png(WHITE)]}], spec)


def test_varlen_defaults_are_cast_and_shapes_static(read, kit):
  spec = kit.spec((3,), tf.int64, "v", varlen_default_value=3.0)
  rows = [{"v": [1]}, {"v": []}, {"v": [4, 5, 6, 7]}]
  dataset, values = read(rows, spec)
  assert values.numpy().tolist() == [[1, 3, 3], [3, 3, 3], [4, 5, 6]]
  assert values.dtype == tf.int64
  assert dataset.element_spec[0]["x"].shape.as_list() == [None, 3]


def test_varlen_images_have_static_shapes(read, kit):
  spec = kit.spec(
    (2, 2, 3, 1), tf.uint8, "v", data_format="png", varlen_default_value=0
  )
  dataset, values = read([{"v": [png(WHITE)]}, {"v": [png(WHITE)] * 3}], spec)
  assert values[:, :, 0, 0, 0].numpy().tolist() == [[255, 0], [255, 255]]
  assert dataset.element_spec[0]["x"].shape.as_list() == [None, 2, 2, 3, 1]


def test_uint16_png_stays_uint16(read, kit):
  depth = np.array([0, 1, 255, 256, 40000, 65535], np.uint16).reshape(2, 3, 1)
  spec = kit.spec((2, 3, 1), tf.uint16, "i", data_format="png")
  _, values = read([{"i": [png(depth)]}], spec)
  assert values.dtype == tf.uint16
  np.testing.assert_array_equal(values[0], depth)


@pytest.mark.parametrize("dtype", [tf.float32, tf.int32, tf.int64, tf.uint32, tf.bool])
def test_other_image_dtypes_are_refused_when_the_dataset_is_built(tmp_path, kit, dtype):
  path = tmp_path / "a.tfrecord"
  records.write_records(
    path, {"i": kit.spec((), tf.string, "i")}, [{"i": np.array(png(WHITE))}]
  )
  generator = data.DefaultRecordInputGenerator(str(path))
  spec = kit.spec((2, 3, 1), dtype, "i", data_format="png")
  model = kit.FakeModel(lambda mode: {"x": spec}, lambda mode: {})
  generator.set_specification_from_model(model, "eval")
  with pytest.raises(errors.SpecError, match=rf"x: .*uint8.*got .*{dtype.name}"):
    generator.create_dataset("eval")


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_bfloat16_is_parsed_as_float32_and_cast(read, kit, dtype):
  # 257 has more digits than bfloat16.
  _, values = read([{"v": [1.5, 257.0]}], kit.spec((2,), dtype, "v"))
  assert values.dtype == dtype
  want = tf.cast(tf.constant([[1.5, 257.0]]), dtype)
  np.testing.assert_array_equal(values, want)
