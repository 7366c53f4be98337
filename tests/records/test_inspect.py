"""What is in unknown files: the summary, its table, and a spec that parses them."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.specs.image_headers import ImageHeader
from t2r_seq.specs.packing import encode_image

Spec = specs.ExtendedTensorSpec
F32 = tf.float32

SPEC = {
  "pose": Spec((2,), F32, "pose", is_sequence=True),
  "image": Spec(
    (4, 6, 3), tf.uint8, "state/image", is_sequence=True, data_format="png"
  ),
  "depth": Spec((4, 6, 1), tf.uint16, "depth", is_sequence=True, data_format="png"),
  "done": Spec((), tf.bool, "done", is_sequence=True),
  "task": Spec((), tf.string, "task"),
  "ids": Spec((9,), tf.int64, "ids", varlen_default_value=0),
  "weight": Spec((), F32, "weight", is_optional=True),
  "exact": Spec((2,), tf.float64, "exact"),
  "views": Spec((2, 4, 6, 3), tf.uint8, "views", data_format="jpeg"),
}


def structure(num_steps: int, num_ids: int, weight: float | None) -> dict[str, Any]:
  return {
    "pose": np.ones((num_steps, 2), np.float32),
    "image": np.zeros((num_steps, 4, 6, 3), np.uint8),
    "depth": np.zeros((num_steps, 4, 6, 1), np.uint16),
    "done": [i == num_steps - 1 for i in range(num_steps)],
    "task": "put the cup down",
    "ids": np.arange(num_ids),
    "weight": weight,
    "exact": [0.1, 0.2],
    "views": np.zeros((2, 4, 6, 3), np.uint8),
  }


@pytest.fixture(name="path")
def _path(tmp_path: pathlib.Path) -> str:
  path = str(tmp_path / "a.tfrecord")
  structures = [structure(3, 2, None), structure(5, 4, 0.5), structure(4, 0, None)]
  records.write_records(path, SPEC, structures)
  return path


TABLE = """\
PATH: 3 records, tf.train.SequenceExample

feature      where     kind   values  steps  in records  looks like
───────────  ────────  ─────  ──────  ─────  ──────────  ────────────────────────
exact        context   bytes       1      -       100 %  data, 16 bytes, maybe raw
ids          context   int64    0..4      -       100 %  int64, 0..3
task         context   bytes       1      -       100 %  text, 16 bytes
views        context   bytes       2      -       100 %  jpeg 4x6x3
weight       context   float       1      -        33 %  float32
depth        sequence  bytes       1   3..5       100 %  png 4x6x1 16 bit
done         sequence  int64       1   3..5       100 %  int64, 0..1, maybe bool
pose         sequence  float       2   3..5       100 %  float32
state/image  sequence  bytes       1   3..5       100 %  png 4x6x3"""


def test_table(path: str) -> None:
  summary = records.inspect_records(path)
  got = str(summary).replace(path, "PATH")
  assert [line.rstrip("─") for line in got.splitlines()] == [
    line.rstrip("─") for line in TABLE.splitlines()
  ]


def test_summary(path: str) -> None:
  summary = records.inspect_records(path)
  assert summary.files == (path,)
  assert (summary.num_records, summary.is_complete) == (3, True)
  by_name = {feature.name: feature for feature in summary.features}
  ids = by_name["ids"]
  assert (ids.min_length, ids.max_length, ids.num_records) == (0, 4, 3)
  assert (ids.min_value, ids.max_value) == (0, 3)
  assert by_name["depth"].images == (ImageHeader("png", 4, 6, 1, 16),)
  assert (by_name["pose"].min_steps, by_name["pose"].max_steps) == (3, 5)


def test_first_records_only(path: str) -> None:
  summary = records.inspect_records(path, max_records=1)
  assert (summary.num_records, summary.is_complete) == (1, False)
  assert "the first 1 record, tf" in str(summary)
  assert records.inspect_records(path, max_records=3).is_complete


def test_sample_has_equal_shares_of_the_files(tmp_path) -> None:
  for name in "abcd":
    spec = {"x": specs.ExtendedTensorSpec((), "int64", name)}
    values = [{"x": np.int64(number)} for number in range(3)]
    records.write_records(f"{tmp_path}/{name}.tfrecord", spec, values)
  want = {2: "bd", 4: "abcd", 6: "abbcdd", 12: "aaabbbcccddd", 20: "aaabbbcccddd"}
  for max_records, names in want.items():
    summary = records.inspect_records(f"{tmp_path}/*.tfrecord", max_records)
    counts = {feature.name: feature.num_records for feature in summary.features}
    assert "".join(name * counts[name] for name in sorted(counts)) == names
    assert summary.is_complete == (max_records >= 12)


WANT = {
  "depth": SPEC["depth"],
  "done": Spec((1,), tf.int64, "done", is_sequence=True),
  "exact": Spec((), tf.string, "exact"),
  "ids": Spec((4,), tf.int64, "ids", varlen_default_value=0),
  "pose": SPEC["pose"],
  "state/image": SPEC["image"],
  "task": SPEC["task"],
  "views": SPEC["views"],
  "weight": Spec((1,), F32, "weight", is_optional=True),
}


@pytest.mark.parametrize("is_batched", [False, True])
def test_proposed_spec_parses_the_file(path: str, is_batched: bool) -> None:
  proposed = records.propose_spec(records.inspect_records(path))
  assert list(proposed) == sorted(WANT)
  for name, want in WANT.items():
    assert proposed[name].is_identical_to(want), name
  dataset = records.record_dataset([path])
  dataset = dataset.batch(3) if is_batched else dataset
  parsed = list(records.serialized_to_parsed(dataset, proposed))
  assert len(parsed) == (1 if is_batched else 3)
  assert parsed[0]["state/image"].shape[-3:] == (4, 6, 3)


def write(path: str, *protos: tf.train.Example) -> None:
  with tf.io.TFRecordWriter(path) as writer:
    for proto in protos:
      writer.write(proto.SerializeToString())


def feature(kind: str, *values: Any) -> tf.train.Feature:
  lists = {
    "int64": tf.train.Int64List,
    "float": tf.train.FloatList,
    "bytes": tf.train.BytesList,
  }
  return tf.train.Feature(**{f"{kind}_list": lists[kind](value=values)})


def example(**features: tf.train.Feature) -> tf.train.Example:
  return tf.train.Example(features=tf.train.Features(feature=features))


def test_strange_features(tmp_path: pathlib.Path) -> None:
  path = str(tmp_path / "a")
  small = encode_image(np.zeros((2, 3, 3), np.uint8), "jpeg")
  large = encode_image(np.zeros((4, 5, 3), np.uint8), "png")
  write(
    path,
    example(
      size=feature("bytes", small),
      mixed=feature("int64", 1),
      empty=feature("float"),
      list=feature("bytes", b"a", b"b"),
      black=feature("bytes", b""),
      byte=feature("int64", 0, 255),
      **{
        "a/b": feature("int64", 1),
        "a": feature("int64", 2),
        "//": feature("int64", 3),
      },
    ),
    example(
      size=feature("bytes", large),
      mixed=feature("float", 1),
      empty=feature("float"),
      list=feature("bytes", b"a\xff"),
      black=feature("bytes", small),
      byte=feature("int64", 0, 1),
      **{
        "a/b": feature("int64", 1),
        "a": feature("int64", 2),
        "//": feature("int64", 3),
      },
    ),
  )
  summary = records.inspect_records(path)
  guesses = {found.name: found.guess for found in summary.features}
  assert guesses == {
    "//": "int64, 3",
    "a": "int64, 2",
    "a/b": "int64, 1",
    "black": "jpeg 2x3x3",
    "byte": "int64, 0..255, maybe uint8",
    "empty": "no values",
    "list": "data, 1..2 bytes",
    "mixed": "lists of several kinds",
    "size": "jpeg/png 2x3..4x5",
  }
  proposed = records.propose_spec(summary)
  assert list(proposed) == [
    "a",
    "a_b_value",
    "black",
    "byte",
    "feature",
    "list",
    "size",
  ]
  assert proposed["size"].dtype == tf.string
  assert proposed["list"].varlen_default_value == ""
  dataset = records.serialized_to_parsed(records.record_dataset([path]), proposed)
  first, second = dataset.as_numpy_iterator()
  assert first["list"].tolist() == [b"a", b"b"]
  assert second["list"].tolist() == [b"a\xff", b""]
  assert not first["black"].any()


def test_propose_spec_fails_without_features(tmp_path: pathlib.Path) -> None:
  (tmp_path / "a").write_bytes(b"")
  summary = records.inspect_records(str(tmp_path / "a"))
  assert str(summary).splitlines()[0].endswith("0 records, no features")
  with pytest.raises(
    errors.SpecError, match="a feature that has values, got 0 records"
  ):
    records.propose_spec(summary)


def test_damaged_files_are_read_up_to_their_damage(tmp_path: pathlib.Path) -> None:
  for name in ("a", "b", "c"):
    write(str(tmp_path / name), *(example(x=feature("int64", i)) for i in range(4)))
  for name, num_left in (("a", 3), ("b", 0)):
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[: (num_left + 1) * path.stat().st_size // 4 - 2])
  with pytest.raises(errors.RecordError, match=r"record 3 of \S*a \(byte \d+\): frame"):
    records.inspect_records(str(tmp_path / "*"))
  summary = records.inspect_records(str(tmp_path / "*"), allow_damage=True)
  assert (summary.num_records, summary.is_complete) == (7, True)
  assert [pathlib.Path(name).name for name in summary.damages] == ["a", "b"]
  want = r"record 0 of \S*b \(byte 0\): frame: .* the file is truncated\.$"
  with pytest.raises(errors.RecordError, match=want):
    raise summary.damages[str(tmp_path / "b")]
  assert str(summary).startswith("3 files: 7 whole records, tf.train.")
  with pytest.raises(errors.RecordError, match=want):
    records.inspect_records(str(tmp_path / "b"), allow_damage=True)
  whole = records.inspect_records(str(tmp_path / "c"), allow_damage=True)
  assert whole == records.inspect_records(str(tmp_path / "c"))
  assert not whole.damages


def test_files_that_hold_something_else(tmp_path: pathlib.Path) -> None:
  (tmp_path / "a").write_text("not a record file at all")
  with pytest.raises(
    errors.RecordError, match=r"a wrong file type: it looks like text"
  ):
    records.inspect_records(str(tmp_path / "a"))
  with tf.io.TFRecordWriter(str(tmp_path / "b")) as writer:
    writer.write(b"\xff\xff not a proto")
  with pytest.raises(
    errors.RecordError, match=r"record 0 of \S*b \(byte 0\): .* neither"
  ):
    records.inspect_records(str(tmp_path / "b"))
