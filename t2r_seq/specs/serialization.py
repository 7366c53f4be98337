"""Converts the fields of specs to protos and JSON values, and back.

Both forms keep every field, and their text is stable. The public methods are those of
`ExtendedTensorSpec` and `TensorSpecStruct`. Reads Tensor2Robot's protos, too; see
t2r.proto.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from google.protobuf import message as proto_message

from t2r_seq import errors
from t2r_seq.imports import tf
from t2r_seq.specs import t2r_pb2
from t2r_seq.specs.seconds import Seconds

_FLAGS = ("is_optional", "is_sequence", "is_extracted")
_TEXTS = ("name", "data_format", "dataset_key")
_ALWAYS_IN_JSON = ("shape", "dtype", "name")

# The names of TensorFlow's data types, by their numbers in protos.
_DTYPES = (
  *("invalid", "float32", "float64", "int32", "uint8", "int16", "int8", "string"),
  *("complex64", "int64", "bool", "qint8", "quint8", "qint32", "bfloat16", "qint16"),
  *("quint16", "uint16", "complex128", "float16", "resource", "variant", "uint32"),
  "uint64",
)

_Message = TypeVar("_Message", bound=proto_message.Message)


def fields_to_proto(fields: Mapping[str, Any]) -> t2r_pb2.ExtendedTensorSpec:
  """Returns the proto of the fields of a spec."""
  proto = t2r_pb2.ExtendedTensorSpec(
    shape=[-1 if dim is None else dim for dim in _dims(fields) or ()],
    dtype=fields["dtype"].as_datatype_enum,
    dataset_key=fields["dataset_key"],
    **{flag: fields[flag] for flag in _FLAGS},
  )
  if fields["shape"].rank is None:
    proto.unknown_rank = True
  if fields["is_concatenated"]:
    proto.is_concatenated = True
  if fields["stored_dtype"] is not None:
    proto.stored_dtype = fields["stored_dtype"].as_datatype_enum
  if fields["convention"] is not None:
    proto.convention_json = json.dumps(fields["convention"].to_json())
  for field in ("name", "data_format"):
    if fields[field] is not None:
      setattr(proto, field, fields[field])
  offsets = fields["time_offsets"]
  if isinstance(offsets, Seconds):
    proto.time_offsets.is_int = not offsets.is_stack
    proto.time_offsets.second.extend(np.atleast_1d(offsets.array).tolist())
    proto.time_offsets.select = offsets.select
    for field in ("tolerance", "clock"):
      if getattr(offsets, field) is not None:
        setattr(proto.time_offsets, field, getattr(offsets, field))
  elif offsets is not None:
    proto.time_offsets.is_int = not isinstance(offsets, tuple)
    if offsets != "last":  # 'last' is one step, and has no offset.
      proto.time_offsets.offset.extend(np.atleast_1d(offsets).tolist())
  if fields["varlen_default_value"] is not None:
    scalar = _scalar_to_json(fields["varlen_default_value"])
    proto.varlen_default_json = json.dumps(scalar)
    if isinstance(scalar, (int, float)):
      proto.varlen_default_value = scalar
  return proto


def fields_from_proto(
  proto: t2r_pb2.ExtendedTensorSpec, path: str = ""
) -> dict[str, Any]:
  """Returns the fields of a proto, also Tensor2Robot's.

  Raises:
    SpecError: a default value or a convention is not JSON; the message has `path`.
  """
  fields: dict[str, Any] = {
    "shape": None
    if proto.unknown_rank
    else [None if dim < 0 else dim for dim in proto.shape],
    "dtype": dict(enumerate(_DTYPES)).get(proto.dtype, proto.dtype),
  }
  plain = ("name", "data_format", "dataset_key", "varlen_default_value")
  for field in (*plain, *_FLAGS, "is_concatenated", "stored_dtype"):
    if proto.HasField(field):
      fields[field] = getattr(proto, field)
  if proto.HasField("varlen_default_json"):
    scalar = load_json(f"varlen_default_json of {path}", proto.varlen_default_json)
    fields["varlen_default_value"] = _scalar_from_json(scalar)
  if proto.HasField("convention_json"):
    fields["convention"] = load_json(f"convention of {path}", proto.convention_json)
  if proto.HasField("time_offsets"):
    fields["time_offsets"] = _offsets_from_proto(proto.time_offsets)
  return fields


def fields_by_path(proto: t2r_pb2.TensorSpecStruct) -> dict[str, dict[str, Any]]:
  """Returns the fields of each spec; paths without an order come last, sorted."""
  with decoding("struct_from_proto"):
    paths = [path for path in proto.key_order if path in proto.key_value]
    paths += sorted(set(proto.key_value) - set(paths))
    return {path: fields_from_proto(proto.key_value[path], path) for path in paths}


def _offsets_from_proto(proto: t2r_pb2.TimeOffsets) -> Any:
  if proto.second:
    given = tuple(proto.second)
    options = {
      f: getattr(proto, f) for f in ("tolerance", "clock") if proto.HasField(f)
    }
    return {
      "seconds": given[0] if proto.is_int else given,
      "select": proto.select,
    } | options
  offsets = tuple(proto.offset)
  if not proto.is_int or len(offsets) > 1:
    return offsets
  return offsets[0] if offsets else "last"


def fields_to_json(
  fields: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the fields of a spec as JSON values, without those at their default."""
  values = {**fields, "shape": _dims(fields), "dtype": fields["dtype"].name}
  if isinstance(fields["time_offsets"], tuple):
    values["time_offsets"] = list(fields["time_offsets"])
  elif isinstance(fields["time_offsets"], Seconds):
    values["time_offsets"] = fields["time_offsets"].to_json_dict()
  if fields["stored_dtype"] is not None:
    values["stored_dtype"] = fields["stored_dtype"].name
  if fields["convention"] is not None:
    values["convention"] = fields["convention"].to_json()
  if fields["varlen_default_value"] is not None:
    values["varlen_default_value"] = _scalar_to_json(fields["varlen_default_value"])
  return {
    field: value
    for field, value in values.items()
    if field in _ALWAYS_IN_JSON or value != defaults[field]
  }


def fields_from_json(
  values: Mapping[str, Any], names: tuple[str, ...], path: str = ""
) -> dict[str, Any]:
  """Returns the fields of a spec from JSON values.

  Args:
    values: the output of `fields_to_json`, or a user's.
    names: the names of all fields.
    path: path of the spec, for the error.
  Raises:
    SpecError: an unknown, missing or invalid field.
  """
  operation = "spec_from_json"
  if not isinstance(values, Mapping):
    raise error(operation, path, "an object of fields", repr(values))
  for field in values:
    if field not in names:
      hint = errors.nearest(field, names)
      want = f"fields {errors.listing(names)}"
      raise error(operation, path, want, repr(field), hint)
  missing = {"shape", "dtype"} - set(values)
  if missing:
    got = f"no {' and no '.join(sorted(missing))}"
    raise error(operation, path, "shape and dtype", got)
  fields = dict(values)
  for field, value in fields.items():
    if field in _TEXTS and not isinstance(value, (str, type(None))):
      raise error(operation, path, f"{field} to be text", repr(value))
    if field in (*_FLAGS, "is_concatenated") and not isinstance(value, bool | None):
      raise error(operation, path, f"{field} to be true or false", repr(value))
  if "varlen_default_value" in fields:
    default = fields["varlen_default_value"]
    try:
      fields["varlen_default_value"] = _scalar_from_json(default)
    except (TypeError, ValueError) as e:
      raise error(operation, path, "a default value", repr(default), str(e)) from e
  return fields


def build(
  make: Callable[..., Any], operation: str, path: str, fields: Mapping[str, Any]
) -> Any:
  """Makes a spec of fields; SpecError, with the path, if they are invalid."""
  try:
    changed = {"dtype": tf.as_dtype(fields["dtype"])}
    if isinstance(fields.get("time_offsets"), Mapping):
      changed["time_offsets"] = Seconds.from_json_dict(fields["time_offsets"])
    return make(**{**fields, **changed})
  except (AttributeError, OverflowError, TypeError, ValueError) as e:
    where = path or fields.get("name")
    got = f"{dict(fields)}"
    raise error(operation, where, "the fields of a spec", got, str(e)) from e


def parse_proto(message_cls: Callable[[], _Message], serialized: bytes) -> _Message:
  """Reads a serialized proto; SpecError if it is invalid."""
  message = message_cls()
  try:
    message.ParseFromString(serialized)
  except (proto_message.DecodeError, TypeError) as e:
    want = f"a serialized {type(message).__name__}"
    raise error("from_serialized_proto", "", want, str(e)) from e
  return message


@contextlib.contextmanager
def decoding(operation: str, path: str = "") -> Iterator[None]:
  """Raises SpecError in place of a ValueError or TypeError: text that is not UTF-8."""
  try:
    yield
  except errors.SpecError:
    raise
  except (TypeError, ValueError) as e:
    raise error(operation, path, "the proto of specs", str(e)) from e


def load_json(operation: str, text: str) -> Any:
  """Reads JSON; SpecError if it is invalid."""
  try:
    return json.loads(text)
  except (RecursionError, TypeError, ValueError) as e:
    raise error(operation, "", "JSON", str(e)) from e


def error(
  operation: str, path: str | None, expected: str, got: str, hint: str = ""
) -> errors.SpecError:
  """Returns the error of an invalid spec."""
  mismatch = errors.Mismatch(path or "(spec)", expected, got, hint)
  return errors.mismatch_error(operation, [mismatch])


def _dims(fields: Mapping[str, Any]) -> list[int | None] | None:
  return None if fields["shape"].rank is None else fields["shape"].as_list()


def _scalar_to_json(value: Any) -> Any:
  """Returns a default value with its type; JSON has no bytes and no NaN."""
  if isinstance(value, np.generic):
    value = value.item()
  if isinstance(value, bytes):
    return {"base64": base64.b64encode(value).decode("ascii")}
  if isinstance(value, float) and not math.isfinite(value):
    return {"float": str(value)}
  if not isinstance(value, (bool, int, float, str)):
    raise error("to_proto", "varlen_default_value", "a scalar", errors.describe(value))
  return value


def _scalar_from_json(value: Any) -> Any:
  if isinstance(value, Mapping) and "base64" in value:
    return base64.b64decode(value["base64"])
  if isinstance(value, Mapping) and "float" in value:
    return float(value["float"])
  return value
