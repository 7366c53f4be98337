"""The asset file of an export: the specs of its features and labels, as text.

It reads Tensor2Robot's files, too.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import tensorflow as tf
from google.protobuf import text_format

from t2r_seq import errors, files
from t2r_seq.specs import structures, t2r_pb2

EXTRA_ASSETS_DIRECTORY = "assets.extra"
T2R_ASSETS_FILENAME = "t2r_assets.pbtxt"

_Path = str | os.PathLike[str]


def create_t2r_assets(
  feature_spec: Any, label_spec: Any = None, global_step: int | None = None
) -> t2r_pb2.T2RAssets:
  """Makes the asset proto; SpecError if a leaf is not a spec.

  Args:
    feature_spec: the spec structure of the features.
    label_spec: that of the labels, if there are any.
    global_step: the training step of the exported weights.
  """
  assets = t2r_pb2.T2RAssets(feature_spec=_to_proto(feature_spec))
  if label_spec is not None:
    assets.label_spec.CopyFrom(_to_proto(label_spec))
  if global_step is not None:
    assets.global_step = int(global_step)
  return assets


def write_t2r_assets_to_file(t2r_assets: t2r_pb2.T2RAssets, filename: _Path) -> None:
  """Writes the assets as text, atomically."""
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
    with tf.io.gfile.GFile(str(filename), "r") as f:
      return text_format.Parse(f.read(), t2r_pb2.T2RAssets())
  except tf.errors.NotFoundError as e:
    raise _load_error(filename, "no such file") from e
  except (text_format.ParseError, UnicodeDecodeError, tf.errors.OpError) as e:
    raise _load_error(filename, str(e)) from e


def _to_proto(structure: Any) -> t2r_pb2.TensorSpecStruct:
  structures.assert_only_specs("create_t2r_assets", structure)
  return structures.flatten_spec_structure(structure).to_proto()


def _load_error(filename: _Path, got: str) -> errors.SpecError:
  mismatch = errors.Mismatch(str(filename), "a text-format T2RAssets", got)
  return errors.mismatch_error("load_t2r_assets_to_file", [mismatch])
