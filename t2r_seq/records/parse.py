"""The parser: serialized records to tensors, as the specs declare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.records import concatenated, images, sequences, storage
from t2r_seq.records import features as features_lib
from t2r_seq.records.decoding import DecodeImages, ImageDecoding

Parsed = dict[tuple[str, str], tf.Tensor]


@gin.configurable
def create_parse_tf_example_fn(
  feature_tspec: specs.SpecStructure,
  label_tspec: specs.SpecStructure | None = None,
  decode_images: DecodeImages = True,
) -> Callable[..., Any]:
  """Creates the function that parses serialized records into spec'd tensors.

  The records of a dataset are `tf.train.Example`s when none of its specs is a
  sequence, and `tf.train.SequenceExample`s when any is; specs that are no sequences
  then come from the context. Sequences with `is_concatenated` come from Examples. The
  function is made of graph ops only, so it runs in `Dataset.map`, `tf.function` and an
  exported SavedModel.

  Args:
    feature_tspec: a structure of specs without time offsets.
    label_tspec: the same for labels, or None.
    decode_images: decodes encoded images, perhaps in a way of its own: an
      `ImageDecoding`; False: they stay strings of shape `spec.shape[:-3]`.
  Returns:
    A function of the serialized records: a string tensor of shape [] or [B], a 1-tuple
    of it, a (key, records) pair, or a dict of these by dataset_key. It returns
    features, or (features, labels) where there are label specs: TensorSpecStructs by
    path, sorted; leaves [*shape] or [B, *shape], sequences [T, *shape] or [B, T,
    *shape], padded to the longest of the batch; '<path>_length' leaves where declared.
  Raises:
    SpecError: a spec cannot be parsed; all of them are named.
  """
  structures = {"features": feature_tspec, "labels": label_tspec}
  given = {label: tspec for label, tspec in structures.items() if tspec is not None}
  by_dataset = features_lib.collect_features(
    {"": feature_tspec} if label_tspec is None else given, decode_images
  )
  if isinstance(decode_images, ImageDecoding):
    decode_images.check(
      "parse",
      specs.flatten_spec_structure(feature_tspec if label_tspec is None else given),
    )

  # No Python control flow depends on tensors: converting it would only cost time.
  @tf.autograph.experimental.do_not_convert
  def parse_tf_example_fn(*serialized: Any) -> Any:
    records = _by_dataset(serialized, list(by_dataset))
    parsed: Parsed = {}
    lengths: Parsed = {}
    with tf.name_scope("parse_tf_example"):
      for key, dataset_features in by_dataset.items():
        tensors, steps = _parse_dataset(records[key], dataset_features)
        parsed.update({(key, name): tensor for name, tensor in tensors.items()})
        lengths.update({(key, name): tensor for name, tensor in steps.items()})
    is_batched = next(iter(records.values())).shape.rank == 1
    packed = [
      _pack(structure, parsed, lengths, is_batched, decode_images)
      for structure in given.values()
    ]
    return packed[0] if label_tspec is None else tuple(packed)

  return parse_tf_example_fn


def serialized_to_parsed(
  dataset: tf.data.Dataset,
  feature_tspec: specs.SpecStructure,
  label_tspec: specs.SpecStructure | None = None,
  num_parallel_calls: int | None = 2,
) -> tf.data.Dataset:
  """Parses a dataset of serialized records; see `create_parse_tf_example_fn`.

  Args:
    dataset: elements are serialized records, single or batched, or dicts of them by
      dataset_key.
    feature_tspec: a structure of specs.
    label_tspec: the same for labels, or None.
    num_parallel_calls: of the map.
  Returns:
    Dataset of features, or of (features, labels).
  Raises:
    SpecError: a spec cannot be parsed.
  """
  parse_fn = create_parse_tf_example_fn(feature_tspec, label_tspec)
  return dataset.map(parse_fn, num_parallel_calls=num_parallel_calls)


def _by_dataset(serialized: tuple[Any, ...], keys: list[str]) -> dict[str, tf.Tensor]:
  """Finds the records of each dataset in what `Dataset.map` passes."""
  value = serialized[0] if len(serialized) == 1 else serialized
  if isinstance(value, Mapping):
    records = {key: _last(records) for key, records in value.items()}
  elif len(keys) == 1:
    records = {keys[0]: _last(value)}
  else:
    raise errors.SpecError(
      f"parse: expected records by dataset_key, {errors.listing(keys)}, got one "
      "tensor. Pass a dict, such as tf.data.Dataset.zip({key: dataset}) gives."
    )
  if sorted(records) != sorted(keys):
    raise errors.SpecError(
      f"parse: expected records of the datasets {errors.listing(keys)}, got "
      f"{errors.listing(records)}. The keys are the dataset_key of the specs."
    )
  for key, tensor in records.items():
    if tensor.dtype != tf.string or tensor.shape.rank not in (0, 1):
      raise errors.SpecError(
        f"parse: {key or 'records'}: expected serialized records, () or (B,) string, "
        f"got {errors.describe(tensor)}."
      )
  return records


def _last(value: Any) -> tf.Tensor:
  """Takes the record out of a (key, record) pair or 1-tuple."""
  return tf.convert_to_tensor(value[-1] if isinstance(value, tuple) else value)


def _parse_dataset(
  serialized: tf.Tensor, features: list[features_lib.RecordFeature]
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
  """Parses the records of one dataset.

  Returns:
    Tensors by feature name, and the number of steps of each sequence by name.
  """
  context = {f.name: f.to_io_feature() for f in features if not f.spec.is_sequence}
  steps = {f.name: f.to_io_feature() for f in features if f.spec.is_sequence}
  lengths: dict[str, tf.Tensor] = {}
  if any(f.is_concatenated for f in features):
    parsed = tf.io.parse_example(serialized, {**context, **steps})
    divided, lengths = concatenated.divide(features, parsed)
    parsed.update(divided)
  elif steps:
    parsed, parsed_steps, lengths = tf.io.parse_sequence_example(
      serialized, context_features=context, sequence_features=steps
    )
    parsed.update(parsed_steps)
    lengths = sequences.complete_lengths(features, parsed_steps, lengths)
  else:
    parsed = tf.io.parse_example(serialized, context)
  is_batched = serialized.shape.rank == 1
  if is_batched:
    parsed.update(sequences.require_bytes(features, parsed, lengths))
  tensors = {f.name: _decode(f, parsed[f.name], is_batched) for f in features}
  if steps:
    tensors.update(sequences.fill_absent(features, tensors, lengths))
    lengths = sequences.fill_lengths(features, lengths)
  return tensors, lengths


def _decode(
  feature: features_lib.RecordFeature,
  values: tf.Tensor | tf.RaggedTensor,
  is_batched: bool,
) -> tf.Tensor:
  spec = feature.spec
  if feature.is_varlen:
    values = sequences.pad_or_clip(values, spec)
  if feature.is_image:
    if not feature.decode_images:
      return values
    return images.decode_images(values, spec, feature.path, feature.decode_images)
  # Padded steps and absent optionals are empty strings, which raw specs make zeros.
  allow_empty = feature.is_optional or (spec.is_sequence and is_batched)
  # Varlen ones are padded with their default.
  allow_empty = allow_empty and not feature.is_varlen
  return storage.decode_values(values, spec, feature.path, allow_empty)


def _pack(
  structure: specs.SpecStructure,
  parsed: Parsed,
  lengths: Parsed,
  is_batched: bool,
  decode_images: DecodeImages,
) -> specs.TensorSpecStruct:
  flat = specs.flatten_spec_structure(structure)
  if not decode_images:
    flat = features_lib.encoded_specs(flat)
  sequence_of = features_lib.length_paths(structure)
  tensors = specs.TensorSpecStruct()
  for path, spec in flat.items():
    source, by_name = flat[sequence_of.get(path, path)], parsed
    if path in sequence_of:
      by_name = lengths
    dataset_key = getattr(source, "dataset_key", "")
    tensors[path] = tf.cast(by_name[dataset_key, source.name], spec.dtype)
  return specs.validate_and_pack(flat, tensors, ignore_batch=is_batched)
