"""Converts data to the conventions of the model, and its outputs back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import gin
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.episodes import open_episodes
from t2r_seq.preprocessors.abstract_preprocessor import (
  AbstractPreprocessor,
  ComposedPreprocessor,
  SpecificationFn,
  SpecTransformationPreprocessor,
  specs_of_all_modes,
)
from t2r_seq.preprocessors.tpu_preprocessor_wrapper import TPUPreprocessorWrapper
from t2r_seq.specs import Convention, Converter, ExtendedTensorSpec
from t2r_seq.specs.conventions import reference_path, rotation_size

FEATURES, LABELS = "features", "labels"
_KINDS = (FEATURES, LABELS)
_Stage = TypeVar("_Stage", bound=AbstractPreprocessor)


@gin.configurable
class ConvertConventions(SpecTransformationPreprocessor):
  """Converts values from the data's conventions to those of the model's specs.

  It converts rotations, units, grippers, channels, the order of named elements, and
  relative actions, which refer to the state at the anchor. Its in specs are the data's.
  An export has the stage, and converts the model's outputs back: see `restore_outputs`.
  Put it before `Normalize`.
  """

  def __init__(
    self,
    model_feature_specification_fn: SpecificationFn | None = None,
    model_label_specification_fn: SpecificationFn | None = None,
    data: Mapping[str, Any] | str | os.PathLike[str] | None = None,
  ) -> None:
    """Plans the conversions.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
      data: the data's conventions, or their fields, by path or name of a spec; or the
        path of a data set that declares them. None changes nothing.
    Raises:
      SpecError: `data` names no path of the specs, or is a data set that cannot be
        opened; a conversion is not possible, or its state is not a feature.
    """
    super().__init__(model_feature_specification_fn, model_label_specification_fn)
    is_path = isinstance(data, (str, os.PathLike))
    if isinstance(data, (str, os.PathLike)):
      stored = open_episodes(data).spec.items()
      data = {path: spec.convention for path, spec in stored if spec.convention}
    self._data = {path: Convention.of(each) for path, each in (data or {}).items()}
    self._specs = {
      FEATURES: specs_of_all_modes(model_feature_specification_fn),
      LABELS: specs_of_all_modes(model_label_specification_fn),
    }
    self._converters: dict[str, dict[str, Converter]] = {kind: {} for kind in _KINDS}
    used: set[str] = set()
    for kind in _KINDS:
      for path, spec in self._specs[kind].items():
        used |= {*self._keys(path, spec)}
        converter = self._plan(kind, path, ExtendedTensorSpec.to_spec(spec))
        if converter is not None and converter.changes:
          self._converters[kind][path] = converter
    unknown = [] if is_path else sorted({*self._data} - used)
    if unknown:
      paths = errors.listing(path for each in self._specs.values() for path in each)
      raise errors.SpecError(
        f"ConvertConventions: data: expected paths of {paths}, got '{unknown[0]}'."
      )

  def _keys(self, path: str, spec: Any) -> list[str]:
    """Returns which of a spec's path and name the data's conventions have."""
    return [key for key in (path, getattr(spec, "name", None)) if key in self._data]

  def _declared_convention(self, path: str, spec: Any) -> tuple[Convention | None, int]:
    """Returns the convention of the data that a spec reads, and its last size."""
    spec = ExtendedTensorSpec.to_spec(spec)
    model = spec.convention
    keys = self._keys(path, spec)
    data = self._data[keys[0]] if keys else None
    size = int(spec.shape[-1] or 0) if spec.shape.rank else 0
    if data is None or model is None or data.channels or model.channels:
      return data, size
    return data, size + rotation_size(data) - rotation_size(model)

  def _plan(self, kind: str, path: str, spec: ExtendedTensorSpec) -> Converter | None:
    where = f"ConvertConventions: {kind}/{path}"
    data, size = self._declared_convention(path, spec)
    model = spec.convention
    if not spec.shape.rank or (data is None and model is None):
      return None
    model_size = int(spec.shape[-1] or 0)
    state = None
    name = reference_path(model, model_size) or reference_path(data, size)
    if name is not None:
      state_path = self._find_state(where, name)
      state = self._declared_convention(state_path, self._specs[FEATURES][state_path])
    converter = Converter(data, model, size, model_size, where, state)
    converter.warn()
    if converter.needs_chunk and spec.time_offsets not in (None, 0):
      offsets = spec.time_offsets
      if not isinstance(offsets, tuple) or offsets[0] != 0:
        raise errors.SpecError(
          f"{where}: expected time offsets from 0 on for actions that are relative to "
          f"the last step, got {offsets}."
        )
    return converter

  def _find_state(self, where: str, name: str) -> str:
    features = self._specs[FEATURES]
    named = [p for p, s in features.items() if getattr(s, "name", None) == name]
    path = name if name in features else next(iter(named), None)
    if path is None:
      raise errors.SpecError(
        f"{where}: reference: expected the path of a feature, got '{name}'."
        f"{errors.nearest(name, features)} There is {errors.listing(features)}."
      )
    offsets = getattr(features[path], "time_offsets", None)
    if offsets not in (None, 0) and not (isinstance(offsets, tuple) and 0 in offsets):
      raise errors.SpecError(
        f"{where}: reference: {path}: expected time offsets with the present step, 0, "
        f"got {offsets}."
      )
    return path

  def _transform_in_feature_specification(
    self, tensor_spec_struct: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    return self._as_data(tensor_spec_struct, FEATURES)

  def _transform_in_label_specification(
    self, tensor_spec_struct: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    return self._as_data(tensor_spec_struct, LABELS)

  def _as_data(
    self, tensor_spec_struct: specs.TensorSpecStruct, kind: str
  ) -> specs.TensorSpecStruct:
    for path, converter in self._converters[kind].items():
      if path in tensor_spec_struct:
        shape = tensor_spec_struct[path].shape.as_list()
        self.update_spec(
          tensor_spec_struct,
          path,
          shape=[*shape[:-1], converter.size],
          convention=converter.source,
        )
    return tensor_spec_struct

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    del mode
    # Before any conversion, because a state may be converted, too.
    states = {
      (kind, path): self._state(converter, kind, path, features)
      for kind in _KINDS
      for path, converter in self._converters[kind].items()
    }
    for kind, structure in ((FEATURES, features), (LABELS, labels)):
      for path, converter in self._converters[kind].items():
        if structure is not None and structure.get(path) is not None:
          structure[path] = self._convert(
            converter, kind, path, structure[path], states[kind, path]
          )
    return features, labels

  def _state(
    self, converter: Converter, kind: str, path: str, features: Any
  ) -> tf.Tensor | None:
    """Returns the state at the anchor that a path refers to, [..., size]."""
    if converter.reference is None:
      return None
    name = self._find_state(f"{kind}/{path}", converter.reference)
    values = tf.convert_to_tensor(features[name])
    offsets = getattr(self._specs[FEATURES][name], "time_offsets", None)
    if isinstance(offsets, tuple):
      values = values[..., offsets.index(0), :]
    return tf.cast(values, self._specs[kind][path].dtype)

  def _convert(
    self, converter: Converter, kind: str, path: str, values: Any, state: Any
  ) -> tf.Tensor:
    spec = self._specs[kind][path]
    has_steps = isinstance(getattr(spec, "time_offsets", None), tuple)
    return converter(tf.convert_to_tensor(values), state, has_steps)

  def restore(
    self, path: str, values: Any, features: Any, kind: str = LABELS
  ) -> tf.Tensor:
    """Converts a model output, such as a predicted action, to the data's convention.

    Returns it unchanged if the path needs no conversion.

    Args:
      path: path of the label or feature.
      values: numbers in the convention of the model, [..., size].
      features: raw features by path, as `preprocess` takes them.
      kind: 'labels' or 'features'.
    """
    converter = self._converters[kind].get(path)
    if converter is None:
      return values
    state = self._state(converter, kind, path, features)
    return self._convert(converter.inverse(), kind, path, values, state)


def restore_outputs(
  preprocessor: AbstractPreprocessor,
  features: Any,
  outputs: Mapping[str, tf.Tensor],
  labels: Mapping[str, str],
) -> dict[str, tf.Tensor]:
  """Converts the outputs of a model to the conventions of the data.

  An export does it after `create_export_outputs_fn`.

  Args:
    preprocessor: any preprocessor; stages other than `ConvertConventions` are skipped.
    features: raw features by path, as the preprocessor takes them.
    outputs: outputs of the model by name.
    labels: paths of the labels that outputs predict, by name of the output.
  Returns:
    All outputs by name.
  """
  flat = specs.flatten_spec_structure(features)
  restored = dict(outputs)
  for stage in reversed([*stages_of(preprocessor, ConvertConventions)]):
    for name, path in labels.items():
      if name in restored:
        restored[name] = stage.restore(path, restored[name], flat)
  return restored


def stages_of(
  preprocessor: AbstractPreprocessor, kind: type[_Stage]
) -> Iterator[_Stage]:
  """Yields the stages of a preprocessor that are instances of a class."""
  if isinstance(preprocessor, kind):
    yield preprocessor
  elif isinstance(preprocessor, TPUPreprocessorWrapper):
    yield from stages_of(preprocessor.preprocessor, kind)
  elif isinstance(preprocessor, ComposedPreprocessor):
    for stage in preprocessor.stages:
      yield from stages_of(stage, kind)
