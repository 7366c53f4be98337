"""The parser: serialized records to tensors, as the specs declare them.

TFDS writes an episode as one Example. A feature, such as 'steps/observation/state', is
a list of the values of all steps. The number of steps follows from the length of the
list and the shape that the spec declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, specs
from t2r_seq.imports import tf
from t2r_seq.records import features as features_lib
from t2r_seq.records import images, protos
from t2r_seq.records.features import RecordFeature
from t2r_seq.records.images import DecodeImages, ImageDecoding
from t2r_seq.records.protos import RecordContents, kind_of, values_of

Parsed = dict[tuple[str, str], "tf.Tensor"]
_Lists = Mapping[str, "tf.Tensor | tf.RaggedTensor"]


@gin.configurable
def create_parse_tf_example_fn(
  feature_tspec: specs.SpecStructure,
  label_tspec: specs.SpecStructure | None = None,
  decode_images: DecodeImages = True,
  is_one_episode: bool = False,
) -> Callable[..., Any]:
  """Creates the function that parses serialized records into tensors of the specs.

  The records of a dataset are `tf.train.Example`s if none of its specs is a sequence,
  or if its sequences have `is_concatenated`. Otherwise they are
  `tf.train.SequenceExample`s, and specs that are not sequences are in the context. The
  function consists of graph ops only, so it runs in `Dataset.map`, `tf.function` and an
  exported SavedModel.

  >>> import numpy as np
  >>> from t2r_seq import records, specs
  >>> spec = {"pose": specs.ExtendedTensorSpec((7,), "float32", "pose")}
  >>> serialized = records.encode_example(spec, {"pose": np.zeros(7, np.float32)})
  >>> records.create_parse_tf_example_fn(spec)([serialized, serialized]).pose.shape
  TensorShape([2, 7])

  Args:
    feature_tspec: a structure of specs without time offsets.
    label_tspec: label specs, or None.
    decode_images: True or an `ImageDecoding` decodes encoded images; False leaves them
      strings of shape `spec.shape[:-3]`.
    is_one_episode: whether the function fails at a record that holds several episodes:
      a sequence named is_first (is_last) is set in a step other than the first (last).
      Records in batches are not checked.
  Returns:
    A function of the serialized records: a string tensor of shape [] or [B], a 1-tuple
    of it, a (key, records) pair, or a dict of these by dataset_key. It returns
    features, or (features, labels) if there are label specs: TensorSpecStructs by
    path, sorted; leaves [*shape] or [B, *shape], sequences [T, *shape] or [B, T,
    *shape], padded to the longest of the batch; '<path>_length' leaves if declared.
  Raises:
    SpecError: specs cannot be parsed, or two of one name disagree (all are named);
      there are no specs; or `decode_images` does not fit them.
  """
  structures = {"features": feature_tspec, "labels": label_tspec}
  given = {label: tspec for label, tspec in structures.items() if tspec is not None}
  named = {"": feature_tspec} if label_tspec is None else given
  by_dataset = features_lib.collect_features(named, decode_images)
  if isinstance(decode_images, ImageDecoding):
    whole = feature_tspec if label_tspec is None else given
    decode_images.check("parse", specs.flatten_spec_structure(whole))

  # No Python control flow depends on tensors: converting it would only cost time.
  @tf.autograph.experimental.do_not_convert
  def parse_tf_example_fn(*serialized: Any) -> Any:
    records = _by_dataset(serialized, list(by_dataset))
    parsed: Parsed = {}
    lengths: Parsed = {}
    with tf.name_scope("parse_tf_example"):
      for key, dataset_features in by_dataset.items():
        tensors, steps = _parse_dataset(records[key], dataset_features)
        if is_one_episode and records[key].shape.rank == 0:
          tensors = _require_one_episode(dataset_features, tensors)
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
    feature_tspec: a structure of specs without time offsets.
    label_tspec: label specs, or None.
    num_parallel_calls: number of elements that are parsed at a time; None for one.
  Returns:
    Dataset of features, or of (features, labels).
  Raises:
    SpecError: a spec cannot be parsed, or the elements are no serialized records.
  """
  parse_fn = create_parse_tf_example_fn(feature_tspec, label_tspec)
  return dataset.map(parse_fn, num_parallel_calls=num_parallel_calls)


def _by_dataset(serialized: tuple[Any, ...], keys: list[str]) -> dict[str, tf.Tensor]:
  """Finds the records of each dataset in the arguments from `Dataset.map`."""
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
  serialized: tf.Tensor, features: list[RecordFeature]
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
    divided, lengths = _divide(features, parsed, serialized)
    parsed.update(divided)
  elif steps:
    parsed, parsed_steps, lengths = tf.io.parse_sequence_example(
      serialized, context_features=context, sequence_features=steps
    )
    parsed.update(parsed_steps)
    for feature in features:  # The op does not count the steps of varlen sequences.
      if feature.spec.is_sequence and feature.is_varlen:
        values = parsed_steps[feature.name]
        is_one = values.shape.rank == 2
        lengths[feature.name] = values.nrows() if is_one else values.row_lengths()
  else:
    parsed = tf.io.parse_example(serialized, context)
    parsed = _require_any(features, parsed, serialized)
  is_batched = serialized.shape.rank == 1
  if is_batched:
    _require_bytes(features, parsed, lengths)
  tensors = {f.name: _decode(f, parsed[f.name], is_batched) for f in features}
  if steps:
    lengths = _fill_absent(features, tensors, lengths)
  return tensors, lengths


def _require_any(
  features: Sequence[RecordFeature],
  parsed: dict[str, tf.Tensor],
  serialized: tf.Tensor,
) -> dict[str, tf.Tensor]:
  """Fails at run time if a record has none of the features and all are optional.

  Without this check, a message of another kind would be parsed to zeros.
  """
  if not all(feature.is_optional and not feature.is_varlen for feature in features):
    return parsed
  lists = {f.name: tf.io.RaggedFeature(f.record_dtype) for f in features}
  parsed_lists = tf.io.parse_example(serialized, lists)
  has_any = tf.add_n([_count(values) for values in parsed_lists.values()]) > 0
  message = f"parse: expected one of the features {errors.listing(lists)}, got none."
  check = tf.raw_ops.Assert(condition=tf.reduce_all(has_any), data=[message])
  with tf.control_dependencies([check] if check is not None else []):
    return {name: tf.identity(tensor) for name, tensor in parsed.items()}


def _require_bytes(
  features: list[RecordFeature], parsed: dict[str, Any], lengths: Mapping[str, Any]
) -> None:
  """Fails at run time if a step of a raw sequence in a batch is an empty byte string.

  The padding of shorter sequences is empty strings as well, which become zeros. Changes
  the raw sequences of `parsed`, [B, T], that are not optional.
  """
  for feature in features:
    num_bytes = features_lib.bytes_per_value(feature.spec)
    is_raw = features_lib.is_raw(feature.spec) and feature.spec.is_sequence
    if not is_raw or _may_be_absent(feature) or not num_bytes:
      continue
    values = parsed[feature.name]
    is_step = tf.sequence_mask(lengths[feature.name], tf.shape(values)[1])
    fits = tf.reduce_all((tf.strings.length(values) > 0) | ~is_step)
    message = f"parse: {feature.path}: expected {num_bytes} bytes per step, got none."
    parsed[feature.name] = features_lib.require(values, fits, [message])


def flags_inside(edge: str, flags: tf.Tensor) -> tf.Tensor:
  """Whether an episode begins or ends inside a record: [] bool.

  Args:
    edge: 'is_first' or 'is_last'.
    flags: flags of one record, [T, ...].
  """
  inside = flags[1:] if edge == features_lib.IS_FIRST else flags[:-1]
  return tf.reduce_any(tf.cast(inside, tf.bool))


def _require_one_episode(
  features: list[RecordFeature], tensors: dict[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
  """Fails at run time at a record that holds several episodes."""
  checks = []
  for feature in features:
    if feature.edge:
      fits = ~flags_inside(feature.edge, tensors[feature.name])
      message = f"parse: {feature.path}: expected one episode in a record, got several."
      checks.append(tf.raw_ops.Assert(condition=fits, data=[message]))
  with tf.control_dependencies([check for check in checks if check is not None]):
    return {n: tf.identity(t) for n, t in tensors.items()} if checks else tensors


def _decode(
  feature: RecordFeature, values: tf.Tensor | tf.RaggedTensor, is_batched: bool
) -> tf.Tensor:
  spec = feature.spec
  if feature.is_varlen:
    values = _pad_or_clip(values, feature)
  if feature.is_image:
    if not feature.decode_images:
      return values
    return images.decode_images(values, spec, feature.path, feature.decode_images)
  # Padded steps and missing optional features are empty strings, which become zeros.
  allow_empty = feature.is_optional or (spec.is_sequence and is_batched)
  # Varlen features are padded with their default.
  allow_empty = allow_empty and not feature.is_varlen
  return features_lib.decode_values(values, spec, feature.path, allow_empty)


def _pad_or_clip(
  values: tf.Tensor | tf.RaggedTensor, feature: RecordFeature
) -> tf.Tensor:
  """Pads [..., (n)] or [n] with the varlen default, or clips, to [..., shape[0]]."""
  spec = feature.spec
  fill: Any = b""
  if not feature.is_image:
    default = np.asarray([features_lib.default_value(spec)])
    fill = features_lib.to_record_values(default, spec)[0]
  length, fill = spec.shape[0], tf.constant(fill, values.dtype)
  if isinstance(values, tf.RaggedTensor):
    outer = [None] * (values.shape.rank - 1)
    return values.to_tensor(fill, shape=[*outer, length])
  clipped = values[:length]
  missing = length - tf.shape(clipped)[0]
  return tf.ensure_shape(tf.concat([clipped, tf.fill([missing], fill)], 0), [length])


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


def _may_be_absent(feature: RecordFeature) -> bool:
  return feature.is_optional or feature.is_varlen


def _fill_absent(
  features: list[RecordFeature],
  tensors: dict[str, tf.Tensor],
  lengths: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
  """Gives absent optional sequences the steps of the record's other sequences.

  One that is present, but too short, stays so: lost values are not invented. Changes
  `tensors`.

  Args:
    features: features of the record.
    tensors: decoded sequences by name, [T, ...] or [B, T, ...]; absent ones are
      extended by zeros, '', black, or the varlen default.
    lengths: steps of every sequence by name, [] or [B] int64.
  Returns:
    The number of steps of every sequence by name.
  """
  sequences = [f for f in features if f.spec.is_sequence]
  filled = dict(lengths)
  for feature in filter(_may_be_absent, sequences):
    length = lengths[feature.name]
    longest = tf.reduce_max(tf.stack([lengths[f.name] for f in sequences]), axis=0)
    filled[feature.name] = tf.where(tf.equal(length, 0), longest, length)
    tensor, fill = tensors[feature.name], 0
    if feature.is_varlen and not feature.is_image:
      fill = features_lib.default_value(feature.spec)
    fill = tf.zeros([], tensor.dtype) if fill == 0 else tf.constant(fill, tensor.dtype)
    axis, shape = length.shape.rank, tf.shape(tensor, out_type=tf.int64)
    missing = tf.maximum(tf.reduce_max(filled[feature.name]) - shape[axis], 0)
    extra = tf.fill(tf.concat([shape[:axis], [missing], shape[axis + 1 :]], 0), fill)
    sizes = tensor.shape.as_list()
    tensors[feature.name] = tf.ensure_shape(
      tf.concat([tensor, extra], axis), [*sizes[:axis], None, *sizes[axis + 1 :]]
    )
  return filled


def _divide(
  features: Iterable[RecordFeature], parsed: _Lists, serialized: tf.Tensor
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
  """Divides the lists of concatenated features, [n] or [B, (n)], into steps.

  Returns:
    Steps by name, [T, ...] or [B, T, ...] padded to the longest with zeros or '';
    and the number of steps of each, [] or [B] int64.
  """
  joined = [feature for feature in features if feature.is_concatenated]
  counts = {feature.name: _count(parsed[feature.name]) for feature in joined}
  is_empty = _is_empty(joined, counts, serialized)
  tensors: dict[str, tf.Tensor] = {}
  lengths: dict[str, tf.Tensor] = {}
  for feature in joined:
    name = feature.name
    lengths[name] = _num_steps(feature, counts[name], is_empty)
    tensors[name] = _to_steps(feature, parsed[name], lengths[name])
  return tensors, lengths


def _count(values: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
  is_batched = isinstance(values, tf.RaggedTensor)
  return values.row_lengths() if is_batched else tf.size(values, tf.int64)


def _is_empty(
  features: Sequence[RecordFeature],
  counts: Mapping[str, tf.Tensor],
  serialized: tf.Tensor,
) -> tf.Tensor:
  """Whether records are episodes of no steps: their lists are present, and empty.

  TensorFlow's parser treats such a list as missing. The serialized bytes differ; they
  are searched only if no list has a value.
  """
  has_no_values = tf.equal(tf.add_n(list(counts.values())), 0)
  empty = [
    protos.FeatureEntry(
      key=feature.name, value=protos.to_feature([], feature.kind)
    ).SerializeToString()
    for feature in features
    if not feature.is_optional
  ]

  def has_all_lists() -> tf.Tensor:
    is_complete = tf.ones_like(has_no_values)
    for entry in empty:
      pieces = tf.strings.split(tf.reshape(serialized, [-1]), entry)
      is_complete &= tf.reshape(pieces.row_lengths() > 1, tf.shape(has_no_values))
    return is_complete

  no_record = tf.zeros_like(has_no_values)
  return has_no_values & tf.cond(
    tf.reduce_any(has_no_values), has_all_lists, lambda: no_record
  )


def _num_steps(
  feature: RecordFeature, count: tf.Tensor, is_empty: tf.Tensor
) -> tf.Tensor:
  per_step = feature.values_per_step
  fits = tf.equal(count % per_step, 0)
  want = f"{per_step} values per step, for shape {tuple(feature.spec.shape)}"
  if not feature.is_optional:
    # The parser returns an empty list for a missing feature, which would be an episode
    # without steps. In a real one (`is_empty`), all lists are present and empty.
    fits = tf.logical_and(fits, (count > 0) | is_empty)
    want += ", and at least one step"
  message = f"parse: {feature.path}: expected {want}, got these numbers of values:"
  count = features_lib.require(count, tf.reduce_all(fits), [message, count])
  return count // per_step


def _to_steps(
  feature: RecordFeature, values: tf.Tensor | tf.RaggedTensor, num_steps: tf.Tensor
) -> tf.Tensor:
  # Reshape by num_steps, not by -1: so the result depends on the check in `_num_steps`.
  shape = tf.constant(feature.record_shape, tf.int64)
  if not isinstance(values, tf.RaggedTensor):
    steps = tf.reshape(values, tf.concat([[num_steps], shape], 0))
    return tf.ensure_shape(steps, [None, *feature.record_shape])
  # 0 for an empty batch, where reduce_max is int64.min.
  longest = tf.reduce_max(tf.concat([[0], num_steps], 0))
  fill = tf.zeros([], values.dtype)
  width = longest * feature.values_per_step
  padded = values.to_tensor(fill, shape=tf.stack([values.nrows(), width]))
  steps = tf.reshape(padded, tf.concat([[values.nrows(), longest], shape], 0))
  return tf.ensure_shape(steps, [values.shape[0], None, *feature.record_shape])


def as_lists(
  contents: RecordContents, features: Sequence[RecordFeature]
) -> RecordContents:
  """Moves concatenated features to where a SequenceExample has them, in Python.

  Then the same code diagnoses Examples and SequenceExamples. If a list ends too early,
  its last step has fewer values. The contents are changed and returned.
  """
  names = {feature.name for feature in features if feature.is_concatenated}
  for feature in features:
    if feature.name not in names:
      continue
    value = contents.context.pop(feature.name, None)
    if contents.steps.pop(feature.name, None) is not None:
      # A SequenceExample's own lists are not read for this feature.
      contents.context[feature.name] = protos.Feature()
    if value is not None and kind_of(value):
      contents.steps[feature.name] = divide_list(value, feature.values_per_step)
  if any(contents.steps.get(name) for name in names):
    # If another list has values, an empty list counts as missing. If all are empty, the
    # episode has no steps.
    for name in names:
      if not contents.steps.get(name, [None]):
        del contents.steps[name]
  return contents


def divide_list(value: protos.Feature, per_step: int) -> list[protos.Feature]:
  """Divides a list into the features of steps; the last one may be shorter."""
  values = list(values_of(value))
  return [
    protos.to_feature(values[start : start + per_step], kind_of(value))
    for start in range(0, len(values), per_step)
  ]
