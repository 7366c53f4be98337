"""From a spec structure to the features of a record, checked at construction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.records import checks, storage
from t2r_seq.records.decoding import DecodeImages


@dataclasses.dataclass(frozen=True)
class RecordFeature:
  """One feature of a record, and every path that it feeds.

  Attributes:
    name: key in the record.
    spec: what its paths declare; they agree.
    paths: where it goes, sorted; those of labels too.
    is_optional: every one of the paths is optional.
    decode_images: how encoded images are decoded; False: they stay strings.
  """

  name: str
  spec: specs.ExtendedTensorSpec
  paths: tuple[str, ...]
  is_optional: bool
  decode_images: DecodeImages = True

  @property
  def path(self) -> str:
    """The first path, which stands for the feature in messages."""
    return self.paths[0]

  @property
  def is_image(self) -> bool:
    """Whether the record holds encoded images."""
    return specs.is_encoded_image_spec(self.spec)

  @property
  def is_varlen(self) -> bool:
    """Whether the number of values varies and is padded or clipped to shape[0]."""
    return self.spec.varlen_default_value is not None

  @property
  def is_concatenated(self) -> bool:
    """Whether the values of all steps are in one list of a tf.train.Example."""
    return self.spec.is_concatenated

  @property
  def values_per_step(self) -> int:
    """How many values of the list one step has."""
    return math.prod(self.record_shape)

  @property
  def record_dtype(self) -> tf.DType:
    """The dtype of the list in the record: int64, float32 or string."""
    return storage.record_dtype(self.spec)

  @property
  def record_shape(self) -> tuple[int, ...]:
    """The shape of the list's values, of one step; (N,) for a varlen feature."""
    if self.is_image:
      return tuple(self.spec.shape[:-3])
    if storage.is_raw(self.spec) and not self.is_varlen:
      return ()
    return tuple(self.spec.shape)

  def to_io_feature(self) -> Any:
    """Returns the `tf.io` feature that parses it."""
    dtype, shape = self.record_dtype, self.record_shape
    if self.is_varlen or self.is_concatenated:
      return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
    if self.spec.is_sequence:
      return tf.io.FixedLenSequenceFeature(shape, dtype, allow_missing=self.is_optional)
    if not self.is_optional:
      return tf.io.FixedLenFeature(shape, dtype)
    fill = b"" if dtype == tf.string else 0
    default = np.full(
      shape, fill, dtype=object if fill == b"" else dtype.as_numpy_dtype
    )
    return tf.io.FixedLenFeature(shape, dtype, default_value=default)


def collect_features(
  spec_structures: Mapping[str, specs.SpecStructure], decode_images: DecodeImages = True
) -> dict[str, list[RecordFeature]]:
  """Finds the record features that spec structures read.

  Args:
    spec_structures: structures of specs without time offsets, by what to call them in
      messages ('features', 'labels'); one of the key '' is not called anything.
    decode_images: how encoded images are decoded; False: they are not.
  Returns:
    The features by dataset_key, sorted by name.
  Raises:
    SpecError: specs that cannot be parsed (all are named), or two specs of one name
      that do not agree.
  """
  by_path = {
    f"{label}/{path}" if label else path: specs.ExtendedTensorSpec.to_spec(spec)
    for label, structure in spec_structures.items()
    for path, spec in parsed_specs(structure).items()
  }
  checks.check_specs(by_path)
  by_name: dict[tuple[str, str], list[str]] = {}
  for path, spec in sorted(by_path.items()):
    by_name.setdefault((spec.dataset_key, spec.name), []).append(path)
  checks.check_shared_names(by_path, by_name.values())
  features: dict[str, list[RecordFeature]] = {}
  for (dataset_key, name), paths in sorted(by_name.items()):
    is_optional = all(by_path[path].is_optional for path in paths)
    feature = RecordFeature(
      name, by_path[paths[0]], tuple(paths), is_optional, decode_images
    )
    features.setdefault(dataset_key, []).append(feature)
  for of_dataset in features.values():
    checks.check_one_layout({f.path: f.spec for f in of_dataset})
  if not features:
    raise errors.SpecError(
      "records: expected specs to parse, got none. Declare at least one feature."
    )
  return features


def length_paths(spec_structure: specs.SpecStructure) -> dict[str, str]:
  """Maps the path of each declared '<path>_length' spec to its sequence's path.

  Args:
    spec_structure: a structure of specs, perhaps through `add_sequence_length_specs`.
  Returns:
    Length paths to sequence paths.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  return {
    f"{path}_length": path
    for path, spec in flat.items()
    if getattr(spec, "is_sequence", False) and _is_length_spec(flat, f"{path}_length")
  }


def _is_length_spec(flat: specs.TensorSpecStruct, path: str) -> bool:
  spec = flat.get(path)
  return (
    isinstance(spec, tf.TensorSpec)
    and spec.shape.rank == 0
    and spec.dtype.is_integer
    and not getattr(spec, "is_sequence", False)
  )


def parsed_specs(spec_structure: specs.SpecStructure) -> specs.TensorSpecStruct:
  """Flattens a structure and leaves out the '<path>_length' specs.

  A length is counted while parsing, never read from the record.
  """
  lengths = length_paths(spec_structure)
  return specs.TensorSpecStruct(
    (path, spec)
    for path, spec in specs.flatten_spec_structure(spec_structure).items()
    if path not in lengths
  )


def tensorspec_to_feature_dict(
  tensor_spec_struct: specs.SpecStructure, decode_images: bool = True
) -> tuple[dict[str, Any], dict[str, specs.ExtendedTensorSpec]]:
  """Converts a spec structure to `tf.io` features by name.

  The features have the dtypes that a record can hold; `create_parse_tf_example_fn`
  casts them back.

  Args:
    tensor_spec_struct: a structure of specs; of one dataset, since names are the keys.
    decode_images: kept for Tensor2Robot's callers; an encoded image is a string
      feature either way.
  Returns:
    `tf.io` features by name, and specs by name.
  Raises:
    SpecError: a spec cannot be parsed, or names collide between datasets.
  """
  by_dataset = collect_features({"": tensor_spec_struct}, decode_images)
  if len(by_dataset) > 1:
    raise errors.SpecError(
      "tensorspec_to_feature_dict: expected specs of one dataset, got those of "
      f"{errors.listing(by_dataset)}. Use filter_spec_structure_by_dataset first."
    )
  (features,) = by_dataset.values()
  return (
    {feature.name: feature.to_io_feature() for feature in features},
    {feature.name: feature.spec for feature in features},
  )


def encoded_specs(spec_structure: specs.SpecStructure) -> specs.TensorSpecStruct:
  """Returns the flat specs with encoded images as the strings that records hold.

  This is what a parser made with `decode_images=False` gives.

  Args:
    spec_structure: a structure of specs.
  Returns:
    Specs by path; an image spec [..., h, w, c] becomes a string spec [...].
  """
  return specs.TensorSpecStruct(
    (path, _encoded_spec(spec))
    for path, spec in specs.flatten_spec_structure(spec_structure).items()
  )


def _encoded_spec(spec: tf.TensorSpec) -> tf.TensorSpec:
  if not specs.is_encoded_image_spec(spec):
    return spec
  fields = {**spec.fields(), "data_format": None, "dtype": tf.string}
  fields["shape"] = spec.shape[:-3]
  if spec.varlen_default_value is not None:
    fields["varlen_default_value"] = ""
  return specs.ExtendedTensorSpec(**fields)
