"""RLDS episodes: TFDS's names of their features, and how they are read.

A step is (observation, action, reward, discount, is_first, is_last, is_terminal): the
action is the one taken on the observation, the reward and the discount are those that
followed. In the last step, which only has the observation that the episode ended with,
action, reward and discount mean nothing (Ramos et al., RLDS, 2021).

A record does not store shapes, and has uint8 as int64; features.json declares both. It
is read here without TensorFlow Datasets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from t2r_seq import errors, imports, specs, windows
from t2r_seq.imports import tf
from t2r_seq.records import features, parse
from t2r_seq.records.protos import RecordContents, values_of

STEPS = "steps"
IS_FIRST = f"{STEPS}/is_first"
FLAGS = (IS_FIRST, f"{STEPS}/is_last", f"{STEPS}/is_terminal")
SCALARS = (f"{STEPS}/reward", f"{STEPS}/discount")


def rlds_specs(spec_structure: specs.SpecStructure) -> specs.TensorSpecStruct:
  """Derives the specs that read RLDS episodes straight from their TFRecord files.

  Specs of steps (sequences, or with time offsets) get `is_concatenated`, and names that
  begin with 'steps/', as TFDS has them: a spec that is named 'observation/state', or is
  at that path and has no name, reads 'steps/observation/state'.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  per_step = {p: leaf.is_sequence for p, leaf in windows.flat_specs(flat).items()}
  return specs.TensorSpecStruct(
    (path, _rlds_spec(path, specs.ExtendedTensorSpec.to_spec(leaf), per_step))
    for path, leaf in flat.items()
  )


def is_rlds(contents: RecordContents) -> bool:
  """Whether a record is an RLDS episode as TFDS writes it."""
  return not contents.steps and IS_FIRST in contents.context


def divide_unknown(contents: RecordContents) -> RecordContents:
  """Moves the step features of an RLDS episode to where a SequenceExample has them.

  Each step gets an equal share of the values; is_first has the number of steps.
  Features that cannot be divided so stay unchanged, and so do nested sequences, whose
  steps may differ in length. The contents are changed and returned.
  """
  if not is_rlds(contents):
    return contents
  num_steps = len(values_of(contents.context[IS_FIRST]))
  for name, value in [*contents.context.items()]:
    count = len(values_of(value))
    if not name.startswith(f"{STEPS}/") or is_nested(name):
      continue
    if not count and not num_steps:
      del contents.context[name]
      contents.steps[name] = []
    elif count and num_steps and count % num_steps == 0:
      del contents.context[name]
      contents.steps[name] = parse.divide_list(value, count // num_steps)
  return contents


def is_nested(name: str) -> bool:
  """Whether a feature is one of those that TFDS writes for a sequence in a step."""
  return name.rpartition("/")[2].startswith("ragged_")


def _rlds_spec(
  path: str, spec: specs.ExtendedTensorSpec, per_step: dict[str, bool]
) -> specs.ExtendedTensorSpec:
  name = spec.name or path
  if path not in per_step:  # A mask is computed, not read.
    return spec
  if not per_step[path]:
    return specs.ExtendedTensorSpec.from_spec(spec, name=name)
  if not name.startswith(f"{STEPS}/"):
    name = f"{STEPS}/{name}"
  return specs.ExtendedTensorSpec.from_spec(spec, name=name, is_concatenated=True)


def drop_last_step(
  dataset: tf.data.Dataset, spec_structure: specs.SpecStructure
) -> tf.data.Dataset:
  """Drops the last step of every episode, whose action means nothing.

  For training on actions: all other steps have an action, a reward and a discount.
  Models that read the next observation need the last step, and must mask its action.

  Args:
    dataset: episodes by path, leaves of sequences [T, ...].
    spec_structure: the flat specs of the episodes.
  Returns:
    Dataset of the same episodes, [T - 1, ...]; context features are unchanged.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  per_step = {path for path, leaf in flat.items() if leaf.is_sequence}

  @imports.do_not_convert
  def drop(episode: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
    return specs.TensorSpecStruct(
      (path, value[:-1] if path in per_step else value)
      for path, value in episode.items()
    )

  return dataset.map(drop)


FILENAME = "features.json"

Features = dict[str, "specs.ExtendedTensorSpec"]


def find_features(filenames: Sequence[str]) -> Features:
  """Reads the features.json beside record files of one folder; {} if it is missing."""
  folders = {os.path.dirname(os.path.abspath(name)) for name in filenames}
  path = os.path.join(min(folders), FILENAME) if len(folders) == 1 else ""
  return read_features(path) if os.path.isfile(path) else {}


def complete_spec(
  spec: specs.ExtendedTensorSpec, declared: specs.ExtendedTensorSpec | None
) -> specs.ExtendedTensorSpec:
  """Returns a proposed spec with the shape and dtype of TFDS or RLDS, if they fit."""
  if spec.is_sequence:
    spec = specs.ExtendedTensorSpec.from_spec(spec, is_concatenated=True)
  if spec.name in FLAGS and spec.shape == (1,) and spec.dtype == tf.int64:
    declared = specs.ExtendedTensorSpec.from_spec(spec, shape=(), dtype=tf.bool)
  elif spec.name in SCALARS and spec.shape == (1,):
    declared = declared or specs.ExtendedTensorSpec.from_spec(spec, shape=())
  if declared is None:
    return spec
  got, want = (
    features.RecordFeature(spec.name, s, ("",), False) for s in (spec, declared)
  )
  is_same = got.is_image == want.is_image and not got.is_varlen
  if got.is_image:
    is_same = is_same and spec.shape == declared.shape
  else:
    is_same = is_same and got.values_per_step == want.values_per_step
  if got.record_dtype != want.record_dtype or not is_same:
    logging.warning(
      "features.json has '%s' as %s, which the records do not fit.",
      spec.name,
      errors.describe(declared),
    )
    return spec
  return specs.ExtendedTensorSpec.from_spec(declared, is_optional=spec.is_optional)


def read_features(path: str) -> Features:
  """Reads a features.json into specs by the name of the feature in the record.

  Nested sequences, other than the steps of an episode, are left out, which is logged.
  Raises RecordError if the file is not in TFDS's format.
  """
  parse_errors = (AttributeError, KeyError, OverflowError, RecursionError, TypeError)
  try:
    with open(path, encoding="utf-8") as file:
      features = {
        name: (_to_spec(name, node, name.startswith(f"{STEPS}/")), node)
        for name, node in _leaves(json.load(file), "")
      }
  except (*parse_errors, ValueError) as error:
    raise errors.RecordError(
      f"features: {path}: expected the features of a dataset as TFDS writes them, got "
      f"{type(error).__name__}: {error}. Move it away to read the records without it."
    ) from error
  for name, (spec, node) in features.items():
    if spec is None:
      logging.info("No spec for '%s' of features.json: %s.", name, sorted(node))
  return {name: spec for name, (spec, _) in features.items() if spec is not None}


def _leaves(
  node: Mapping[str, Any], name: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
  if "featuresDict" in node:
    for key, child in sorted(node["featuresDict"]["features"].items()):
      yield from _leaves(child, f"{name}/{key}" if name else key)
  elif "sequence" in node and name == STEPS:
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
    # TFDS's default, if the file has no format.
    data_format = node["image"].get("encodingFormat") or "png"
  elif "tensor" in node:
    shape, dtype = _shape(node["tensor"]), tf.as_dtype(node["tensor"]["dtype"])
    encoding = node["tensor"].get("encoding", "none").lower()
    formats = {"none": None, "bytes": "raw", "zlib": "zlib"}
    if encoding not in formats:
      return None
    data_format = formats[encoding] if dtype != tf.string else None
    if dtype == tf.float64 and not data_format:
      dtype = tf.float32  # The record's list of floats has no more precision.
  elif "classLabel" in node:
    dtype = tf.int64
  elif "text" not in node:
    return None
  if None in shape or dtype.name not in features.SUPPORTED_DTYPES:
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
