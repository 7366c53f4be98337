"""What an export says of the policy in it, beside its specs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.lite.policy_io import Leaf
from t2r_seq.lite.texts import HashedWords
from t2r_seq.policies.execution import ChunkExecution
from t2r_seq.policies.policy_model import PolicyModel
from t2r_seq.specs.assets import EXTRA_ASSETS_DIRECTORY
from t2r_seq.windows.cut import DEFAULT_PADDING, Padding, check_padding

POLICY_RECORD = "policy.json"
OPERATIVE_CONFIG = "operative_config.gin"
_STATES = ("state", "embedded_state")


@dataclasses.dataclass(frozen=True)
class PolicyRecord:
  """How the policy of an export was trained, and how it acts.

  Attributes:
    padding: what windows showed beyond the ends of episodes in training.
    control_period: seconds from a step of the training data to the next one; None
      where the data do not say.
    execution: how action chunks are executed; None for whole chunks.
    normalization: the figures that are inside of the export, by 'features/<path>' or
      'labels/<path>': mode, center and scale; None where nothing is normalised.
    adaptation_offsets: the time offsets of what a task is learned from, by path, where
      a sample is a window; None where none is.
    source_preprocessing: stages between the stored data and the model's preprocessor
      in training, by source; '' if there is one source. They are not in the export.
      None if there are none. Each has a name, 'stage', and options.
    texts: how the texts of each path become vectors; None without texts.
    state: where each part of the state of a step is, by path; None without a step.
    embedded_state: the same for a step that takes vectors for texts.
  """

  padding: Padding = DEFAULT_PADDING
  control_period: float | None = None
  execution: ChunkExecution | None = None
  normalization: dict[str, dict[str, Any]] | None = None
  adaptation_offsets: dict[str, list[int]] | None = None
  source_preprocessing: dict[str, list[dict[str, Any]]] | None = None
  texts: dict[str, HashedWords] | None = None
  state: dict[str, Leaf] | None = None
  embedded_state: dict[str, Leaf] | None = None

  def stages_of(self, source: str | None = None) -> list[dict[str, Any]] | None:
    """Returns the stages of one source.

    Args:
      source: its name; None for one that has the same stages as all others.
    Returns:
      The stages; None if no source is given, and they differ.
    Raises:
      SpecError: there is no source of that name.
    """
    known = self.source_preprocessing or {}
    if source is not None and source not in known:
      want = f"one of {errors.listing(known)}" if known else "none, as there is one"
      raise errors.SpecError(
        f"source: expected {want}, got {source!r}.{errors.nearest(source, known)}"
      )
    if source is not None:
      return known[source]
    first, *others = [*known.values()] or [[]]
    return first if all(other == first for other in others) else None

  @classmethod
  def of(cls, model: PolicyModel) -> PolicyRecord:
    """Returns what there is to say of a model's policy."""
    return cls(
      model.padding,
      model.control_period,
      model.execution,
      adaptation_offsets=model.adaptation_offsets() or None,
      source_preprocessing=(
        dict(stages) if any((stages := model.source_preprocessing).values()) else None
      ),
    )

  def to_fields(self) -> dict[str, Any]:
    """Returns the fields as JSON has them."""
    fields = dataclasses.asdict(self)
    for name in _STATES:
      leaves = getattr(self, name)
      if leaves is not None:
        fields[name] = {path: leaf.to_json() for path, leaf in leaves.items()}
    return fields

  def to_json(self) -> str:
    """Returns it as text."""
    return json.dumps(self.to_fields(), indent=1) + "\n"

  @classmethod
  def from_fields(cls, fields: Mapping[str, Any]) -> PolicyRecord:
    """Reads the output of `to_fields`; a lite folder may lack newer fields."""
    padding, execution = fields["padding"], fields["execution"]
    if execution is not None:
      outputs = tuple(execution["outputs"])
      execution = ChunkExecution(**{**execution, "outputs": outputs})
    padding = padding if isinstance(padding, str) else tuple(padding)
    texts = fields.get("texts")
    if texts is not None:
      texts = {path: HashedWords(**words) for path, words in texts.items()}
    states = {
      name: {path: Leaf.from_json(leaf) for path, leaf in fields[name].items()}
      for name in _STATES
      if fields.get(name) is not None
    }
    return cls(
      check_padding(padding),
      fields["control_period"],
      execution,
      fields.get("normalization"),
      fields.get("adaptation_offsets"),
      fields.get("source_preprocessing"),
      texts,
      **states,
    )

  @classmethod
  def load(cls, export_path: str) -> PolicyRecord:
    """Reads the record of an export.

    Args:
      export_path: the folder of one export.
    Raises:
      SpecError: the file is missing or damaged.
    """
    path = os.path.join(export_path, EXTRA_ASSETS_DIRECTORY, POLICY_RECORD)
    try:
      with tf.io.gfile.GFile(path, "r") as f:
        return cls.from_fields(json.loads(f.read()))
    except (
      AttributeError,
      KeyError,
      TypeError,
      ValueError,
      tf.errors.OpError,
    ) as error:
      raise errors.SpecError(
        f"load export: {path}: expected what a policy tells of itself, got "
        f"{type(error).__name__}: {error}. Copy or export it again."
      ) from error


def operative_config_path(export_path: str) -> str:
  """Returns where an export keeps the gin config of its training, if there was one."""
  return os.path.join(export_path, EXTRA_ASSETS_DIRECTORY, OPERATIVE_CONFIG)
