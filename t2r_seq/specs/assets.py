"""Files of an export: finds finished exports, and reads what is beside the graph.

That is the specs of features and labels, as text (Tensor2Robot's files, too), and the
record of the policy. Local folders are read without TensorFlow, which loads slowly.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from google.protobuf import descriptor_pb2, message, message_factory, text_format

from t2r_seq import errors, files
from t2r_seq.imports import tf
from t2r_seq.specs import t2r_pb2

EXTRA_ASSETS_DIRECTORY = "assets.extra"
T2R_ASSETS_FILENAME = "t2r_assets.pbtxt"
SAVED_MODEL = "saved_model.pb"
POLICY_RECORD = "policy.json"
_ASSETS = f"{EXTRA_ASSETS_DIRECTORY}/{T2R_ASSETS_FILENAME}"
_FILES = (SAVED_MODEL, _ASSETS)


_Path = str | os.PathLike[str]
_T = TypeVar("_T")


def create_t2r_assets(
  feature_spec: Any, label_spec: Any = None, global_step: int | None = None
) -> t2r_pb2.T2RAssets:
  """Makes the asset proto; SpecError if a leaf is not a spec.

  Args:
    feature_spec: the spec structure of the features.
    label_spec: the spec structure of the labels, if there are any.
    global_step: the training step of the exported weights, if it is known.
  """
  assets = t2r_pb2.T2RAssets(feature_spec=_to_proto(feature_spec))
  if label_spec is not None:
    assets.label_spec.CopyFrom(_to_proto(label_spec))
  if global_step is not None:
    assets.global_step = int(global_step)
  return assets


def write_t2r_assets_to_file(t2r_assets: t2r_pb2.T2RAssets, filename: _Path) -> None:
  """Writes the assets as text, atomically; OSError or tf.errors.OpError if it fails."""
  if "://" not in str(filename):
    files.write_output(filename, text_format.MessageToString(t2r_assets).encode())
    return
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
  """Reads the asset file of an export. (The name is Tensor2Robot's.)

  `TensorSpecStruct.from_proto(assets.feature_spec)` returns the specs.

  Raises:
    SpecError: the file is missing or invalid.
  """
  try:
    return text_format.Parse(_read_file(filename), t2r_pb2.T2RAssets())
  except (text_format.ParseError, UnicodeDecodeError, OSError) as e:
    got = "no such file" if isinstance(e, FileNotFoundError) else str(e)
    mismatch = errors.Mismatch(str(filename), "a text-format T2RAssets", got)
    raise errors.mismatch_error("load_t2r_assets_to_file", [mismatch]) from e


def _read_file(path: _Path) -> bytes:
  """Reads a file, by TensorFlow if its path has a protocol; raises OSError."""
  name = os.fspath(path)
  if "://" not in name:
    with open(name, "rb") as local:
      return local.read()
  try:
    with tf.io.gfile.GFile(name, "rb") as remote:
      return bytes(remote.read())
  except tf.errors.OpError as error:
    is_missing = isinstance(error, tf.errors.NotFoundError)
    raise (FileNotFoundError if is_missing else OSError)(str(error)) from error


def _to_proto(structure: Any) -> t2r_pb2.TensorSpecStruct:
  from t2r_seq.specs import structures  # Loads TensorFlow.

  structures.assert_only_specs("create_t2r_assets", structure)
  return structures.flatten_spec_structure(structure).to_proto()


@dataclasses.dataclass(frozen=True, order=True)
class Export:
  """One finished export.

  Attributes:
    version: the number that its folder is named by; higher is newer.
    path: the folder.
  """

  version: int
  path: str


def list_exports(export_dir: str) -> list[Export]:
  """Returns the finished exports of a folder, the oldest first; [] without a folder.

  Args:
    export_dir: holds one folder per version; or is itself one export, whose version is
      0 if its name is not a number.
  """
  return scan_exports(export_dir)[0]


def scan_exports(export_dir: str) -> tuple[list[Export], dict[str, list[str]]]:
  """Returns the finished exports of a folder, and the missing files of unfinished ones.

  Args:
    export_dir: folder of exports, as in `list_exports`.
  Returns:
    The exports, the oldest first; and the missing files by folder.
  """
  # Not normpath: it would spoil the two slashes of a URL.
  export_dir = export_dir.rstrip("/") or "/"
  missing_names = missing_files(export_dir)
  if not missing_names:
    name = os.path.basename(export_dir)
    return [Export(int(name) if name.isdecimal() else 0, export_dir)], {}
  unfinished = {export_dir: missing_names} if len(missing_names) < len(_FILES) else {}
  if not _path_functions(export_dir).isdir(export_dir):
    return [], unfinished
  exports = []
  for name in sorted((tf.io.gfile if "://" in export_dir else os).listdir(export_dir)):
    path = os.path.join(export_dir, name.rstrip("/"))
    if not name.rstrip("/").isdecimal():
      continue
    if missing := missing_files(path):
      unfinished[path] = missing
    else:
      exports.append(Export(int(name.rstrip("/")), path))
  return sorted(exports), unfinished


def assets_path(export_path: str, robot: str | None = None) -> str:
  """Returns the path of the specs of an export, or of one of its robots."""
  return os.path.join(robot_assets(export_path, robot), T2R_ASSETS_FILENAME)


def robot_assets(export_path: str, robot: str | None = None) -> str:
  """Returns the folder of the specs and record of an export, or of one robot."""
  extra = os.path.join(export_path, EXTRA_ASSETS_DIRECTORY)
  return extra if robot is None else os.path.join(extra, "robots", robot)


def robot_signature(name: str, robot: str | None) -> str:
  """Returns the name of a robot's signature; without a robot it is unchanged."""
  return name if robot is None else f"{robot}/{name}"


def of_robot(signatures: Mapping[str, _T], robot: str | None) -> dict[str, _T]:
  """Returns the signatures of a robot, by name without the robot's prefix."""
  prefix = robot_signature("", robot)
  return {
    name.removeprefix(prefix): signature
    for name, signature in signatures.items()
    if name.startswith(prefix)
  }


def missing_files(path: str) -> list[str]:
  """Returns the files of an export that a folder lacks."""
  exists = _path_functions(path).exists
  return [file for file in _FILES if not exists(os.path.join(path, file))]


def _path_functions(path: str) -> Any:
  return tf.io.gfile if "://" in path else os.path


def read_signatures(path: str) -> dict[str, tuple[list[str], list[str]]]:
  """Reads the sorted names of the inputs and the outputs of an export's signatures.

  Raises:
    SpecError: saved_model.pb is missing or damaged.
  """
  proto, size = _saved_model_class()(), 0
  try:
    data = _read_file(os.path.join(path, SAVED_MODEL))
    size = len(data)
    proto.ParseFromString(data)
    reason = "" if proto.meta_graphs else "it holds no graph"
  except (message.DecodeError, OSError) as error:
    reason = f"it cannot be parsed, {error}"
  if reason:
    raise errors.SpecError(
      f"load export: {path}: {SAVED_MODEL} is damaged: {reason} ({size} bytes). "
      "Copy or export it again."
    )
  signatures = {}
  for named in proto.meta_graphs[0].signatures:
    if not named.key.startswith("__"):  # Others are TensorFlow's own.
      signature = named.value[0]
      inputs = sorted(tensor.key for tensor in signature.inputs)
      outputs = sorted(tensor.key for tensor in signature.outputs)
      signatures[named.key] = inputs, outputs
  return signatures


@functools.cache
def _saved_model_class() -> Any:
  """Returns a message class that reads only the signature names of saved_model.pb.

  TensorFlow's class would load TensorFlow. Maps are encoded as lists of entries.
  """
  kind = descriptor_pb2.FieldDescriptorProto
  file = descriptor_pb2.FileDescriptorProto(name="saved_model", syntax="proto3")
  for name, fields in {
    "Tensor": [("key", 1, "")],
    "Signature": [("inputs", 1, "Tensor"), ("outputs", 2, "Tensor")],
    "NamedSignature": [("key", 1, ""), ("value", 2, "Signature")],
    "MetaGraph": [("signatures", 5, "NamedSignature")],
    "SavedModel": [("meta_graphs", 2, "MetaGraph")],
  }.items():
    proto = file.message_type.add(name=name)
    for field, number, message_name in fields:
      added = proto.field.add(name=field, number=number, label=kind.LABEL_REPEATED)
      added.type = kind.TYPE_MESSAGE
      if message_name:
        added.type_name = message_name
      else:
        added.type, added.label = kind.TYPE_STRING, kind.LABEL_OPTIONAL
  return message_factory.GetMessages([file])["SavedModel"]


def read_record(
  export_path: str,
  parse: Callable[[Mapping[str, Any]], _T],
  robot: str | None = None,
) -> _T:
  """Reads the policy record of an export, or of one robot; `parse` gets its fields.

  Raises:
    SpecError: the file is missing or damaged, or `parse` fails.
  """
  path = os.path.join(robot_assets(export_path, robot), POLICY_RECORD)
  try:
    return parse(json.loads(_read_file(path)))
  except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
    raise errors.SpecError(
      f"load export: {path}: expected the record of a policy, got "
      f"{type(error).__name__}: {error}. Copy or export it again."
    ) from error
