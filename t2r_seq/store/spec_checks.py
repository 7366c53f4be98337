"""Does a store have the specs that its user expects? All differences at once."""

from __future__ import annotations

from t2r_seq import errors, specs
from t2r_seq.store import layout
from t2r_seq.store.layout import Column, Columns


def check_spec(
  operation: str, spec: specs.SpecStructure, columns: Columns, is_exact: bool
) -> None:
  """Checks specs against the columns of a store.

  Args:
    operation: for the error.
    spec: flat specs that the store must have.
    columns: of the store.
    is_exact: the store must not have further ones, nor lack optional ones.
  Raises:
    SpecError: with every difference.
  """
  wanted = layout.make_columns(operation, spec)
  found = []
  extra = [path for path in columns if path not in wanted]
  for path, column in wanted.items():
    got = columns.get(path)
    if got is None and (is_exact or not column.spec.is_optional):
      hint = errors.nearest(path, extra)
      found.append(errors.Mismatch(path, _describe(column), "nothing", hint))
    elif got is not None and _storage(column, is_exact) != _storage(got, is_exact):
      hint = "The store was made with another spec."
      found.append(errors.Mismatch(path, _describe(column), _describe(got), hint))
  if is_exact:
    found += [
      errors.Mismatch(path, "nothing", _describe(columns[path])) for path in extra
    ]
  if found:
    raise errors.mismatch_error(operation, found)


def _storage(column: Column, is_exact: bool) -> tuple[object, ...]:
  """What must agree: what rows are, and to append also whether they may be absent."""
  is_optional = is_exact and column.spec.is_optional
  return (_describe(column), column.is_per_step, is_optional)


def _describe(column: Column) -> str:
  """Renders shape, dtype, encoding and time axis; the name in records is no matter."""
  spec = column.spec
  parts = [errors.describe(spec)]
  if specs.is_encoded_image_spec(spec):
    parts.append(f"encoded as {str(spec.data_format).lower()}")
  parts.append("per step" if column.is_per_step else "per episode")
  if spec.is_optional:
    parts.append("optional")
  return ", ".join(parts)
