"""Serialized records as Python sees them: their features and steps."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from google.protobuf import message

from t2r_seq import errors
from t2r_seq.records import framing

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
      proto = tf.train.SequenceExample.FromString(data)
      has_fields = proto.HasField("context") or proto.HasField("feature_lists")
      if data and not has_fields:  # A proto of another kind parses, too, to nothing.
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


def kind_of(feature: tf.train.Feature) -> str:
  """Returns 'int64', 'float' or 'bytes', or '' for a feature without values."""
  return (feature.WhichOneof("kind") or "").removesuffix("_list")


def values_of(feature: tf.train.Feature) -> Any:
  """Returns the values of a feature, whatever their kind."""
  kind = feature.WhichOneof("kind")
  return getattr(feature, kind).value if kind else ()
