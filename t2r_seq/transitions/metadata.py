"""What a store says about the transitions in it: version, fields, n-step or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.specs import SpecStructure
from t2r_seq.windows import Cut, NStep, WindowReader
from t2r_seq.windows.n_step import TransitionFields

KEY = "transitions"
FORMAT_VERSION = 1


def describe_n_step(n_step: NStep | None) -> str:
  """Says whether transitions are n-step ones, for messages."""
  return "one-step transitions" if n_step is None else str(n_step)


@dataclasses.dataclass(frozen=True)
class TransitionsMetadata:
  """The part of a store's metadata that makes it a store of transitions.

  Attributes:
    fields: which field is what.
    n_step: what had been done to the transitions before they were saved.
    num_transitions: how many were to be saved.
  """

  fields: TransitionFields
  n_step: NStep | None
  num_transitions: int

  @classmethod
  def of_windows(
    cls, element_spec: Any, spec_structure: SpecStructure, cut: Cut, lengths: list[int]
  ) -> TransitionsMetadata | None:
    """Describes episodes whose windows are one-step transitions, each step once.

    Args:
      element_spec: of the flat episodes, by path.
      spec_structure: of the windows.
      cut: of the windows; how it joins transitions, if it does, names the fields.
      lengths: steps of the episodes; the last one has the last observation only.
    Returns:
      The description; None where the windows are something else, such as stacks.
    """
    joined = Cut(n_step=cut.n_step or NStep(1, 1.0))
    try:
      reader = WindowReader(element_spec, spec_structure, joined)
    except errors.SpecError:
      return None
    assert reader.joining is not None
    fields = reader.joining.fields
    if set(fields.stored) != set(element_spec):
      return None
    for path, reading in reader.readings.items():
      if reading.source != fields.next_of.get(path, path):
        return None
      if reading.steps is not None and not np.array_equal(
        reading.steps, int(path in fields.next_of)
      ):
        return None
    return cls(fields, None, sum(length - 1 for length in lengths))

  def to_json_dict(self) -> dict[str, Any]:
    """Returns JSON values."""
    return {
      "format_version": FORMAT_VERSION,
      "fields": list(self.fields.paths),
      "rew": self.fields.rew,
      "done": self.fields.done,
      "truncated": self.fields.truncated,
      "n_step": self.n_step and {"n": self.n_step.n, "gamma": self.n_step.gamma},
      "num_transitions": self.num_transitions,
    }

  @classmethod
  def from_metadata(
    cls, place: str, metadata: Mapping[str, Any]
  ) -> TransitionsMetadata:
    """Reads it from the metadata of a store.

    Args:
      place: of the store, for errors.
      metadata: of the store.
    Returns:
      The part about transitions.
    Raises:
      StoreError: there is none, or a damaged or newer one.
    """
    values = metadata.get(KEY)
    if not isinstance(values, Mapping):
      raise errors.StoreError(
        f"load_transitions: {place}: expected transitions, got an EpisodeStore of "
        f"episodes. Read it with EpisodeStore(path); save_transitions makes a store of "
        "transitions, and so does a replay's to_store where its specs are those of one."
      )
    version = values.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
      is_newer = isinstance(version, int) and version > FORMAT_VERSION
      hint = "A newer t2r_seq wrote them: upgrade t2r_seq to read them."
      raise errors.StoreError(
        f"load_transitions: {place}: expected transitions of format version "
        f"{FORMAT_VERSION}, got {version!r}. "
        f"{hint if is_newer else 'The store is damaged.'}"
      )
    try:
      return cls._from_values(place, values)
    except (KeyError, TypeError, ValueError) as error:
      raise errors.StoreError(
        f"load_transitions: {place}: metadata: {error!r}. The store is damaged."
      ) from error

  @classmethod
  def _from_values(cls, place: str, values: Mapping[str, Any]) -> TransitionsMetadata:
    n_step = values["n_step"]
    return cls(
      TransitionFields.from_paths(
        f"load_transitions: {place}",
        map(str, values["fields"]),
        str(values["rew"]),
        str(values["done"]),
        str(values["truncated"]),
      ),
      None if n_step is None else NStep(n_step["n"], n_step["gamma"]),
      int(values["num_transitions"]),
    )
