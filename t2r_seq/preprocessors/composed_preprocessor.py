"""A chain of preprocessors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin

from t2r_seq import errors
from t2r_seq.preprocessors import abstract_preprocessor, seams

PreprocessorFactory = Callable[..., abstract_preprocessor.AbstractPreprocessor]


@gin.configurable
class ComposedPreprocessor(abstract_preprocessor.AbstractPreprocessor):
  """Runs preprocessors one after the other, in the order of the list.

  The first of the list takes the data as stored, the last gives what the model
  takes. Each is built with the in specs of its successor as its "model", the last one
  with the model's own specs, so that what does not meet fails at construction.
  """

  def __init__(
    self,
    model_feature_specification_fn: seams.SpecificationFn | None = None,
    model_label_specification_fn: seams.SpecificationFn | None = None,
    preprocessor_classes: Sequence[PreprocessorFactory] = (),
  ) -> None:
    """Creates the chain.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
      preprocessor_classes: one or more, from the stored data to the model.
    Raises:
      SpecError: the list is empty, or a stage does not give what its successor takes;
        names the stage and every path.
    """
    super().__init__(model_feature_specification_fn, model_label_specification_fn)
    if not preprocessor_classes:
      raise errors.SpecError(
        "ComposedPreprocessor: preprocessor_classes: expected at least one, got none."
      )
    stages: list[abstract_preprocessor.AbstractPreprocessor] = []
    feature_fn, label_fn = model_feature_specification_fn, model_label_specification_fn
    for index in reversed(range(len(preprocessor_classes))):
      stage = _create_stage(preprocessor_classes, index, feature_fn, label_fn)
      feature_fn = stage.get_in_feature_specification
      label_fn = stage.get_in_label_specification
      stages.insert(0, stage)
    self._stages = tuple(stages)

  @property
  def stages(self) -> tuple[abstract_preprocessor.AbstractPreprocessor, ...]:
    """The preprocessors, in the order in which they run."""
    return self._stages

  def get_in_feature_specification(self, mode: str) -> Any:
    """Returns the in feature specs of the first stage."""
    return self._stages[0].get_in_feature_specification(mode)

  def get_in_label_specification(self, mode: str) -> Any:
    """Returns the in label specs of the first stage."""
    return self._stages[0].get_in_label_specification(mode)

  def get_out_feature_specification(self, mode: str) -> Any:
    """Returns the out feature specs of the last stage."""
    return self._stages[-1].get_out_feature_specification(mode)

  def get_out_label_specification(self, mode: str) -> Any:
    """Returns the out label specs of the last stage."""
    return self._stages[-1].get_out_label_specification(mode)

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    for stage in self._stages:
      features, labels = stage.preprocess(features, labels, mode)
    return features, labels


def _create_stage(
  preprocessor_classes: Sequence[PreprocessorFactory],
  index: int,
  feature_fn: seams.SpecificationFn | None,
  label_fn: seams.SpecificationFn | None,
) -> abstract_preprocessor.AbstractPreprocessor:
  """Builds a stage; checks it even if it did not tell its base of its successor."""
  factory = preprocessor_classes[index]
  name = getattr(factory, "__name__", str(factory))
  where = f"ComposedPreprocessor: stage {index + 1} of {len(preprocessor_classes)}"
  try:
    stage = factory(
      model_feature_specification_fn=feature_fn, model_label_specification_fn=label_fn
    )
  except errors.SpecError as e:
    raise errors.SpecError(f"{where}: {e}") from e
  mismatches = seams.find_mismatches(
    "features", feature_fn, stage.get_out_feature_specification
  ) + seams.find_mismatches("labels", label_fn, stage.get_out_label_specification)
  if mismatches:
    raise errors.mismatch_error(
      f"{where}: {name}: the out specs do not meet its successor's", mismatches
    )
  return stage
