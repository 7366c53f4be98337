"""RLDS episodes: what TFDS calls their features, and what a step's parts belong to.

A step is (observation, action, reward, discount, is_first, is_last, is_terminal): the
action is the one taken on the observation, the reward and the discount are those that
followed. In the last step, which only has the observation that the episode ended with,
action, reward and discount mean nothing (Ramos et al., RLDS, 2021).
"""

from __future__ import annotations

import tensorflow as tf

from t2r_seq import specs
from t2r_seq.records import concatenated
from t2r_seq.records.contents import RecordContents, values_of
from t2r_seq.windows import flat_specs

STEPS = "steps"
IS_FIRST = f"{STEPS}/is_first"
FLAGS = (IS_FIRST, f"{STEPS}/is_last", f"{STEPS}/is_terminal")
SCALARS = (f"{STEPS}/reward", f"{STEPS}/discount")
# What means nothing in a step that is_last.
UNDEFINED_IN_LAST = ("action", "reward", "discount")


def rlds_specs(spec_structure: specs.SpecStructure) -> specs.TensorSpecStruct:
  """Derives the specs that read RLDS episodes straight from their TFRecord files.

  Specs of steps (sequences, or with time offsets) get `is_concatenated`, and names that
  begin with 'steps/', as TFDS has them: a spec that is named 'observation/state', or is
  at that path and has no name, reads 'steps/observation/state'.

  Args:
    spec_structure: specs, windowed or flat.
  Returns:
    Specs by path.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  per_step = {p: leaf.is_sequence for p, leaf in flat_specs(flat).items()}
  return specs.TensorSpecStruct(
    (path, _rlds_spec(path, specs.ExtendedTensorSpec.to_spec(leaf), per_step))
    for path, leaf in flat.items()
  )


def is_rlds(contents: RecordContents) -> bool:
  """Whether a record is an RLDS episode as TFDS writes it."""
  return not contents.steps and IS_FIRST in contents.context


def count_steps(data: bytes) -> dict[str, int]:
  """Counts the steps of the features of an RLDS episode, without their shapes.

  Args:
    data: a serialized record.
  Returns:
    The number of steps by name; none if the record is no RLDS episode.
  Raises:
    RecordError: it is no tf.train.Example.
  """
  if IS_FIRST.encode() not in data:
    return {}
  return divide_unknown(RecordContents(data)).num_steps


def divide_unknown(contents: RecordContents) -> RecordContents:
  """Moves the step features of an RLDS episode to where a SequenceExample has them.

  The values of a step are as many as make the steps that is_first has. What cannot be
  divided so stays where it is, and nested sequences do, whose steps differ in length.

  Args:
    contents: of a record; it is changed if it is an RLDS episode.
  Returns:
    The same contents.
  """
  if not is_rlds(contents):
    return contents
  num_steps = len(values_of(contents.context[IS_FIRST]))
  for name, value in [*contents.context.items()]:
    count = len(values_of(value))
    if not name.startswith(f"{STEPS}/") or is_nested(name):
      continue
    if count and num_steps and count % num_steps == 0:
      del contents.context[name]
      contents.steps[name] = concatenated.divide_list(value, count // num_steps)
  return contents


def is_nested(name: str) -> bool:
  """Whether a feature is a part of what TFDS writes of a sequence in a step."""
  return name.rpartition("/")[2].startswith("ragged_")


def _rlds_spec(
  path: str, spec: specs.ExtendedTensorSpec, per_step: dict[str, bool]
) -> specs.ExtendedTensorSpec:
  name = spec.name or path
  if path not in per_step:  # A mask is computed, not read.
    return spec
  if not per_step[path]:
    return specs.ExtendedTensorSpec.from_spec(spec, name=name)
  if not name.startswith(f"{STEPS}/"):
    name = f"{STEPS}/{name}"
  return specs.ExtendedTensorSpec.from_spec(spec, name=name, is_concatenated=True)


def drop_last_step(
  dataset: tf.data.Dataset, spec_structure: specs.SpecStructure
) -> tf.data.Dataset:
  """Drops the last step of every episode, whose action means nothing.

  For training on actions: all windows of what is left have an action, a reward and a
  discount. Models that read the next observation need that step, and mask the action.

  Args:
    dataset: episodes by path, leaves of sequences [T, ...].
    spec_structure: the flat specs of the episodes.
  Returns:
    Dataset of the same episodes, [T - 1, ...]; context features as they are.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  per_step = {path for path, leaf in flat.items() if leaf.is_sequence}

  @tf.autograph.experimental.do_not_convert
  def drop(episode: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
    return specs.TensorSpecStruct(
      (path, value[:-1] if path in per_step else value)
      for path, value in episode.items()
    )

  return dataset.map(drop)
