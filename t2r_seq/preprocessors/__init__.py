"""Preprocessors: convert stored batches to the model's batches."""

from t2r_seq.preprocessors import distortion as _distortion
from t2r_seq.preprocessors import image_transformations as _image_transformations
from t2r_seq.preprocessors.abstract_preprocessor import (
  AbstractPreprocessor,
  ComposedPreprocessor,
  NoOpPreprocessor,
  SpecTransformationPreprocessor,
)
from t2r_seq.preprocessors.augmentation_preprocessor import (
  AugmentationPreprocessor,
  ImageToFloatPreprocessor,
)
from t2r_seq.preprocessors.augmentations import (
  CenterCrop,
  ColorJitter,
  CustomCrop,
  Cutout,
  DepthNoise,
  GaussianBlur,
  GaussianNoise,
  RandomCrop,
  RandomFlip,
  RandomShift,
  Resize,
)
from t2r_seq.preprocessors.convert_conventions import ConvertConventions
from t2r_seq.preprocessors.normalize import Normalize, unnormalize
from t2r_seq.preprocessors.text_preprocessor import HashedTextPreprocessor
from t2r_seq.preprocessors.tpu_preprocessor_wrapper import TPUPreprocessorWrapper

# Imported so that gin finds their functions by name.
_GIN_MODULES = (
  _distortion,
  _image_transformations,
)

__all__ = [
  "AbstractPreprocessor",
  "AugmentationPreprocessor",
  "CenterCrop",
  "ColorJitter",
  "ComposedPreprocessor",
  "ConvertConventions",
  "CustomCrop",
  "Cutout",
  "DepthNoise",
  "GaussianBlur",
  "GaussianNoise",
  "HashedTextPreprocessor",
  "ImageToFloatPreprocessor",
  "NoOpPreprocessor",
  "Normalize",
  "RandomCrop",
  "RandomFlip",
  "RandomShift",
  "Resize",
  "SpecTransformationPreprocessor",
  "TPUPreprocessorWrapper",
  "unnormalize",
]
