"""Spec structures as text, in the forms that `--spec` takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from t2r_seq.cli import failures

FORMATS = ("python", "pbtxt", "json")
_SUFFIXES = {".py": "python", ".pbtxt": "pbtxt", ".json": "json"}


def format_of(path: str) -> str:
  """Returns the format that a file's suffix stands for.

  Args:
    path: of the file.
  Returns:
    One of FORMATS.
  Raises:
    UsageError: another suffix.
  """
  suffix = os.path.splitext(path)[1]
  if suffix not in _SUFFIXES:
    raise failures.UsageError(
      f"--output {path}: expected a name that ends in .py, .pbtxt or .json, or a "
      f"--format, got '{suffix}'."
    )
  return _SUFFIXES[suffix]


def use_of(path: str) -> str:
  """Says how a written file is given to `--spec`."""
  stem, suffix = os.path.splitext(path)
  source = f"{os.path.basename(stem)}:SPEC" if suffix == ".py" else path
  return f"use it with --spec {source}"


def to_text(spec: Mapping[str, Any], text_format: str) -> str:
  """Renders a spec structure.

  Args:
    spec: specs by path.
    text_format: one of FORMATS.
  Returns:
    A Python module with SPEC, a T2RAssets proto with these features, or JSON.
  """
  from google.protobuf import text_format as proto_text

  from t2r_seq import specs

  if text_format == "python":
    return to_python(spec)
  structure = specs.TensorSpecStruct(spec.items())
  if text_format == "json":
    return structure.to_json()
  return proto_text.MessageToString(specs.create_t2r_assets(structure))


def to_python(spec: Mapping[str, Any]) -> str:
  """Renders Python that builds a spec structure, to be pasted into a project.

  Args:
    spec: specs by path.
  Returns:
    Lines, the last with its newline.
  """
  lines = [f"    ({path!r}, {leaf!r})," for path, leaf in spec.items()]
  return "\n".join(
    [
      "import tensorflow as tf",
      "from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct",
      "",
      "SPEC = TensorSpecStruct(",
      "  [",
      *lines,
      "  ]",
      ")",
      "",
    ]
  )
