"""An export that learns tasks, looked at in one task: that of the episode itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct

Arrays = dict[str, np.ndarray]
_FEATURES, _LABELS = "condition/features/", "condition/labels/"
_INFERENCE = "inference/features/"
# Samples that a task is learned from, where a model takes any number of them.
_SAMPLES = 8


class OneTask:
  """What a model of tasks is given of an episode, and asked about it.

  A task is learned from windows of the episode itself, at even distances from its
  start to its end: whether this is a good demonstration is not asked here.

  Attributes:
    feature_spec: the raw features that a step sees, by path.
    label_spec: the labels that a task is learned from, by path.
    is_searched: whether the model is asked about candidates, of which data has none.
  """

  def __init__(
    self,
    adaptation_spec: Mapping[str, ExtendedTensorSpec],
    feature_spec: Mapping[str, ExtendedTensorSpec],
    time_offsets: Mapping[str, Any] | None = None,
  ) -> None:
    """Looks at the specs of an export.

    Args:
      adaptation_spec: of `get_adaptation_specification`.
      feature_spec: of `get_feature_specification`: of whole tasks, and of a step.
      time_offsets: those of stacks, by path of the adaptation's specs.
    Raises:
      SpecError: a sample is no window, but a sequence.
    """
    found = []
    for path, spec in adaptation_spec.items():
      name = path.removeprefix(_FEATURES)
      if not spec.shape[1:].is_fully_defined():
        found.append(errors.Mismatch(path, "samples of one window each", "sequences"))
      elif path.startswith(_FEATURES) and name not in feature_spec:
        found.append(errors.Mismatch(path, "all samples together", "numbered ones"))
    if found:
      raise errors.mismatch_error("learn a task of an episode", found)
    self._spec = adaptation_spec
    self.feature_spec = TensorSpecStruct(
      # Of an export all that only a step is given is optional.
      (name, ExtendedTensorSpec.from_spec(feature_spec[name], is_optional=False))
      for path in adaptation_spec
      for name in [path.removeprefix(_FEATURES)]
      if path.startswith(_FEATURES)
    )
    self.is_searched = any(
      adaptation_spec[_FEATURES + path].shape[1:] != inferred.shape[1:]
      for path in self.feature_spec
      if (inferred := feature_spec.get(_INFERENCE + path)) is not None
    )
    self.label_spec = TensorSpecStruct()
    for path, spec in adaptation_spec.items():
      if path.startswith(_LABELS):
        label = path.removeprefix(_LABELS)
        self.label_spec[label] = ExtendedTensorSpec.from_spec(
          spec,
          shape=spec.shape[1:],
          name=(spec.name or label).removeprefix("condition_labels/"),
          time_offsets=(time_offsets or {}).get(path, 0),
        )

  @classmethod
  def of(cls, predictor: Any) -> OneTask | None:
    """Returns what a predictor's model is given; None of a model that learns none."""
    spec = predictor.get_adaptation_specification()
    if not spec:
      return None
    record = predictor.get_policy_record()
    offsets = None if record is None else record.adaptation_offsets
    return cls(spec, predictor.get_feature_specification(), offsets)

  def condition(
    self, features: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]
  ) -> Arrays:
    """Returns what the task is learned from, [1, samples, ...].

    Args:
      features: windows of an episode, by path, [n, ...], n > 0.
      labels: theirs.
    """
    found = {}
    for path, spec in self._spec.items():
      source = labels if path.startswith(_LABELS) else features
      values = source[path.removeprefix(_LABELS).removeprefix(_FEATURES)]
      rows = np.linspace(0, len(values) - 1, spec.shape[0] or _SAMPLES).astype(int)
      found[path] = values[rows][np.newaxis]
    return found

  def predict(
    self,
    predict: Callable[[Any], Arrays],
    condition: Mapping[str, np.ndarray],
    features: Mapping[str, np.ndarray],
  ) -> Arrays:
    """Returns what a model says of windows once it has learned the task, [n, ...].

    Of a model that is asked about candidates nothing.

    Args:
      predict: of the model.
      condition: see there.
      features: windows by path, [n, ...].
    """
    if self.is_searched:
      return {}
    count = len(next(iter(features.values())))
    asked = {f"{_INFERENCE}{p}": features[p][np.newaxis] for p in self.feature_spec}
    said = predict({**condition, **asked})
    return {
      name: value[0] for name, value in said.items() if value.shape[:2] == (1, count)
    }
