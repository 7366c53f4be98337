"""Tensor2Robot's functions that prepare images by mode: crop, resize, distort."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from t2r_seq import specs
from t2r_seq.preprocessors import image_transformations


def maybe_distort_image_batch(images: tf.Tensor, mode: str) -> tf.Tensor:
  """Applies `ApplyPhotometricImageDistortions`, by its gin options, in mode 'train'."""
  if mode == specs.ModeKeys.TRAIN:
    return image_transformations.ApplyPhotometricImageDistortions([images])[0]
  return images


def maybe_distort_and_flip_image_batch(images: tf.Tensor, mode: str) -> tf.Tensor:
  """Applies `maybe_distort_image_batch` and `ApplyRandomFlips` in mode 'train'."""
  images = maybe_distort_image_batch(images, mode)
  if mode == specs.ModeKeys.TRAIN:
    images = image_transformations.ApplyRandomFlips(images)
  return images


def preprocess_image(
  image: tf.Tensor,
  mode: str,
  is_sequence: bool,
  input_size: Sequence[int],
  target_size: Sequence[int],
  crop_size: Sequence[int] | None = None,
  image_distortion_fn: Callable[..., tf.Tensor] = maybe_distort_image_batch,
) -> tf.Tensor:
  """Crops, resizes and distorts a batch: randomly in mode 'train', else the center.

  Args:
    image: [B, H, W, C], or [B, T, H, W, C]; integers, or floats in [0, 1].
    mode: value of `specs.ModeKeys`.
    is_sequence: whether there is an axis of time.
    input_size: (H, W).
    target_size: (h, w) of the output.
    crop_size: size of the crop, which is resized to `target_size`; None: `target_size`.
    image_distortion_fn: called as `image_distortion_fn(image, mode=mode)` at the end.
  Returns:
    float32 [B, h, w, C], or [B, T, h, w, C].
  Raises:
    SpecError: the center crop is larger than the images, or `input_size` is wrong.
    tf.errors.InvalidArgumentError: the random crop is larger than the images.
  """
  leading = tf.shape(image)[:-3]
  image = tf.image.convert_image_dtype(image, tf.float32)
  if is_sequence:
    image = tf.reshape(image, [-1, *image.shape[-3:]])
  image = crop_image(image, mode, input_size, crop_size or target_size)
  if tuple(image.shape[-3:-1]) != tuple(target_size):
    image = tf.image.resize(image, target_size)
  image = image_distortion_fn(image, mode=mode)
  if is_sequence:
    image = tf.reshape(image, tf.concat([leading, image.shape[-3:]], axis=0))
  return image


def crop_image(
  img: tf.Tensor,
  mode: str,
  input_size: Sequence[int] = (512, 640),
  target_size: Sequence[int] = (472, 472),
) -> tf.Tensor:
  """Crops a batch [B, H, W, C]: at random in mode 'train', else the center."""
  if tuple(input_size) == tuple(target_size):
    return img
  crop = image_transformations.CenterCropImages
  if mode == specs.ModeKeys.TRAIN:
    crop = image_transformations.RandomCropImages
  return crop([img], (*input_size, img.shape[-1]), target_size)[0]
