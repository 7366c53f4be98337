"""What a spec must fulfil before a record can be parsed into it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.records import storage

SUPPORTED_PIXEL_ENCODINGS = (tf.uint8, tf.uint16)
# Which dtypes and numbers of channels each image format can hold.
_IMAGE_DTYPES = {"png": SUPPORTED_PIXEL_ENCODINGS}
_IMAGE_CHANNELS = {"png": (1, 3, 4), "bmp": (1, 3, 4), "jpeg": (1, 3), "gif": (3,)}


def check_specs(by_path: Mapping[str, specs.ExtendedTensorSpec]) -> None:
  """Checks that each spec can be parsed from a record.

  Args:
    by_path: specs by path.
  Raises:
    SpecError: with every spec that cannot.
  """
  found = [problem for path, spec in by_path.items() if (problem := _check(path, spec))]
  if found:
    raise errors.mismatch_error("records", found)


def _check(path: str, spec: specs.ExtendedTensorSpec) -> errors.Mismatch | None:
  if not spec.name:
    return errors.Mismatch(
      path,
      "a name, the key of the feature in the record",
      "a spec without one",
      "Set name=..., or leave the spec out of what is parsed.",
    )
  if spec.time_offsets is not None:
    return errors.Mismatch(
      path,
      "a spec without time offsets",
      f"time_offsets={spec.time_offsets}",
      "Records are flat: parse windows.flat_specs(specs), then gather the windows.",
    )
  if not spec.shape.is_fully_defined():
    return errors.Mismatch(
      path,
      "a fully defined shape",
      f"shape {spec.shape}",
      "Use varlen_default_value for a varying length, is_sequence=True for steps.",
    )
  if spec.is_sequence and not math.prod(spec.shape.as_list()):
    # TensorFlow's parser divides by their number, and the process ends.
    return errors.Mismatch(
      path,
      "steps with values",
      f"none in shape {tuple(spec.shape)}",
      "Leave the spec out of what is parsed.",
    )
  if spec.is_concatenated and (problem := _check_concatenated(path, spec)):
    return problem
  if specs.is_encoded_image_spec(spec):
    return _check_image(path, spec)
  return _check_plain(path, spec)


def _check_concatenated(
  path: str, spec: specs.ExtendedTensorSpec
) -> errors.Mismatch | None:
  want, hint = "a sequence where the steps are concatenated", ""
  if not spec.is_sequence:
    hint = "Set is_sequence=True, or drop is_concatenated."
    return errors.Mismatch(path, want, "one value per record", hint)
  if spec.varlen_default_value is not None:
    hint = "Drop the varlen_default_value: where a step ends would not be known."
    return errors.Mismatch(path, want, "steps of varying length", hint)
  return None


def check_one_layout(by_path: Mapping[str, specs.ExtendedTensorSpec]) -> None:
  """Checks that the sequences of a dataset are all concatenated, or none is.

  Args:
    by_path: specs of one dataset by path.
  Raises:
    SpecError: with every sequence that is not concatenated beside one that is.
  """
  steps = {path: spec for path, spec in by_path.items() if spec.is_sequence}
  joined = [path for path, spec in steps.items() if spec.is_concatenated]
  found = [
    errors.Mismatch(
      path,
      f"concatenated steps, as {joined[0]} has",
      "a list of its own for each step",
      "A record is a tf.train.Example or a SequenceExample: mark all with "
      "records.rlds_specs, or none.",
    )
    for path, spec in steps.items()
    if joined and not spec.is_concatenated
  ]
  if found:
    raise errors.mismatch_error("records", found)


def _check_image(path: str, spec: specs.ExtendedTensorSpec) -> errors.Mismatch | None:
  image_format = (spec.data_format or "").lower()
  dtypes = _IMAGE_DTYPES.get(image_format, (tf.uint8,))
  if spec.dtype not in dtypes:
    names = " or ".join(dtype.name for dtype in dtypes)
    return errors.Mismatch(
      path,
      f"dtype {names} for a {image_format} image",
      f"dtype {spec.dtype.name}",
      "Cast in a preprocessor, such as ImageToFloatPreprocessor, before others in a "
      "ComposedPreprocessor. For the encoded bytes, drop the data_format and "
      "declare shape () and dtype string.",
    )
  if spec.shape.rank < 3:
    return errors.Mismatch(
      path, "a shape [..., height, width, channels]", f"shape {spec.shape}"
    )
  channels = _IMAGE_CHANNELS[image_format]
  if spec.shape[-1] not in channels:
    names = " or ".join(str(number) for number in channels)
    return errors.Mismatch(
      path, f"{names} channels for a {image_format} image", f"{spec.shape[-1]} channels"
    )
  return None


def _check_plain(path: str, spec: specs.ExtendedTensorSpec) -> errors.Mismatch | None:
  if spec.dtype not in storage.SUPPORTED_DTYPES:
    return errors.Mismatch(
      path,
      "a dtype that a record can hold",
      f"dtype {spec.dtype.name}",
      f"Supported are {errors.listing(d.name for d in storage.SUPPORTED_DTYPES)}.",
    )
  if spec.data_format is not None and not storage.is_raw_format(spec):
    formats = (*specs.IMAGE_FORMATS, specs.RAW_FORMAT)
    return errors.Mismatch(
      path,
      f"a data_format of {errors.listing(formats)} or None",
      f"data_format {spec.data_format!r}",
      errors.nearest(spec.data_format, formats).strip(),
    )
  if storage.is_raw_format(spec) and spec.dtype == tf.string:
    return errors.Mismatch(
      path,
      "a dtype of fixed size for data_format 'raw'",
      "dtype string",
      "Drop the data_format: strings are stored as they are.",
    )
  if spec.varlen_default_value is not None:
    return _check_varlen(path, spec)
  return None


def _check_varlen(path: str, spec: specs.ExtendedTensorSpec) -> errors.Mismatch | None:
  if storage.is_raw_format(spec):
    return errors.Mismatch(
      path,
      "a fixed length for data_format 'raw'",
      "a varlen_default_value",
      "Drop the data_format: a list of values may vary in length.",
    )
  try:
    storage.default_value(spec)
  except ValueError as error:
    value = spec.varlen_default_value
    return errors.Mismatch(
      path, f"{error} as varlen_default_value for dtype {spec.dtype.name}", repr(value)
    )
  return None


def check_shared_names(
  by_path: Mapping[str, specs.ExtendedTensorSpec], groups: Iterable[list[str]]
) -> None:
  """Checks that the specs that read one feature ask for the same thing.

  Args:
    by_path: specs by path.
    groups: lists of paths whose specs have one name and one dataset.
  Raises:
    SpecError: with every spec that differs from the first of its group.
  """
  found = [
    errors.Mismatch(
      path,
      f"the same as {first}, {_signature(by_path[first])}, because both are named "
      f"'{by_path[path].name}'",
      _signature(by_path[path]),
      "A name is a record's feature: it has one dtype and one shape of a step, and "
      "with time_offsets on one path it has them on all. Cast in a preprocessor.",
    )
    for first, *others in groups
    for path in others
    if _signature(by_path[path]) != _signature(by_path[first])
  ]
  if found:
    raise errors.mismatch_error("records", found)


def _signature(spec: specs.ExtendedTensorSpec) -> str:
  parts = [errors.describe(spec)]
  if spec.is_sequence:
    parts.append("concatenated steps" if spec.is_concatenated else "a sequence")
  if spec.data_format:
    parts.append(spec.data_format.lower())
  if spec.varlen_default_value is not None:
    parts.append(f"padded with {spec.varlen_default_value!r}")
  return ", ".join(parts)
