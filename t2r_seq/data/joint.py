"""Features and labels in one structure, so that they are read, cut and shuffled as one.

A next observation among the labels and the frame stack among the features come from
one episode: joined, it is parsed once, and every window is cut at one anchor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import specs
from t2r_seq.specs.names import source_paths

Pair = tuple[specs.TensorSpecStruct, specs.TensorSpecStruct]
"""Features and labels by path."""

_FEATURES = "features/"
_LABELS = "labels/"

BRANCHES = ("features", "labels")
"""The first components of joined paths."""


def join(features: Any, labels: Any = None) -> specs.TensorSpecStruct:
  """Puts features and labels below 'features/' and 'labels/'.

  Args:
    features: a structure of specs, tensors or arrays.
    labels: labels by path, may be empty; None for no labels.
  Returns:
    One flat struct; leaves are shared.
  """
  joined = specs.TensorSpecStruct()
  for prefix, structure in ((_FEATURES, features), (_LABELS, labels)):
    if structure is not None:
      for path, leaf in specs.flatten_spec_structure(structure).items():
        joined[prefix + path] = leaf
  return joined


def join_paths(
  features: Mapping[str, str], labels: Mapping[str, str]
) -> dict[str, str]:
  """Joins maps of feature paths and of label paths, as `join` does structures."""
  return {
    prefix + key: prefix + path
    for prefix, paths in ((_FEATURES, features), (_LABELS, labels))
    for key, path in paths.items()
  }


def name_by_path(
  joined: specs.TensorSpecStruct, stored: Mapping[str, Any]
) -> specs.TensorSpecStruct:
  """Names each spec after the feature that it reads; see `specs.names.source_paths`.

  If its joined path is stored, a spec keeps its name: records are parsed to such paths.

  Args:
    joined: specs, as from `join`.
    stored: stored specs, by path.
  Returns:
    The specs, some with other names.
  """
  named = specs.TensorSpecStruct()
  # Separately, so that features read the same data with and without labels.
  for prefix, branch in zip((_FEATURES, _LABELS), split(joined), strict=True):
    sources = source_paths(branch, stored)
    for path, spec in branch.items():
      name = spec.name if prefix + path in stored else sources[path]
      named[prefix + path] = specs.ExtendedTensorSpec.from_spec(spec, name=name)
  return named


@tf.autograph.experimental.do_not_convert
def split(joined: Any) -> tuple[specs.TensorSpecStruct, specs.TensorSpecStruct]:
  """Undoes `join`.

  Args:
    joined: leaves by path, as from `join`.
  Returns:
    Features and labels by path; labels may be empty.
  """
  return _below(joined, _FEATURES), _below(joined, _LABELS)


def _below(joined: Any, prefix: str) -> specs.TensorSpecStruct:
  return specs.TensorSpecStruct(
    (path.removeprefix(prefix), leaf)
    for path, leaf in joined.items()
    if path.startswith(prefix)
  )
