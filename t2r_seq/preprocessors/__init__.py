"""Preprocessors: convert stored batches to the model's batches."""

from t2r_seq.preprocessors import distortion, image_transformations
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
  ImageTransform,
  RandomCrop,
  RandomFlip,
  RandomShift,
  Resize,
)
from t2r_seq.preprocessors.convert_conventions import (
  ConvertConventions,
  restore_outputs,
)
from t2r_seq.preprocessors.normalize import Normalize, unnormalize
from t2r_seq.preprocessors.text_preprocessor import HashedTextPreprocessor
from t2r_seq.preprocessors.tpu_preprocessor_wrapper import TPUPreprocessorWrapper

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
  "ImageTransform",
  "NoOpPreprocessor",
  "Normalize",
  "RandomCrop",
  "RandomFlip",
  "RandomShift",
  "Resize",
  "SpecTransformationPreprocessor",
  "TPUPreprocessorWrapper",
  "distortion",
  "image_transformations",
  "restore_outputs",
  "unnormalize",
]
