"""How many steps each sequence of a serialized record has, without parsing it.

Only tags and lengths of the protos' wire format are read, so an index of large frames
costs no more than reading the file. A SequenceExample is {1: context, 2: feature
lists}, feature lists are a map {1: {1: name, 2: steps}}, and steps are {1: feature}*.
"""

from __future__ import annotations

import numpy as np

from t2r_seq import errors
from t2r_seq.records import wire
from t2r_seq.records.wire import Span

_FEATURE_LISTS = 2
_ENTRY = 1
_KEY, _VALUE = 1, 2
_FEATURE_TAG = 0x0A  # Field 1, with a length.


def count_steps(data: bytes) -> dict[str, int]:
  """Counts the steps of the sequences of a record.

  Args:
    data: a serialized tf.train.SequenceExample, or an Example, which has none.
  Returns:
    The number of steps of every feature list, by name.
  Raises:
    RecordError: it is neither; without a place, which the caller knows.
  """
  counts = {}
  try:
    for lists in wire.fields(data, (0, len(data)), _FEATURE_LISTS):
      for entry in wire.fields(data, lists, _ENTRY):
        name, steps = _read_entry(data, entry)
        counts[name] = steps
  except (IndexError, UnicodeDecodeError, ValueError) as error:
    raise errors.RecordError(
      "record: expected a serialized tf.train.Example or SequenceExample, got "
      f"{len(data)} bytes that are neither, {data[:16]!r}..."
    ) from error
  return counts


def _read_entry(data: bytes, entry: Span) -> tuple[str, int]:
  """Reads one entry of the map: the name, and how many features follow."""
  name, steps = "", 0
  for start, end in wire.fields(data, entry, _KEY):
    name = data[start:end].decode()
  for span in wire.fields(data, entry, _VALUE):
    steps += _count_features(data, span)
  return name, steps


def _count_features(data: bytes, span: Span) -> int:
  start, end = span
  if start == end:
    return 0
  first = next(wire.fields(data, span, _ENTRY), None)
  if first is not None and data[start] == _FEATURE_TAG:
    size, header = first[1] - start, first[0] - start
    if (end - start) % size == 0:
      rows = np.frombuffer(data, np.uint8, end - start, start).reshape(-1, size)
      # Where every step has the first one's tag and size, all have its size.
      if (rows[:, :header] == rows[0, :header]).all():
        return len(rows)
  return sum(1 for _ in wire.fields(data, span, _ENTRY))
