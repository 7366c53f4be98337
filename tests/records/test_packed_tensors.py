"""Whole tensors in one byte string: raw, compressed, or as TensorFlow has them."""

from __future__ import annotations

import json
import pathlib
import zlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records
from t2r_seq.records.check import examine_records, find_bad_record
from t2r_seq.specs import ExtendedTensorSpec as Spec

X = np.asarray([[1.5, -2.0, 4.25]], np.float64)
WORDS = np.asarray([b"a", b"\xff"], object)
# name: (spec of a step, value, what the record holds)
VALUES = {
  "raw": (Spec((1, 3), tf.float64, "x", data_format="raw"), X, X.tobytes()),
  "zlib": (
    Spec((1, 3), tf.float64, "x", data_format="zlib"),
    X,
    zlib.compress(X.tobytes()),
  ),
  "tensor": (
    Spec((1, 3), tf.float64, "x", data_format="tensor"),
    X,
    tf.io.serialize_tensor(X).numpy(),
  ),
  "scalar": (
    Spec((), tf.bool, "x", data_format="tensor"),
    np.asarray(True),
    tf.io.serialize_tensor(True).numpy(),
  ),
  "bfloat16": (
    Spec((2,), tf.bfloat16, "x", data_format="tensor"),
    np.asarray([1, 2], tf.bfloat16.as_numpy_dtype),
    tf.io.serialize_tensor(tf.constant([1, 2], tf.bfloat16)).numpy(),
  ),
  "strings": (
    Spec((2,), tf.string, "x", data_format="tensor"),
    WORDS,
    tf.io.serialize_tensor(tf.constant(WORDS.tolist())).numpy(),
  ),
}


def spec_of(name, **fields):
  return {"x": Spec.from_spec(VALUES[name][0], **fields)}


def parse(path, spec, batch_size=None):
  dataset = records.record_dataset([path])
  if batch_size:
    dataset = dataset.batch(batch_size)
  return [parsed["x"].numpy() for parsed in records.serialized_to_parsed(dataset, spec)]


@pytest.mark.parametrize("name", VALUES)
def test_out_and_back(name, tmp_path):
  _, value, want = VALUES[name]
  path = str(tmp_path / "a.tfrecord")
  records.write_records(path, spec_of(name), [{"x": value}] * 2)
  (first, _) = tf.data.TFRecordDataset(path)
  example = tf.train.Example.FromString(first.numpy())
  assert example.features.feature["x"].bytes_list.value[:] == [want]
  for got in parse(path, spec_of(name)) + list(parse(path, spec_of(name), 2)[0]):
    np.testing.assert_array_equal(got, value)
  assert examine_records(path, spec_of(name)).is_good


@pytest.mark.parametrize("name", ["zlib", "tensor", "strings"])
def test_sequences_of_different_lengths_in_a_batch(name, tmp_path):
  _, value, _ = VALUES[name]
  path, spec = str(tmp_path / "a.tfrecord"), spec_of(name, is_sequence=True)
  records.write_records(path, spec, [{"x": np.stack([value] * n)} for n in (1, 3)])
  (batch,) = parse(path, spec, 2)
  np.testing.assert_array_equal(batch[1, 2], value)
  zero = b"" if value.dtype == object else 0
  assert (batch[0, 1:] == zero).all()


def write_bytes(path, values):
  with tf.io.TFRecordWriter(path) as writer:
    for value in values:
      feature = {"x": tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))}
      features = tf.train.Features(feature=feature)
      writer.write(tf.train.Example(features=features).SerializeToString())


# What `inspect` says of tensors that it does not know: (values, looks like, format)
FOUND = {
  "tensors": ([X, X + 1], "tensor float64 (1, 3)", "tensor"),
  "one value": ([np.float32(3)], "tensor float32 ()", "tensor"),
  "two shapes": ([X, X[0]], "tensor float64 (1, 3), float64 (3,)", None),
}


@pytest.mark.parametrize("name", FOUND)
def test_serialized_tensors_are_known(name, tmp_path):
  values, looks, want = FOUND[name]
  path = str(tmp_path / "a.tfrecord")
  write_bytes(path, [tf.io.serialize_tensor(value).numpy() for value in values])
  summary = records.inspect_records(path)
  assert looks in str(summary)
  spec = records.propose_spec(summary)
  assert spec["x"].data_format == want
  if want:
    np.testing.assert_array_equal(parse(path, spec)[0], values[0])
    assert examine_records(path).is_good


def test_values_as_other_writers_list_them(tmp_path):
  """`tf.make_tensor_proto` has small tensors as a list whose last value repeats."""
  path = str(tmp_path / "a.tfrecord")
  proto = tf.make_tensor_proto(7.0, shape=[3])
  write_bytes(path, [proto.SerializeToString()])
  spec = records.propose_spec(records.inspect_records(path))
  np.testing.assert_array_equal(parse(path, spec)[0], [7, 7, 7])
  write_bytes(path, [repeated([1 << 40])])
  summary = records.inspect_records(path)
  assert records.propose_spec(summary)["x"].data_format is None


def repeated(*shapes):
  """One number that stands for all of a tensor, whose shape may be given twice."""
  protos = [tf.make_tensor_proto(7.0, tf.float64, shape=[1])]
  for shape in shapes:
    protos.append(type(protos[0])(tensor_shape=tf.TensorShape(shape).as_proto()))
  protos[0].ClearField("tensor_shape")
  return b"".join(proto.SerializeToString() for proto in protos)


# name: (of VALUES, what the record holds, the error)
MISFITS = {
  "another shape": (
    "tensor",
    tf.io.serialize_tensor(X[0]).numpy(),
    r"expected a serialized tensor, \(1, 3\) float64, got one of \(3,\) float64",
  ),
  "another dtype": (
    "tensor",
    tf.io.serialize_tensor(np.float32(X)).numpy(),
    r"got one of \(1, 3\) float32",
  ),
  "room for terabytes": (
    "tensor",
    repeated([1 << 40]),
    r"got one of \(1099511627776,\) float64",
  ),
  "a second shape": (
    "tensor",
    repeated([1, 3], [1 << 38]),
    r"got one of \(1, 3, 274877906944\) float64",
  ),
  "no tensor": ("tensor", b"xyz", "got 3 bytes that are not a serialized tensor"),
  "not compressed": ("zlib", X.tobytes(), "24 bytes .*got 24 bytes that are not comp"),
  "too few": ("zlib", zlib.compress(bytes(8)), r"24 bytes for \(1, 3\).*got 8 bytes"),
  "too many": ("zlib", zlib.compress(bytes(99)), "got more than 24 bytes, compressed"),
  "a bomb": ("zlib", zlib.compress(bytes(1 << 20)), "got more than 24 bytes, compress"),
}
# What TensorFlow says, where it is not left to it: the bomb is not unpacked.
SAID = {
  "a bomb": "x: expected at most 94 bytes, compressed",
  "room for terabytes": r"x: expected serialized tensors of \(1, 3\)",
  "a second shape": r"x: expected serialized tensors of \(1, 3\)",
}


@pytest.mark.parametrize("name", MISFITS)
def test_misfits(name, tmp_path):
  kind, data, want = MISFITS[name]
  path = str(tmp_path / "a.tfrecord")
  write_bytes(path, [data])
  with pytest.raises(tf.errors.OpError, match=SAID.get(name)):
    parse(path, spec_of(kind))
  with pytest.raises(errors.RecordError, match=want):
    raise find_bad_record(path, spec_of(kind))


REFUSED = {
  "strings": ({"dtype": tf.string}, "a dtype of fixed size for data_format 'zlib'"),
  "misspelled": ({"data_format": "tensors"}, "Did you mean 'tensor'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_packed_tensors_reject_unsupported_specs(name):
  fields, want = REFUSED[name]
  with pytest.raises(errors.SpecError, match=want):
    records.create_parse_tf_example_fn(spec_of("zlib", **fields))


def test_by_the_features_json_of_tfds(tmp_path: pathlib.Path):
  """TFDS compresses tensors where its features say so."""

  def tensor(dtype, shape, encoding):
    shape = {"dimensions": [str(size) for size in shape]}
    return {"tensor": {"shape": shape, "dtype": dtype, "encoding": encoding}}

  step = {
    "is_first": tensor("bool", (), "none"),
    "x": tensor("float64", (1, 3), "zlib"),
  }
  steps = {"sequence": {"feature": {"featuresDict": {"features": step}}}}
  (tmp_path / "features.json").write_text(
    json.dumps({"featuresDict": {"features": {"steps": steps}}})
  )
  feature = {
    "steps/is_first": tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 0])),
    "steps/x": tf.train.Feature(
      bytes_list=tf.train.BytesList(
        value=[zlib.compress(value.tobytes()) for value in (X, X * 2)]
      )
    ),
  }
  path = str(tmp_path / "a.tfrecord")
  example = tf.train.Example(features=tf.train.Features(feature=feature))
  with tf.io.TFRecordWriter(path) as writer:
    writer.write(example.SerializeToString())
  spec = records.propose_spec(records.inspect_records(path))
  np.testing.assert_array_equal(parse(path, spec)[0], [X, X * 2])
