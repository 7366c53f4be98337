"""Serialized records as Python sees them: their features, steps, and flags of these.

A record is read as an episode, and windows never cross episodes. Where a record holds
several, or a part of one, is_first and is_last of its steps tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf import message

from t2r_seq import errors, specs
from t2r_seq.imports import tf
from t2r_seq.records import framing, protos
from t2r_seq.records.features import IS_FIRST, IS_LAST, RecordFeature

EXAMPLE, SEQUENCE_EXAMPLE = "tf.train.Example", "tf.train.SequenceExample"


class RecordContents:
  """The features of one record, of either kind.

  Attributes:
    context: features that are no sequences, by name.
    steps: features of each step, by name; empty for a tf.train.Example.
  """

  def __init__(self, data: bytes) -> None:
    """Parses a serialized record.

    Raises:
      RecordError: it is no tf.train.Example or SequenceExample.
    """
    try:
      # An Example is, byte for byte, a SequenceExample with a context only.
      proto = protos.SequenceExample.FromString(data)
      if not any((*proto.context.feature, *proto.feature_lists.feature_list)):
        # Protos of other kinds parse, too, to unknown fields at any depth.
        proto.DiscardUnknownFields()
        if proto.ByteSize() < len(data):
          raise message.DecodeError("unknown fields only")
    except message.DecodeError as error:
      expected, got = no_proto(data)
      raise errors.RecordError(f"record: expected {expected}, got {got}") from error
    self.context = dict(proto.context.feature)
    self.steps = {
      name: list(steps.feature)
      for name, steps in proto.feature_lists.feature_list.items()
    }

  @property
  def kind(self) -> str:
    """The name of the proto."""
    return SEQUENCE_EXAMPLE if self.steps else EXAMPLE

  @property
  def num_steps(self) -> dict[str, int]:
    """The number of steps of each sequence by name."""
    return {name: len(steps) for name, steps in self.steps.items()}


def no_proto(data: bytes) -> tuple[str, str]:
  """Returns what a record should be that is no proto, and what it is, as text."""
  expected = f"a serialized {EXAMPLE} or {SEQUENCE_EXAMPLE}"
  if not data:
    return expected, "an empty record (0 bytes)"
  return expected, f"{len(data)} bytes that are neither, {data[:16]!r}..."


def read_contents(record: framing.Record) -> RecordContents:
  """Parses a record of a file.

  Args:
    record: of `framing.iterate_records`.
  Returns:
    Its features.
  Raises:
    RecordError: names file and record.
  """
  try:
    return RecordContents(record.data)
  except errors.RecordError as error:
    raise errors.RecordError(f"{record.place}: {error}") from error


def present_names(serialized: bytes) -> set[str]:
  """Names the features that a record has, so that absent optionals can be left out.

  Args:
    serialized: a tf.train.Example or SequenceExample.
  Returns:
    The names of its features with a value, context and sequences together.
  Raises:
    RecordError: it is neither.
  """
  contents = RecordContents(serialized)
  return {name for name, feature in contents.context.items() if kind_of(feature)} | set(
    contents.steps
  )


def kind_of(feature: protos.Feature) -> str:
  """Returns 'int64', 'float' or 'bytes', or '' for a feature without values."""
  return (feature.WhichOneof("kind") or "").removesuffix("_list")


def values_of(feature: protos.Feature) -> Any:
  """Returns the values of a feature, whatever their kind."""
  kind = feature.WhichOneof("kind")
  return getattr(feature, kind).value if kind else ()


def find_flags(
  serialized: bytes, features: Iterable[RecordFeature]
) -> specs.TensorSpecStruct:
  """Finds the flags that say where episodes begin and end, of those not read yet.

  Args:
    serialized: a record.
    features: those that are read.
  Returns:
    Optional specs of flags by name; none for a record whose steps are not read.
  Raises:
    RecordError: it is no record.
  """
  read = {f.name for f in features}
  kinds = {f.is_concatenated for f in features if f.spec.is_sequence}
  found = specs.TensorSpecStruct()
  if len(kinds) != 1:
    return found
  (is_concatenated,) = kinds
  record = RecordContents(serialized)
  given: Mapping[str, Any] = record.context if is_concatenated else record.steps
  dtypes = {"int64": tf.int64, "float": tf.float32}
  for name, values in given.items():
    first = values if is_concatenated else (values or [protos.Feature()])[0]
    is_flag = name.rpartition("/")[2] in (IS_FIRST, IS_LAST) and name not in read
    if is_flag and (dtype := dtypes.get(kind_of(first))):
      found[name] = specs.ExtendedTensorSpec(
        *((), dtype, name),
        is_optional=True,
        is_sequence=True,
        is_concatenated=is_concatenated,
      )
  return found


def set_flags(feature: RecordFeature, contents: RecordContents) -> np.ndarray | None:
  """Returns in which steps a flag is set.

  Args:
    feature: any.
    contents: of a record, as `parse.as_lists` gives them.
  Returns:
    bool [T]; None where the feature is no flag, or the record lacks it.
  """
  steps = contents.steps.get(feature.name) if feature.edge else None
  if steps is None:
    return None
  return np.asarray([any(values_of(step)) for step in steps], bool)


def cut_hint(name: str) -> str:
  """Says how episodes are made of such records, by the name of a flag."""
  option = "first" if name.rpartition("/")[2] == IS_FIRST else "last"
  return f"Make a store of episodes: t2r_seq convert FILES STORE --{option}_key {name}"
