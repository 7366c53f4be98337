"""is_first and is_last: what the steps of a record say of where episodes begin and end.

A record is read as an episode, and windows never cross episodes. Where a record holds
several, or a part of one, its flags tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.records.contents import RecordContents, kind_of, values_of
from t2r_seq.records.features import IS_FIRST, IS_LAST, RecordFeature


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
    first = values if is_concatenated else (values or [tf.train.Feature()])[0]
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
