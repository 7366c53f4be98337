"""Normalization by stored statistics, frozen into the export, and its inverse."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs, statistics
from t2r_seq.preprocessors.abstract_preprocessor import (
  AbstractPreprocessor,
  NoOpPreprocessor,
  Representations,
  SpecificationFn,
  SpecTransformationPreprocessor,
  specs_of_all_modes,
)
from t2r_seq.preprocessors.convert_conventions import FEATURES, LABELS, stages_of
from t2r_seq.specs.extended_tensor_spec import added_axes
from t2r_seq.statistics.pooling import pool_statistics
from t2r_seq.statistics.statistics import PathStatistics, Statistics

MEAN_STD, MIN_MAX, QUANTILE = "mean_std", "min_max", "quantile"
MODES = (MEAN_STD, MIN_MAX, QUANTILE)
_LOW, _HIGH = 0.01, 0.99
# Maximum rounding error of the center, relative to the scale.
_MAX_ROUNDING = 1e-6
# A scale below this share of an element's range is noise around one value.
_MIN_SHARE = 1e-6
# Larger normalized values get a warning.
_FAR = 1000


class Affine:
  """Maps x to (x - center) / scale, which are constants of the graph.

  An element that is constant in the data (`PathStatistics.constant`) has the scale 1,
  so that it becomes 0; the inverse has the scale 0, which ignores a network's noise. An
  element that changes so rarely that its quantiles are equal but for noise, or that its
  standard deviation is below rounding, maps from minimum and maximum to -1 and 1.

  Attributes:
    constant: flags of constant elements, bool, the shape of the center.
    rare: flags of elements that are normalized by minimum and maximum instead, bool.
    far: flags of elements with normalized values beyond `_FAR`, bool.
  """

  def __init__(self, statistics: PathStatistics, mode: str, dtype: tf.DType) -> None:
    """Creates the map.

    Args:
      statistics: statistics of the stored values; each element has a finite value.
      mode: method, from `MODES`.
      dtype: dtype of the normalized values.
    """
    stored_dtype = statistics.spec.dtype
    low, high = statistics.measure("min"), statistics.measure("max")
    middle, half = low + (high - low) / 2, (high - low) / 2
    center, scale = _center_and_scale(statistics, mode)
    self.constant = statistics.constant
    noise = np.maximum(statistics.rounding_noise, _MIN_SHARE * half)
    self.rare = (scale <= noise) & ~self.constant
    center = np.where(self.constant | self.rare, middle, center)
    scale = np.where(self.constant, 1.0, np.where(self.rare, half, scale))
    reach = np.maximum(high - center, center - low)
    self.far = (reach > _FAR * scale) & ~self.constant
    self._dtype = dtype
    is_wide = dtype == tf.float64 or (stored_dtype.is_integer and stored_dtype.size > 2)
    self._inner = tf.float64 if is_wide else tf.float32
    self._center = center.astype(self._inner.as_numpy_dtype)
    self._scale = scale.astype(self._inner.as_numpy_dtype)
    # float32 rounds a center that is large compared with the scale. The remainder is
    # subtracted after the division: before it, Grappler would add it to the center.
    remainder = (center - self._center) / self._scale
    is_rounded = np.any(np.abs(remainder) > _MAX_ROUNDING)
    self._remainder = remainder.astype(self._scale.dtype) if is_rounded else None
    self._scale_back = np.where(self.constant, 0, self._scale).astype(self._scale.dtype)

  def constants(self) -> dict[str, Any]:
    """Returns center and scale, as lists."""
    return {"center": self._center.tolist(), "scale": self._scale.tolist()}

  def normalize(self, values: Any) -> tf.Tensor:
    """Maps stored values, [..., *shape], to normalized values."""
    values = (tf.cast(values, self._inner) - self._center) / self._scale
    if self._remainder is not None:
      values -= self._remainder
    return tf.cast(values, self._dtype)

  def unnormalize(self, values: Any) -> tf.Tensor:
    """Maps normalized values, [..., *shape], back; the dtype is unchanged."""
    values = tf.convert_to_tensor(values)
    scaled = tf.cast(values, self._inner)
    if self._remainder is not None:
      scaled += self._remainder
    return tf.cast(scaled * self._scale_back + self._center, values.dtype)


def _center_and_scale(
  statistics: PathStatistics, mode: str
) -> tuple[np.ndarray, np.ndarray]:
  if mode == MEAN_STD:
    return statistics.measure("mean"), statistics.measure("std")
  if mode == MIN_MAX:
    low, high = statistics.measure("min"), statistics.measure("max")
  else:
    low, high = statistics.quantiles[_LOW], statistics.quantiles[_HIGH]
  return low + (high - low) / 2, (high - low) / 2


def _find_statistics(
  place: str, path: str, spec: tf.TensorSpec, measured: Statistics
) -> PathStatistics | errors.Mismatch:
  """Finds the statistics of a path, of one step, or returns the mismatch.

  If both sides have a name in the record, names are compared, else paths. `place` is
  'labels/<path>', the path in the statistics if features and labels share one.
  """
  spec = specs.ExtendedTensorSpec.to_spec(spec)
  key = place if place in measured.paths else _find_path(path, spec, measured)
  if key is None:
    hint = errors.nearest(path, measured.paths).strip()
    return errors.Mismatch(
      place,
      _describe(spec),
      f"statistics of {errors.listing(measured.paths)} only",
      hint,
    )
  return _find_misfit(place, spec, key, measured.paths[key]) or measured.paths[key]


def _find_path(
  path: str, spec: specs.ExtendedTensorSpec, measured: Statistics
) -> str | None:
  if spec.name is not None:
    named = [p for p, s in measured.paths.items() if s.spec.name == spec.name]
    if len(named) == 1:
      return named[0]
  other = measured.paths.get(path)
  if other is None:
    return None
  is_same = spec.name == other.spec.name or None in (spec.name, other.spec.name)
  return path if is_same else None


def _find_misfit(
  place: str, spec: specs.ExtendedTensorSpec, key: str, entry: PathStatistics
) -> errors.Mismatch | None:
  stored = entry.spec
  got = f"statistics of {errors.describe(stored)} at '{key}'"
  want = _describe(spec)
  if None not in (spec.convention, stored.convention):
    expected, actual = (_meaning(each) for each in (spec, stored))
    if expected != actual:
      return errors.Mismatch(
        place,
        f"statistics of {spec.convention}",
        f"those of {stored.convention} at '{key}'",
        "Compute them again, in the model's representation: t2r_seq stats SOURCE "
        "--policy POLICY, or --gin_configs CONFIG.",
      )
  if not spec.dtype.is_floating:
    hint = "Only floats can be normalised: exclude the path with None."
    return errors.Mismatch(place, "a floating point dtype", errors.describe(spec), hint)
  if entry.count is None:
    is_image = specs.is_encoded_image_spec(stored)
    hint = "Compute the statistics with --images." if is_image else ""
    return errors.Mismatch(place, want, f"no statistics of the {entry.kind}", hint)
  is_one_number = added_axes(stored.shape, spec.frame_shape)
  if not (is_one_number or spec.frame_shape.is_compatible_with(stored.shape)):
    return errors.Mismatch(place, want, got)
  if stored.dtype.is_floating and stored.dtype != spec.dtype:
    hint = f"Declare it as {stored.dtype.name}, or compute the statistics with --spec."
    return errors.Mismatch(place, want, got, hint)
  if not np.all(entry.count):
    where = np.argwhere(entry.count == 0).tolist()
    return errors.Mismatch(
      place, "finite values of every element", f"none of the elements {where}"
    )
  for name in ("mean", "std", "min", "max"):
    measured = entry.measure(name)
    if not np.all(np.isfinite(measured)):
      where = np.argwhere(~np.isfinite(measured)).tolist()
      got = f"a {name} that is not finite of the elements {where}"
      hint = "Compute the statistics again, or exclude the path with None."
      return errors.Mismatch(place, "finite statistics", got, hint)
  return None


def _meaning(spec: specs.ExtendedTensorSpec) -> list[Any]:
  """Returns the parts of a convention that change numbers."""
  shape = spec.frame_shape
  size = int(shape[-1] or 0) if shape.rank else 1
  parts = spec.convention.parts(size) if spec.convention else []
  return [
    (part.start, part.stop, dataclasses.replace(part.convention, reference=None))
    for part in parts
  ]


def _describe(spec: specs.ExtendedTensorSpec) -> str:
  """Describes one step."""
  return errors.describe(tf.TensorSpec(spec.frame_shape, spec.dtype))


_KINDS = (FEATURES, LABELS)


@gin.configurable
class Normalize(SpecTransformationPreprocessor):
  """Normalizes features and labels by a statistics file.

  >>> import numpy as np
  >>> from t2r_seq import preprocessors, specs, statistics, store
  >>> x = specs.ExtendedTensorSpec((1,), "float32", "x", is_sequence=True)
  >>> with store.EpisodeStore.create("demo", {"x": x}) as writer:
  ...   _ = writer.append_episode({"x": np.array([[1.0], [3.0]], np.float32)})
  >>> _ = statistics.compute_statistics("demo", "statistics.json")
  >>> normalize = preprocessors.Normalize(
  ...   lambda mode: {"x": specs.ExtendedTensorSpec((1,), "float32", "x")},
  ...   lambda mode: {},
  ...   "statistics.json",
  ...   {"x": "mean_std"},
  ... )
  >>> features, _ = normalize.preprocess({"x": np.float32([[3.0]])}, {}, "eval")
  >>> features.x.numpy().tolist()
  [[1.0]]

  The statistics are read at construction and become constants of the graph: an export
  needs no file. Stored integers become floats. Constant elements become 0.
  `unnormalize` is the inverse, for the output of a policy.
  """

  def __init__(
    self,
    model_feature_specification_fn: SpecificationFn | None = None,
    model_label_specification_fn: SpecificationFn | None = None,
    statistics_path: str | os.PathLike[str] | Sequence[str] | None = None,
    modes: Mapping[str, str | None] | None = None,
  ) -> None:
    """Reads the statistics, and matches them to the model's specs.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
      statistics_path: JSON file of `t2r_seq stats` or `statistics.compute_statistics`;
        several are pooled by count.
      modes: the normalization of features and labels by pattern of their path
        ('state', 'arm/*'; the first match counts): 'mean_std' to mean 0 and standard
        deviation 1, 'min_max' from minimum and maximum to -1 and 1, 'quantile' from
        the 1 % and 99 % quantiles to -1 and 1 (others lie outside), or None to change
        nothing. Other paths are unchanged, too.
    Raises:
      SpecError: the path or the modes are missing, a mode is unknown, a pattern matches
        no path, a file has no statistics, or they do not match each other or the specs.
      OSError: a file cannot be read.
    """
    super().__init__(model_feature_specification_fn, model_label_specification_fn)
    if statistics_path is None:
      raise errors.SpecError(
        "Normalize: statistics_path: expected a JSON file of statistics, got None. "
        "`t2r_seq stats SOURCE` writes one; bind Normalize.statistics_path to it."
      )
    if isinstance(statistics_path, (str, os.PathLike)):
      statistics_path = [os.fspath(statistics_path)]
    self._paths = [*statistics_path]
    self._path = ", ".join(self._paths)
    self._modes = _check_modes(modes)
    self._stored: dict[str, dict[str, tf.DType]] = {kind: {} for kind in _KINDS}
    self._maps: dict[str, dict[str, Affine]] = {kind: {} for kind in _KINDS}
    self._transforms: dict[str, str] = {}
    self._fit()

  def _fit(self) -> None:
    """Makes the map of each path; raises one error for all mismatches."""
    problems: list[errors.Mismatch] = []
    expected = {
      FEATURES: specs_of_all_modes(self._model_feature_specification_fn),
      LABELS: specs_of_all_modes(self._model_label_specification_fn),
    }
    self._check_patterns([path for by_path in expected.values() for path in by_path])
    if all(mode is None for mode in self._modes.values()):
      return
    pooled = pool_statistics([*map(statistics.load_statistics, self._paths)])
    for kind, by_path in expected.items():
      for path, spec in by_path.items():
        mode = self._mode(path)
        if mode is None:
          continue
        result = _find_statistics(f"{kind}/{path}", path, spec, pooled)
        if isinstance(result, errors.Mismatch):
          problems.append(result)
          continue
        self._stored[kind][path] = result.spec.dtype
        self._transforms[f"{kind}/{path}"] = result.transform
        self._maps[kind][path] = affine = Affine(result, mode, spec.dtype)
        _warn_of_spread(f"{kind}/{path}", mode, result, affine)
    if problems:
      raise errors.mismatch_error(f"Normalize: {self._path}", problems)

  def check_inputs(self, find: Callable[[], Representations]) -> None:
    """Checks that the statistics are of the input's representation."""
    if not self._transforms:
      return
    given = find()
    mismatches = []
    for key, got in self._transforms.items():
      want = given.get(key, "")
      if want is not None and got != want:
        hint = _COMPUTE_AFTER if want else _COMPUTE_RAW
        mismatches.append(
          errors.Mismatch(
            key,
            f"statistics of {_describe_representation(want)}",
            f"those of {_describe_representation(got)}",
            hint.format(stages=want, got=got),
          )
        )
    if mismatches:
      raise errors.mismatch_error(f"Normalize: {self._path}", mismatches)

  @property
  def input_hint(self) -> str:
    """Names the paths with statistics of integers, which no stage may cast before."""
    hints = {
      f"{kind}/{path}": dtype.name
      for kind, by_path in self._stored.items()
      for path, dtype in by_path.items()
      if not dtype.is_floating
    }
    if not hints:
      return ""
    sources = ", ".join(f"{dtype} at '{key}'" for key, dtype in hints.items())
    hint = _COMPUTE_AFTER.format(stages="this stage")
    return f" The statistics are of {sources}. {hint}"

  def before_normalization(self) -> AbstractPreprocessor:
    """Returns a preprocessor that changes nothing."""
    return NoOpPreprocessor(
      self.get_in_feature_specification, self.get_in_label_specification
    )

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

  def normalize(self, path: str, values: Any, kind: str = LABELS) -> tf.Tensor:
    """Maps values in the units of the data to normalized ones; see `unnormalize`."""
    return self._map("normalize", path, kind).normalize(values)

  def unnormalize(self, path: str, values: Any, kind: str = LABELS) -> tf.Tensor:
    """Maps normalized values back; raises SpecError if the path is not normalized."""
    return self._map("unnormalize", path, kind).unnormalize(values)

  def _map(self, operation: str, path: str, kind: str) -> Affine:
    if path not in self._maps.get(kind, {}):
      paths = [f"{k}/{p}" for k, maps in self._maps.items() for p in maps]
      raise errors.SpecError(
        f"Normalize.{operation}: {kind}/{path}: expected one of the normalised paths "
        f"{errors.listing(paths)}.{errors.nearest(f'{kind}/{path}', paths)}"
      )
    return self._maps[kind][path]

  def constants(self) -> dict[str, dict[str, Any]]:
    """Returns mode, center and scale by 'features/<path>' or 'labels/<path>'."""
    return {
      f"{kind}/{path}": {"mode": self._mode(path), **affine.constants()}
      for kind, by_path in self._maps.items()
      for path, affine in by_path.items()
    }

  def describe_stages(self) -> list[dict[str, Any]]:
    """Returns the stage, its `constants`, and the stages that the statistics follow."""
    stage = {"stage": type(self).__name__, "normalization": self.constants()}
    earlier = {path: stages for path, stages in self._transforms.items() if stages}
    return [{**stage, "statistics_of": earlier} if earlier else stage]

  @property
  def statistics_path(self) -> str | None:
    """The statistics file; None if there are several."""
    return self._path if len(self._paths) == 1 else None

  def is_normalized(self, path: str, kind: str = LABELS) -> bool:
    """Whether this stage normalizes a label (or feature)."""
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


_COMPUTE_AFTER = (
  "Compute them of what {stages} gives: t2r_seq stats SOURCE --gin_configs CONFIG of "
  "the training, or --transform MODULE:NAME of a preprocessor with these stages."
)
_COMPUTE_RAW = (
  "Compute them without a transform: t2r_seq stats SOURCE; or run {got} before "
  "Normalize, in a ComposedPreprocessor."
)


def _describe_representation(stages: str) -> str:
  return f"what {stages} gives" if stages else "the values as they are stored"


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


def _warn_of_spread(
  path: str, mode: str, statistics: PathStatistics, affine: Affine
) -> None:
  """Warns of elements that are normalized in another way, or to large values."""
  moves = np.asarray(statistics.min != statistics.max)
  cases = [
    (affine.constant & ~moves, "constant in the data, and normalised to 0"),
    (
      affine.constant & moves,
      "constant in the data but for rounding noise, and normalised to 0",
    ),
    (
      affine.rare,
      f"not constant, but too rarely different for '{mode}': normalised from minimum "
      "and maximum to -1 and 1",
    ),
    (
      affine.far,
      f"normalised by '{mode}' to values beyond {_FAR:,}: take 'min_max', unless they "
      "are outliers",
    ),
  ]
  for chosen, text in cases:
    if chosen.any():
      where = np.argwhere(chosen).tolist()
      subject = f"elements {where} are" if chosen.ndim else "it is"
      logging.warning("Normalize: %s: %s %s.", path, subject, text)


def unnormalize(
  preprocessor: AbstractPreprocessor, path: str, values: Any, kind: str = LABELS
) -> tf.Tensor:
  """Undoes the normalization of a label, such as the action that a model predicts.

  Call it in a model's `create_export_outputs_fn`, so that the exported policy returns
  the units of the data.

  Args:
    preprocessor: a `Normalize`, or a chain with one: `model.preprocessor`.
    path: path of the label (or feature).
    values: normalized, [..., *shape].
    kind: 'labels' or 'features'.
  Returns:
    The values in the units of the data; shape and dtype unchanged.
  Raises:
    SpecError: no stage normalizes the path.
  """
  stages = list(stages_of(preprocessor, Normalize))
  normalizing = [stage for stage in stages if stage.is_normalized(path, kind)]
  if stages and not normalizing:
    return stages[-1].unnormalize(path, values, kind)  # Raises, with the paths.
  if not normalizing:
    raise errors.SpecError(
      f"unnormalize: {kind}/{path}: expected a preprocessor that is or has a "
      f"Normalize, got {type(preprocessor).__name__}."
    )
  for stage in reversed(normalizing):
    values = stage.unnormalize(path, values, kind)
  return values
