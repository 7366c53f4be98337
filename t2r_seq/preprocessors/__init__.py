"""Preprocessors: from the specs of the stored data to the specs of the model."""

from t2r_seq.preprocessors.abstract_preprocessor import AbstractPreprocessor
from t2r_seq.preprocessors.composed_preprocessor import ComposedPreprocessor
from t2r_seq.preprocessors.image_to_float_preprocessor import ImageToFloatPreprocessor
from t2r_seq.preprocessors.noop_preprocessor import NoOpPreprocessor
from t2r_seq.preprocessors.normalize import Normalize
from t2r_seq.preprocessors.spec_transformation_preprocessor import (
  SpecTransformationPreprocessor,
)
from t2r_seq.preprocessors.unnormalize import unnormalize

__all__ = [
  "AbstractPreprocessor",
  "ComposedPreprocessor",
  "ImageToFloatPreprocessor",
  "NoOpPreprocessor",
  "Normalize",
  "SpecTransformationPreprocessor",
  "unnormalize",
]
