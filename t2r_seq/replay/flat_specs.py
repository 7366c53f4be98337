"""What one step has: the flat specs of a replay, derived from those of its windows."""

from __future__ import annotations

from t2r_seq import errors, specs, windows


def flat_replay_specs(
  operation: str, spec_structure: specs.SpecStructure
) -> specs.TensorSpecStruct:
  """Derives what is appended for a step, and stored once.

  As `windows.flat_specs`, but a spec whose *name* is another path of the structure
  shows that path's steps at other times: `next_obs` with name='obs' and
  time_offsets=1 is no data of its own.

  Args:
    operation: for the error.
    spec_structure: the specs of a window.
  Returns:
    Flat specs by path; with `is_sequence=True` there is a value for each step,
    without it one for each episode.
  Raises:
    SpecError: no path has a value per step, or shapes are not fully defined; all are
      named.
  """
  flat = windows.flat_specs(spec_structure)
  kept = specs.TensorSpecStruct(
    (path, spec)
    for path, spec in flat.items()
    if spec.name == path or spec.name not in flat
  )
  found = [
    errors.Mismatch(path, "a fully defined shape", f"shape {spec.shape}")
    for path, spec in kept.items()
    if not spec.shape.is_fully_defined()
  ]
  if found:
    raise errors.mismatch_error(operation, found)
  if not any(spec.is_sequence for spec in kept.values()):
    raise errors.SpecError(
      f"{operation}: the specs: expected at least one path with a time axis, got none. "
      "Give the specs time_offsets; 0 is the anchor's own step."
    )
  return kept
