"""The writer's half without files: numpy structures to serialized records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.records import features as features_lib
from t2r_seq.records import images, leaves, storage


def encode_example(
  spec: specs.SpecStructure, structure: Any, jpeg_quality: int = 95
) -> bytes:
  """Serializes one structure as the record that the parser of `spec` reads.

  Args:
    spec: a structure of specs of one dataset, without time offsets.
    structure: numpy leaves by path, packed or flat; see `ExampleEncoder.encode`.
    jpeg_quality: 1 to 100, for images given as pixels.
  Returns:
    A serialized tf.train.Example, or SequenceExample where a spec is a sequence.
  Raises:
    SpecError: the structure does not fit the spec; all mismatches are named.
  """
  return ExampleEncoder(spec, jpeg_quality).encode(structure)


class ExampleEncoder:
  """Serializes structures of one spec; the parser's inverse."""

  def __init__(self, spec: specs.SpecStructure, jpeg_quality: int = 95) -> None:
    """Creates the encoder.

    Args:
      spec: a structure of specs of one dataset, without time offsets.
      jpeg_quality: 1 to 100.
    Raises:
      SpecError: a spec cannot be written, or there are several datasets.
    """
    by_dataset = features_lib.collect_features({"": spec})
    if len(by_dataset) > 1:
      raise errors.SpecError(
        "write: expected specs of one dataset, got those of "
        f"{errors.listing(by_dataset)}. Write each to a file of its own, with "
        "filter_spec_structure_by_dataset(spec, key)."
      )
    (self._features,) = by_dataset.values()
    self._jpeg_quality = jpeg_quality
    self._has_lists = any(
      f.spec.is_sequence and not f.is_concatenated for f in self._features
    )

  def encode(self, structure: Any) -> bytes:
    """Validates and serializes one structure.

    Args:
      structure: leaves by path, packed or flat. Arrays of the spec's dtype and shape
        ([T, ...] for sequences), or Python numbers and lists; images as pixels, or
        encoded as bytes, which are kept; None for an absent optional. Leaves that the
        spec does not have are not written.
    Returns:
      The serialized record.
    Raises:
      SpecError: with every mismatch.
    """
    values = self._collect(structure)
    context: dict[str, tf.train.Feature] = {}
    steps: dict[str, tf.train.FeatureList] = {}
    for feature in self._features:
      if feature.name not in values:
        continue
      value = values[feature.name]
      if feature.spec.is_sequence and not feature.is_concatenated:
        # Slices, not items: an item of an object array would be the bare bytes.
        encoded = [self._encode(feature, value[i : i + 1]) for i in range(len(value))]
        steps[feature.name] = tf.train.FeatureList(feature=encoded)
      else:
        context[feature.name] = self._encode_joined(feature, value)
    proto = tf.train.Example(features=tf.train.Features(feature=context))
    if self._has_lists:
      proto = tf.train.SequenceExample(
        context=tf.train.Features(feature=context),
        feature_lists=tf.train.FeatureLists(feature_list=steps),
      )
    return proto.SerializeToString(deterministic=True)

  def _collect(self, structure: Any) -> dict[str, np.ndarray]:
    """Returns the array of each given feature by name, or raises all mismatches."""
    values: dict[str, np.ndarray] = {}
    found: list[errors.Mismatch] = []
    for feature in self._features:
      for path in feature.paths:
        value = leaves.lookup(structure, path)
        if value is None:
          if not feature.is_optional:
            found.append(_missing(feature, path, structure))
          continue
        array = leaves.to_array(value, feature.spec.dtype)
        mismatch = _compare(feature, path, array)
        if mismatch is None and feature.name in values:
          mismatch = _compare_shared(feature, path, array, values[feature.name])
        if mismatch:
          found.append(mismatch)
        else:
          values[feature.name] = array
    found += _compare_lengths([f for f in self._features if f.name in values], values)
    if found:
      raise errors.mismatch_error("write", found)
    return values

  def _encode_joined(
    self, feature: features_lib.RecordFeature, value: np.ndarray
  ) -> tf.train.Feature:
    """Encodes what is one list in the record: a value, or those of all steps."""
    if not (feature.is_concatenated and storage.is_raw(feature.spec)):
      return self._encode(feature, value)
    joined = tf.train.Feature()
    for step in value:  # The bytes of each step are an entry of their own.
      joined.MergeFrom(self._encode(feature, step))
    return joined

  def _encode(
    self, feature: features_lib.RecordFeature, value: np.ndarray
  ) -> tf.train.Feature:
    spec = feature.spec
    if feature.is_image and value.dtype != object:
      frames = value.reshape((-1, *value.shape[-3:]))
      encoded = [
        images.encode_image(frame, spec.data_format or "", self._jpeg_quality)
        for frame in frames
      ]
      return storage.to_feature(encoded, tf.string)
    if feature.is_image:
      return storage.to_feature(list(value.ravel()), tf.string)
    return storage.to_feature(
      storage.to_record_values(value, spec), feature.record_dtype
    )


def _missing(
  feature: features_lib.RecordFeature, path: str, structure: Any
) -> errors.Mismatch:
  hint = (
    errors.nearest(path, leaves.iterate_paths(structure))
    or "Optional features need is_optional=True."
  )
  return errors.Mismatch(path, _expected(feature), "nothing", hint)


def _expected(feature: features_lib.RecordFeature) -> str:
  spec = feature.spec
  shape = [str(size) for size in spec.shape]
  if feature.is_varlen:
    shape[0] = "n"
  if spec.is_sequence:
    shape.insert(0, "T")
  return f"({', '.join(shape)}{',' if len(shape) == 1 else ''}) {spec.dtype.name}"


def _compare(
  feature: features_lib.RecordFeature, path: str, array: np.ndarray
) -> errors.Mismatch | None:
  spec = feature.spec
  shape = spec.shape.as_list()
  is_encoded = feature.is_image and array.dtype == object
  if is_encoded:
    shape = shape[:-3]
  if feature.is_varlen:
    shape[0] = array.shape[1 if spec.is_sequence else 0] if array.ndim else -1
  got = list(array.shape)
  is_step_missing = spec.is_sequence and not got
  if spec.is_sequence:
    got = got[1:]
  name = leaves.dtype_name(array)
  has_dtype = is_encoded or name == spec.dtype.name
  has_objects = array.dtype != object or all(
    isinstance(item, bytes) for item in array.ravel()
  )
  if got == shape and has_dtype and has_objects and not is_step_missing:
    return None
  found = f"{array.shape} {name}" if has_objects else "a ragged list or other objects"
  hint = "Cast it." if got == shape and has_objects and not has_dtype else ""
  return errors.Mismatch(path, _expected(feature), found, hint)


def _compare_shared(
  feature: features_lib.RecordFeature, path: str, array: np.ndarray, other: np.ndarray
) -> errors.Mismatch | None:
  if array.shape == other.shape and array.tobytes() == other.tobytes():
    return None
  if array.dtype == object and np.array_equal(array, other):
    return None
  return errors.Mismatch(
    path,
    f"the values of {feature.path}, because both are stored as '{feature.name}'",
    "other values",
  )


def _compare_lengths(
  given: Iterable[features_lib.RecordFeature], values: Mapping[str, np.ndarray]
) -> list[errors.Mismatch]:
  """Compares the steps of all sequences with those of the first."""
  sequences = [feature for feature in given if feature.spec.is_sequence]
  if not sequences:
    return []
  first = sequences[0]
  steps = len(values[first.name])
  return [
    errors.Mismatch(
      feature.path,
      f"{steps} steps, as {first.path} has",
      f"{len(values[feature.name])} steps",
      "All sequences of a record have the same length.",
    )
    for feature in sequences
    if len(values[feature.name]) != steps
  ]
