"""The parser: serialized records to tensors, as the specs declare them.

TFDS writes an episode as one Example: the values of all steps of a feature, one after
the other, under a name such as 'steps/observation/state'. How many steps there are
follows from the shape that the spec declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gin

from t2r_seq import errors, specs
from t2r_seq.imports import tf
from t2r_seq.records import features as features_lib
from t2r_seq.records import images, protos
from t2r_seq.records.contents import RecordContents, kind_of, values_of
from t2r_seq.records.features import RecordFeature
from t2r_seq.records.images import DecodeImages, ImageDecoding


def pad_or_clip(
  values: tf.Tensor | tf.RaggedTensor, spec: specs.ExtendedTensorSpec
) -> tf.Tensor:
  """Pads with the varlen default, or clips, to `spec.shape[0]` values.

  Args:
    values: [..., (n)] ragged, or [n], as parsed.
    spec: a varlen spec.
  Returns:
    [..., N] of the record dtype, N static.
  """
  length = spec.shape[0]
  default = tf.constant(features_lib.record_default(spec), values.dtype)
  if isinstance(values, tf.RaggedTensor):
    outer = [None] * (values.shape.rank - 1)
    return values.to_tensor(default, shape=[*outer, length])
  clipped = values[:length]
  missing = length - tf.shape(clipped)[0]
  return tf.ensure_shape(tf.concat([clipped, tf.fill([missing], default)], 0), [length])


def complete_lengths(
  features: list[RecordFeature],
  parsed: Mapping[str, tf.Tensor | tf.RaggedTensor],
  lengths: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
  """Adds the number of steps of varlen sequences, which the parse op doesn't count.

  Args:
    features: those of the record.
    parsed: sequences by name; varlen ones [(T), (n)] or [B, (T), (n)].
    lengths: steps of the others by name, [] or [B] int64.
  Returns:
    Steps of every sequence by name.
  """
  completed = dict(lengths)
  for feature in features:
    if feature.spec.is_sequence and feature.is_varlen:
      values = parsed[feature.name]
      completed[feature.name] = (
        values.nrows() if values.shape.rank == 2 else values.row_lengths()
      )
  return completed


def require_bytes(
  features: list[RecordFeature],
  parsed: Mapping[str, tf.Tensor | tf.RaggedTensor],
  lengths: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
  """Fails at run time where a step that a batch holds is an empty byte string.

  Those that pad shorter sequences are empty as well, and become zeros.

  Args:
    features: those of the record.
    parsed: sequences by name, [B, T].
    lengths: steps of every sequence by name, [B] int64.
  Returns:
    Raw sequences that are not optional, by name.
  """
  checked: dict[str, tf.Tensor] = {}
  for feature in features:
    num_bytes = features_lib.bytes_per_value(feature.spec)
    may_be_empty = feature.is_optional or feature.is_varlen or not num_bytes
    if (
      not features_lib.is_raw(feature.spec)
      or not feature.spec.is_sequence
      or may_be_empty
    ):
      continue
    values = parsed[feature.name]
    is_step = tf.sequence_mask(lengths[feature.name], tf.shape(values)[1])
    fits = tf.reduce_all((tf.strings.length(values) > 0) | ~is_step)
    message = f"parse: {feature.path}: expected {num_bytes} bytes a step, got none."
    checked[feature.name] = features_lib.require(values, fits, [message])
  return checked


def _may_be_absent(feature: RecordFeature) -> bool:
  return feature.is_optional or feature.is_varlen


def _record_steps(
  features: list[RecordFeature], lengths: Mapping[str, tf.Tensor]
) -> tf.Tensor:
  """Returns the number of steps of each record, [] or [B] int64: the longest's."""
  names = [f.name for f in features if f.spec.is_sequence]
  return tf.reduce_max(tf.stack([lengths[name] for name in names]), axis=0)


def fill_lengths(
  features: list[RecordFeature], lengths: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
  """Gives absent optional sequences the length of the record's other sequences."""
  filled = dict(lengths)
  for feature in features:
    if feature.spec.is_sequence and _may_be_absent(feature):
      steps = _record_steps(features, lengths)
      own = lengths[feature.name]
      filled[feature.name] = tf.where(tf.equal(own, 0), steps, own)
  return filled


def fill_absent(
  features: list[RecordFeature],
  tensors: Mapping[str, tf.Tensor],
  lengths: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
  """Gives absent optional sequences the steps of the record's other sequences.

  One that is there, but too short, stays so: what is lost is not made up.

  Args:
    features: those of the record.
    tensors: decoded sequences by name, [T, ...] or [B, T, ...].
    lengths: steps of every sequence by name.
  Returns:
    The extended tensors by name: zeros, '', black, or the varlen default at the end.
  """
  filled = fill_lengths(features, lengths)
  return {
    feature.name: _extend(
      tensors[feature.name],
      tf.reduce_max(filled[feature.name]),
      _fill_value(feature, tensors[feature.name].dtype),
      time_axis=lengths[feature.name].shape.rank,
    )
    for feature in features
    if feature.spec.is_sequence and _may_be_absent(feature)
  }


def _fill_value(feature: RecordFeature, dtype: tf.DType) -> tf.Tensor:
  if feature.is_varlen and not feature.is_image:
    return tf.constant(features_lib.default_value(feature.spec), dtype)
  return tf.zeros([], dtype)


def _extend(
  tensor: tf.Tensor, steps: tf.Tensor, fill: tf.Tensor, time_axis: int
) -> tf.Tensor:
  shape = tf.shape(tensor, out_type=tf.int64)
  missing = tf.maximum(steps - shape[time_axis], 0)
  extra_shape = tf.concat([shape[:time_axis], [missing], shape[time_axis + 1 :]], 0)
  extended = tf.concat([tensor, tf.fill(extra_shape, fill)], time_axis)
  return tf.ensure_shape(
    extended,
    [None if i == time_axis else size for i, size in enumerate(tensor.shape.as_list())],
  )


def divide(
  features: Iterable[RecordFeature],
  parsed: Mapping[str, tf.Tensor | tf.RaggedTensor],
  serialized: tf.Tensor,
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
  """Divides parsed lists into steps, in graph ops.

  Args:
    features: those of the record.
    parsed: lists by name, [n] or, of a batch, [B, (n)].
    serialized: the records, [] or [B].
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
    lengths[feature.name] = _num_steps(feature, counts[feature.name], is_empty)
    tensors[feature.name] = _to_steps(
      feature, parsed[feature.name], lengths[feature.name]
    )
  return tensors, lengths


def _count(values: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
  is_batched = isinstance(values, tf.RaggedTensor)
  return values.row_lengths() if is_batched else tf.size(values, tf.int64)


def _is_empty(
  features: Sequence[RecordFeature],
  counts: Mapping[str, tf.Tensor],
  serialized: tf.Tensor,
) -> tf.Tensor:
  """Whether records are episodes of no steps: their lists are there, and empty.

  TensorFlow's parser does not tell such a list from none; its bytes do, and are looked
  at where no list has a value.
  """
  is_bare = tf.equal(tf.add_n(list(counts.values())), 0)
  empty = [_empty_entry(feature) for feature in features if not feature.is_optional]

  def has_all() -> tf.Tensor:
    found = tf.ones_like(is_bare)
    for entry in empty:
      pieces = tf.strings.split(tf.reshape(serialized, [-1]), entry)
      found &= tf.reshape(pieces.row_lengths() > 1, tf.shape(is_bare))
    return found

  none = tf.zeros_like(is_bare)
  return is_bare & tf.cond(tf.reduce_any(is_bare), has_all, lambda: none)


def _empty_entry(feature: RecordFeature) -> bytes:
  """Returns how a list without values is written in a tf.train.Example."""
  empty = features_lib.to_feature([], feature.kind)
  return protos.FeatureEntry(key=feature.name, value=empty).SerializeToString()


def _num_steps(
  feature: RecordFeature, count: tf.Tensor, is_empty: tf.Tensor
) -> tf.Tensor:
  per_step = feature.values_per_step
  fits = tf.equal(count % per_step, 0)
  want = f"{per_step} values a step, for shape {tuple(feature.spec.shape)}"
  if not feature.is_optional:
    # Without this a feature that is missing would be an episode without steps.
    fits = tf.logical_and(fits, (count > 0) | is_empty)
    want += ", and at least one step"
  message = f"parse: {feature.path}: expected {want}, got values:"
  count = features_lib.require(count, tf.reduce_all(fits), [message, count])
  return count // per_step


def _to_steps(
  feature: RecordFeature, values: tf.Tensor | tf.RaggedTensor, num_steps: tf.Tensor
) -> tf.Tensor:
  # Shapes are made of the number of steps, so that no value passes its check by.
  shape = tf.constant(feature.record_shape, tf.int64)
  if not isinstance(values, tf.RaggedTensor):
    steps = tf.reshape(values, tf.concat([[num_steps], shape], 0))
    return tf.ensure_shape(steps, [None, *feature.record_shape])
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

  So whatever explains a sequence explains these, too. The last step of a list that
  ends too early has fewer values.

  Args:
    contents: of a record; it is changed.
    features: those of the record.
  Returns:
    The same contents.
  """
  for feature in features:
    if not feature.is_concatenated:
      continue
    value = contents.context.pop(feature.name, None)
    if contents.steps.pop(feature.name, None) is not None:
      # A SequenceExample's own lists are not where this feature is looked for.
      contents.context[feature.name] = protos.Feature()
    if value is not None and kind_of(value):
      contents.steps[feature.name] = divide_list(value, feature.values_per_step)
  names = {feature.name for feature in features if feature.is_concatenated}
  if any(contents.steps.get(name) for name in names):
    # Beside lists with values an empty one is as good as none; alone, all are of an
    # episode without steps.
    for name in names:
      if not contents.steps.get(name, [None]):
        del contents.steps[name]
  return contents


def divide_list(value: protos.Feature, per_step: int) -> list[protos.Feature]:
  """Divides a list into the features of steps; the last one may be shorter.

  Args:
    value: a feature with values.
    per_step: values of a step.
  Returns:
    A feature for each step.
  """
  values = list(values_of(value))
  return [
    features_lib.to_feature(values[start : start + per_step], kind_of(value))
    for start in range(0, len(values), per_step)
  ]


Parsed = dict[tuple[str, str], "tf.Tensor"]


@gin.configurable
def create_parse_tf_example_fn(
  feature_tspec: specs.SpecStructure,
  label_tspec: specs.SpecStructure | None = None,
  decode_images: DecodeImages = True,
  is_one_episode: bool = False,
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
    is_one_episode: fails at a record in which an episode begins or ends, by a sequence
      that is named is_first or is_last; not looked for in batches.
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
    divided, lengths = divide(features, parsed, serialized)
    parsed.update(divided)
  elif steps:
    parsed, parsed_steps, lengths = tf.io.parse_sequence_example(
      serialized, context_features=context, sequence_features=steps
    )
    parsed.update(parsed_steps)
    lengths = complete_lengths(features, parsed_steps, lengths)
  else:
    parsed = tf.io.parse_example(serialized, context)
    parsed = _require_any(features, parsed, serialized)
  is_batched = serialized.shape.rank == 1
  if is_batched:
    parsed.update(require_bytes(features, parsed, lengths))
  tensors = {f.name: _decode(f, parsed[f.name], is_batched) for f in features}
  if steps:
    tensors.update(fill_absent(features, tensors, lengths))
    lengths = fill_lengths(features, lengths)
  return tensors, lengths


def _require_any(
  features: Sequence[RecordFeature],
  parsed: dict[str, tf.Tensor],
  serialized: tf.Tensor,
) -> dict[str, tf.Tensor]:
  """Passes records on, or fails at run time where one has none of its features.

  Where all are optional, a message of another kind would else be an example of zeros.
  """
  if not all(feature.is_optional and not feature.is_varlen for feature in features):
    return parsed
  lists = {f.name: tf.io.RaggedFeature(f.record_dtype) for f in features}
  found = tf.io.parse_example(serialized, lists)
  has_any = tf.add_n([_count(values) for values in found.values()]) > 0
  message = f"parse: expected one of the features {errors.listing(lists)}, got none."
  check = tf.raw_ops.Assert(condition=tf.reduce_all(has_any), data=[message])
  with tf.control_dependencies([check] if check is not None else []):
    return {name: tf.identity(tensor) for name, tensor in parsed.items()}


def flags_inside(edge: str, flags: tf.Tensor) -> tf.Tensor:
  """Whether an episode begins, or ends, within a record.

  Args:
    edge: 'is_first' or 'is_last'.
    flags: of one record, [T, ...].
  Returns:
    [] bool.
  """
  inside = flags[1:] if edge == features_lib.IS_FIRST else flags[:-1]
  return tf.reduce_any(tf.cast(inside, tf.bool))


def _require_one_episode(
  features: list[features_lib.RecordFeature], tensors: dict[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
  """Passes a record on, or fails at run time where it holds several episodes."""
  checks = []
  for feature in features:
    if feature.edge:
      fits = ~flags_inside(feature.edge, tensors[feature.name])
      message = f"parse: {feature.path}: expected one episode in a record, got several."
      checks.append(tf.raw_ops.Assert(condition=fits, data=[message]))
  with tf.control_dependencies([check for check in checks if check is not None]):
    return {n: tf.identity(t) for n, t in tensors.items()} if checks else tensors


def _decode(
  feature: features_lib.RecordFeature,
  values: tf.Tensor | tf.RaggedTensor,
  is_batched: bool,
) -> tf.Tensor:
  spec = feature.spec
  if feature.is_varlen:
    values = pad_or_clip(values, spec)
  if feature.is_image:
    if not feature.decode_images:
      return values
    return images.decode_images(values, spec, feature.path, feature.decode_images)
  # Padded steps and absent optionals are empty strings, which raw specs make zeros.
  allow_empty = feature.is_optional or (spec.is_sequence and is_batched)
  # Varlen ones are padded with their default.
  allow_empty = allow_empty and not feature.is_varlen
  return features_lib.decode_values(values, spec, feature.path, allow_empty)


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
