"""From specs to record features: what maps to what, and what is refused when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs, tensorspec_utils
from t2r_seq.records.features import parsed_specs

Spec = specs.ExtendedTensorSpec
F32 = tf.float32


def image(shape: tuple[int, ...], dtype: tf.DType, data_format: str, **kwargs: Any):
  return Spec(shape, dtype, "x", data_format=data_format, **kwargs)


REFUSED = {
  "no name": (Spec((2,), F32), r"a/x: expected a name, .* got a spec without one"),
  "windowed": (
    Spec((2, 3), F32, "x", time_offsets=(-1, 0)),
    r"a/x: expected a spec without time offsets, got time_offsets=\(-1, 0\)\. Records",
  ),
  "next step": (
    Spec((3,), F32, "x", time_offsets=1),
    r"time_offsets=1\. Records are flat: parse windows\.flat_specs",
  ),
  "unknown dim": (
    Spec((None, 3), F32, "x"),
    r"a/x: expected a fully defined shape, got shape \(None, 3\)\. Use varlen_default",
  ),
  "steps without values": (
    Spec((2, 0), F32, "x", is_sequence=True),
    r"a/x: expected steps with values, got none in shape \(2, 0\)\. Leave the spec out",
  ),
  "no images in a step": (
    image((0, 4, 4, 3), tf.uint8, "jpeg", is_sequence=True),
    r"a/x: expected steps with values, got none in shape \(0, 4, 4, 3\)\.",
  ),
  "unknown rank": (Spec(None, F32, "x"), r"a/x: expected a fully defined shape"),
  "dtype": (
    Spec((2,), tf.qint8, "x"),
    r"a/x: expected a dtype that a record can hold, got dtype qint8\. Supported are",
  ),
  "format": (
    image((4, 4, 3), tf.uint8, "jepg"),
    r"a/x: expected a data_format of .*, got data_format 'jepg'\. Did you mean 'jpeg'",
  ),
  "float jpeg": (
    image((4, 4, 3), F32, "jpeg"),
    r"a/x: expected dtype uint8 for a jpeg image, got dtype float32",
  ),
  "uint16 jpeg": (
    image((4, 4, 3), tf.uint16, "jpeg"),
    r"a/x: expected dtype uint8 for a jpeg image, got dtype uint16",
  ),
  "uint32 png": (
    image((4, 4, 3), tf.uint32, "png"),
    r"a/x: expected dtype uint8 or uint16 for a png image, got dtype uint32",
  ),
  "string jpeg": (
    image((), tf.string, "jpeg"),
    r"got dtype string\. .* For the encoded bytes, drop the data_format",
  ),
  "rank 2 image": (
    image((4, 4), tf.uint8, "png"),
    r"a/x: expected a shape \[\.\.\., height, width, channels\], got shape \(4, 4\)",
  ),
  "4 channel jpeg": (
    image((4, 4, 4), tf.uint8, "jpeg"),
    r"a/x: expected 1 or 3 channels for a jpeg image, got 4 channels",
  ),
  "4 channel gif": (
    image((4, 4, 4), tf.uint8, "gif"),
    r"expected 3 channels for a gif",
  ),
  "2 channel png": (
    image((4, 4, 2), tf.uint8, "png"),
    r"expected 1 or 3 or 4 channels for a png image, got 2 channels",
  ),
  "raw string": (
    Spec((), tf.string, "x", data_format="raw"),
    r"a/x: expected a dtype of fixed size for data_format 'raw', got dtype string",
  ),
  "raw varlen": (
    Spec((1, 2, 3, 4), F32, "x", data_format="raw", varlen_default_value=0),
    r"a/x: expected a fixed length for data_format 'raw', got a varlen_default_value",
  ),
  "text default": (
    Spec((3,), F32, "x", varlen_default_value="a"),
    r"a/x: expected a number as varlen_default_value for dtype float32, got 'a'",
  ),
  "number default": (
    Spec((3,), tf.string, "x", varlen_default_value=0),
    r"a/x: expected a string as varlen_default_value for dtype string, got 0",
  ),
  "large default": (
    Spec((3,), tf.uint8, "x", varlen_default_value=300),
    r"a/x: expected a number from 0 to 255 as varlen_default_value .* got 300",
  ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_specs_are_refused_at_construction(case: str) -> None:
  spec, message = REFUSED[case]
  with pytest.raises(errors.SpecError, match=message):
    records.create_parse_tf_example_fn({"a": {"x": spec}})


def test_all_refusals_come_in_one_error() -> None:
  features = {"b": Spec((), F32), "a": Spec((None,), F32, "a")}
  labels = {"c": Spec((), tf.qint8, "c")}
  with pytest.raises(
    errors.SpecError,
    match=r"3 mismatches:\n  features/a: .*\n  features/b: .*\n  labels/c: ",
  ):
    records.create_parse_tf_example_fn(features, labels)


def test_specs_without_features_are_an_error() -> None:
  with pytest.raises(errors.SpecError, match="expected specs to parse, got none"):
    records.create_parse_tf_example_fn({})


SHARED = {
  "shape": (Spec((2,), F32, "n"), r"got \(2,\) float32"),
  "dtype": (Spec((3,), tf.int64, "n"), r"got \(3,\) int64"),
  "sequence": (
    Spec((3,), F32, "n", is_sequence=True),
    r"got \(3,\) float32, a sequence",
  ),
  "varlen": (
    Spec((3,), F32, "n", varlen_default_value=1),
    r"got \(3,\) float32, padded with 1\. A name is a record's feature: it has",
  ),
  "format": (Spec((3,), F32, "n", data_format="raw"), r"got \(3,\) float32, raw"),
}


@pytest.mark.parametrize("case", SHARED)
def test_specs_of_one_name_must_agree(case: str) -> None:
  other, got = SHARED[case]
  features, labels = {"a": Spec((3,), F32, "n")}, {"b": other}
  message = rf"labels/b: expected the same as features/a, .* named 'n', {got}"
  with pytest.raises(errors.SpecError, match=message):
    records.create_parse_tf_example_fn(features, labels)


FEATURES = {
  "float": (Spec((2,), F32, "x"), tf.io.FixedLenFeature((2,), F32)),
  "bfloat16": (Spec((2,), tf.bfloat16, "x"), tf.io.FixedLenFeature((2,), F32)),
  "bool": (Spec((), tf.bool, "x"), tf.io.FixedLenFeature((), tf.int64)),
  "double": (Spec((2, 3), tf.float64, "x"), tf.io.FixedLenFeature((), tf.string)),
  "raw": (
    Spec((2, 3), F32, "x", data_format="raw"),
    tf.io.FixedLenFeature((), tf.string),
  ),
  "image": (image((4, 4, 3), tf.uint8, "JPEG"), tf.io.FixedLenFeature((), tf.string)),
  "images": (
    image((5, 4, 4, 3), tf.uint8, "png"),
    tf.io.FixedLenFeature((5,), tf.string),
  ),
  "varlen": (
    Spec((3,), tf.int32, "x", varlen_default_value=1),
    tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
  ),
  "varlen images": (
    image((5, 4, 4, 3), tf.uint8, "png", varlen_default_value=0),
    tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64),
  ),
  "sequence": (
    Spec((2,), F32, "x", is_sequence=True),
    tf.io.FixedLenSequenceFeature((2,), F32),
  ),
  "optional sequence": (
    Spec((2,), F32, "x", is_sequence=True, is_optional=True),
    tf.io.FixedLenSequenceFeature((2,), F32, allow_missing=True),
  ),
}


@pytest.mark.parametrize("case", FEATURES)
def test_tensorspec_to_feature_dict(case: str) -> None:
  spec, want = FEATURES[case]
  features, by_name = tensorspec_utils.tensorspec_to_feature_dict({"path": spec})
  assert features == {"x": want}
  assert by_name["x"].is_identical_to(spec)


def test_optional_features_have_a_default() -> None:
  spec = {"a": Spec((2,), tf.uint8, "a", is_optional=True)}
  feature = tensorspec_utils.tensorspec_to_feature_dict(spec)[0]["a"]
  np.testing.assert_array_equal(feature.default_value, [0, 0])
  spec = {"b": Spec((2,), tf.string, "b", is_optional=True)}
  feature = tensorspec_utils.tensorspec_to_feature_dict(spec)[0]["b"]
  assert feature.default_value.tolist() == [b"", b""]


def test_feature_dicts_are_of_one_dataset() -> None:
  spec = {"a": Spec((), F32, "n", dataset_key="a"), "b": Spec((), F32, "n")}
  with pytest.raises(errors.SpecError, match=r"of one dataset, got those of \[, a\]"):
    tensorspec_utils.tensorspec_to_feature_dict(spec)


def test_length_specs_are_not_parsed() -> None:
  spec = specs.add_sequence_length_specs({"a": Spec((2,), F32, "n", is_sequence=True)})
  assert sorted(parsed_specs(spec)) == ["a"]
  # A length of something that is no sequence is a feature like any other.
  plain = {"a": Spec((2,), F32, "n"), "a_length": Spec((), tf.int64, "l")}
  assert sorted(parsed_specs(plain)) == ["a", "a_length"]
