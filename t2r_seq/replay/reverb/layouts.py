"""`make_layout`: the layout that a spec structure and the window arguments imply."""

from __future__ import annotations

from t2r_seq import errors, specs, transitions, windows
from t2r_seq.replay.flat_specs import flat_replay_specs
from t2r_seq.replay.memory import sizing
from t2r_seq.replay.memory.n_step import NStepReading
from t2r_seq.replay.reverb.flat_items import FlatItems
from t2r_seq.replay.reverb.layout import ItemLayout
from t2r_seq.replay.reverb.n_step_items import NStepItems
from t2r_seq.replay.reverb.stacked_items import StackedItems

STORES = ("flat", "stacked")


def make_layout(
  operation: str,
  spec_structure: specs.SpecStructure,
  sequence_length: int | None = None,
  stride: int = 1,
  shift: int = 1,
  padding: str = "drop",
  masks: bool = False,
  flat: bool = False,
  store: str = "flat",
  n_step: tuple[int, float] | transitions.NStep | None = None,
  rew: str = "rew",
  done: str = "done",
  truncated: str = "truncated",
) -> ItemLayout:
  """Plans items; see `ReverbReplay` for the arguments.

  Raises:
    SpecError: the specs do not go together, or an argument is wrong.
  """
  if store not in STORES:
    raise errors.SpecError(
      f"{operation}: store: expected one of {', '.join(STORES)}, got {store!r}."
      f"{errors.nearest(str(store), STORES)}"
    )
  joining = transitions.NStep.of(n_step)
  if joining is not None:
    sizing.check_no_sequences(operation, sequence_length)
    if store == "stacked":
      raise errors.SpecError(
        f"{operation}: store: expected 'flat' with n_step, got 'stacked'. Steps are "
        "joined by whoever receives them."
      )
  if flat and store == "stacked":
    raise errors.SpecError(
      f"{operation}: flat: expected False with store='stacked', got True. What is "
      "stored in stacks comes in stacks."
    )
  structure = specs.flatten_spec_structure(spec_structure)
  columns = sizing.make_columns(operation, flat_replay_specs(operation, structure))
  reader = windows.WindowReader(
    sizing.element_spec(columns),
    structure,
    windows.Cut(sequence_length, stride, shift, padding, masks),
    flat,
  )
  if joining is not None:
    reading = NStepReading(structure, reader, joining, rew, done, truncated)
    return NStepItems(reader, columns, structure, reading)
  if store == "stacked":
    return StackedItems(reader, columns, structure)
  return FlatItems(reader, columns)
