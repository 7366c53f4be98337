"""Specs as protos and as JSON, and the asset file beside every export.

Both forms keep every field, and their text is stable: equal specs give equal text.
Tensor2Robot's own protos read too; see t2r.proto.

It is text, so that a person can read it, and Tensor2Robot's own files read too.
"""

from __future__ import annotations

import base64
import json
import math
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from google.protobuf import message as proto_message
from google.protobuf import text_format

from t2r_seq import errors
from t2r_seq.specs import structures, t2r_pb2, tensor_spec_struct
from t2r_seq.specs.extended_tensor_spec import FIELDS, ExtendedTensorSpec

_FLAGS = ("is_optional", "is_sequence", "is_extracted")
_ALWAYS_IN_JSON = ("shape", "dtype", "name")
_DEFAULTS = ExtendedTensorSpec((), tf.float32).fields()

_Message = TypeVar("_Message", bound=proto_message.Message)


def spec_to_proto(spec: tf.TensorSpec) -> t2r_pb2.ExtendedTensorSpec:
  """Turns a spec, a plain `tf.TensorSpec` too, into its proto."""
  spec = ExtendedTensorSpec.to_spec(spec)
  proto = t2r_pb2.ExtendedTensorSpec(
    shape=[-1 if dim is None else dim for dim in _dims(spec) or ()],
    dtype=spec.dtype.as_datatype_enum,
    dataset_key=spec.dataset_key,
    **{flag: getattr(spec, flag) for flag in _FLAGS},
  )
  if spec.shape.rank is None:
    proto.unknown_rank = True
  if spec.is_concatenated:
    proto.is_concatenated = True
  if spec.name is not None:
    proto.name = spec.name
  if spec.data_format is not None:
    proto.data_format = spec.data_format
  if spec.time_offsets is not None:
    is_int = isinstance(spec.time_offsets, int)
    proto.time_offsets.is_int = is_int
    proto.time_offsets.offset.extend(np.atleast_1d(spec.time_offsets).tolist())
  if spec.varlen_default_value is not None:
    scalar = _scalar_to_json(spec.varlen_default_value)
    proto.varlen_default_json = json.dumps(scalar)
    if isinstance(scalar, (int, float)):
      proto.varlen_default_value = scalar
  return proto


def spec_from_proto(
  proto: t2r_pb2.ExtendedTensorSpec, path: str = ""
) -> ExtendedTensorSpec:
  """Turns a proto, Tensor2Robot's own too, into the spec.

  Args:
    proto: the message.
    path: where the spec is, for the error.
  Returns:
    The spec, identical to the one that was written.
  Raises:
    SpecError: the message is not a spec.
  """
  fields: dict[str, Any] = {
    "shape": None
    if proto.unknown_rank
    else [None if dim < 0 else dim for dim in proto.shape],
    "dtype": proto.dtype,
  }
  plain = ("name", "data_format", "dataset_key", "varlen_default_value")
  for field in (*plain, *_FLAGS, "is_concatenated"):
    if proto.HasField(field):
      fields[field] = getattr(proto, field)
  if proto.HasField("varlen_default_json"):
    fields["varlen_default_value"] = _parse_scalar(proto.varlen_default_json, path)
  if proto.HasField("time_offsets"):
    offsets = tuple(proto.time_offsets.offset)
    is_int = proto.time_offsets.is_int and len(offsets) == 1
    fields["time_offsets"] = offsets[0] if is_int else offsets
  return _build("spec_from_proto", path, fields)


def spec_from_serialized_proto(serialized: bytes) -> ExtendedTensorSpec:
  """Reads a serialized ExtendedTensorSpec proto."""
  return spec_from_proto(_parse(t2r_pb2.ExtendedTensorSpec, serialized))


def struct_to_proto(structure: Any) -> t2r_pb2.TensorSpecStruct:
  """Turns a spec structure into its proto; absent optionals are left out.

  Args:
    structure: specs, plain `tf.TensorSpec`s too, in any structure.
  Returns:
    The proto, by path.
  Raises:
    SpecError: a leaf is not a spec.
  """
  proto = t2r_pb2.TensorSpecStruct()
  for path, spec in _flat_specs("struct_to_proto", structure).items():
    proto.key_value[path].CopyFrom(spec_to_proto(spec))
    proto.key_order.append(path)
  return proto


def struct_from_proto(
  proto: t2r_pb2.TensorSpecStruct,
) -> tensor_spec_struct.TensorSpecStruct:
  """Turns a proto into the structure; paths without an order come last, sorted."""
  paths = [path for path in proto.key_order if path in proto.key_value]
  paths += sorted(set(proto.key_value) - set(paths))
  return tensor_spec_struct.TensorSpecStruct(
    [(path, spec_from_proto(proto.key_value[path], path)) for path in paths]
  )


def struct_from_serialized_proto(
  serialized: bytes,
) -> tensor_spec_struct.TensorSpecStruct:
  """Reads a serialized TensorSpecStruct proto."""
  return struct_from_proto(_parse(t2r_pb2.TensorSpecStruct, serialized))


def spec_to_json_dict(spec: tf.TensorSpec) -> dict[str, Any]:
  """Turns a spec into JSON values; fields at their default are left out."""
  spec = ExtendedTensorSpec.to_spec(spec)
  values = spec.fields()
  values["shape"] = _dims(spec)
  values["dtype"] = spec.dtype.name
  if isinstance(spec.time_offsets, tuple):
    values["time_offsets"] = list(spec.time_offsets)
  if spec.varlen_default_value is not None:
    values["varlen_default_value"] = _scalar_to_json(spec.varlen_default_value)
  return {
    field: value
    for field, value in values.items()
    if field in _ALWAYS_IN_JSON or value != _DEFAULTS[field]
  }


def spec_from_json_dict(
  values: Mapping[str, Any], path: str = ""
) -> ExtendedTensorSpec:
  """Turns JSON values into the spec.

  Args:
    values: what `spec_to_json_dict` gives, or a user wrote.
    path: where the spec is, for the error.
  Returns:
    The spec.
  Raises:
    SpecError: an unknown or missing field, or a value that is none.
  """
  if not isinstance(values, Mapping):
    raise _error("spec_from_json", path, "an object of fields", repr(values))
  for field in values:
    if field not in FIELDS:
      hint = errors.nearest(field, FIELDS)
      want = f"fields {errors.listing(FIELDS)}"
      raise _error("spec_from_json", path, want, repr(field), hint)
  missing = {"shape", "dtype"} - set(values)
  if missing:
    want = "shape and dtype"
    raise _error("spec_from_json", path, want, f"no {' and no '.join(sorted(missing))}")
  fields = dict(values)
  if "varlen_default_value" in fields:
    fields["varlen_default_value"] = _scalar_from_json(fields["varlen_default_value"])
  return _build("spec_from_json", path, fields)


def spec_to_json(spec: tf.TensorSpec) -> str:
  """Turns a spec into one line of JSON."""
  return json.dumps(spec_to_json_dict(spec))


def spec_from_json(text: str) -> ExtendedTensorSpec:
  """Reads what `spec_to_json` wrote."""
  return spec_from_json_dict(_load_json("spec_from_json", text))


def struct_to_json_dict(structure: Any) -> dict[str, dict[str, Any]]:
  """Turns a spec structure into JSON values by path, in order."""
  flat = _flat_specs("struct_to_json", structure)
  return {path: spec_to_json_dict(spec) for path, spec in flat.items()}


def struct_from_json_dict(
  values: Mapping[str, Mapping[str, Any]],
) -> tensor_spec_struct.TensorSpecStruct:
  """Turns JSON values by path into the structure."""
  if not isinstance(values, Mapping):
    raise _error("struct_from_json", "", "an object of specs by path", repr(values))
  return tensor_spec_struct.TensorSpecStruct(
    [(path, spec_from_json_dict(spec, path)) for path, spec in values.items()]
  )


def struct_to_json(structure: Any) -> str:
  """Turns a spec structure into JSON, one line a path."""
  lines = [
    f"  {json.dumps(path)}: {json.dumps(values)}"
    for path, values in struct_to_json_dict(structure).items()
  ]
  return "{\n" + ",\n".join(lines) + "\n}\n" if lines else "{}\n"


def struct_from_json(text: str) -> tensor_spec_struct.TensorSpecStruct:
  """Reads what `struct_to_json` wrote."""
  return struct_from_json_dict(_load_json("struct_from_json", text))


def _dims(spec: ExtendedTensorSpec) -> list[int | None] | None:
  return None if spec.shape.rank is None else spec.shape.as_list()


def _flat_specs(operation: str, structure: Any) -> tensor_spec_struct.TensorSpecStruct:
  structures.assert_only_specs(operation, structure)
  return structures.flatten_spec_structure(structure)


def _build(operation: str, path: str, fields: Mapping[str, Any]) -> ExtendedTensorSpec:
  try:
    dtype = tf.as_dtype(fields["dtype"])
    return ExtendedTensorSpec(**{**fields, "dtype": dtype})
  except (TypeError, ValueError) as e:
    where = path or fields.get("name")
    raise _error(
      operation, where, "the fields of a spec", f"{dict(fields)}", str(e)
    ) from e


def _parse(message_cls: Callable[[], _Message], serialized: bytes) -> _Message:
  message = message_cls()
  try:
    message.ParseFromString(serialized)
  except (proto_message.DecodeError, TypeError) as e:
    want = f"a serialized {type(message).__name__}"
    raise _error("from_serialized_proto", "", want, str(e)) from e
  return message


def _load_json(operation: str, text: str) -> Any:
  try:
    return json.loads(text)
  except (TypeError, ValueError) as e:
    raise _error(operation, "", "JSON", str(e)) from e


def _parse_scalar(text: str, path: str) -> Any:
  return _scalar_from_json(_load_json(f"varlen_default_json of {path}", text))


def _scalar_to_json(value: Any) -> Any:
  """Writes a default value so that its type comes back; JSON has no bytes, no NaN."""
  if isinstance(value, np.generic):
    value = value.item()
  if isinstance(value, bytes):
    return {"base64": base64.b64encode(value).decode("ascii")}
  if isinstance(value, float) and not math.isfinite(value):
    return {"float": str(value)}
  if not isinstance(value, (bool, int, float, str)):
    raise _error("to_proto", "varlen_default_value", "a scalar", errors.describe(value))
  return value


def _scalar_from_json(value: Any) -> Any:
  if isinstance(value, Mapping) and "base64" in value:
    return base64.b64decode(value["base64"])
  if isinstance(value, Mapping) and "float" in value:
    return float(value["float"])
  return value


def _error(
  operation: str, path: str | None, expected: str, got: str, hint: str = ""
) -> errors.SpecError:
  mismatch = errors.Mismatch(path or "(spec)", expected, got, hint)
  return errors.mismatch_error(operation, [mismatch])


EXTRA_ASSETS_DIRECTORY = "assets.extra"
T2R_ASSETS_FILENAME = "t2r_assets.pbtxt"

_Path = str | os.PathLike[str]


def create_t2r_assets(
  feature_spec: Any, label_spec: Any = None, global_step: int | None = None
) -> t2r_pb2.T2RAssets:
  """Collects what an export says about itself.

  Args:
    feature_spec: the spec structure of the features.
    label_spec: that of the labels, if there are any.
    global_step: the step that the exported weights were trained to.
  Returns:
    The proto.
  Raises:
    SpecError: a leaf is not a spec.
  """
  assets = t2r_pb2.T2RAssets(feature_spec=struct_to_proto(feature_spec))
  if label_spec is not None:
    assets.label_spec.CopyFrom(struct_to_proto(label_spec))
  if global_step is not None:
    assets.global_step = int(global_step)
  return assets


def write_t2r_assets_to_file(t2r_assets: t2r_pb2.T2RAssets, filename: _Path) -> None:
  """Writes the assets as text; a reader never sees half a file."""
  temporary = f"{filename}.{uuid.uuid4().hex}.tmp"
  try:
    with tf.io.gfile.GFile(temporary, "w") as f:
      f.write(text_format.MessageToString(t2r_assets))
    tf.io.gfile.rename(temporary, str(filename), overwrite=True)
  except tf.errors.OpError:
    if tf.io.gfile.exists(temporary):
      tf.io.gfile.remove(temporary)
    raise


def load_t2r_assets_to_file(filename: _Path) -> t2r_pb2.T2RAssets:
  """Reads the assets of an export. (The odd name is Tensor2Robot's.)

  Args:
    filename: a file that `write_t2r_assets_to_file`, or Tensor2Robot, wrote.
  Returns:
    The proto; `TensorSpecStruct.from_proto(assets.feature_spec)` gives the specs.
  Raises:
    SpecError: there is no such file, or it holds something else.
  """
  try:
    with tf.io.gfile.GFile(str(filename), "r") as f:
      return text_format.Parse(f.read(), t2r_pb2.T2RAssets())
  except tf.errors.NotFoundError as e:
    raise _load_error(filename, "no such file") from e
  except (text_format.ParseError, UnicodeDecodeError, tf.errors.OpError) as e:
    raise _load_error(filename, str(e)) from e


def _load_error(filename: _Path, got: str) -> errors.SpecError:
  mismatch = errors.Mismatch(str(filename), "a text-format T2RAssets", got)
  return errors.mismatch_error("load_t2r_assets_to_file", [mismatch])
