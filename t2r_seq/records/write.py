"""The writer: numpy structures to records, and files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq import files as publishing
from t2r_seq.imports import tf
from t2r_seq.records import features, files, protos


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
    by_dataset = features.collect_features({"": spec})
    if len(by_dataset) > 1:
      raise errors.SpecError(
        "write: expected specs of one dataset, got those of "
        f"{errors.listing(by_dataset)}. Write each to a file of its own, with "
        "filter_spec_structure_by_dataset(spec, key)."
      )
    (self._features,) = by_dataset.values()
    self._paths = {path for feature in self._features for path in feature.paths}
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
    context: dict[str, protos.Feature] = {}
    steps: dict[str, protos.FeatureList] = {}
    for feature in self._features:
      if feature.name not in values:
        continue
      value = values[feature.name]
      if feature.spec.is_sequence and not feature.is_concatenated:
        # Slices, not items: an item of an object array would be the bare bytes.
        encoded = [self._encode(feature, value[i : i + 1]) for i in range(len(value))]
        steps[feature.name] = protos.FeatureList(feature=encoded)
      else:
        context[feature.name] = self._encode_joined(feature, value)
    proto = protos.Example(features=protos.Features(feature=context))
    if self._has_lists:
      proto = protos.SequenceExample(
        context=protos.Features(feature=context),
        feature_lists=protos.FeatureLists(feature_list=steps),
      )
    return proto.SerializeToString(deterministic=True)

  def _collect(self, structure: Any) -> dict[str, np.ndarray]:
    """Returns the array of each given feature by name, or raises all mismatches."""
    values: dict[str, np.ndarray] = {}
    found: list[errors.Mismatch] = []
    given = dict(specs.packing.leaves(structure, self._paths))
    there = [path for path, value in given.items() if value is not None]
    for feature in self._features:
      for path in feature.paths:
        value = given.get(path)
        if value is None:
          if not feature.is_optional:
            found.append(_missing(feature, path, there))
          continue
        array = specs.packing.to_array(value, feature.spec)
        misfit = _compare(feature, path, array)
        if isinstance(array, np.ndarray) and misfit is None:
          other = values.setdefault(feature.name, array)
          misfit = _compare_shared(feature, path, array, other)
        if misfit is not None:
          found.append(misfit)
    found += _compare_lengths([f for f in self._features if f.name in values], values)
    if found:
      raise errors.mismatch_error("write", found)
    return values

  def _encode_joined(
    self, feature: features.RecordFeature, value: np.ndarray
  ) -> protos.Feature:
    """Encodes what is one list in the record: a value, or those of all steps."""
    if not (feature.is_concatenated and features.is_raw(feature.spec)):
      return self._encode(feature, value)
    joined = protos.Feature()
    for step in value:  # The bytes of each step are an entry of their own.
      joined.MergeFrom(self._encode(feature, step))
    return joined

  def _encode(
    self, feature: features.RecordFeature, value: np.ndarray
  ) -> protos.Feature:
    spec = feature.spec
    if feature.is_image:
      if value.dtype != object:
        value = specs.packing.encode_pixels(value, spec, self._jpeg_quality)
      return features.to_feature(value.ravel().tolist(), feature.kind)
    return features.to_feature(features.to_record_values(value, spec), feature.kind)


def _missing(
  feature: features.RecordFeature, path: str, given: Iterable[str]
) -> errors.Mismatch:
  hint = errors.nearest(path, given) or "Optional features need is_optional=True."
  return errors.Mismatch(path, _expected(feature), "nothing", hint)


def _expected(feature: features.RecordFeature) -> str:
  spec = feature.spec
  shape = [str(size) for size in spec.shape]
  if feature.is_varlen:
    shape[0] = "n"
  if spec.is_sequence:
    shape.insert(0, "T")
  return f"({', '.join(shape)}{',' if len(shape) == 1 else ''}) {spec.dtype.name}"


def _compare(
  feature: features.RecordFeature, path: str, array: np.ndarray | str
) -> errors.Mismatch | None:
  got, hint = specs.packing.describe_array(array), ""
  if isinstance(array, np.ndarray):
    spec = feature.spec
    shape = spec.shape.as_list()
    is_encoded = feature.is_image and array.dtype == object
    if is_encoded:
      shape = shape[:-3]
    of_step = list(array.shape[int(spec.is_sequence) :])
    if feature.is_varlen:
      shape[0] = of_step[0] if of_step else -1
    has_dtype = is_encoded or array.dtype == spec.dtype.as_numpy_dtype
    if of_step == shape and array.ndim >= spec.is_sequence:
      if has_dtype:
        return None
      hint = "Cast it."
  return errors.Mismatch(path, _expected(feature), got, hint)


def _compare_shared(
  feature: features.RecordFeature, path: str, array: np.ndarray, other: np.ndarray
) -> errors.Mismatch | None:
  if array is other:
    return None
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
  given: Iterable[features.RecordFeature], values: Mapping[str, np.ndarray]
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


class _Discarded(Exception):
  """Ends the output of a writer that is discarded."""


class RecordWriter(publishing.Closing):
  """Writes structures to a TFRecord file that appears, whole, when it is closed.

  A context manager: leaving it normally commits the file, an exception discards it.
  Records go to a hidden temporary file in the same folder, which is synced to disk
  and then replaces `path` in one step, so no reader ever sees a part of it.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    spec: specs.SpecStructure,
    compression: str | None = None,
    jpeg_quality: int = 95,
  ) -> None:
    """Opens the temporary file.

    Args:
      path: of the file to write, on a local file system.
      spec: a structure of specs of one dataset, without time offsets.
      compression: 'GZIP', 'ZLIB', '' for none; by default as the suffix says (.gz;
        .zz or .zlib).
      jpeg_quality: 1 to 100, for images given as pixels.
    Raises:
      SpecError: a spec cannot be written, or the compression is not known.
    """
    errors.check_local("RecordWriter", path)
    publishing.check_output("RecordWriter", path)
    self._path = os.path.abspath(os.fspath(path))
    self._encoder = ExampleEncoder(spec, jpeg_quality)
    options = files.compression_type(self._path, compression)
    publishing.make_folders(os.path.dirname(self._path))
    with contextlib.ExitStack() as output:
      temporary = output.enter_context(publishing.writing_output(self._path))
      self._writer: tf.io.TFRecordWriter | None = tf.io.TFRecordWriter(
        temporary, options
      )
      self._output = output.pop_all()
    self._num_records = 0

  @property
  def num_records(self) -> int:
    """How many records were written so far."""
    return self._num_records

  def write(self, structure: Any) -> None:
    """Writes one record.

    Args:
      structure: numpy leaves by path; see `ExampleEncoder.encode`.
    Raises:
      SpecError: the structure does not fit the spec, or the writer is closed.
    """
    if self._writer is None:
      raise errors.SpecError(
        f"RecordWriter: {self._path}: expected an open writer, got a closed one."
      )
    self._writer.write(self._encoder.encode(structure))
    self._num_records += 1

  def close(self) -> None:
    """Commits the file; does nothing the second time."""
    if self._writer is not None:
      writer, self._writer = self._writer, None
      with self._output:
        writer.close()

  def discard(self) -> None:
    """Drops what was written; a file that was at the path stays as it was."""
    if self._writer is not None:
      writer, self._writer = self._writer, None
      with contextlib.suppress(_Discarded), self._output:
        writer.close()
        raise _Discarded

  def close_after(self, error: BaseException) -> None:
    """Discards the file."""
    del error
    self.discard()


def write_records(
  path: str | os.PathLike[str],
  spec: specs.SpecStructure,
  structures: Iterable[Any],
  compression: str | None = None,
  jpeg_quality: int = 95,
) -> int:
  """Writes one record per structure to a TFRecord file; the parser's inverse.

  Args:
    path: of the file, which is replaced as a whole, or not at all on an exception.
    spec: a structure of specs of one dataset, without time offsets.
    structures: numpy structures, one a record; sequences [T, ...].
    compression: 'GZIP', 'ZLIB', '' for none; by default as the suffix says.
    jpeg_quality: 1 to 100, for images given as pixels.
  Returns:
    The number of records.
  Raises:
    SpecError: a structure does not fit the spec.
  """
  with RecordWriter(path, spec, compression, jpeg_quality) as writer:
    for structure in structures:
      writer.write(structure)
  return writer.num_records
