"""What a store says about the transitions in it: version, fields, n-step or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from t2r_seq import errors
from t2r_seq.specs import SpecStructure
from t2r_seq.windows import Cut, NStep, WindowReader
from t2r_seq.windows.cut import TRANSITIONS_KEY as KEY
from t2r_seq.windows.n_step import TransitionFields

# Version 2 has what stacks need; a store without any is of version 1.
FORMAT_VERSION = 2


def describe_n_step(n_step: NStep | None) -> str:
  """Says whether transitions are n-step ones, for messages."""
  return "one-step transitions" if n_step is None else str(n_step)


class FrameStack(NamedTuple):
  """A field of stacked frames, the oldest first.

  Attributes:
    num_frames: K.
    axis: of the frames in an observation, 0 <= axis.
  """

  num_frames: int
  axis: int


@dataclasses.dataclass(frozen=True)
class TransitionsMetadata:
  """The part of a store's metadata that makes it a store of transitions.

  Attributes:
    fields: which field is what.
    n_step: what had been done to the transitions before they were saved.
    num_transitions: how many were to be saved.
    stacks: of fields whose rows are frames, what transitions show of them.
    padding: what stacks show before a chain's first row.
    num_before: rows of each chain before its first transition: frames that its first
      stacks show.
  """

  fields: TransitionFields
  n_step: NStep | None
  num_transitions: int
  stacks: Mapping[str, FrameStack] = dataclasses.field(default_factory=dict)
  padding: str = "drop"
  num_before: int = 0

  def offsets(self, path: str) -> int | tuple[int, ...]:
    """Returns the steps that a field shows, relative to its transition."""
    own = self.fields.next_of.get(path, path)
    later = int(path in self.fields.next_of)
    stack = self.stacks.get(own)
    if stack is None:
      return later
    return tuple(range(later - stack.num_frames + 1, later + 1))

  @classmethod
  def of_windows(
    cls, element_spec: Any, spec_structure: SpecStructure, cut: Cut, lengths: list[int]
  ) -> TransitionsMetadata | None:
    """Describes episodes whose windows are one-step transitions, stacked or not.

    Args:
      element_spec: of the flat episodes, by path.
      spec_structure: of the windows.
      cut: of the windows; how it joins transitions, if it does, names the fields.
      lengths: steps of the episodes; the last one has the last observation only.
    Returns:
      The description; None where the windows are something else.
    """
    joined = Cut(n_step=cut.n_step or NStep(1, 1.0), padding=cut.padding)
    try:
      reader = WindowReader(element_spec, spec_structure, joined)
    except errors.SpecError:
      return None
    assert reader.joining is not None
    fields = reader.joining.fields
    if set(fields.stored) != set(element_spec):
      return None
    stacks = {}
    for path, reading in reader.readings.items():
      of = fields.next_of.get(path, path)
      if reading.source != of:
        return None
      if path == of and reading.steps is not None and reading.steps.ndim:
        stacks[path] = FrameStack(len(reading.steps), 0)
    most = max((stack.num_frames for stack in stacks.values()), default=1)
    num_before = 0 if cut.pads_front else most - 1
    num = sum(max(0, length - 1 - num_before) for length in lengths)
    about = cls(fields, None, num, stacks, cut.front, num_before)
    for path, reading in reader.readings.items():
      if reading.steps is not None and not np.array_equal(
        reading.steps, about.offsets(path)
      ):
        return None
    return about

  def to_json_dict(self) -> dict[str, Any]:
    """Returns JSON values."""
    stacks = {
      "stacks": {path: list(stack) for path, stack in self.stacks.items()},
      "padding": self.padding,
      "num_before": self.num_before,
    }
    return {
      "format_version": FORMAT_VERSION if self.stacks else 1,
      "fields": list(self.fields.paths),
      "rew": self.fields.rew,
      "done": self.fields.done,
      "truncated": self.fields.truncated,
      "n_step": self.n_step and {"n": self.n_step.n, "gamma": self.n_step.gamma},
      "num_transitions": self.num_transitions,
      **(stacks if self.stacks else {}),
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
    if version not in (1, FORMAT_VERSION) or isinstance(version, bool):
      is_newer = isinstance(version, int) and version > FORMAT_VERSION
      hint = "A newer t2r_seq wrote them: upgrade t2r_seq to read them."
      raise errors.StoreError(
        f"load_transitions: {place}: expected transitions of format version 1 or "
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
      {
        path: FrameStack(*map(int, of)) for path, of in values.get("stacks", {}).items()
      },
      str(values.get("padding", "drop")),
      int(values.get("num_before", 0)),
    )
