"""Transforms episodes before they are counted: by a function, or a preprocessor."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.episodes.episodes import Values
from t2r_seq.episodes.rates import default_clock
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, TensorSpecStruct
from t2r_seq.specs.names import source_paths
from t2r_seq.windows.cut import has_seconds, mask_path
from t2r_seq.windows.n_step import final_path
from t2r_seq.windows.reader import WindowReader

Rows = dict[str, tuple[ExtendedTensorSpec, np.ndarray]]
"""By path: the spec of a row, and rows [n, ...]."""

_BRANCHES = ("features", "labels")


class Counted(Protocol):
  """The data whose values are transformed.

  Attributes:
    spec: flat specs by path.
    metadata: JSON values, with the control period.
    clocks: the time stamps of values on other clocks than the steps', by path.
    is_blocks: values are blocks of plain records, not episodes.
  """

  spec: TensorSpecStruct
  metadata: Mapping[str, Any]
  clocks: Mapping[str, str]
  is_blocks: bool


class Transform:
  """Turns the values of an episode or a block into rows by path; changes nothing.

  Attributes:
    name: name for messages and files; '' if it changes nothing.
  """

  name: str = ""

  def stored_specs(self, stored: TensorSpecStruct | None) -> TensorSpecStruct | None:
    """Returns the flat specs of the values to read; None for all of them.

    Args:
      stored: specs of the source by path; None for records, whose specs are unknown.
    """
    del stored
    return None

  def prepare(self, source: Counted) -> None:
    """Checks before the first episode that the source fits."""

  def to_rows(self, values: Values, source: Counted) -> Rows:
    """Returns the rows of an episode, or of a block, by path."""
    return {
      path: (source.spec[path], _as_rows(value, source, path))
      for path, value in values.items()
    }

  def representation(self, path: str) -> str:
    """Describes what changed the values of a path; '' for stored values."""
    del path
    return ""


class FunctionTransform(Transform):
  """Calls a user's function with every episode."""

  def __init__(self, function: Callable[[Values], Mapping[str, Any]]) -> None:
    """Wraps the function: arrays by path to a structure of arrays or tensors."""
    self._function = function
    self._changed: set[str] = set()
    self.name = _name(function)

  def to_rows(self, values: Values, source: Counted) -> Rows:
    # Copies: the function may change its input.
    given = {path: value.copy() for path, value in values.items()}
    returned = specs.flatten_spec_structure(self._function(given))
    rows: Rows = {}
    for path, value in returned.items():
      # A copy: the function may reuse its memory.
      array = np.array(value.numpy() if tf.is_tensor(value) else value)
      if path not in values or not _is_equal(array, values[path]):
        self._changed.add(path)
      array = _as_rows(array, source, path)
      if not array.ndim:
        raise errors.SpecError(
          f"{self.name}: {path}: expected values of every step, (T, ...), got "
          f"{errors.describe(array)}."
        )
      rows[path] = (_row_spec(source.spec.get(path), array), array)
    return rows

  def representation(self, path: str) -> str:
    """Returns the name of the function if it changed a value in any episode."""
    name = re.split(r"[:.]", self.name)[-1]
    return name if path in self._changed else ""


def _is_equal(one: np.ndarray, other: np.ndarray) -> bool:
  is_float = one.dtype == other.dtype and one.dtype.kind == "f"
  return np.array_equal(one, other, equal_nan=is_float)


class PreprocessorTransform(Transform):
  """Runs a preprocessor in mode 'train' on all windows of an episode.

  The rows are the steps of its out features and labels: a stack of K steps gives K
  rows. Padded steps don't count.
  """

  def __init__(self, preprocessor: Any, images: bool, cut: windows.Cut) -> None:
    """Wraps an `AbstractPreprocessor`, which sees the windows of a cut."""
    if cut.n_step is not None:
      n_step = dataclasses.replace(cut.n_step, branches=_BRANCHES)
      cut = dataclasses.replace(cut, n_step=n_step)
    self._preprocessor = preprocessor
    self._cut = cut
    self.name = _name(type(preprocessor))
    mode = ModeKeys.TRAIN
    self._in = _join(
      preprocessor.get_in_feature_specification(mode),
      preprocessor.get_in_label_specification(mode),
    )
    self._out = _join(
      preprocessor.get_out_feature_specification(mode),
      preprocessor.get_out_label_specification(mode),
    )
    # Without `representations`, every path counts as changed.
    self._representations = dict(getattr(preprocessor, "representations", dict)())
    self._readers: dict[frozenset[str], WindowReader] = {}
    self._flat = windows.flat_specs(self._in, cut.n_step)
    encoded = [p for p, s in self._flat.items() if specs.is_encoded_image_spec(s)]
    if encoded and not images:
      raise errors.SpecError(
        f"statistics: {self.name}: expected decoded images at "
        f"{errors.listing(map(_own, encoded))}, got images=False. Decode them: "
        "images=True, or --images."
      )

  def stored_specs(self, stored: TensorSpecStruct | None) -> TensorSpecStruct | None:
    """Returns the stored specs that the input reads; for records the input specs."""
    if stored is None:
      return TensorSpecStruct(
        (path, ExtendedTensorSpec.from_spec(spec, name=spec.name or _own(path)))
        for path, spec in self._flat.items()
      )
    named = {p: spec for p, spec in self._name_specs(stored).items() if p in self._flat}
    missing = [
      errors.Mismatch(
        path, errors.describe(spec), "nothing", errors.nearest(_own(path), stored)
      )
      for path, spec in named.items()
      if spec.name not in stored and not spec.is_optional
    ]
    if missing:
      raise errors.mismatch_error(f"statistics: {self.name}", missing)
    sources = [spec.name for spec in named.values() if spec.name in stored]
    if self._cut.n_step is not None:  # The last observations of episodes.
      sources += [p for p in map(final_path, sources) if p in stored]
    if has_seconds(self._in):
      offsets = [spec.time_offsets for spec in self._in.values()]
      clocks: list[Any] = [
        each.clock for each in offsets if isinstance(each, specs.Seconds)
      ]
      clocks.append(self._cut.clock or default_clock({}, stored))
      # Values and time stamps of other clocks: their number per episode is unknown.
      clocks += [p for p, s in stored.items() if s.shape.rank and s.shape[0] is None]
      sources += [path for path in clocks if path in stored]
    return TensorSpecStruct((source, stored[source]) for source in sources)

  def _name_specs(self, stored: Mapping[str, Any]) -> TensorSpecStruct:
    """Sets the name of each spec to the stored path that it reads, as in training."""
    named = TensorSpecStruct()
    for branch in _BRANCHES:
      leaves = {_own(p): s for p, s in self._in.items() if p.startswith(f"{branch}/")}
      sources = source_paths(leaves, stored)
      for path, spec in leaves.items():
        name = sources[path]
        named[f"{branch}/{path}"] = ExtendedTensorSpec.from_spec(spec, name=name)
    return named

  def prepare(self, source: Counted) -> None:
    """Plans the windows, so that specs that don't fit are an error before any data."""
    if not source.is_blocks and self._is_cut(source):
      self._reader(source, source.spec)

  def _is_cut(self, source: Counted) -> bool:
    """Whether episodes are cut into windows, or preprocessed as whole sequences."""
    if windows.is_windowed(self._in) or self._cut.sequence_length is not None:
      return True
    return any(
      not spec.is_sequence
      and getattr(source.spec.get(path, source.spec.get(spec.name)), "is_sequence", 0)
      for path, spec in self._name_specs(source.spec).items()
    )

  def _reader(self, source: Counted, present: Iterable[str]) -> WindowReader:
    key = frozenset(present)
    if key not in self._readers:
      element = {
        path: tf.TensorSpec([None] * spec.is_sequence + spec.shape, spec.dtype)
        for path, spec in source.spec.items()
        if path in key
      }
      cut = self._cut
      if has_seconds(self._in):
        of_steps = {p: s for p, s in source.spec.items() if p not in source.clocks}
        clock = cut.clock or default_clock(source.metadata, of_steps)
        # `to_rows` drops padded steps by their masks.
        cut = dataclasses.replace(cut, clock=clock, clocks=source.clocks, masks=True)
      self._readers[key] = WindowReader(element, self._name_specs(element), cut)
    return self._readers[key]

  def to_rows(self, values: Values, source: Counted) -> Rows:
    tensors = {path: tf.convert_to_tensor(value) for path, value in values.items()}
    starts, num_steps = np.zeros(0, np.int64), 0
    is_real: dict[str, np.ndarray] = {}
    if source.is_blocks or not self._is_cut(source):
      axes = ... if source.is_blocks else None
      batch = {path: t[axes] for path, t in self._select(tensors).items()}
    else:
      reader = self._reader(source, values)
      # A terminal transition may begin with the last row.
      num_steps = int(reader.num_rows_of(tensors, reader.num_steps(tensors)))
      starts = reader.grid.start(np.arange(reader.grid.num_windows(num_steps)))
      if not len(starts):
        return {}
      batch = dict(reader.read(tensors, starts))
      if has_seconds(self._in):
        masks = ((path, batch.get(mask_path(path))) for path in self._in)
        is_real = {path: mask.numpy() for path, mask in masks if mask is not None}
        batch = {path: value for path, value in batch.items() if path in self._in}
    inputs = [
      TensorSpecStruct((_own(p), batch[p]) for p in batch if p.startswith(f"{branch}/"))
      for branch in _BRANCHES
    ]
    results = self._preprocessor.preprocess(*inputs, ModeKeys.TRAIN)
    return {
      self._name_of(branch, path): self._out_rows(
        key := f"{branch}/{path}", value.numpy(), starts, num_steps, is_real.get(key)
      )
      for branch, result in zip(_BRANCHES, results, strict=True)
      for path, value in (result or {}).items()
    }

  def _select(self, tensors: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    named = self._name_specs(tensors)
    sources = {p: p if p in tensors else s.name for p, s in named.items()}
    return {path: tensors[s] for path, s in sources.items() if s in tensors}

  def _name_of(self, branch: str, path: str) -> str:
    """Returns the path of the statistics: with its branch if both branches have it."""
    is_shared = all(f"{each}/{path}" in self._out for each in _BRANCHES)
    return f"{branch}/{path}" if is_shared else path

  def representation(self, path: str) -> str:
    """Returns the stages that changed the values of a path."""
    for key in (path, *(f"{branch}/{path}" for branch in _BRANCHES)):
      if (declared := self._representations.get(key)) is not None:
        return declared
    return type(self._preprocessor).__name__

  def _out_rows(
    self,
    path: str,
    value: np.ndarray,
    starts: np.ndarray,
    num_steps: int,
    is_real: np.ndarray | None,
  ) -> tuple[ExtendedTensorSpec, np.ndarray]:
    spec = self._out.get(path)
    lead = 1
    if spec is not None:
      lead += spec.is_sequence + spec.is_stacked
    rows = value.reshape(-1, *value.shape[lead:])
    if is_real is not None and is_real.shape == value.shape[:lead]:
      rows = rows[is_real.reshape(-1)]
    elif spec is not None and len(starts) and is_real is None:
      steps = starts
      if spec.is_sequence and self._cut.sequence_length is not None:
        stacks = self._cut.stride * np.arange(self._cut.sequence_length)
        steps = steps[:, None] + stacks
      if spec.time_offsets not in (None, "last"):
        offsets = np.asarray(spec.time_offsets)
        steps = steps.reshape(*steps.shape, *[1] * offsets.ndim) + offsets
      if steps.shape == value.shape[:lead]:
        rows = rows[((steps >= 0) & (steps < num_steps)).reshape(-1)]
    return _row_spec(spec, rows), rows


def _own(path: str) -> str:
  """Returns a path without its branch, 'features' or 'labels'."""
  return path.partition("/")[2]


def _join(features: Any, labels: Any) -> TensorSpecStruct:
  """Puts specs below 'features/' and 'labels/'."""
  return TensorSpecStruct(
    (f"{branch}/{path}", ExtendedTensorSpec.to_spec(spec))
    for branch, structure in zip(_BRANCHES, (features, labels), strict=True)
    for path, spec in specs.flatten_spec_structure(structure or {}).items()
  )


def create_transform(
  transform: Any, images: bool, cut: windows.Cut | None = None
) -> Transform:
  """Wraps a user's transform.

  Args:
    transform: None, a function of an episode, a preprocessor, a model or its class, or
      'module:name' of one of these.
    images: whether encoded images are decoded.
    cut: cut of the windows of a preprocessor; None for `windows.Cut()`, with a model's
      padding.
  Raises:
    SpecError: the transform is invalid, needs decoded images, or has no use for `cut`.
  """
  if isinstance(transform, str):
    transform = _import(transform)
  if inspect.isclass(transform) and hasattr(transform, "step_preprocessor"):
    transform = transform()  # The class of a model.
  is_instance = not inspect.isclass(transform)
  if is_instance and hasattr(transform, "step_preprocessor"):
    cut = cut or windows.Cut(padding=transform.padding)
    transform = transform.step_preprocessor.before_normalization()
  if is_instance and hasattr(transform, "preprocess"):
    return PreprocessorTransform(transform, images, cut or windows.Cut())
  if cut is not None:
    raise errors.SpecError(
      "statistics: cut: expected None, as only a preprocessor or a model sees windows, "
      f"got {cut}. Give one of them as the transform."
    )
  if transform is None:
    return Transform()
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


def _as_rows(value: np.ndarray, source: Counted, path: str) -> np.ndarray:
  """Adds the axis of rows to stored context features; other values have it."""
  spec = source.spec.get(path)
  is_context = not source.is_blocks and spec is not None and not spec.is_sequence
  return value[None] if is_context else value


def _row_spec(spec: ExtendedTensorSpec | None, rows: np.ndarray) -> ExtendedTensorSpec:
  """Returns the spec of a row; keeps the fields of the given spec that still fit."""
  dtype = tf.string if rows.dtype.kind in "SUO" else tf.as_dtype(rows.dtype)
  if spec is None:
    return ExtendedTensorSpec(rows.shape[1:], dtype, is_sequence=True)
  is_same = spec.time_offsets is None and spec.dtype == dtype
  if is_same and spec.shape.is_compatible_with(rows.shape[1:]):
    return ExtendedTensorSpec.from_spec(spec, shape=rows.shape[1:])
  if spec.dtype.is_integer and dtype == tf.string:
    return spec  # An encoded image.
  is_sequence = spec.is_sequence or spec.time_offsets is not None
  is_alike = spec.frame_shape.is_compatible_with(rows.shape[1:])
  return ExtendedTensorSpec(
    rows.shape[1:],
    dtype,
    spec.name,
    is_sequence=is_sequence,
    convention=spec.convention if is_alike else None,
  )


def _name(function: Any) -> str:
  module = getattr(function, "__module__", "")
  return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"
