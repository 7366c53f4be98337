"""Records of several episodes of one task: meta-examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from t2r_seq import errors

Example = Any  # A tf.train.Example or a tf.train.SequenceExample.


def make_meta_example(
  condition_examples: Sequence[Example], inference_examples: Sequence[Example]
) -> Example:
  """Joins the records of a task's episodes into one.

  Args:
    condition_examples: what the task is learned from, at least one.
    inference_examples: what that is tried on; of the same kind of record.
  Returns:
    A record whose features are named 'condition_ep0/<name>', 'inference_ep0/<name>',
    and so on: what `FixedLenMetaExamplePreprocessor` reads.
  Raises:
    SpecError: there is no record, or they are of two kinds.
  """
  examples = [*condition_examples, *inference_examples]
  kinds = {type(example) for example in examples}
  if len(kinds) != 1 or not condition_examples:
    got = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
    raise errors.SpecError(
      "make_meta_example: condition_examples: expected records, all Examples or all "
      f"SequenceExamples, got {len(condition_examples)} of {len(examples)}: {got}."
    )
  (kind,) = kinds
  meta_example = kind()
  append = append_example if kind is tf.train.Example else append_sequence_example
  for branch, episodes in (
    ("condition", condition_examples),
    ("inference", inference_examples),
  ):
    for number, episode in enumerate(episodes):
      append(meta_example, episode, f"{branch}_ep{number}")
  return meta_example


def append_example(
  example: tf.train.Example, ep_example: tf.train.Example, prefix: str
) -> None:
  """Adds an Example's features to another one, named '<prefix>/<name>'."""
  for key, feature in ep_example.features.feature.items():
    example.features.feature[f"{prefix}/{key}"].CopyFrom(feature)


def append_sequence_example(
  meta_example: tf.train.SequenceExample,
  ep_example: tf.train.SequenceExample,
  prefix: str,
) -> None:
  """Adds a SequenceExample's features and lists to another one's, likewise."""
  for key, feature in ep_example.context.feature.items():
    meta_example.context.feature[f"{prefix}/{key}"].CopyFrom(feature)
  for key, features in ep_example.feature_lists.feature_list.items():
    meta_example.feature_lists.feature_list[f"{prefix}/{key}"].CopyFrom(features)
