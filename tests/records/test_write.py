"""The writer: validation, encodings, and files that are whole or not there."""

from __future__ import annotations

import collections
import gzip
import os
import pathlib
import zlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.records.files import get_data_format_and_filenames
from t2r_seq.records.protos import RecordContents, present_names

Spec = specs.ExtendedTensorSpec
F32 = tf.float32
NUMBER = {"x": Spec((), tf.int64, "n")}


def read(path: pathlib.Path, spec: Any) -> list[Any]:
  dataset = records.record_dataset([str(path)])
  return list(records.serialized_to_parsed(dataset, spec).as_numpy_iterator())


def contents(spec: Any, structure: Any, **kwargs: Any) -> RecordContents:
  return RecordContents(records.encode_example(spec, structure, **kwargs))


Pair = collections.namedtuple("Pair", ["state", "action"])

STRUCTURES = {
  "flat": {"a/x": 1, "a/y/0": 2, "b": 3},
  "nested": {"a": {"x": 1, "y": [2]}, "b": 3},
  "struct": specs.TensorSpecStruct({"a/x": 1, "a/y/0": 2, "b": 3}),
  "mixed": {"a": collections.namedtuple("A", ["x", "y"])(1, (2,)), "b": np.int64(3)},
  "struct in a dict": {"a": specs.TensorSpecStruct({"x": 1, "y/0": 2}), "b": 3},
  "tensors": {"a/x": tf.constant(1, tf.int64), "a/y/0": 2, "b": 3},
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_structures_of_any_form(case: str) -> None:
  spec = {path: Spec((), tf.int64, path) for path in ("a/x", "a/y/0", "b")}
  context = contents(spec, STRUCTURES[case]).context
  got = {name: feature.int64_list.value[0] for name, feature in context.items()}
  assert got == {"a/x": 1, "a/y/0": 2, "b": 3}


LISTS = {
  "bool": (Spec((2,), tf.bool, "x"), [True, False], "int64_list", [1, 0]),
  "uint64": (Spec((), tf.uint64, "x"), 2**64 - 1, "int64_list", [-1]),
  "float16": (
    Spec((1,), tf.float16, "x"),
    np.asarray([0.1], np.float16),
    "float_list",
    [float(np.float16(0.1))],
  ),
  "ints for a float": (Spec((2,), F32, "x"), [1, 2], "float_list", [1, 2]),
  "double": (
    Spec((1,), tf.float64, "x"),
    np.asarray([0.1], ">f8"),
    "bytes_list",
    [np.asarray([0.1], "<f8").tobytes()],
  ),
  "raw": (
    Spec((2,), tf.int16, "x", data_format="raw"),
    [1, 2],
    "bytes_list",
    [b"\1\0\2\0"],
  ),
  "text": (Spec((2,), tf.string, "x"), ["a\0", b"b\0"], "bytes_list", [b"a\0", b"b\0"]),
  "varlen double": (
    Spec((3,), tf.float64, "x", varlen_default_value=0),
    [0.5, 1.5],
    "bytes_list",
    [np.float64(0.5).tobytes(), np.float64(1.5).tobytes()],
  ),
}


@pytest.mark.parametrize("case", LISTS)
def test_written_features_of_a_record(case: str) -> None:
  spec, value, kind, want = LISTS[case]
  feature = contents({"x": spec}, {"x": value}).context["x"]
  assert feature.WhichOneof("kind") == kind
  assert list(getattr(feature, kind).value) == want


WIRE_DTYPES = ("bool", "int32", "uint64", "float16", "float32", "float64", "string")


@pytest.mark.parametrize("layout", ["value", "steps", "concatenated"])
@pytest.mark.parametrize("num_steps", [0, 3])
def test_record_has_the_bytes_that_protobuf_writes(layout, num_steps) -> None:
  is_step = {
    "is_sequence": layout != "value",
    "is_concatenated": layout == "concatenated",
  }
  by_format = {
    None: WIRE_DTYPES,
    "raw": ("uint8", "float32"),
    "zlib": ("int16",),
    "tensor": ("float32", "string"),
  }
  spec = {
    f"{data_format}/{dtype}{shape}": Spec(
      shape, dtype, f"ü{data_format}/{dtype}{shape}", data_format=data_format, **is_step
    )
    for data_format, dtypes in by_format.items()
    for dtype in dtypes
    for shape in ((), (40,), (2, 1))
  }
  spec["png"] = Spec((4, 6, 3), tf.uint8, "png", data_format="png", **is_step)
  values = specs.make_random_numpy(spec, batch_size=None, sequence_length=num_steps)
  record = records.encode_example(spec, values)
  is_list = layout == "steps"
  proto = (tf.train.SequenceExample if is_list else tf.train.Example).FromString(record)
  assert proto.SerializeToString(deterministic=True) == record
  lists = proto.feature_lists.feature_list if is_list else proto.features.feature
  assert len(lists) == len(spec)
  if not is_list:
    assert all(feature.WhichOneof("kind") for feature in lists.values())
  dataset = tf.data.Dataset.from_tensors(record)
  (got,) = records.serialized_to_parsed(dataset, spec).as_numpy_iterator()
  for path in set(spec) - {"png"}:
    np.testing.assert_array_equal(got[path], values[path], err_msg=path)


MISMATCHES = {
  "shape": (Spec((2,), F32, "n"), [1.0], r"x: expected \(2,\) float32, got \(1,\) flo"),
  "rank": (
    Spec((2,), F32, "n", is_sequence=True),
    [1.0, 2.0],
    r"x: expected \(T, 2\) float32, got \(2,\) float32",
  ),
  "no steps": (
    Spec((), F32, "n", is_sequence=True),
    1.0,
    r"x: expected \(T,\) float32, got \(\) float32",
  ),
  "dtype": (
    Spec((1,), F32, "n"),
    np.zeros(1),
    r"x: expected \(1,\) float32, got \(1,\) float64\. Cast it",
  ),
  "fraction": (
    Spec((1,), tf.int64, "n"),
    [0.5],
    r"expected \(1,\) int64, got \(1,\) f",
  ),
  "overflow": (
    Spec((1,), tf.uint8, "n"),
    [300],
    r"expected \(1,\) uint8, got \(1,\) i",
  ),
  "text": (Spec((), F32, "n"), "a", r"expected \(\) float32, got \(\) strings"),
  "no text": (
    Spec((), tf.string, "n"),
    1,
    r"expected \(\) string, got \(\) with an item of type int",
  ),
  "ragged": (Spec((2,), F32, "n"), [[1.0], [1.0, 2.0]], r"float32, got a ragged list"),
  "objects": (
    Spec((1,), tf.string, "n"),
    np.asarray([None], object),
    r"expected \(1,\) string, got \(1,\) with an item of type NoneType",
  ),
  "varlen rank": (
    Spec((3,), F32, "n", varlen_default_value=0),
    1.0,
    r"x: expected \(n,\) float32, got \(\) float32",
  ),
  "image size": (
    Spec((2, 3, 1), tf.uint8, "n", data_format="png"),
    np.zeros((3, 2, 1), np.uint8),
    r"x: expected \(2, 3, 1\) uint8, got \(3, 2, 1\) uint8",
  ),
  "image dtype": (
    Spec((2, 3, 1), tf.uint8, "n", data_format="png"),
    np.zeros((2, 3, 1), np.float32),
    r"x: expected \(2, 3, 1\) uint8, got \(2, 3, 1\) float32\. Cast it",
  ),
  "missing": (
    Spec((), F32, "n"),
    None,
    r"x: expected \(\) float32, got nothing\. Optional features need is_optional",
  ),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_mismatches_are_errors(case: str) -> None:
  spec, value, message = MISMATCHES[case]
  with pytest.raises(errors.SpecError, match=message):
    records.encode_example({"x": spec}, {"x": value})


def test_all_mismatches_come_at_once_with_the_nearest_path() -> None:
  spec = {"pose": Spec((2,), F32, "p"), "reward": Spec((), F32, "r")}
  with pytest.raises(
    errors.SpecError,
    match=r"write: 2 mismatches:\n  pose: .*\n  reward: .* Did you mean 'rewards'\?",
  ):
    records.encode_example(spec, {"pose": [1.0], "rewards": 1.0})
  nested = {"state": {"pose": Spec((), F32, "p")}}
  with pytest.raises(errors.SpecError, match=r"state/pose: .* mean 'state/poses'\?"):
    records.encode_example(nested, {"state": {"poses": 1.0, "pose": None}})


def test_sequences_of_unequal_length_name_both() -> None:
  spec = {
    "a": Spec((), F32, "a", is_sequence=True),
    "b": Spec((), F32, "b", is_sequence=True),
  }
  with pytest.raises(
    errors.SpecError, match="write: b: expected 3 steps, as a has, got 2 steps"
  ):
    records.encode_example(spec, {"a": [1.0] * 3, "b": [1.0] * 2})


def test_one_feature_of_two_paths_needs_equal_values() -> None:
  spec = {"a": Spec((), F32, "n"), "b": Spec((), F32, "n")}
  assert records.encode_example(spec, {"a": 1.0, "b": 1.0})
  with pytest.raises(
    errors.SpecError,
    match="b: expected the values of a, because both are stored as 'n'",
  ):
    records.encode_example(spec, {"a": 1.0, "b": 2.0})


def test_absent_optionals_and_lengths_are_left_out() -> None:
  spec = specs.add_sequence_length_specs(
    {
      "a": Spec((), F32, "a", is_optional=True),
      "b": Spec((), F32, "b", is_optional=True),
      "c": Spec((), F32, "c", is_sequence=True),
    }
  )
  serialized = records.encode_example(spec, {"a": None, "c": [1.0], "c_length": 1})
  assert present_names(serialized) == {"c"}


@pytest.mark.parametrize("data_format", ["bmp", "gif"])
def test_encoded_images_are_kept(data_format) -> None:
  spec = {"x": Spec((2, 3, 3), tf.uint8, "n", None, True, data_format=data_format)}
  steps = contents(spec, {"x": [b"one\0", b""]}).steps["n"]
  assert [step.bytes_list.value[0] for step in steps] == [b"one\0", b""]
  with pytest.raises(errors.SpecError, match="expected data_format jpeg or png"):
    records.encode_example(
      {"x": Spec((2, 3, 3), tf.uint8, "n", data_format=data_format)},
      {"x": np.zeros((2, 3, 3), np.uint8)},
    )


def test_jpeg_quality() -> None:
  spec = {"x": Spec((32, 32, 3), tf.uint8, "n", data_format="jpeg")}
  structure = specs.TensorSpecStruct(
    x=np.random.RandomState(0).randint(0, 255, (32, 32, 3), np.uint8)
  )
  small = records.encode_example(spec, structure, jpeg_quality=30)
  assert len(small) < 0.6 * len(records.encode_example(spec, structure))


def test_several_datasets_are_several_files() -> None:
  spec = {
    "a": Spec((), F32, "n", dataset_key="first"),
    "b": Spec((), F32, "n", dataset_key="second"),
  }
  with pytest.raises(errors.SpecError, match=r"got those of \[first, second\]\. Write"):
    records.encode_example(spec, {"a": 1.0, "b": 1.0})


# Files.


@pytest.mark.parametrize(
  ("name", "compression", "decompress"),
  [
    ("a.tfrecord", None, bytes),
    ("a.tfrecord.gz", None, gzip.decompress),
    ("a.tfrecord.zz", None, zlib.decompress),
    ("a.tfrecord.zlib", None, zlib.decompress),
  ],
)
def test_files_are_compressed_by_suffix(
  tmp_path: pathlib.Path, name: str, compression: str | None, decompress: Any
) -> None:
  path = tmp_path / "new" / name
  count = records.write_records(path, NUMBER, ({"x": i} for i in range(3)))
  assert count == 3
  # The first 8 bytes are the length of the first record.
  length = len(records.encode_example(NUMBER, {"x": 0}))
  assert decompress(path.read_bytes())[:8] == length.to_bytes(8, "little")
  assert [element["x"] for element in read(path, NUMBER)] == [0, 1, 2]
  assert os.listdir(path.parent) == [name]


def test_compression_by_argument(tmp_path: pathlib.Path) -> None:
  path = tmp_path / "a.tfrecord"
  records.write_records(path, NUMBER, [{"x": 1}], compression="GZIP")
  assert path.read_bytes()[:2] == b"\x1f\x8b"
  with pytest.raises(
    errors.SpecError, match="expected 'GZIP', 'ZLIB' or '', got 'LZ4'"
  ):
    records.write_records(path, NUMBER, [], compression="LZ4")


def test_same_records_give_the_same_bytes(tmp_path: pathlib.Path) -> None:
  spec = {f"x{i}": Spec((), tf.int64, f"n{i}") for i in range(20)}
  for name in ("a", "b"):
    records.write_records(tmp_path / name, spec, [{path: 1 for path in spec}])
  assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_exception_leaves_the_old_file_and_nothing_else(
  tmp_path: pathlib.Path,
) -> None:
  path = tmp_path / "a.tfrecord"
  records.write_records(path, NUMBER, [{"x": 1}])

  def structures() -> Any:
    yield {"x": 2}
    raise RuntimeError("the robot fell over")

  with pytest.raises(RuntimeError, match="fell over"):
    records.write_records(path, NUMBER, structures())
  with pytest.raises(errors.SpecError, match="x: expected"):
    records.write_records(path, NUMBER, [{"x": 2}, {"x": "no"}])
  assert os.listdir(tmp_path) == ["a.tfrecord"]
  assert [element["x"] for element in read(path, NUMBER)] == [1]


def test_file_appears_only_when_it_is_closed(tmp_path: pathlib.Path) -> None:
  path = tmp_path / "a.tfrecord"
  writer = records.RecordWriter(path, NUMBER)
  writer.write({"x": 1})
  assert writer.num_records == 1
  assert not path.exists()
  with pytest.raises(errors.SpecError, match="expected at least one file"):
    get_data_format_and_filenames(str(tmp_path / "*"))
  writer.close()
  writer.close()
  assert len(read(path, NUMBER)) == 1
  with pytest.raises(errors.SpecError, match="expected an open writer, got a closed"):
    writer.write({"x": 1})


def test_discarded_writer_leaves_nothing(tmp_path: pathlib.Path) -> None:
  writer = records.RecordWriter(tmp_path / "a.tfrecord", NUMBER)
  writer.write({"x": 1})
  writer.discard()
  assert os.listdir(tmp_path) == []


def test_urls_are_refused() -> None:
  with pytest.raises(errors.SpecError, match=r"gs://b/a: expected a local path"):
    records.RecordWriter("gs://b/a", NUMBER)
