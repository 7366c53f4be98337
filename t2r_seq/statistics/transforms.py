"""What is done to an episode before its values are counted."""

from __future__ import annotations

import abc
import importlib
import inspect
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, TensorSpecStruct
from t2r_seq.statistics.sources import Source, Values

Rows = dict[str, tuple[ExtendedTensorSpec, np.ndarray]]


class Transform(abc.ABC):
  """Turns the values of an episode, or of a block, into rows.

  Attributes:
    name: for people.
    checksum: of its own text, to see that a run is resumed with the same one.
    wanted: the flat specs that it needs; None takes whatever there is.
  """

  name: str = ""
  checksum: str = ""
  wanted: TensorSpecStruct | None = None

  @abc.abstractmethod
  def to_rows(self, values: Values, source: Source) -> Rows:
    """Returns (spec of a row, rows [n, ...]) by path."""


class NoTransform(Transform):
  """Takes the values as they are."""

  def to_rows(self, values: Values, source: Source) -> Rows:
    """See the base class."""
    return {
      path: (source.spec[path], _as_rows(value, source, path))
      for path, value in values.items()
    }


class FunctionTransform(Transform):
  """Calls a user's function with every episode."""

  def __init__(self, function: Callable[[Values], Mapping[str, Any]]) -> None:
    """Wraps the function: arrays by path to a structure of arrays or tensors."""
    self._function = function
    self.name, self.checksum = _name(function), _checksum(function)

  def to_rows(self, values: Values, source: Source) -> Rows:
    """See the base class."""
    returned = specs.flatten_spec_structure(self._function(dict(values)))
    rows: Rows = {}
    for path, value in returned.items():
      # A copy: the function may use its memory again.
      array = np.array(value.numpy() if tf.is_tensor(value) else value)
      array = _as_rows(array, source, path)
      if not array.ndim:
        raise errors.SpecError(
          f"{self.name}: {path}: expected values of every step, (T, ...), got "
          f"{errors.describe(array)}."
        )
      rows[path] = (_row_spec(source.spec.get(path), array), array)
    return rows


class PreprocessorTransform(Transform):
  """Runs a preprocessor in mode 'train' on all windows of an episode that are full.

  The statistics are of its out features and labels. A stack of K steps counts as K
  rows, so figures are of single steps.
  """

  def __init__(self, preprocessor: Any, images: bool) -> None:
    """Wraps the preprocessor.

    Args:
      preprocessor: an `AbstractPreprocessor`.
      images: whether encoded images are decoded.
    Raises:
      SpecError: a path is both a feature and a label, or images are needed.
    """
    self._preprocessor = preprocessor
    cls = type(preprocessor)
    self.name, self.checksum = _name(cls), _checksum(cls)
    mode = ModeKeys.TRAIN
    self._features = _flatten(preprocessor.get_in_feature_specification(mode))
    self._labels = _flatten(preprocessor.get_in_label_specification(mode))
    self._out = self._join(
      _flatten(preprocessor.get_out_feature_specification(mode)),
      _flatten(preprocessor.get_out_label_specification(mode)),
    )
    self._in = self._join(self._features, self._labels)
    self.wanted = windows.flat_specs(self._in)
    encoded = [p for p, s in self.wanted.items() if specs.is_encoded_image_spec(s)]
    if encoded and not images:
      raise errors.SpecError(
        f"statistics: {self.name}: expected decoded images at {errors.listing(encoded)}"
        ", got images=False. Ask for them with images=True, or --images."
      )

  def _join(
    self, features: TensorSpecStruct, labels: TensorSpecStruct
  ) -> TensorSpecStruct:
    both = sorted(set(features) & set(labels))
    if both:
      raise errors.SpecError(
        f"statistics: {self.name}: expected features and labels of different paths, "
        f"got {errors.listing(both)} in both. Rename one of them."
      )
    return TensorSpecStruct([*features.items(), *labels.items()])

  def to_rows(self, values: Values, source: Source) -> Rows:
    """See the base class."""
    batch = self._to_batch(values, source)
    if batch is None:
      return {}
    features, labels = self._preprocessor.preprocess(
      TensorSpecStruct((p, batch[p]) for p in self._features if p in batch),
      TensorSpecStruct((p, batch[p]) for p in self._labels if p in batch),
      ModeKeys.TRAIN,
    )
    out = [*features.items(), *(labels or {}).items()]
    return {path: self._out_rows(path, value.numpy()) for path, value in out}

  def _to_batch(self, values: Values, source: Source) -> TensorSpecStruct | None:
    """Returns windows [B, ...]; None of an episode that is too short for one."""
    tensors = TensorSpecStruct((p, tf.convert_to_tensor(v)) for p, v in values.items())
    if source.is_blocks:
      return tensors
    if not windows.is_windowed(self._in):
      return specs.map_leaves(lambda tensor: tensor[None], tensors)
    before, after = windows.time_span(self._in)
    per_step = [p for p in values if source.spec[p].is_sequence]
    anchors = range(-before, len(values[per_step[0]]) - after)
    if not anchors:
      return None
    return windows.gather_windows(tensors, list(anchors), self._in)

  def _out_rows(
    self, path: str, value: np.ndarray
  ) -> tuple[ExtendedTensorSpec, np.ndarray]:
    spec = self._out.get(path)
    lead = 1
    if spec is not None:
      lead += spec.is_sequence + isinstance(spec.time_offsets, tuple)
    rows = value.reshape(-1, *value.shape[lead:])
    return _row_spec(spec, rows), rows


def create_transform(transform: Any, images: bool) -> Transform:
  """Wraps what a user gives.

  Args:
    transform: None, a function of an episode, a preprocessor, or 'module:name' of one
      of the two.
    images: whether encoded images are decoded.
  Returns:
    The transform.
  Raises:
    SpecError: it is none of these.
  """
  if transform is None:
    return NoTransform()
  if isinstance(transform, str):
    transform = _import(transform)
  if hasattr(transform, "preprocess") and not inspect.isclass(transform):
    return PreprocessorTransform(transform, images)
  if not callable(transform) or inspect.isclass(transform):
    raise errors.SpecError(
      "statistics: transform: expected a function of an episode or a preprocessor, got "
      f"{errors.describe(transform)}."
    )
  return FunctionTransform(transform)


def _import(source: str) -> Any:
  module_name, separator, name = source.partition(":")
  if not (module_name and separator and name):
    raise errors.SpecError(
      f"statistics: transform: expected MODULE:NAME, got {source!r}."
    )
  module = importlib.import_module(module_name)
  if not hasattr(module, name):
    raise errors.SpecError(
      f"statistics: transform: expected a name of {module_name}, got {name!r}."
      f"{errors.nearest(name, vars(module))}"
    )
  return getattr(module, name)


def _flatten(structure: Any) -> TensorSpecStruct:
  flat = specs.flatten_spec_structure(structure or {})
  return specs.map_leaves(ExtendedTensorSpec.to_spec, flat)


def _as_rows(value: np.ndarray, source: Source, path: str) -> np.ndarray:
  """Gives context features of an episode the axis of rows; what is new has one."""
  spec = source.spec.get(path)
  is_context = not source.is_blocks and spec is not None and not spec.is_sequence
  return value[None] if is_context else value


def _row_spec(spec: ExtendedTensorSpec | None, rows: np.ndarray) -> ExtendedTensorSpec:
  """Describes rows; keeps what the spec says where it still fits."""
  dtype = tf.string if rows.dtype.kind in "SUO" else tf.as_dtype(rows.dtype)
  if spec is None:
    return ExtendedTensorSpec(rows.shape[1:], dtype, is_sequence=True)
  if (
    spec.time_offsets is None
    and spec.dtype == dtype
    and spec.shape.is_compatible_with(rows.shape[1:])
  ):
    return ExtendedTensorSpec.from_spec(spec, shape=rows.shape[1:])
  if spec.dtype.is_integer and dtype == tf.string:
    return spec  # An encoded image, as it is.
  is_sequence = spec.is_sequence or spec.time_offsets is not None
  return ExtendedTensorSpec(rows.shape[1:], dtype, spec.name, is_sequence=is_sequence)


def _name(function: Any) -> str:
  module = getattr(function, "__module__", "")
  return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def _checksum(function: Any) -> str:
  """Returns a checksum of a function's text; '' where there is none to be had."""
  try:
    return f"{zlib.crc32(inspect.getsource(function).encode()):08x}"
  except (OSError, TypeError):
    return ""
