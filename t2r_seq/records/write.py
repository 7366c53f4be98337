"""The writer: numpy structures to records, in files that appear when complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
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
    A tf.train.Example or SequenceExample, as `create_parse_tf_example_fn` reads it.
  Raises:
    SpecError: the structure does not fit the spec (all mismatches are named), or the
      spec cannot be written.
  """
  return ExampleEncoder(spec, jpeg_quality).encode(structure)


class ExampleEncoder:
  """Serializes structures of one spec; the parser's inverse."""

  def __init__(self, spec: specs.SpecStructure, jpeg_quality: int = 95) -> None:
    """Creates the encoder; raises SpecError for specs that cannot be written."""
    by_dataset = features.collect_features({"": spec})
    if len(by_dataset) > 1:
      raise errors.SpecError(
        "write: expected specs of one dataset, got those of "
        f"{errors.listing(by_dataset)}. Write each to a separate file, with "
        "filter_spec_structure_by_dataset(spec, key)."
      )
    (listed,) = by_dataset.values()
    self._features = [_FeatureEncoder(feature, jpeg_quality) for feature in listed]
    self._paths = {path for feature in listed for path in feature.paths}
    self._sequences = [feature for feature in listed if feature.spec.is_sequence]
    self._has_lists = any(encoder.is_list for encoder in self._features)

  def encode(self, structure: Any) -> bytes:
    """Validates and serializes one structure.

    Args:
      structure: leaves by path, packed or flat. Arrays of the spec's dtype and shape
        ([T, ...] for sequences), or Python numbers and lists. Images as pixels, or
        encoded, as bytes that are stored unchanged. None for an absent optional. Leaves
        that the spec does not have are not written.
    Returns:
      The serialized record.
    Raises:
      SpecError: values do not match (all are listed), or a record exceeds 2 GiB.
    """
    values = self._collect(structure)
    context: Parts = []
    steps: Parts = []
    for encoder in self._features:
      if encoder.name in values:
        parts = steps if encoder.is_list else context
        parts += encoder.encode(values[encoder.name])
    record = _field((1,), context)
    if self._has_lists:
      record += _field((2,), steps)
    size = _size(record)
    if size > _MAX_BYTES:
      raise errors.SpecError(
        f"write: expected a record of at most {_MAX_BYTES:,} bytes, Protobuf's limit, "
        f"got {size:,}. Divide the episode, or store images as JPEG."
      )
    return b"".join(record)

  def _collect(self, structure: Any) -> dict[str, Any]:
    """Returns the array of each given feature by name, or raises all mismatches."""
    values: dict[str, Any] = {}
    mismatches: list[errors.Mismatch] = []
    given: Any = structure
    if type(given) is not dict or not given.keys() >= self._paths:
      given = dict(specs.packing.leaves(structure, self._paths))
    for encoder in self._features:
      feature = encoder.feature
      for path in feature.paths:
        value = given.get(path)
        if value is None:
          if not feature.is_optional:
            present = [name for name, other in given.items() if other is not None]
            mismatches.append(_missing(feature, path, present))
          continue
        misfit = None
        if not encoder.fits(value):
          value = specs.packing.to_array(value, feature.spec)
          misfit = _compare(feature, path, value)
        if misfit is None:
          other = values.setdefault(feature.name, value)
          misfit = _compare_shared(feature, path, value, other)
        if misfit is not None:
          mismatches.append(misfit)
    mismatches += _compare_lengths(
      [f for f in self._sequences if f.name in values], values
    )
    if mismatches:
      raise errors.mismatch_error("write", mismatches)
    return values


# The limit of protocol buffers: TensorFlow does not parse a larger record.
_MAX_BYTES = 2**31 - 1

Parts = list["bytes | memoryview"]
"""Consecutive bytes of a record. They are joined, and so copied, once."""


def _size(parts: Parts) -> int:
  return sum(map(len, parts))


def _field(numbers: tuple[int, ...], parts: Parts) -> Parts:
  return [protos.field_header(numbers, _size(parts)), *parts]


class _FeatureEncoder:
  """Serializes the values of one feature as an entry of the record's map.

  Attributes:
    feature: feature of the record.
    name: name of the feature.
    is_list: True if each step has a list, in a SequenceExample; else there is one list.
  """

  def __init__(self, feature: features.RecordFeature, jpeg_quality: int) -> None:
    spec, name = feature.spec, feature.name.encode()
    self.feature = feature
    self.name = feature.name
    self.is_list = spec.is_sequence and not feature.is_concatenated
    self._key = protos.field_header((1,), len(name)) + name
    self._kind = feature.kind
    self._number = protos.LIST_NUMBERS[feature.kind]
    self._dtype = np.dtype(spec.dtype.as_numpy_dtype)
    self._shape = tuple(spec.shape.as_list())
    self._ndim = len(self._shape) + spec.is_sequence
    self._has_fixed_shape = not feature.is_varlen and spec.dtype != tf.string
    is_packed = features.packed_format(spec) in ("zlib", "tensor")
    is_raw = features.is_raw(spec) and not is_packed and not feature.is_varlen
    self._has_bytes = is_raw or feature.kind == "float"
    self._jpeg_quality = jpeg_quality

  def fits(self, value: Any) -> bool:
    """Whether a value can be encoded unchanged; if not, it may fit when converted."""
    return self._has_fixed_shape and specs.packing.is_array(
      value, self._dtype, self._shape, self._ndim
    )

  def encode(self, value: Any) -> Parts:
    """Returns the map entry for a valid array."""
    if not self.is_list:
      feature = _field((2, self._number), self._list(value))
      return _field((1,), [self._key, *feature])
    steps: Parts = []
    if self._has_bytes and len(value):
      steps = [self._steps_of_one_size(value)]
    else:
      for i in range(len(value)):  # Slices: an item of objects would be bare bytes.
        steps += _field((1, self._number), self._list(value[i : i + 1]))
    return _field((1,), [self._key, *_field((2,), steps)])

  def _list(self, value: Any) -> Parts:
    """Returns the content of a BytesList, FloatList or Int64List."""
    spec = self.feature.spec
    if self._kind == "float":
      data = value.astype(np.float32).tobytes()
      return [protos.field_header((1,), len(data)), data] if data else []
    if self._kind == "int64":
      numbers = features.to_record_values(value, spec)
      return [protos.Int64List(value=numbers).SerializeToString()]
    if self.feature.is_image:
      if value.dtype != object:
        value = specs.packing.encode_pixels(value, spec, self._jpeg_quality)
      items = value.ravel().tolist()
    elif self.feature.is_concatenated and features.is_raw(spec):
      steps = (value[i : i + 1] for i in range(len(value)))
      items = [features.pack_value(step, spec) for step in steps]
    else:
      items = features.to_record_values(value, spec)
    headers = (protos.field_header((1,), len(item)) for item in items)
    return [part for pair in zip(headers, items, strict=True) for part in pair]

  def _steps_of_one_size(self, value: np.ndarray) -> memoryview:
    """Returns the features of all steps: the same header before the bytes of each."""
    dtype = np.float32 if self._kind == "float" else self._dtype
    rows = np.ascontiguousarray(value, dtype).view(np.uint8).reshape(len(value), -1)
    # An empty list of numbers has no field of numbers.
    numbers = (1, self._number, 1) if rows.size else (1, self._number)
    header = np.frombuffer(protos.field_header(numbers, rows.shape[1]), np.uint8)
    encoded = np.empty((len(rows), len(header) + rows.shape[1]), np.uint8)
    encoded[:, : len(header)] = header
    encoded[:, len(header) :] = rows
    return encoded.reshape(-1).data


def _missing(
  feature: features.RecordFeature, path: str, given: Iterable[str]
) -> errors.Mismatch:
  hint = errors.nearest(path, given) or "Optional features need is_optional=True."
  return errors.Mismatch(path, _describe_expected(feature), "nothing", hint)


def _describe_expected(feature: features.RecordFeature) -> str:
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
  hint = ""
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
  got = specs.packing.describe_array(array)
  return errors.Mismatch(path, _describe_expected(feature), got, hint)


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
  sequences: Sequence[features.RecordFeature], values: Mapping[str, np.ndarray]
) -> list[errors.Mismatch]:
  """Compares the steps of all sequences with the first one's."""
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
  """Ends the output of a discarded writer as an error does: without a new file."""


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
      path: path of the file to write, on a local file system.
      spec: a structure of specs of one dataset, without time offsets.
      compression: 'GZIP', 'ZLIB' or '' for none; None: by the suffix (.gz is GZIP, .zz
        and .zlib are ZLIB).
      jpeg_quality: 1 to 100, for images given as pixels.
    Raises:
      SpecError: a spec cannot be written, the specs are of several datasets, `path` is
        a URL, or the compression is unknown.
      OSError: `path` is a folder, or its folder cannot be written.
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
    """Number of records written so far."""
    return self._num_records

  def write(self, structure: Any) -> None:
    """Writes one record; see `ExampleEncoder.encode` for the structure.

    Raises:
      SpecError: the structure does not fit the spec, or the writer is closed.
      tf.errors.OpError: the disk is full or failed.
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
    """Deletes the temporary file; an older file at the path stays."""
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
  """Writes one record per structure to a TFRecord file; returns how many.

  >>> import numpy as np
  >>> from t2r_seq import records, specs
  >>> spec = {"x": specs.ExtendedTensorSpec((2,), "float32", "x", is_sequence=True)}
  >>> episodes = [{"x": np.zeros((num_steps, 2), np.float32)} for num_steps in (5, 3)]
  >>> records.write_records("demo.tfrecord", spec, episodes)
  2
  >>> dataset = records.record_dataset("demo.tfrecord")
  >>> [e.x.shape[0] for e in records.serialized_to_parsed(dataset, spec)]
  [5, 3]

  Args:
    path: path of the file, which is replaced as a whole, or not at all on an exception.
    spec: a structure of specs of one dataset, without time offsets.
    structures: numpy structures, one per record; sequences [T, ...].
    compression: 'GZIP', 'ZLIB' or '' for none; None: by the suffix.
    jpeg_quality: 1 to 100, for images given as pixels.
  Raises:
    SpecError: a structure does not fit the spec; or as `RecordWriter` raises.
    OSError, tf.errors.OpError: the file cannot be written.
  """
  with RecordWriter(path, spec, compression, jpeg_quality) as writer:
    for structure in structures:
      writer.write(structure)
  return writer.num_records
