"""Before anything is written: is the source what it was, and what is wanted of it?"""

from __future__ import annotations

import os

from t2r_seq import errors, specs
from t2r_seq.conversions import kinds, opening
from t2r_seq.conversions.episodes import EpisodeSource
from t2r_seq.conversions.journal import Journal, Plan
from t2r_seq.conversions.options import ConversionOptions
from t2r_seq.conversions.selection import Dropped, SelectedSource, check_same_specs
from t2r_seq.store import layout, spec_checks


def new_plan(
  source: str,
  source_kind: str,
  destination_kind: str,
  spec: specs.SpecStructure | None,
  options: ConversionOptions,
) -> tuple[Plan, EpisodeSource]:
  """Plans a conversion that begins.

  Args:
    source: path.
    source_kind: of it.
    destination_kind: of the destination.
    spec: flat specs that the caller wants; None takes what there is.
    options: of the conversion.
  Returns:
    The plan, and the source with the wanted paths.
  Raises:
    SpecError: the source cannot be read, or has other specs than the wanted ones.
  """
  dropped = Dropped(options.drop)
  wanted = None
  if spec is not None:
    wanted = dropped.filter(specs.flatten_spec_structure(spec))
  is_parsed = source_kind in (kinds.TFRECORD, kinds.RLDS)
  reader = opening.open_source(
    source_kind, source, options, wanted if is_parsed else None, dropped
  )
  selected = dropped.filter(reader.spec)
  dropped.check(f"convert: {source}")
  if wanted is not None and not is_parsed:
    selected = check_same_specs(f"convert: {source}", wanted, selected)
  layout.make_columns(f"convert: {source}", selected)
  if reader.num_episodes == 0:
    raise errors.ConversionError(
      f"convert: {source}: expected at least one episode, got none."
    )
  plan = Plan(
    source=source if source_kind == kinds.TFDS else os.path.abspath(source),
    source_kind=source_kind,
    destination_kind=destination_kind,
    options=options.to_json_dict(),
    fingerprint=reader.fingerprint(),
    source_spec=reader.spec.to_json(),
  )
  return plan, SelectedSource(reader, selected, options.decode_images)


def reopen(
  journal: Journal, source: str, options: ConversionOptions, plan: Plan
) -> EpisodeSource:
  """Opens the source of a conversion as it was opened when it began.

  Args:
    journal: of the conversion.
    source: path.
    options: of the conversion.
    plan: of the conversion.
  Raises:
    SpecError: the source cannot be read.
  """
  source_spec = specs.TensorSpecStruct.from_json(plan.source_spec)
  dropped = Dropped(options.drop)
  reader = opening.open_source(plan.source_kind, source, options, source_spec, dropped)
  paths = list(journal.read_spec())
  missing = [path for path in paths if path not in reader.spec]
  if missing:
    raise errors.ConversionError(
      f"convert: {source}: expected what it had when the conversion began, got nothing "
      f"at {errors.listing(missing)}."
    )
  wanted = specs.TensorSpecStruct((path, reader.spec[path]) for path in paths)
  return SelectedSource(reader, wanted, options.decode_images)


def check_same_plan(
  journal: Journal,
  plan: Plan,
  source: str,
  source_kind: str,
  destination_kind: str,
  spec: specs.SpecStructure | None,
  options: ConversionOptions,
) -> None:
  """Checks that a conversion goes on as it began.

  Args:
    journal: of the conversion.
    plan: of the conversion.
    source: path, now.
    source_kind: now.
    destination_kind: now.
    spec: that the caller wants now; None for no wish.
    options: now.
  Raises:
    SpecError: with every difference.
  """
  found = options.differences(plan.options)
  for name, began, now in (
    ("source", plan.source_kind, source_kind),
    ("destination", plan.destination_kind, destination_kind),
  ):
    if began != now:
      hint = "Delete the destination and this folder, or choose another destination."
      want = f"{began}, as it began"
      found.append(errors.Mismatch(f"kind of the {name}", want, now, hint))
  if found:
    raise errors.mismatch_error(
      f"convert: {journal.folder}", found, errors.ConversionError
    )
  if spec is not None:
    wanted, _ = new_plan(source, source_kind, destination_kind, spec, options)
    check_same_columns(journal, wanted, plan)


def check_same_columns(journal: Journal, wanted: Plan, plan: Plan) -> None:
  """Checks that the specs of two plans are the same.

  Raises:
    SpecError: with every path that differs.
  """
  operation = f"convert: {journal.folder}"
  began = specs.TensorSpecStruct.from_json(plan.source_spec)
  now = specs.TensorSpecStruct.from_json(wanted.source_spec)
  columns = layout.make_columns(operation, began)
  spec_checks.check_spec(operation, now, columns, True)


def check_same_source(journal: Journal, plan: Plan, reader: EpisodeSource) -> None:
  """Checks that the source is what it was when the conversion began.

  Raises:
    ConversionError: it changed.
  """
  if reader.fingerprint() == plan.fingerprint:
    return
  raise errors.ConversionError(
    f"convert: {plan.source}: expected the data that the conversion began with, got "
    "files of other sizes or times: the source changed. Delete the destination and "
    f"{journal.folder}, and start anew."
  )
