"""Every kind of bad record is named: file, record, byte, feature, expected, found."""

from __future__ import annotations

import pathlib
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.records import framing
from t2r_seq.records.check import examine_records, find_bad_record
from t2r_seq.specs.packing import encode_image

Spec = specs.ExtendedTensorSpec
F32 = tf.float32

EXAMPLES = {
  "state/pose": Spec((2,), F32, "pose"),
  "state/image": Spec((4, 6, 3), tf.uint8, "image", data_format="png"),
  "count": Spec((), tf.uint8, "count"),
  "exact": Spec((2,), tf.float64, "exact"),
}
SEQUENCES = {
  "poses": Spec((2,), F32, "pose", is_sequence=True),
  "task": Spec((), tf.int64, "task"),
}
GOOD_EXAMPLE = {
  "state/pose": [1.0, 2.0],
  "state/image": np.zeros((4, 6, 3), np.uint8),
  "count": 3,
  "exact": [0.1, 0.2],
}
GOOD_SEQUENCE = {"poses": [[1.0, 2.0]] * 3, "task": 1}


def write(path: pathlib.Path, serialized: list[bytes]) -> None:
  with tf.io.TFRecordWriter(str(path)) as writer:
    for data in serialized:
      writer.write(data)


def with_changes(spec: Any, structure: Any, **changes: Any) -> bytes:
  """Writes a good structure, with other specs or values for some of its paths."""
  changed_spec, changed = dict(spec), dict(structure)
  for path, (new_spec, value) in changes.items():
    changed.pop(path, None)
    changed_spec.pop(path, None)
    if new_spec is not None:
      changed_spec[path], changed[path] = new_spec, value
  return records.encode_example(changed_spec, changed)


def changed_example(path: str, spec: Spec | None, value: Any = None) -> bytes:
  return with_changes(EXAMPLES, GOOD_EXAMPLE, **{path: (spec, value)})


def changed_sequence(path: str, spec: Spec | None, value: Any = None) -> bytes:
  return with_changes(SEQUENCES, GOOD_SEQUENCE, **{path: (spec, value)})


PNG = encode_image(np.zeros((4, 6, 3), np.uint8), "png")
ENCODED = Spec((), tf.string, "image")

BAD_EXAMPLES = {
  "missing, near": (
    changed_example("state/pose", Spec((2,), F32, "poses"), [1.0, 2.0]),
    r"state/pose \(feature 'pose'\): expected a feature 'pose' in a tf\.train\.Example"
    r", got a tf\.train\.Example without it\. Did you mean 'poses'\?",
  ),
  "missing": (
    changed_example("count", None),
    r"count \(feature 'count'\): .* without it\. The record has \[exact, image, pose\]",
  ),
  "empty": (
    changed_example("count", Spec((3,), tf.int64, "count", varlen_default_value=0), []),
    r"count \(feature 'count'\): expected 1 value for shape \(\), got 0 values",
  ),
  "kind": (
    changed_example("state/pose", Spec((2,), tf.int64, "pose"), [1, 2]),
    r"state/pose \(feature 'pose'\): expected a float list for dtype float32, "
    r"got an int64 list of 2 values",
  ),
  "kind of a double": (
    changed_example("exact", Spec((2,), F32, "exact"), [1.0, 2.0]),
    r"exact .*: expected a bytes list for dtype float64, got a float list of 2 values"
    r"\. float64 is stored as bytes, to keep it exact\. Declare float32",
  ),
  "shape": (
    changed_example("state/pose", Spec((3,), F32, "pose"), [1.0, 2.0, 3.0]),
    r"state/pose .*: expected 2 values for shape \(2,\), got 3 values",
  ),
  "raw bytes": (
    changed_example("exact", Spec((3,), tf.float64, "exact"), [1.0, 2.0, 3.0]),
    r"exact .*: expected 16 bytes for \(2,\) float64, got 24 bytes",
  ),
  "range": (
    changed_example("count", Spec((), tf.int64, "count"), 300),
    r"count .*: expected values from 0 to 255 for uint8, got 300",
  ),
  "image size": (
    changed_example(
      "state/image",
      Spec((5, 6, 3), tf.uint8, "image", data_format="png"),
      np.zeros((5, 6, 3), np.uint8),
    ),
    r"state/image \(feature 'image'\): expected an image of size \(4, 6, 3\), "
    r"got an image of size \(5, 6, 3\)",
  ),
  "corrupt image": (
    changed_example("state/image", ENCODED, PNG[:-20]),
    r"state/image .*: expected a png image of size \(4, 6, 3\), got a corrupt png",
  ),
  "no image": (
    changed_example("state/image", ENCODED, b"hello"),
    r"got bytes, not an image \(5 bytes, b'hello'",
  ),
  "many images": (
    changed_example("state/image", Spec((2,), tf.string, "image"), [PNG, PNG]),
    r"expected 1 image\(s\) of shape \(4, 6, 3\), got 2 values",
  ),
  "two at once": (
    with_changes(EXAMPLES, GOOD_EXAMPLE, **{"count": (None, 0), "exact": (None, 0)}),
    r"\(byte \d+\): 2 mismatches:\n  count \(feature 'count'\): .*\n  exact",
  ),
  "sequence example": (
    changed_example("state/pose", SEQUENCES["poses"], [[1.0, 2.0]]),
    r"state/pose .*: expected a feature 'pose' in a tf\.train\.Example, got a "
    r"tf\.train\.SequenceExample with 'pose' elsewhere\. .* set is_sequence=True, or "
    r"for windows time_offsets, such as 0",
  ),
}
BAD_SEQUENCES = {
  "example": (
    changed_sequence("poses", Spec((2,), F32, "pose"), [1.0, 2.0]),
    r"poses .*: expected a sequence feature 'pose' in a tf\.train\.SequenceExample"
    r", got a tf\.train\.Example with 'pose' elsewhere\. .* drop is_sequence, "
    "of windows time_offsets",
  ),
  "missing": (
    changed_sequence("poses", Spec((), F32, "paws", is_sequence=True), [1.0]),
    r"poses .*: .* got a tf\.train\.SequenceExample without it\. The record has",
  ),
  "shape at a step": (
    changed_sequence(
      "poses",
      Spec((4,), F32, "pose", is_sequence=True, varlen_default_value=0.0),
      np.zeros((3, 3), np.float32),
    ),
    r"poses .*: expected 2 values for shape \(2,\), got 3 values at step 0",
  ),
}


# Whatever is asked of them, they have none of it.
NO_PROTOS = {
  "no proto": (b"\xff\xff not a proto", r"14 bytes that are neither, b'\\xff\\xff not"),
  "unknown fields": (bytes([13 << 3, 5]), r"2 bytes that are neither, b'h\\x05'"),
  "empty record": (b"", r"an empty record \(0 bytes\)\.$"),
}
for case, (bad_bytes, found) in NO_PROTOS.items():
  expected = r"proto: expected a serialized tf\.train\.Example or .*SequenceExample"
  BAD_EXAMPLES[case] = BAD_SEQUENCES[case] = (bad_bytes, f"{expected}, got {found}")


@pytest.mark.parametrize("kind", ["example", "sequence"])
def test_good_files_have_no_bad_record(tmp_path: pathlib.Path, kind: str) -> None:
  spec, good = (EXAMPLES, GOOD_EXAMPLE)
  if kind == "sequence":
    spec, good = (SEQUENCES, GOOD_SEQUENCE)
  records.write_records(tmp_path / "a", spec, [good] * 3)
  assert find_bad_record(str(tmp_path / "a"), spec) is None


@pytest.mark.parametrize(
  ("spec", "good", "bad", "message"),
  [
    *((EXAMPLES, GOOD_EXAMPLE, *case) for case in BAD_EXAMPLES.values()),
    *((SEQUENCES, GOOD_SEQUENCE, *case) for case in BAD_SEQUENCES.values()),
  ],
  ids=[*BAD_EXAMPLES, *(f"sequence, {case}" for case in BAD_SEQUENCES)],
)
def test_bad_records_are_named(
  tmp_path: pathlib.Path, spec: Any, good: Any, bad: bytes, message: str
) -> None:
  first = records.encode_example(spec, good)
  write(tmp_path / "a.tfrecord", [first])
  write(tmp_path / "b.tfrecord", [first, first, bad, first])
  error = find_bad_record(str(tmp_path / "*.tfrecord"), spec)
  offset = 2 * (16 + len(first))
  place = rf"record 2 of \S*b\.tfrecord \(byte {offset}\): "
  want = message if message.startswith(r"\(byte") else f"{place}(.|\n)*{message}"
  assert isinstance(error, errors.RecordError)
  with pytest.raises(errors.RecordError, match=want):
    raise error


def test_unequal_lengths_are_reported_where_nothing_is_worse(
  tmp_path: pathlib.Path,
) -> None:
  spec = {
    "a": Spec((), F32, "a", is_sequence=True),
    "b": Spec((), F32, "b", is_sequence=True),
  }
  proto = tf.train.SequenceExample()
  for name, steps in (("a", 3), ("b", 2)):
    for _ in range(steps):
      feature = proto.feature_lists.feature_list[name].feature.add()
      feature.float_list.value.append(1)
  unequal = proto.SerializeToString()
  write(tmp_path / "a", [unequal])
  error = find_bad_record(str(tmp_path / "a"), spec)
  assert "b (feature 'b'): expected 3 steps, as a has, got 2 steps" in str(error)
  write(tmp_path / "a", [unequal, b""])
  error = find_bad_record(str(tmp_path / "a"), spec)
  assert "record 1 of" in str(error)


# Damaged files.


def flip(data: bytes, position: int) -> bytes:
  return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


RECORD = records.encode_example(SEQUENCES, GOOD_SEQUENCE)
FRAME = 16 + len(RECORD)

# `find_bad_record` adds it, as its first problem is the first of all.
BEFORE = r"\. The records before it are good"
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
  "cut in the data": (
    lambda data: data[: FRAME + 30],
    1,
    rf"expected {len(RECORD)} bytes of data and a checksum of 4, got 18 bytes, then "
    r"the end: the file is truncated\. The records before it are good",
  ),
  "cut in the header": (
    lambda data: data[: 2 * FRAME + 5],
    2,
    "expected a header of 12 bytes, got 5, then the end: the file is truncated",
  ),
  "bit of the length": (
    lambda data: flip(data, FRAME + 1),
    1,
    "expected a length with a fitting checksum, got the bytes .*: flipped bits in the",
  ),
  "bit of the data": (
    lambda data: flip(data, 2 * FRAME + 20),
    2,
    rf"expected data with a fitting checksum, got flipped bits in its {len(RECORD)} b",
  ),
  "bit of the checksum": (
    lambda data: flip(data, FRAME - 1),
    0,
    "expected data with a fitting checksum, got flipped bits",
  ),
  "huge length": (
    lambda data: flip(data, FRAME + 6),
    1,
    "expected a length with a fitting checksum",
  ),
  "checksum of the length": (
    lambda data: flip(data, FRAME + 9),
    1,
    "expected a length with a fitting checksum",
  ),
  "first length": (lambda data: flip(data, 0), 0, "expected a length with a fitting"),
  "last length": (lambda data: flip(data, 2 * FRAME), 2, "expected a length with a f"),
  "cut by a byte": (lambda data: data[:-1], 2, ".*, then the end: the file is trunc"),
  "cut by a checksum": (lambda data: data[:-4], 2, ".*then the end: the file is trunc"),
  "wrong file type": (
    lambda data: b"PK\x03\x04" + data,
    0,
    "expected a length with .* or a wrong file type: it looks like a zip archive",
  ),
}


@pytest.mark.parametrize("case", DAMAGES)
@pytest.mark.parametrize("suffix", ["", ".gz", ".zz"])
def test_damaged_files(tmp_path: pathlib.Path, case: str, suffix: str) -> None:
  damage, index, message = DAMAGES[case]
  path = tmp_path / f"a.tfrecord{suffix}"
  write(tmp_path / "good", [RECORD] * 3)
  damaged = damage((tmp_path / "good").read_bytes())
  path.write_bytes(compress(damaged, suffix))
  error = find_bad_record(str(path), SEQUENCES)
  place = rf"record {index} of \S*a\.tfrecord{suffix} \(byte {index * FRAME}\): frame: "
  with pytest.raises(errors.RecordError, match=place + message):
    raise error or AssertionError("no bad record was found")
  report = examine_records(str(path), SEQUENCES)
  (problem,) = report.problems
  want = (index, index * FRAME, "frame")
  assert (problem.record, problem.offset, problem.kind) == want
  assert re.search(f"frame: {message.partition(BEFORE)[0]}", str(problem))
  assert len(damaged) != 3 * FRAME or report.counts == {str(path): 3}


def compress(data: bytes, suffix: str) -> bytes:
  import gzip
  import zlib

  functions = {".gz": gzip.compress, ".zz": zlib.compress, "": bytes}
  return functions[suffix](data)


def test_masked_crc_is_that_of_tfrecord_files(tmp_path: pathlib.Path) -> None:
  write(tmp_path / "a", [b"hello"])
  data = (tmp_path / "a").read_bytes()
  assert framing.read_length(data[:12]) == 5
  assert struct.unpack("<I", data[-4:])[0] == framing.masked_crc32c(b"hello")
  assert framing.read_length(flip(data[:12], 9)) is None


@pytest.mark.parametrize("has_wheel", [True, False])
@pytest.mark.parametrize("size", [0, 1, 2047, 30_007])
def test_checksums_with_and_without_a_wheel(size, has_wheel, tmp_path, monkeypatch):
  if not has_wheel:
    monkeypatch.setattr(framing, "_crc32c", framing._crc32c_by_table)
  data = np.random.default_rng(size).bytes(size)
  write(tmp_path / "a", [data])
  written = (tmp_path / "a").read_bytes()
  assert struct.unpack("<I", written[-4:])[0] == framing.masked_crc32c(data)


# Several datasets, labels, and the context manager.


def test_labels_and_datasets_are_looked_at_too(tmp_path: pathlib.Path) -> None:
  features = {"x": Spec((), F32, "n", dataset_key="a")}
  labels = {"y": Spec((2,), F32, "n", dataset_key="b")}
  for key in ("a", "b"):
    records.write_records(tmp_path / key, {"x": Spec((), F32, "n")}, [{"x": 1.0}])
  patterns = {key: str(tmp_path / key) for key in ("a", "b")}
  error = find_bad_record(patterns, features, labels)
  want = r"record 0 of \S*b .*: labels/y \(feature 'n'\): expected 2 values"
  with pytest.raises(errors.RecordError, match=want):
    raise error or AssertionError("no bad record was found")
  with pytest.raises(errors.SpecError, match=r"by dataset_key, \[a, b\], got"):
    find_bad_record(str(tmp_path / "a"), features, labels)


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_explain_failures_names_the_record(
  compression: str | None, tmp_path: pathlib.Path
) -> None:
  path = str(tmp_path / "a")
  with tf.io.TFRecordWriter(path, compression) as writer:
    writer.write(records.encode_example(EXAMPLES, GOOD_EXAMPLE))
    writer.write(b"")
  dataset = records.serialized_to_parsed(
    records.record_dataset([path], compression=compression), EXAMPLES
  )
  with (
    pytest.raises(errors.RecordError, match=r"record 1 of .*an empty rec") as caught,
    records.explain_failures(path, EXAMPLES, compression=compression),
  ):
    list(dataset)
  assert isinstance(caught.value.__cause__, tf.errors.InvalidArgumentError)


def test_explain_failures_of_a_damaged_file(tmp_path: pathlib.Path) -> None:
  path = tmp_path / "a"
  write(path, [RECORD] * 3)
  path.write_bytes(path.read_bytes()[:-1])
  dataset = records.record_dataset([str(path)])
  with (
    pytest.raises(errors.RecordError, match=r"record 2 of .* the file is truncated"),
    records.explain_failures(str(path), SEQUENCES),
  ):
    list(dataset)


def test_other_failures_are_not_changed(tmp_path: pathlib.Path) -> None:
  path = str(tmp_path / "a")
  write(tmp_path / "a", [RECORD])
  with (
    pytest.raises(tf.errors.InvalidArgumentError, match="not the data's fault"),
    records.explain_failures(path, SEQUENCES),
  ):
    raise tf.errors.InvalidArgumentError(None, None, "not the data's fault")
  write(tmp_path / "a", [b""])
  with (
    pytest.raises(tf.errors.OutOfRangeError, match="the end"),
    records.explain_failures(path, SEQUENCES),
  ):
    raise tf.errors.OutOfRangeError(None, None, "the end")
  with (
    pytest.raises(tf.errors.InvalidArgumentError, match="no such file"),
    records.explain_failures(str(tmp_path / "none"), SEQUENCES),
  ):
    raise tf.errors.InvalidArgumentError(None, None, "no such file")


# name: (dtype of the spec, stored as, value, the diagnosis)
NO_VALUES = {
  "bool": (tf.bool, tf.int64, 2, "values from 0 to 1 for bool, got 2"),
  "float16": (
    *(tf.float16, F32, -1e6),
    r"values from -65504\.0 to 65504\.0 for float16, got -1000000\.0",
  ),
}


@pytest.mark.parametrize("name", NO_VALUES)
def test_value_that_the_dtype_does_not_have(name: str, tmp_path: pathlib.Path):
  dtype, stored, value, want = NO_VALUES[name]
  data = records.encode_example({"x": Spec((2,), stored, "x")}, {"x": [value, 1]})
  spec = {"x": Spec((2,), dtype, "x")}
  with pytest.raises(
    tf.errors.InvalidArgumentError, match=f"x: expected values of {name}"
  ):
    records.create_parse_tf_example_fn(spec)(data)
  write(tmp_path / "a", [data])
  error = find_bad_record(str(tmp_path / "a"), spec)
  assert re.search(rf"record 0 of .*a .*x \(feature 'x'\): expected {want}", str(error))


def test_infinities_are_those_of_a_small_dtype_too(tmp_path: pathlib.Path):
  values = [np.inf, -np.inf, np.nan, 65504.0]
  data = records.encode_example({"x": Spec((4,), F32, "x")}, {"x": values})
  spec = {"x": Spec((4,), tf.float16, "x")}
  parsed = records.create_parse_tf_example_fn(spec)(data)["x"]
  np.testing.assert_array_equal(parsed, np.array(values, np.float16))
  write(tmp_path / "a", [data])
  assert find_bad_record(str(tmp_path / "a"), spec) is None
