"""Spec structures that a command is given by name."""

from __future__ import annotations

import importlib
from typing import Any

from t2r_seq import errors
from t2r_seq.cli import failures, project_code

FORMS = "MODULE:NAME, an export's t2r_assets.pbtxt, or a .json file of specs"


def load_specs(source: str) -> tuple[Any, Any]:
  """Loads the specs of what a record holds.

  Windowed specs, as models declare them, become those of the flat episode.

  Args:
    source: see `load_window_specs`.
  Returns:
    The feature specs and the label specs (None unless it is a .pbtxt), flat.
  Raises:
    UsageError: there is no such module or name, or the source has another form.
    SpecError: it is not a spec structure.
  """
  from t2r_seq import windows

  features, labels = load_window_specs(source)
  return windows.flat_specs(features), windows.flat_specs(labels) if labels else None


def load_window_specs(source: str) -> tuple[Any, Any]:
  """Loads specs as they are declared.

  Args:
    source: 'module:name', where the name is a spec structure or a function without
      arguments that returns one; or the path of a .pbtxt or .json file.
  Returns:
    The feature specs and the label specs (None unless it is a .pbtxt).
  Raises:
    UsageError: there is no such module or name, or the source has another form.
    SpecError: it is not a spec structure.
  """
  from t2r_seq import specs

  labels = None
  try:
    if source.endswith(".pbtxt"):
      assets = specs.load_t2r_assets_to_file(source)
      features = specs.TensorSpecStruct.from_proto(assets.feature_spec)
      labels = specs.TensorSpecStruct.from_proto(assets.label_spec)
    elif source.endswith(".json"):
      with open(source, encoding="utf-8") as f:
        features = specs.TensorSpecStruct.from_json(f.read())
    else:
      features = _import(source)
    specs.assert_valid_spec_structure(features)
  except (errors.SpecError, UnicodeDecodeError) as error:
    raise errors.SpecError(f"--spec: {source}: {error}") from error
  if not features and not labels:
    raise errors.SpecError(f"--spec: {source}: expected specs, got none.")
  return features, labels


def load_store_specs(source: str) -> Any:
  """Loads the specs of windows that a store is to give.

  Args:
    source: see `load_window_specs`; features and labels are read by their paths alike.
  Returns:
    One flat structure, with time offsets.
  Raises:
    UsageError: as `load_window_specs`; or a path is in features and labels, with
      different specs.
    SpecError: it is not a spec structure.
  """
  from t2r_seq import specs

  features, labels = load_window_specs(source)
  joined = specs.flatten_spec_structure(features)
  for path, spec in specs.flatten_spec_structure(labels or {}).items():
    if path in joined and not joined[path].is_identical_to(spec):
      raise failures.UsageError(
        f"--spec: {source}: {path} is a feature and a label, of different specs. A "
        "store has one column of a path."
      )
    joined[path] = spec
  return joined


def _import(source: str) -> Any:
  """Returns what 'module:name' stands for; a function is called."""
  module_name, separator, name = source.partition(":")
  if not (module_name and separator and name):
    raise failures.UsageError(f"--spec takes {FORMS}, got '{source}'.")
  project_code.allow()
  module = importlib.import_module(module_name)
  if not hasattr(module, name):
    near = errors.nearest(name, vars(module))
    raise failures.UsageError(f"--spec: {module_name} has no '{name}'.{near}")
  value = getattr(module, name)
  return value() if callable(value) else value
