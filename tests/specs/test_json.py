"""Specs as JSON: readable, stable, and clear about what is wrong."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct


def test_json_is_readable_and_stable():
  struct = TensorSpecStruct()
  struct["state/image"] = ExtendedTensorSpec(
    (4, None, 64, 3), tf.uint8, "img", data_format="jpeg", time_offsets=range(-3, 1)
  )
  struct["next"] = ExtendedTensorSpec(
    None, tf.bfloat16, is_sequence=True, time_offsets=0
  )
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
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json(name):
  text, match = BAD_JSON[name]
  with pytest.raises(errors.SpecError, match=match):
    ExtendedTensorSpec.from_json(text)


def test_bad_json_of_a_struct_names_the_path():
  with pytest.raises(errors.SpecError, match=r"spec_from_json: t/x: .*got no shape"):
    TensorSpecStruct.from_json('{"t/x": {"dtype": "int8"}}')
  with pytest.raises(errors.SpecError, match=r"struct_from_json: .*expected JSON"):
    TensorSpecStruct.from_json("]")
  with pytest.raises(errors.SpecError, match="expected an object of specs by path"):
    TensorSpecStruct.from_json("[]")
