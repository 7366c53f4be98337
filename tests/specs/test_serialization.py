"""Proto and JSON keep every field, say what is wrong; Tensor2Robot's protos read."""

from __future__ import annotations

import json
import math
import pathlib
import re

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from hypothesis import strategies as st

from t2r_seq import errors
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.specs import TensorSpecStruct, t2r_pb2

DTYPES = [tf.bool, tf.string, tf.uint8, tf.int64, tf.bfloat16, tf.float32, tf.complex64]


@st.composite
def specs_of_all_kinds(draw):
  dims = draw(st.lists(st.none() | st.integers(0, 300), max_size=3))
  offset = st.integers(-(2**31), 2**31 - 1)
  offsets = draw(
    st.none() | offset | st.lists(offset, min_size=1, max_size=4).map(tuple)
  )
  scalars = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
  varlen = draw(st.none() | scalars | st.binary())
  data_format = draw(st.sampled_from([None, "jpeg", "PNG", "raw", ""]))
  if varlen is not None:
    dims = [3] if data_format is None else [2, 8, None, 3]
  if isinstance(offsets, tuple):
    dims = [len(offsets), *dims]
  is_unknown = varlen is None and not isinstance(offsets, tuple) and draw(st.booleans())
  dtype = draw(st.sampled_from(DTYPES))
  is_cast = dtype == tf.float32 and data_format is None and draw(st.booleans())
  return Spec(
    None if is_unknown else dims,
    dtype,
    draw(st.none() | st.text(st.characters(codec="utf-8"))),
    is_optional=draw(st.booleans()),
    is_sequence=draw(st.booleans()),
    is_extracted=draw(st.booleans()),
    data_format=data_format,
    dataset_key=draw(st.sampled_from(["", "d1", "é"])),
    varlen_default_value=varlen,
    time_offsets=offsets,
    is_concatenated=draw(st.booleans()),
    stored_dtype=tf.int64 if is_cast else None,
  )


@hypothesis.given(specs_of_all_kinds())
def test_every_field_survives(spec):
  proto = spec.to_proto()
  text = text_format.MessageToString(proto)
  read = text_format.Parse(text, t2r_pb2.ExtendedTensorSpec())
  for copy in (
    Spec.from_proto(proto),
    Spec.from_proto(read),
    Spec.from_serialized_proto(proto.SerializeToString()),
    Spec.from_json(spec.to_json()),
  ):
    assert copy.is_identical_to(spec), (copy, spec)
  assert json.loads(spec.to_json(), parse_constant=pytest.fail)


@hypothesis.given(st.dictionaries(st.sampled_from("abcdef"), specs_of_all_kinds()))
def test_structs_survive_in_order(values):
  struct = TensorSpecStruct()
  for key, spec in values.items():
    struct[f"{key}/x"] = Spec.from_spec(spec, name=key)
  serialized = struct.to_proto().SerializeToString()
  for copy in (
    TensorSpecStruct.from_proto(struct.to_proto()),
    TensorSpecStruct.from_serialized_proto(serialized),
    TensorSpecStruct.from_json(struct.to_json()),
  ):
    assert type(copy) is TensorSpecStruct
    assert list(copy) == list(struct)
    assert all(copy[path].is_identical_to(struct[path]) for path in struct)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_defaults_that_json_lacks(value):
  spec = Spec((3,), tf.float32, varlen_default_value=value)
  assert json.loads(spec.to_json(), parse_constant=pytest.fail)
  for copy in (Spec.from_json(spec.to_json()), Spec.from_proto(spec.to_proto())):
    got = copy.varlen_default_value
    assert isinstance(got, float)
    assert got == value or (math.isnan(got) and math.isnan(value))


def test_numpy_defaults_become_python_scalars():
  spec = Spec((3,), tf.float32, varlen_default_value=np.float32(0.5))
  copy = Spec.from_proto(spec.to_proto())
  assert copy.varlen_default_value == 0.5


def test_defaults_that_are_no_scalars():
  spec = Spec((3,), tf.float32, "v", varlen_default_value=[1])
  for write in (spec.to_proto, spec.to_json):
    with pytest.raises(errors.SpecError, match="varlen_default_value: expected a scal"):
      write()


PROTO_VARLEN = {
  "int": (3, 3.0, "3"),
  "float": (0.1, np.float32(0.1), "0.1"),
  "bool": (True, 1.0, "true"),
  "text": ("3", None, '"3"'),
  "bytes": (b"\0", None, '{"base64": "AA=="}'),
}


@pytest.mark.parametrize("name", PROTO_VARLEN)
def test_varlen_also_writes_the_old_field(name):
  value, want_float, want_json = PROTO_VARLEN[name]
  spec = Spec((3,), tf.float32, varlen_default_value=value)
  proto = spec.to_proto()
  assert proto.varlen_default_json == want_json
  assert proto.HasField("varlen_default_value") is (want_float is not None)
  if want_float is not None:
    assert proto.varlen_default_value == want_float


def test_proto_of_a_spec():
  spec = Spec((2, None), tf.float32, "s", is_sequence=True, time_offsets=(-1, 0))
  assert text_format.MessageToString(spec.to_proto(), as_one_line=True) == (
    'shape: 2 shape: -1 dtype: 1 name: "s" is_optional: false is_extracted: false '
    'dataset_key: "" is_sequence: true '
    "time_offsets { offset: -1 offset: 0 is_int: false }"
  )


def test_plain_specs_are_converted():
  plain = tf.TensorSpec((2, None), tf.int8, "p")
  want = Spec((2, None), tf.int8, "p")
  struct = TensorSpecStruct({"t/p": plain})
  assert TensorSpecStruct.from_proto(struct.to_proto()).t.p.is_identical_to(want)
  assert TensorSpecStruct.from_json(struct.to_json()).t.p.is_identical_to(want)


# What Tensor2Robot writes: no order, no sequences, a float default, fields unset.
TENSOR2ROBOT_STRUCT = """
key_value {
  key: "state/image"
  value {
    shape: 64 shape: 64 shape: 3
    dtype: 4
    name: "state/image"
    is_optional: false
    is_extracted: false
    data_format: "jpeg"
  }
}
key_value {
  key: "action"
  value { shape: 2 dtype: 1 is_optional: true varlen_default_value: 3.0 }
}
key_value { key: "reward" value { dtype: 1 name: "r" dataset_key: "d" } }
"""


def test_reads_what_tensor2robot_wrote():
  proto = text_format.Parse(TENSOR2ROBOT_STRUCT, t2r_pb2.TensorSpecStruct())
  struct = TensorSpecStruct.from_proto(proto)
  want = {
    "action": Spec((2,), tf.float32, is_optional=True, varlen_default_value=3.0),
    "reward": Spec((), tf.float32, "r", dataset_key="d"),
    "state/image": Spec((64, 64, 3), tf.uint8, "state/image", data_format="jpeg"),
  }
  assert list(struct) == list(want)
  assert all(struct[path].is_identical_to(spec) for path, spec in want.items())


def test_field_numbers_of_tensor2robot_are_kept():
  def numbers(message):
    return {field.name: field.number for field in message.DESCRIPTOR.fields}

  kept = ["shape", "dtype", "name", "is_optional", "is_extracted"]
  kept += ["data_format", "dataset_key", "varlen_default_value"]
  assert list(numbers(t2r_pb2.ExtendedTensorSpec).items())[:8] == [
    (name, number) for number, name in enumerate(kept, 1)
  ]
  assert numbers(t2r_pb2.TensorSpecStruct)["key_value"] == 1
  want = {"feature_spec": 1, "label_spec": 2, "global_step": 3}
  assert numbers(t2r_pb2.T2RAssets) == want


def test_generated_code_is_that_of_the_proto_file():
  source = pathlib.Path(t2r_pb2.__file__).with_name("t2r.proto").read_text()
  source = re.sub(r"//.*", "", source)
  for name, body in re.findall(r"message (\w+) \{(.*?)\n\}", source, re.DOTALL):
    declared = dict(re.findall(r"(\w+) = (\d+);", body))
    fields = getattr(t2r_pb2, name).DESCRIPTOR.fields
    assert {f.name: str(f.number) for f in fields} == declared, name
  assert set(t2r_pb2.DESCRIPTOR.message_types_by_name) == set(
    re.findall(r"message (\w+)", source)
  )


def test_edited_order_loses_no_path():
  struct = TensorSpecStruct([(key, Spec((), tf.int8)) for key in ("c", "a", "b")])
  proto = struct.to_proto()
  assert list(proto.key_order) == ["c", "a", "b"]
  proto.key_order[:] = ["b", "gone"]
  assert list(TensorSpecStruct.from_proto(proto)) == ["b", "a", "c"]


def test_absent_optionals_are_left_out():
  struct = TensorSpecStruct(a=Spec((), tf.int8), n=None)
  assert list(struct.to_proto().key_order) == ["a"]
  assert list(json.loads(struct.to_json())) == ["a"]


def test_leaves_that_are_no_specs_are_all_named():
  struct = TensorSpecStruct({"a": tf.TensorSpec((1,)), "t/x": np.zeros(2), "y": 3})
  with pytest.raises(errors.SpecError, match=r"y: expected a dict.*got int 3"):
    struct.to_proto()
  struct.y = tf.zeros(3)
  for write, operation in ((struct.to_proto, "proto"), (struct.to_json, "json")):
    with pytest.raises(errors.SpecError, match="2 mismatches") as error:
      write()
    lines = str(error.value).splitlines()
    assert lines[0] == f"struct_to_{operation}: 2 mismatches:"
    assert lines[1] == "  t/x: expected a spec, got ndarray (2,) float64."
    assert re.match(r"  y: expected a spec, got EagerTensor \(3,\) float32", lines[2])


BAD_PROTOS = {
  "no dtype": ("shape: 1", "expected the fields of a spec"),
  "unknown dtype": ("dtype: 999", "expected the fields of a spec"),
  "bad json": ('dtype: 1 shape: 1 varlen_default_json: "["', "x: .*expected JSON"),
  "bad offsets": (
    "dtype: 1 shape: 1 time_offsets { offset: 1 offset: 2 }",
    r"x: .*expected shape\[0\] = 2",
  ),
  "bad seconds": (
    'dtype: 1 time_offsets { second: 1 is_int: true select: "most" }',
    "x: .*select: expected one of .*got 'most'",
  ),
  "no offsets": ("dtype: 1 time_offsets {}", "x: .*at least one time offset"),
}


@pytest.mark.parametrize("name", BAD_PROTOS)
def test_bad_protos(name):
  text, match = BAD_PROTOS[name]
  proto = text_format.Parse(
    f'key_value {{ key: "x" value {{ {text} }} }}', t2r_pb2.TensorSpecStruct()
  )
  with pytest.raises(errors.SpecError, match=match):
    TensorSpecStruct.from_proto(proto)


def test_bad_bytes():
  with pytest.raises(errors.SpecError, match="a serialized ExtendedTensorSpec, got"):
    Spec.from_serialized_proto(b"\xff\xff")
  with pytest.raises(errors.SpecError, match="a serialized TensorSpecStruct, got"):
    TensorSpecStruct.from_serialized_proto(b"\xff\xff")
  good = TensorSpecStruct(pose=Spec((2,), tf.float32, "pose"))
  data = good.to_proto().SerializeToString().replace(b"pose", b"po\xf3e")
  with pytest.raises(errors.SpecError, match=r"the proto of specs, got .*utf"):
    TensorSpecStruct.from_serialized_proto(data)


def test_json_is_readable_and_stable():
  struct = TensorSpecStruct()
  struct["state/image"] = Spec(
    (4, None, 64, 3), tf.uint8, "img", data_format="jpeg", time_offsets=range(-3, 1)
  )
  struct["next"] = Spec(None, tf.bfloat16, is_sequence=True, time_offsets=0)
  want = (
    "{\n"
    '  "state/image": {"shape": [4, null, 64, 3], "dtype": "uint8", "name": "img", '
    '"data_format": "jpeg", "time_offsets": [-3, -2, -1, 0]},\n'
    '  "next": {"shape": null, "dtype": "bfloat16", "name": null, '
    '"is_sequence": true, "time_offsets": 0}\n'
    "}\n"
  )
  assert struct.to_json() == want
  assert TensorSpecStruct.from_json(want).to_json() == want
  assert json.loads(struct.next.to_json()) == json.loads(want)["next"]
  assert TensorSpecStruct.from_json(TensorSpecStruct().to_json()) == {}


BAD_JSON = {
  "no json": ("{", "spec_from_json: .*expected JSON, got"),
  "no object": ("[1]", r"expected an object of fields, got \[1\]"),
  "unknown field": (
    '{"shape": [], "dtype": "int8", "is_optionl": true}',
    "got 'is_optionl'. Did you mean 'is_optional'?",
  ),
  "no shape": ('{"dtype": "int8"}', "expected shape and dtype, got no shape"),
  "nothing": ("{}", "expected shape and dtype, got no dtype and no shape"),
  "bad dtype": ('{"shape": [], "dtype": "int9", "name": "n"}', "n: .*int9"),
  "a flag as text": (
    '{"shape": [], "dtype": "int8", "is_sequence": "false"}',
    "expected is_sequence to be true or false, got 'false'",
  ),
  "a name that is no text": (
    '{"shape": [], "dtype": "int8", "name": {}}',
    "expected name to be text, got {}",
  ),
  "a default that is no base64": (
    '{"shape": [1], "dtype": "string", "varlen_default_value": {"base64": 1}}',
    "expected a default value, got {'base64': 1}",
  ),
  "bad shape": ('{"shape": "x", "dtype": "int8"}', "expected the fields of a spec"),
  "bad offsets": (
    '{"shape": [3], "dtype": "int8", "time_offsets": [0, 1]}',
    r"expected shape\[0\] = 2",
  ),
  "bad seconds": (
    '{"shape": [3], "dtype": "int8", "name": "x", "time_offsets": {"seconds": "a"}}',
    "spec_from_json: x: .*Seconds: offsets: expected finite numbers",
  ),
  "unknown field of seconds": (
    '{"shape": [], "dtype": "int8", "time_offsets": {"seconds": 1, "rate": 2}}',
    r"expected fields \[clock, seconds, select, tolerance\], got \[rate\]",
  ),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json(name):
  text, match = BAD_JSON[name]
  with pytest.raises(errors.SpecError, match=match):
    Spec.from_json(text)


def test_bad_json_of_a_struct_names_the_path():
  with pytest.raises(errors.SpecError, match=r"spec_from_json: t/x: .*got no shape"):
    TensorSpecStruct.from_json('{"t/x": {"dtype": "int8"}}')
  with pytest.raises(errors.SpecError, match=r"struct_from_json: .*expected JSON"):
    TensorSpecStruct.from_json("]")
  with pytest.raises(errors.SpecError, match="expected an object of specs by path"):
    TensorSpecStruct.from_json("[]")
