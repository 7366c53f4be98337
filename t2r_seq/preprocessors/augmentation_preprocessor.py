"""Preprocessors of images: conversion to floats, and augmentation."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, randomness, specs
from t2r_seq.preprocessors import augmentations
from t2r_seq.preprocessors.abstract_preprocessor import (
  Representations,
  SpecificationFn,
  SpecTransformationPreprocessor,
  specs_of_all_modes,
)
from t2r_seq.specs.names import IMAGE_FORMATS

Images = dict[str, tf.Tensor]


@gin.configurable
class ImageToFloatPreprocessor(SpecTransformationPreprocessor):
  """Converts the images among the features from integers to floats in [0, 1].

  The model declares floating point images. Records, shuffle buffers and robots have
  integers.
  """

  def __init__(
    self,
    model_feature_specification_fn: SpecificationFn | None = None,
    model_label_specification_fn: SpecificationFn | None = None,
    image_paths: Iterable[str] | None = None,
    stored_dtype: Any = tf.uint8,
  ) -> None:
    """Creates the preprocessor.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
      image_paths: paths of the features to convert; None: all floating point features
        with the data_format of an image.
      stored_dtype: dtype of the stored images: uint8, or uint16 (png).
    Raises:
      SpecError: no feature is such an image, one of `image_paths` is missing or not
        floating point, or `stored_dtype` has another value.
    """
    super().__init__(model_feature_specification_fn, model_label_specification_fn)
    self._image_paths = None if image_paths is None else tuple(image_paths)
    self._stored_dtype = tf.as_dtype(stored_dtype)
    if self._stored_dtype not in (tf.uint8, tf.uint16):
      raise errors.SpecError(
        "ImageToFloatPreprocessor: stored_dtype: expected uint8 or uint16, got "
        f"{self._stored_dtype.name}."
      )

  def check_specifications(self) -> None:
    """Checks also that there are images to convert, and that they are floats."""
    features = specs_of_all_modes(self.get_out_feature_specification)
    if self._image_paths is not None:
      self._check_image_paths(features)
    if not any(self._is_converted(path, spec) for path, spec in features.items()):
      raise errors.SpecError(
        "ImageToFloatPreprocessor: features: expected a floating point image with a "
        f"data_format of {errors.listing(IMAGE_FORMATS)}, got "
        f"{errors.listing(features)}. Name the image_paths, or use NoOpPreprocessor."
      )
    super().check_specifications()

  def _check_image_paths(self, features: dict[str, Any]) -> None:
    mismatches = []
    for path in self._image_paths or ():
      spec = features.get(path)
      if spec is None:
        hint = errors.nearest(path, features).strip()
        mismatches.append(errors.Mismatch(path, "a feature", "nothing", hint))
      elif not spec.dtype.is_floating:
        got = errors.describe(spec)
        mismatches.append(errors.Mismatch(path, "a floating point dtype", got))
    if mismatches:
      raise errors.mismatch_error("ImageToFloatPreprocessor: image_paths", mismatches)

  def _is_converted(self, path: str, spec: Any) -> bool:
    if self._image_paths is not None:
      return path in self._image_paths
    return spec.dtype.is_floating and specs.is_encoded_image_spec(spec)

  def _transform_in_feature_specification(
    self, tensor_spec_struct: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    for path, spec in list(tensor_spec_struct.items()):
      if self._is_converted(path, spec):
        self.update_spec(tensor_spec_struct, path, dtype=self._stored_dtype)
    return tensor_spec_struct

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    for path, spec in self.get_out_feature_specification(mode).items():
      if self._is_converted(path, spec) and features.get(path) is not None:
        features[path] = tf.image.convert_image_dtype(features[path], spec.dtype)
    return features, labels


@gin.configurable
class AugmentationPreprocessor(SpecTransformationPreprocessor):
  """Augments the images among the features by a list of transforms.

  Modes other than 'train' get the `standard` version of each transform. All frames of
  one image of a sample share random numbers, also those in labels whose specs have its
  name, such as `next_image` of `image`. The numbers depend on the seed and the sample's
  number: a resumed run, or another number of workers, trains on the same pixels. Images
  are converted from the stored dtype to the model's.
  """

  def __init__(
    self,
    model_feature_specification_fn: SpecificationFn | None = None,
    model_label_specification_fn: SpecificationFn | None = None,
    transforms: Sequence[augmentations.ImageTransform] = (),
    input_size: Sequence[int] | None = None,
    image_paths: Iterable[str] | None = None,
    stored_dtype: Any = tf.uint8,
    share_cameras: bool = False,
    camera_dropout: float = 0.0,
    seed: int = 0,
  ) -> None:
    """Creates the preprocessor.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
      transforms: transforms in order, from the stored image to the model's.
      input_size: height and width of the stored images, if not the model's.
      image_paths: patterns of the paths of features ('state/*'); None: those with the
        data_format of an image.
      stored_dtype: dtype of the stored images; None for the model's.
      share_cameras: whether all images of a sample share random numbers.
      camera_dropout: probability that all frames of an image are black; at least one
        image remains.
      seed: seed of the random numbers.
    Raises:
      SpecError: the transforms do not lead to the model's images, no feature is an
        image, a pattern matches no feature, or an argument is invalid.
    """
    super().__init__(model_feature_specification_fn, model_label_specification_fn)
    self._transforms = tuple(transforms)
    self._input_size = (
      None
      if input_size is None
      else augmentations.check_size("AugmentationPreprocessor: input_size", input_size)
    )
    self._image_paths = None if image_paths is None else tuple(image_paths)
    self._stored_dtype = None if stored_dtype is None else tf.as_dtype(stored_dtype)
    self._share_cameras = share_cameras
    self._camera_dropout = augmentations.check_number(
      "AugmentationPreprocessor: camera_dropout", camera_dropout
    )
    self._seed = seed

  def check_specifications(self) -> None:
    """Checks also that the transforms lead to the model's images."""
    wrong = [
      t for t in self._transforms if not isinstance(t, augmentations.ImageTransform)
    ]
    if wrong:
      raise errors.SpecError(
        "AugmentationPreprocessor: transforms: expected ImageTransforms, got "
        f"{wrong[0]!r}. In gin, make them: @RandomCrop(), with the parentheses."
      )
    features = specs_of_all_modes(self.get_out_feature_specification)
    images = self._images(features)
    unused = [
      pattern
      for pattern in self._image_paths or ()
      if not fnmatch.filter(features, pattern)
    ]
    if not images or unused:
      raise errors.SpecError(
        f"AugmentationPreprocessor: image_paths: expected images among the features "
        f"{errors.listing(features)}, got {unused or 'none with a data_format'}."
        f"{errors.nearest(unused[0], features) if unused else ' Name the image_paths.'}"
      )
    with_labels = dict(images)
    for mode in specs.ModeKeys.ALL:
      labels = self.get_out_label_specification(mode)
      for path in self._labels_by_name(labels, images):
        with_labels[f"labels/{path}"] = labels[path]
    checked = [self._check_image(path, spec) for path, spec in with_labels.items()]
    if mismatches := [mismatch for mismatch in checked if mismatch]:
      raise errors.mismatch_error("AugmentationPreprocessor", mismatches)
    super().check_specifications()

  def _check_image(self, path: str, spec: Any) -> errors.Mismatch | None:
    """Returns how the transforms miss the model's image, or None."""
    if spec.shape.rank < 3 or not spec.shape[-3:].is_fully_defined():
      return errors.Mismatch(
        path, "[..., height, width, channels]", errors.describe(spec)
      )
    expected = tuple(spec.shape[-3:-1])
    size: augmentations.Size = self._input_size or expected
    for transform in self._transforms:
      transform.check_channels(spec.shape[-1])
      size = transform.output_size(size)
    if size == expected:
      return None
    hint = "Transforms are listed from the stored image to the model's."
    got = f"{size} of the transforms"
    return errors.Mismatch(path, f"images of {expected}, the model's", got, hint)

  def _is_image(self, path: str, spec: Any) -> bool:
    if self._image_paths is None:
      return specs.is_encoded_image_spec(spec)
    return any(fnmatch.fnmatchcase(path, p) for p in self._image_paths)

  def get_in_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the model's label specs; images of feature cameras as stored."""
    labels = self.get_out_label_specification(mode)
    images = self._images(self.get_out_feature_specification(mode))
    for path in self._labels_by_name(labels, images):
      self._store_image(labels, path)
    return labels

  def _transform_in_feature_specification(
    self, tensor_spec_struct: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    for path in self._images(tensor_spec_struct):
      self._store_image(tensor_spec_struct, path)
    return tensor_spec_struct

  def _store_image(self, structure: specs.TensorSpecStruct, path: str) -> None:
    spec = structure[path]
    size = self._input_size or spec.shape[-3:-1]
    shape = [*spec.shape[:-3], *size, spec.shape[-1]]
    dtype = self._stored_dtype or spec.dtype
    self.update_spec(structure, path, shape=shape, dtype=dtype)

  def _images(self, features: Mapping[str, Any]) -> dict[str, Any]:
    return {path: s for path, s in features.items() if self._is_image(path, s)}

  def _labels_by_name(
    self, labels: Mapping[str, Any], images: Mapping[str, Any]
  ) -> dict[str, str]:
    """Returns the path of the feature of the same camera, for labels that have one."""
    by_name = {spec.name: path for path, spec in images.items() if spec.name}
    return {p: by_name[spec.name] for p, spec in labels.items() if spec.name in by_name}

  def representations(self, before: Representations | None = None) -> Representations:
    """Marks images whose dtype, and so range of values, changes.

    Cropping and random augmentation keep the representation.
    """
    representations, name = dict(before or {}), type(self).__name__
    changed: set[str] = set()
    for mode in specs.ModeKeys.ALL:
      images = self._images(self.get_out_feature_specification(mode))
      labels = self.get_out_label_specification(mode)
      frames = {path: labels[path] for path in self._labels_by_name(labels, images)}
      for branch, out, given in (
        ("features", images, self.get_in_feature_specification(mode)),
        ("labels", frames, self.get_in_label_specification(mode)),
      ):
        changed |= {
          f"{branch}/{path}" for path in out if out[path].dtype != given[path].dtype
        }
    for key in changed:
      representations[key] = (
        f"{representations[key]} > {name}" if representations.get(key) else name
      )
    return representations

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    expected = {
      path: spec
      for path, spec in self._images(self.get_out_feature_specification(mode)).items()
      if features.get(path) is not None
    }
    # For each camera: its feature and its labels. Their frames are joined, because all
    # frames of a sample share their random numbers.
    places = {path: [(features, path)] for path in expected}
    label_spec = self.get_out_label_specification(mode) if labels is not None else {}
    for path, camera in self._labels_by_name(label_spec, expected).items():
      if labels.get(path) is not None:
        places[camera].append((labels, path))
    given = {
      camera: [tf.convert_to_tensor(batch[path]) for batch, path in together]
      for camera, together in places.items()
    }
    frames = {path: [_by_frames(image) for image in given[path]] for path in given}
    images = {path: tf.concat(parts, axis=1) for path, parts in frames.items()}
    if mode == specs.ModeKeys.TRAIN and images:
      outputs = self._augment_all(images, expected)
    else:
      outputs = {path: self._standard(images[path], expected[path]) for path in images}
    for camera, joined in outputs.items():
      counts = [tf.shape(part)[1] for part in frames[camera]]
      tail = expected[camera].shape[-3:]
      parts = tf.split(joined, counts, axis=1)
      for (batch, path), image, part in zip(
        places[camera], given[camera], parts, strict=True
      ):
        shape = tf.concat([tf.shape(image)[:-3], tail], axis=0)
        static = image.shape[:-3].concatenate(tail)
        batch[path] = tf.ensure_shape(tf.reshape(part, shape), static)
    return features, labels

  def _augment_all(self, images: Images, expected: dict[str, Any]) -> Images:
    batch_size = tf.shape(next(iter(images.values())))[0]
    random = randomness.of_samples(batch_size, self._seed)
    if not randomness.is_on_host():
      return self._augment(images, expected, random)

    # One sample fits the CPU cache; the intermediate results of a batch do not.
    def augment_one(inputs: tuple[tf.Tensor, Images]) -> Images:
      number, frames = inputs
      batch = {path: image[tf.newaxis] for path, image in frames.items()}
      one = randomness.RandomNumbers(number[tf.newaxis], self._seed)
      return {path: i[0] for path, i in self._augment(batch, expected, one).items()}

    signature = {
      path: tf.TensorSpec(
        [image.shape[1], *expected[path].shape[-3:]], expected[path].dtype
      )
      for path, image in images.items()
    }
    return tf.map_fn(
      augment_one, (random.numbers, images), fn_output_signature=signature
    )

  def _augment(
    self, images: Images, expected: dict[str, Any], random: randomness.RandomNumbers
  ) -> Images:
    augmented = {}
    for path, image in images.items():
      of_image = random if self._share_cameras else random.scoped(path)
      for index, transform in enumerate(self._transforms):
        image = transform.augment(image, of_image.scoped(str(index)))
      augmented[path] = augmentations.convert(image, expected[path].dtype)
    return self._drop_cameras(augmented, random) if self._camera_dropout else augmented

  def _drop_cameras(self, images: Images, random: randomness.RandomNumbers) -> Images:
    chances = tf.stack(
      [random.uniform(f"{path}/camera_dropout") for path in images], axis=1
    )
    # The image with the highest number always remains.
    is_kept = chances >= tf.minimum(
      self._camera_dropout, tf.reduce_max(chances, axis=1, keepdims=True)
    )
    return {
      path: tf.where(
        is_kept[:, index, None, None, None, None], image, tf.zeros([], image.dtype)
      )
      for index, (path, image) in enumerate(images.items())
    }

  def _standard(self, image: tf.Tensor, spec: Any) -> tf.Tensor:
    for transform in self._transforms:
      image = transform.standard(image)
    return augmentations.convert(image, spec.dtype)


def _by_frames(images: tf.Tensor) -> tf.Tensor:
  """Gives images [B, ..., H, W, C] one axis of frames, [B, F, H, W, C]."""
  tail = images.shape[-3:]
  num_frames = images.shape[1:-3].num_elements()
  shape = [tf.shape(images)[0], -1 if num_frames is None else num_frames, *tail]
  frames = tf.reshape(images, shape)
  return tf.ensure_shape(frames, [images.shape[0], num_frames, *tail])
