"""Preprocessors: from the specs of the stored data to the specs of the model."""

from t2r_seq.preprocessors.abstract_preprocessor import (
  AbstractPreprocessor,
  ComposedPreprocessor,
  NoOpPreprocessor,
)
from t2r_seq.preprocessors.image_to_float_preprocessor import (
  ImageToFloatPreprocessor,
  SpecTransformationPreprocessor,
)
from t2r_seq.preprocessors.normalize import Normalize, unnormalize

__all__ = [
  "AbstractPreprocessor",
  "ComposedPreprocessor",
  "ImageToFloatPreprocessor",
  "NoOpPreprocessor",
  "Normalize",
  "SpecTransformationPreprocessor",
  "unnormalize",
]
