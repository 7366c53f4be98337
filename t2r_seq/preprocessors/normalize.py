"""Normalisation by stored statistics, frozen into the export."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs, statistics
from t2r_seq.preprocessors import seams, spec_transformation_preprocessor
from t2r_seq.preprocessors.affine import MODES, Affine
from t2r_seq.preprocessors.statistics_lookup import find_statistics

FEATURES, LABELS = "features", "labels"
_KINDS = (FEATURES, LABELS)


@gin.configurable
class Normalize(spec_transformation_preprocessor.SpecTransformationPreprocessor):
  """Normalises features and labels by the figures of a statistics file.

  The figures are read once, at construction, and are constants of the graph from then
  on: an export needs no file. Paths that are stored as integers come as such and leave
  as floats. Constant elements become 0. `unnormalize` is the inverse, for what a policy
  returns.
  """

  def __init__(
    self,
    model_feature_specification_fn: seams.SpecificationFn | None = None,
    model_label_specification_fn: seams.SpecificationFn | None = None,
    statistics_path: str | os.PathLike[str] | None = None,
    modes: Mapping[str, str | None] | None = None,
  ) -> None:
    """Reads the statistics, and fits them to the model's specs.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
      statistics_path: JSON file of `t2r_seq stats` or `statistics.compute_statistics`.
      modes: how to normalise the paths of features and labels that match a pattern
        ('state', 'arm/*'; the first that matches counts): 'mean_std' to mean 0 and
        standard deviation 1, 'min_max' from smallest and largest to -1 and 1,
        'quantile' from the 1 % and 99 % quantiles to -1 and 1 (others lie outside), or
        None for not at all. Paths that match no pattern stay as they are.
    Raises:
      SpecError: an unknown mode, a pattern that matches nothing, or specs that the
        statistics do not fit; all paths are named.
      OSError: the file cannot be read.
    """
    super().__init__(model_feature_specification_fn, model_label_specification_fn)
    if statistics_path is None:
      raise errors.SpecError(
        "Normalize: statistics_path: expected a JSON file of statistics, got None. "
        "`t2r_seq stats SOURCE` writes one; bind Normalize.statistics_path to it."
      )
    self._path = os.fspath(statistics_path)
    self._modes = _check_modes(modes)
    self._stored: dict[str, dict[str, tf.DType]] = {kind: {} for kind in _KINDS}
    self._maps: dict[str, dict[str, Affine]] = {kind: {} for kind in _KINDS}
    self._fit(statistics.load_statistics(self._path))

  def _fit(self, found: statistics.Statistics) -> None:
    """Makes the map of each path; everything that does not fit is in one error."""
    problems: list[errors.Mismatch] = []
    wanted = {
      FEATURES: _all_modes(self._model_feature_specification_fn),
      LABELS: _all_modes(self._model_label_specification_fn),
    }
    self._check_patterns([path for by_path in wanted.values() for path in by_path])
    for kind, by_path in wanted.items():
      for path, spec in by_path.items():
        mode = self._mode(path)
        if mode is None:
          continue
        result = find_statistics(f"{kind}/{path}", path, spec, found)
        if isinstance(result, errors.Mismatch):
          problems.append(result)
          continue
        stored = result.spec.dtype
        self._stored[kind][path] = stored
        self._maps[kind][path] = Affine(result, mode, spec.dtype, stored)
        _tell_constant(f"{kind}/{path}", self._maps[kind][path].constant)
    if problems:
      raise errors.mismatch_error(f"Normalize: {self._path}", problems)

  def _mode(self, path: str) -> str | None:
    for pattern, mode in self._modes.items():
      if fnmatch.fnmatchcase(path, pattern):
        return mode
    return None

  def _check_patterns(self, paths: list[str]) -> None:
    unused = [
      errors.Mismatch(
        pattern,
        f"a pattern of one of the paths {errors.listing(set(paths))}",
        "one that matches none",
        errors.nearest(pattern, paths).strip(),
      )
      for pattern in self._modes
      if not fnmatch.filter(paths, pattern)
    ]
    if unused:
      raise errors.mismatch_error("Normalize: modes", unused)

  def unnormalize(self, path: str, values: Any, kind: str = LABELS) -> tf.Tensor:
    """Maps normalised values back to those of the data.

    Args:
      path: of the label (or feature) that they are of.
      values: [..., *shape], such as a policy's actions.
      kind: 'labels' or 'features'.
    Returns:
      The values in the units of the data; shape and dtype unchanged.
    Raises:
      SpecError: the path is not normalised.
    """
    if path not in self._maps.get(kind, {}):
      known = [f"{k}/{p}" for k, maps in self._maps.items() for p in maps]
      raise errors.SpecError(
        f"Normalize.unnormalize: {kind}/{path}: expected one of the normalised paths "
        f"{errors.listing(known)}.{errors.nearest(f'{kind}/{path}', known)}"
      )
    return self._maps[kind][path].unnormalize(values)

  def is_normalized(self, path: str, kind: str = LABELS) -> bool:
    """Whether a label (or feature) is normalised here."""
    return path in self._maps.get(kind, {})

  def _transform_in_feature_specification(
    self, tensor_spec_struct: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    return self._as_stored(tensor_spec_struct, FEATURES)

  def _transform_in_label_specification(
    self, tensor_spec_struct: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    return self._as_stored(tensor_spec_struct, LABELS)

  def _as_stored(
    self, tensor_spec_struct: specs.TensorSpecStruct, kind: str
  ) -> specs.TensorSpecStruct:
    for path, dtype in self._stored[kind].items():
      if path in tensor_spec_struct:
        self.update_spec(tensor_spec_struct, path, dtype=dtype)
    return tensor_spec_struct

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    del mode
    for kind, structure in ((FEATURES, features), (LABELS, labels)):
      for path, affine in self._maps[kind].items():
        if structure is not None and structure.get(path) is not None:
          structure[path] = affine.normalize(structure[path])
    return features, labels


def _check_modes(modes: Mapping[str, str | None] | None) -> dict[str, str | None]:
  if not modes:
    raise errors.SpecError(
      "Normalize: modes: expected patterns of paths and how to normalise them, got "
      f"{modes!r}. Such as {{'state': 'mean_std', 'action': 'min_max'}}."
    )
  unknown = [
    errors.Mismatch(
      pattern, f"one of {errors.listing(MODES)} or None", repr(mode),
      errors.nearest(str(mode), MODES).strip(),
    )
    for pattern, mode in modes.items()
    if mode is not None and mode not in MODES
  ]  # fmt: skip
  if unknown:
    raise errors.mismatch_error("Normalize: modes", unknown)
  return dict(modes)


def _all_modes(specification_fn: seams.SpecificationFn | None) -> dict[str, Any]:
  """Returns the specs of all modes by path."""
  found: dict[str, Any] = {}
  for mode in specs.ModeKeys.ALL:
    found |= dict(seams.call_specification_fn(specification_fn, mode).items())
  return found


def _tell_constant(path: str, constant: np.ndarray) -> None:
  if constant.any():
    where = np.argwhere(constant).tolist()
    logging.warning(
      "Normalize: %s: %s constant in the data, and normalised to 0.",
      path,
      f"elements {where} are" if constant.ndim else "it is",
    )
