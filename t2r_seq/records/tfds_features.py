"""What TFDS says of a dataset beside its files: features.json, as specs.

The record alone does not tell a shape from its number of values, nor uint8 from int64.
TensorFlow Datasets itself is not needed to read this.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.records import rlds, storage

FILENAME = "features.json"

Features = dict[str, specs.ExtendedTensorSpec]


def find_features(filenames: Sequence[str]) -> Features:
  """Reads the features.json that lies beside record files, if there is one.

  Args:
    filenames: of the record files, all in one folder.
  Returns:
    Specs by the name of the feature in the record; none without the file.
  Raises:
    RecordError: the file is not what TFDS writes.
  """
  folders = {os.path.dirname(os.path.abspath(name)) for name in filenames}
  path = os.path.join(min(folders), FILENAME) if len(folders) == 1 else ""
  return read_features(path) if os.path.isfile(path) else {}


def read_features(path: str) -> Features:
  """Reads a features.json.

  Args:
    path: of the file.
  Returns:
    Specs by the name of the feature in the record. Nested sequences, other than the
    steps of an episode, and compressed tensors are left out, which is logged.
  Raises:
    RecordError: the file is not what TFDS writes.
  """
  try:
    with open(path, encoding="utf-8") as file:
      return features_from_json(json.load(file))
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise errors.RecordError(
      f"features: {path}: expected what TFDS writes of a dataset's features, got "
      f"{type(error).__name__}: {error}. Move it away to go without."
    ) from error


def features_from_json(values: Mapping[str, Any]) -> Features:
  """Turns the content of a features.json into specs; see `read_features`."""
  features = {}
  for name, node in _leaves(values, ""):
    is_step = name.startswith(f"{rlds.STEPS}/")
    spec = _to_spec(name, node, is_step)
    if spec is None:
      logging.info("No spec for '%s' of features.json: %s.", name, sorted(node))
    else:
      features[name] = spec
  return features


def _leaves(
  node: Mapping[str, Any], name: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
  if "featuresDict" in node:
    for key, child in sorted(node["featuresDict"]["features"].items()):
      yield from _leaves(child, f"{name}/{key}" if name else key)
  elif "sequence" in node and name == rlds.STEPS:
    yield from _leaves(node["sequence"]["feature"], name)
  else:
    yield name, node


def _to_spec(
  name: str, node: Mapping[str, Any], is_step: bool
) -> specs.ExtendedTensorSpec | None:
  shape: list[int | None]
  shape, dtype, data_format = [], tf.string, None
  if "image" in node:
    shape, dtype = _shape(node["image"]), tf.as_dtype(node["image"]["dtype"])
    # TFDS's default, where it does not say.
    data_format = node["image"].get("encodingFormat") or "png"
  elif "tensor" in node:
    shape, dtype = _shape(node["tensor"]), tf.as_dtype(node["tensor"]["dtype"])
    encoding = node["tensor"].get("encoding", "none").lower()
    if encoding not in ("none", "bytes"):
      return None
    data_format = "raw" if encoding == "bytes" and dtype != tf.string else None
    if dtype == tf.float64 and not data_format:
      dtype = tf.float32  # All that the record's list of floats has kept of it.
  elif "classLabel" in node:
    dtype = tf.int64
  elif "text" not in node:
    return None
  if None in shape or dtype not in storage.SUPPORTED_DTYPES:
    return None
  return specs.ExtendedTensorSpec(
    shape,
    dtype,
    name,
    is_sequence=is_step,
    data_format=data_format,
    is_concatenated=is_step,
  )


def _shape(node: Mapping[str, Any]) -> list[int | None]:
  dimensions = [int(size) for size in node.get("shape", {}).get("dimensions", [])]
  return [None if size < 0 else size for size in dimensions]
