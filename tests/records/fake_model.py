"""A model that an input generator takes its specs from."""

from __future__ import annotations

from t2r_seq import preprocessors, specs


class Model:
  """What an input generator asks of a model."""

  padding = "drop"

  def __init__(self, flat: specs.TensorSpecStruct) -> None:
    self.preprocessor = preprocessors.NoOpPreprocessor(
      lambda mode: flat, lambda mode: specs.TensorSpecStruct()
    )
