"""The parser: forms of input, sequences, optionals, images, datasets, exports."""

from __future__ import annotations

import collections
import io
import pathlib
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.records.features import encoded_specs
from t2r_seq.specs.packing import encode_image

Spec = specs.ExtendedTensorSpec

STATE = Spec((2,), tf.float32, "state")
POSES = Spec((2,), tf.float32, "pose", is_sequence=True)
IMAGE = Spec((4, 6, 3), tf.uint8, "image", data_format="jpeg")
RED = np.broadcast_to(np.asarray([200, 10, 10], np.uint8), (4, 6, 3))


def example(**values: Any) -> bytes:
  """Serializes a tf.train.Example from int, float and bytes lists."""
  proto = tf.train.Example()
  for name, value in values.items():
    add(proto.features.feature[name], value)
  return proto.SerializeToString()


def sequence_example(context: dict[str, Any], **steps: list[Any]) -> bytes:
  """Serializes a tf.train.SequenceExample from a list of lists per feature."""
  proto = tf.train.SequenceExample()
  for name, value in context.items():
    add(proto.context.feature[name], value)
  for name, values in steps.items():
    feature_list = proto.feature_lists.feature_list[name]
    for value in values:
      add(feature_list.feature.add(), value)
  return proto.SerializeToString()


def add(feature: tf.train.Feature, value: list[Any]) -> None:
  kinds = {int: "int64_list", float: "float_list", bytes: "bytes_list"}
  if value:
    getattr(feature, kinds[type(value[0])]).value.extend(value)
  else:
    feature.int64_list.SetInParent()


def parse(spec: Any, serialized: Any, labels: Any = None, **kwargs: Any) -> Any:
  parse_fn = records.create_parse_tf_example_fn(spec, labels, **kwargs)
  parsed = parse_fn(tf.constant(serialized))
  return tf.nest.map_structure(lambda t: t.numpy(), parsed)


def png(image: np.ndarray) -> bytes:
  return encode_image(image, "png")


def test_output_is_a_struct_by_path_with_sorted_keys() -> None:
  spec = {"b": {"x": STATE}, "a": Spec((), tf.int64, "n")}
  parsed = records.create_parse_tf_example_fn(spec)(
    tf.constant(example(state=[1.0, 2.0], n=[7]))
  )
  assert isinstance(parsed, specs.TensorSpecStruct)
  assert list(parsed) == ["a", "b/x"]
  np.testing.assert_array_equal(parsed.b.x, [1, 2])
  assert parsed.a.numpy() == 7


Pair = collections.namedtuple("Pair", ["state", "action"])


def test_namedtuples_are_structures_too() -> None:
  spec = Pair(state=STATE, action=Spec((), tf.int64, "n"))
  assert list(parse(spec, example(state=[1.0, 2.0], n=[7]))) == ["action", "state"]


@pytest.mark.parametrize("form", ["scalar", "tuple", "pair", "arguments", "dict"])
def test_forms_of_input(form: str) -> None:
  parse_fn = records.create_parse_tf_example_fn({"x": STATE})
  serialized = tf.constant([example(state=[1.0, 2.0])] * 2)
  keys = tf.constant(["key"] * 2)
  parsed = {
    "scalar": lambda: parse_fn(serialized),
    "tuple": lambda: parse_fn((serialized,)),
    "pair": lambda: parse_fn((keys, serialized)),
    "arguments": lambda: parse_fn(keys, serialized),
    "dict": lambda: parse_fn({"": (keys, serialized)}),
  }[form]()
  np.testing.assert_array_equal(parsed["x"], [[1, 2], [1, 2]])


@pytest.mark.parametrize(
  ("serialized", "message"),
  [
    (tf.constant([["a"]]), r"parse: records: expected .* got \(1, 1\) string"),
    (tf.constant(3), r"parse: records: expected .* got \(\) int32"),
    ({"other": tf.constant("a")}, r"of the datasets \[\], got \[other\]"),
  ],
)
def test_other_inputs_are_refused(serialized: Any, message: str) -> None:
  parse_fn = records.create_parse_tf_example_fn({"x": STATE})
  with pytest.raises(errors.SpecError, match=message):
    parse_fn(serialized)


def test_features_and_labels_may_share_a_record_feature() -> None:
  features = {"now": STATE, "again": STATE}
  got, labels = parse(features, example(state=[1.0, 2.0]), {"target": STATE})
  assert sorted(got) == ["again", "now"]
  for value in (got["now"], got["again"], labels["target"]):
    np.testing.assert_array_equal(value, [1, 2])


def test_integers_out_of_range_fail_and_do_not_wrap() -> None:
  with pytest.raises(tf.errors.InvalidArgumentError, match="parse: x: expected values"):
    parse({"x": Spec((2,), tf.uint8, "n")}, example(n=[1, 300]))


def test_raw_bytes_of_a_wrong_length_fail_with_the_path() -> None:
  spec = {"x": Spec((2,), tf.float32, "n", data_format="raw")}
  with pytest.raises(tf.errors.InvalidArgumentError, match="x: expected 8 bytes for"):
    parse(spec, example(n=[b"1234567"]))
  with pytest.raises(tf.errors.InvalidArgumentError, match="x: expected 8 bytes for"):
    parse(spec, example(n=[b""]))


# Varying lengths.


@pytest.mark.parametrize(
  ("default", "dtype", "values", "want"),
  [
    (3.0, tf.int64, [1], [1, 3, 3]),
    (3.0, tf.int64, [1, 2], [1, 2, 3]),
    (3.0, tf.int64, [1, 2, 4, 5], [1, 2, 4]),
    (3.0, tf.int64, [], [3, 3, 3]),
    (2, tf.float32, [0.5], [0.5, 2, 2]),
    (True, tf.bool, [0], [False, True, True]),
    ("x", tf.string, [b"a"], [b"a", b"x", b"x"]),
  ],
)
def test_varlen_features_are_padded_or_clipped(
  default: Any, dtype: tf.DType, values: list[Any], want: list[Any]
) -> None:
  spec = {"x": Spec((3,), dtype, "varlen", varlen_default_value=default)}
  assert parse(spec, example(varlen=values))["x"].tolist() == want
  assert parse(spec, [example(varlen=values)] * 2)["x"].tolist() == [want, want]


def test_varlen_shapes_stay_static() -> None:
  spec = {
    "x": Spec((3,), tf.int64, "varlen", varlen_default_value=3.0),
    "images": Spec(
      (3, 4, 6, 1), tf.uint8, "images", data_format="png", varlen_default_value=0
    ),
  }
  dataset = tf.data.Dataset.from_tensors(example(varlen=[1], images=[]))
  single = records.serialized_to_parsed(dataset, spec).element_spec
  assert single["x"].shape == (3,)
  batched = records.serialized_to_parsed(dataset.batch(1), spec).element_spec
  assert batched["x"].shape.as_list() == [None, 3]
  assert batched["images"].shape.as_list() == [None, 3, 4, 6, 1]


def test_varlen_lists_of_images_are_padded_with_black() -> None:
  spec = {
    "x": Spec(
      (3, 4, 6, 3), tf.uint8, "images", data_format="png", varlen_default_value=7
    )
  }
  one, two = example(images=[png(RED)]), example(images=[png(RED)] * 2)
  got = parse(spec, [one, two])["x"]
  assert got.shape == (2, 3, 4, 6, 3)
  np.testing.assert_array_equal(got[0, 0], RED)
  assert not got[0, 1:].any() and not got[1, 2:].any()


# Sequences.


def test_sequences_are_padded_to_the_longest_with_their_lengths() -> None:
  spec = specs.add_sequence_length_specs(
    {"pose": POSES, "task": Spec((), tf.int64, "task")}
  )
  short = sequence_example({"task": [1]}, pose=[[1.0, 1.0]])
  long = sequence_example({"task": [2]}, pose=[[2.0, 2.0], [3.0, 3.0]])
  got = parse(spec, [short, long])
  assert sorted(got) == ["pose", "pose_length", "task"]
  assert got["pose"].tolist() == [[[1, 1], [0, 0]], [[2, 2], [3, 3]]]
  assert got["pose_length"].tolist() == [1, 2]
  assert got["pose_length"].dtype == np.int64
  assert got["task"].tolist() == [1, 2]
  assert parse(spec, long)["pose_length"] == 2


def test_lengths_are_counted_not_read() -> None:
  spec = specs.add_sequence_length_specs({"pose": POSES})
  record = sequence_example({"pose_length": [99]}, pose=[[1.0, 1.0]])
  assert parse(spec, record)["pose_length"] == 1
  bare = parse({"pose": POSES}, record)
  assert sorted(bare) == ["pose"]


def test_sequences_have_an_unknown_time_axis() -> None:
  dataset = tf.data.Dataset.from_tensors(b"")
  spec = {"pose": POSES, "image": Spec.from_spec(IMAGE, is_sequence=True)}
  element = records.serialized_to_parsed(dataset.batch(1), spec).element_spec
  assert element["pose"].shape.as_list() == [None, None, 2]
  assert element["image"].shape.as_list() == [None, None, 4, 6, 3]
  element = records.serialized_to_parsed(dataset, spec).element_spec
  assert element["pose"].shape.as_list() == [None, 2]


def test_empty_sequence_has_no_steps() -> None:
  spec = {"pose": POSES, "image": Spec.from_spec(IMAGE, is_sequence=True)}
  got = parse(spec, sequence_example({}, pose=[], image=[]))
  assert got["pose"].shape == (0, 2)
  assert got["image"].shape == (0, 4, 6, 3)


def test_varlen_sequences_are_padded_per_step() -> None:
  varlen = Spec((3,), tf.int32, "ids", is_sequence=True, varlen_default_value=-1)
  spec = specs.add_sequence_length_specs({"ids": varlen, "pose": POSES})
  record = sequence_example({}, ids=[[1], [1, 2, 3, 4]], pose=[[0.0, 0.0]] * 2)
  got = parse(spec, record)
  assert got["ids"].tolist() == [[1, -1, -1], [1, 2, 3]]
  assert got["ids_length"] == 2
  without = sequence_example({}, pose=[[0.0, 0.0]] * 3)
  batch = parse(spec, [record, without])
  assert batch["ids"].tolist()[1] == [[-1, -1, -1]] * 3
  assert batch["ids_length"].tolist() == [2, 3]


# Optional features.


OPTIONALS = {
  "float": Spec((2,), tf.float32, "a", is_optional=True),
  "int": Spec((), tf.uint8, "b", is_optional=True),
  "string": Spec((), tf.string, "c", is_optional=True),
  "double": Spec((2,), tf.float64, "d", is_optional=True),
  "image": Spec.from_spec(IMAGE, name="e", is_optional=True),
  "varlen": Spec((2,), tf.int64, "f", is_optional=True, varlen_default_value=5),
}


@pytest.mark.parametrize("is_batched", [False, True])
def test_absent_optionals_are_zeros_empty_black_or_the_default(
  is_batched: bool,
) -> None:
  record = example(state=[1.0, 2.0])
  got = parse({**OPTIONALS, "state": STATE}, [record] if is_batched else record)
  got = {path: value[0] if is_batched else value for path, value in got.items()}
  assert got["float"].tolist() == [0, 0]
  assert got["int"] == 0
  assert got["string"] == b""
  assert got["double"].tolist() == [0, 0]
  assert got["image"].shape == (4, 6, 3) and not got["image"].any()
  assert got["varlen"].tolist() == [5, 5]


@pytest.mark.parametrize("is_batched", [False, True])
def test_absent_optional_sequences_are_as_long_as_the_others(is_batched: bool) -> None:
  optionals = {p: Spec.from_spec(s, is_sequence=True) for p, s in OPTIONALS.items()}
  spec = specs.add_sequence_length_specs({**optionals, "pose": POSES})
  record = sequence_example({}, pose=[[1.0, 1.0]] * 3)
  got = parse(spec, [record] if is_batched else record)
  got = {path: value[0] if is_batched else value for path, value in got.items()}
  for path in optionals:
    assert got[path].shape[0] == 3, path
    assert got[f"{path}_length"] == 3, path
  assert got["string"].tolist() == [b""] * 3
  assert not got["image"].any() and not got["double"].any()
  assert got["varlen"].tolist() == [[5, 5]] * 3


def test_optional_sequence_may_be_absent_in_a_part_of_the_batch() -> None:
  spec = specs.add_sequence_length_specs(
    {"pose": POSES, "force": Spec((), tf.float32, "f", is_sequence=True)}
  )
  spec["force"] = Spec.from_spec(spec["force"], is_optional=True)
  short = sequence_example({}, pose=[[0.0, 0.0]], f=[[9.0]])
  long = sequence_example({}, pose=[[0.0, 0.0]] * 3)
  got = parse(spec, [short, long])
  assert got["force"].tolist() == [[9, 0, 0], [0, 0, 0]]
  assert got["force_length"].tolist() == [1, 3]


def test_feature_is_required_where_one_of_its_paths_requires_it() -> None:
  spec = {"a": Spec((), tf.int64, "n"), "b": Spec((), tf.int64, "n", is_optional=True)}
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"n .*is required"):
    parse(spec, example(other=[1]))


def test_missing_feature_fails() -> None:
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"state .*is required"):
    parse({"x": STATE}, example(other=[1]))
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"pose.* is required"):
    parse({"x": POSES}, sequence_example({}, other=[[1]]))


# Images.


def test_missing_images_are_black_and_formats_are_sniffed() -> None:
  jpeg = encode_image(RED, "jpeg")
  bmp = io.BytesIO()
  PIL.Image.fromarray(RED).save(bmp, "BMP")
  spec = {"image": Spec.from_spec(IMAGE, is_sequence=True)}
  got = parse(
    spec, sequence_example({}, image=[[jpeg], [b""], [png(RED)], [bmp.getvalue()]])
  )
  np.testing.assert_allclose(got["image"][0].astype(int), RED, atol=6)
  assert not got["image"][1].any()
  np.testing.assert_array_equal(got["image"][2], RED)
  np.testing.assert_array_equal(got["image"][3], RED)


def test_gif_is_its_first_frame() -> None:
  # Two frames of 2x1 pixels: red and green, then green and red.
  palette = bytes([255, 0, 0, 0, 255, 0])
  frame = b",\0\0\0\0\2\0\1\0\0\2\2"
  gif = b"GIF89a\2\0\1\0\x80\0\0" + palette
  gif += frame + bytes([0b01000100, 0b00001010]) + b"\0"
  gif += frame + bytes([0b00001100, 0b00001010]) + b"\0;"
  spec = {"x": Spec((1, 2, 3), tf.uint8, "gif", data_format="gif")}
  got = parse(spec, example(gif=[gif]))["x"]
  assert got.tolist() == [[[255, 0, 0], [0, 255, 0]]]
  assert parse(spec, example(gif=[b""]))["x"].tolist() == [[[0, 0, 0], [0, 0, 0]]]


@pytest.mark.parametrize("layout", ["one", "batch", "sequence", "list", "varlen"])
def test_wrong_image_size_fails_with_path_and_sizes(layout: str) -> None:
  good, bad = png(RED), png(RED[:3])
  spec, record = IMAGE, example(image=[bad])
  if layout == "batch":
    record = [example(image=[good]), record]
  if layout == "sequence":
    spec = Spec.from_spec(IMAGE, is_sequence=True)
    record = sequence_example({}, image=[[good], [bad]])
  if layout in ("list", "varlen"):
    default = 0 if layout == "varlen" else None
    spec = Spec.from_spec(IMAGE, shape=(2, 4, 6, 3), varlen_default_value=default)
    record = example(image=[good, bad])
  message = r"state/image: expected an image of size \(4, 6, 3\), got an image of size"
  with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{message}[^0-9]*3 6 3"):
    parse({"state": {"image": spec}}, record)
  dataset = tf.data.Dataset.from_tensors(tf.constant(record))
  dataset = records.serialized_to_parsed(dataset, {"state": {"image": spec}})
  with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{message}[^0-9]*3 6 3"):
    list(dataset)


def test_encoded_images_can_stay_encoded() -> None:
  spec = {
    "one": IMAGE,
    "steps": Spec((2, 4, 6, 3), tf.uint8, "b", is_sequence=True, data_format="png"),
    "some": Spec(
      (2, 4, 6, 3), tf.uint8, "c", data_format="png", varlen_default_value=0
    ),
  }
  record = sequence_example({"image": [b"jpeg"], "c": [b"1"]}, b=[[b"2", b"3"]])
  got = parse(spec, record, decode_images=False)
  assert got["one"] == b"jpeg"
  assert got["steps"].tolist() == [[b"2", b"3"]]
  assert got["some"].tolist() == [b"1", b""]
  encoded = encoded_specs(spec)
  assert (encoded["steps"].shape, encoded["steps"].dtype) == ((2,), tf.string)


# Several datasets.


def test_datasets_are_zipped_by_key() -> None:
  spec = {
    "x": Spec((), tf.int64, "n", dataset_key="first"),
    "y": Spec((2,), tf.float32, "n", dataset_key="second", is_sequence=True),
  }
  spec = specs.add_sequence_length_specs(spec)
  first = tf.data.Dataset.from_tensors(example(n=[3])).batch(1)
  second = tf.data.Dataset.from_tensors(sequence_example({}, n=[[1.0, 2.0]])).batch(1)
  dataset = tf.data.Dataset.zip({"first": first, "second": second})
  (got,) = records.serialized_to_parsed(dataset, spec).as_numpy_iterator()
  assert got["x"].tolist() == [3]
  assert got["y"].tolist() == [[[1, 2]]]
  assert got["y_length"].tolist() == [1]


def test_several_datasets_need_a_dict() -> None:
  spec = {
    "x": Spec((), tf.int64, "n", dataset_key="first"),
    "y": Spec((), tf.int64, "n", dataset_key="second"),
  }
  parse_fn = records.create_parse_tf_example_fn(spec)
  with pytest.raises(errors.SpecError, match=r"by dataset_key, \[first, second\], got"):
    parse_fn(tf.constant(b""))
  with pytest.raises(errors.SpecError, match=r"\[first, second\], got \[first\]"):
    parse_fn({"first": tf.constant(b"")})


# Where it runs.


def test_parse_fn_runs_in_an_exported_saved_model(tmp_path: pathlib.Path) -> None:
  spec = {
    "image": Spec.from_spec(IMAGE, is_sequence=True),
    "raw": Spec((2,), tf.float64, "raw"),
    "text": Spec((2,), tf.string, "text", varlen_default_value=""),
  }
  parse_fn = records.create_parse_tf_example_fn(spec)

  class Module(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def parse(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
      return dict(parse_fn(serialized))

  tf.saved_model.save(Module(), str(tmp_path / "export"))
  loaded = tf.saved_model.load(str(tmp_path / "export"))
  raw = np.asarray([1.5, -2.5])
  record = sequence_example(
    {"raw": [raw.tobytes()], "text": [b"a"]}, image=[[png(RED)], [b""]]
  )
  got = loaded.parse(tf.constant([record, record]))
  assert got["image"].shape == (2, 2, 4, 6, 3)
  np.testing.assert_array_equal(got["image"][0, 0], RED)
  np.testing.assert_array_equal(got["raw"], [raw, raw])
  assert got["text"].numpy().tolist() == [[b"a", b""]] * 2


def test_pose_env_records_of_tensor2robot(pose_env_data: pathlib.Path) -> None:
  features = {
    "state": Spec((64, 64, 3), tf.uint8, "state/image", data_format="jpeg"),
    "action": Spec((2,), tf.bfloat16, "pose"),
  }
  labels = {"reward": Spec((), tf.float32, "reward")}
  dataset = records.record_dataset([str(pose_env_data)]).batch(10)
  parsed = list(records.serialized_to_parsed(dataset, features, labels))
  assert len(parsed) == 10
  assert parsed[0][0]["state"].shape == (10, 64, 64, 3)
  assert parsed[0][0]["action"].dtype == tf.bfloat16
  assert parsed[0][1]["reward"].shape == (10,)
