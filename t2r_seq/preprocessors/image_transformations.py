"""Tensor2Robot's functions that crop and distort batches of images.

All images of a batch share random numbers, except in `...Parallel`;
`AugmentationPreprocessor` has separate ones for each sample. In an input generator they
depend on the number of the batch's first sample; elsewhere use `tf.random.set_seed`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, randomness


def RandomCropImages(
  images: Sequence[tf.Tensor], input_shape: Sequence[int], target_shape: Sequence[int]
) -> list[tf.Tensor]:
  """Crops the same random window (h, w) from all images [B, H, W, C].

  Raises:
    SpecError: `input_shape` is not (H, W, C), or `target_shape` is not (h, w).
    tf.errors.InvalidArgumentError: `target_shape` is larger than `input_shape`.
  """
  _check_shapes("RandomCropImages", input_shape, target_shape)
  margin = [int(input_shape[i]) - int(target_shape[i]) for i in range(2)]
  tf.debugging.assert_non_negative(
    min(margin),
    f"RandomCropImages: target_shape: expected at most {tuple(input_shape[:2])}, got "
    f"{tuple(target_shape)}.",
  )
  random = randomness.of_batch()
  y, x = [random.integers("yx"[i], margin[i] + 1)[0] for i in range(2)]
  return [_cut(image, y, x, target_shape) for image in images]


def CenterCropImages(
  images: Sequence[tf.Tensor], input_shape: Sequence[int], target_shape: Sequence[int]
) -> list[tf.Tensor]:
  """Crops the center (h, w) of all images [B, H, W, C].

  Raises:
    SpecError: `input_shape` is not (H, W, C) of the images, or `target_shape` is not
      (h, w) or is larger.
  """
  _check_shapes("CenterCropImages", input_shape, target_shape)
  _check_images("CenterCropImages", images, input_shape, target_shape)
  y, x = [(int(input_shape[i]) - int(target_shape[i])) // 2 for i in range(2)]
  return [_cut(image, y, x, target_shape) for image in images]


def CustomCropImages(
  images: Sequence[tf.Tensor],
  input_shape: Sequence[int],
  target_shape: Sequence[int],
  target_locations: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """Crops windows (h, w) around given pixels; windows at the edges move inside.

  Args:
    images: tensors [B, H, W, C].
    input_shape: (H, W, C) of the images.
    target_shape: (h, w) of the windows.
    target_locations: centers (y, x) for each of `images`, [B, 2], in pixels.
  Raises:
    SpecError: `input_shape` is not (H, W, C) of the images, `target_shape` is not
      (h, w) or is larger, or the numbers of locations and images differ.
  """
  _check_shapes("CustomCropImages", input_shape, target_shape)
  if len(images) != len(target_locations):
    raise errors.SpecError(
      f"CustomCropImages: target_locations: expected one for each of {len(images)} "
      f"images, got {len(target_locations)}."
    )
  _check_images("CustomCropImages", images, input_shape, target_shape)
  size = tf.constant([int(n) for n in target_shape])
  margin = tf.constant([int(n) for n in input_shape[:2]]) - size
  crops = []
  for image, centers in zip(images, target_locations, strict=True):
    corners = tf.cast(tf.round(tf.cast(centers, tf.float32)), tf.int32) - size // 2
    corners = tf.clip_by_value(corners, 0, margin)
    rows, columns = [corners[:, i, None] + tf.range(size[i]) for i in range(2)]
    crop = tf.gather(image, rows, axis=1, batch_dims=1)
    crops.append(tf.gather(crop, columns, axis=2, batch_dims=1))
  return crops


def _cut(
  image: tf.Tensor, y: tf.Tensor | int, x: tf.Tensor | int, shape: Sequence[int]
) -> tf.Tensor:
  return tf.image.crop_to_bounding_box(image, y, x, int(shape[0]), int(shape[1]))


def _check_shapes(
  operation: str, input_shape: Sequence[int], target_shape: Sequence[int]
) -> None:
  for name, shape, want in (
    ("input_shape", input_shape, "(height, width, channels)"),
    ("target_shape", target_shape, "(height, width)"),
  ):
    if len(shape) != want.count(",") + 1:
      raise errors.SpecError(
        f"{operation}: {name}: expected {want}, got {list(shape)}."
      )


def _check_images(
  operation: str,
  images: Sequence[tf.Tensor],
  input_shape: Sequence[int],
  target_shape: Sequence[int],
) -> None:
  size = tf.TensorShape([int(n) for n in input_shape[:2]])
  for image in images:
    if not size.is_compatible_with(image.shape[-3:-1]):
      raise errors.SpecError(
        f"{operation}: images: expected height and width {tuple(size)}, got "
        f"{errors.describe(image)}."
      )
  if any(int(target_shape[i]) > size[i] for i in range(2)):
    raise errors.SpecError(
      f"{operation}: target_shape: expected at most {tuple(size)}, got "
      f"{tuple(target_shape)}."
    )


@dataclasses.dataclass(frozen=True)
class _Distortions:
  """The options of photometric distortions.

  Attributes:
    random_brightness: whether to change brightness.
    max_delta_brightness: maximum that is added or subtracted.
    random_saturation: whether to change saturation, in HSV.
    lower_saturation: minimum factor.
    upper_saturation: maximum factor.
    random_hue: whether to change hue, in HSV.
    max_delta_hue: maximum turn in either direction.
    random_contrast: whether to change contrast.
    lower_contrast: minimum factor.
    upper_contrast: maximum factor.
    random_noise_level: standard deviation of added noise.
    random_noise_apply_probability: probability of the noise of an image.
  """

  random_brightness: bool = False
  max_delta_brightness: float = 0.125
  random_saturation: bool = False
  lower_saturation: float = 0.5
  upper_saturation: float = 1.5
  random_hue: bool = False
  max_delta_hue: float = 0.2
  random_contrast: bool = False
  lower_contrast: float = 0.5
  upper_contrast: float = 1.5
  random_noise_level: float = 0.0
  random_noise_apply_probability: float = 0.5

  def brightness(self, random: randomness.RandomNumbers) -> tf.Tensor:
    most = self.max_delta_brightness
    return random.uniform("brightness", -most, most)

  def saturation(self, random: randomness.RandomNumbers) -> tf.Tensor:
    return random.uniform("saturation", self.lower_saturation, self.upper_saturation)

  def hue(self, random: randomness.RandomNumbers) -> tf.Tensor:
    return random.uniform("hue", -self.max_delta_hue, self.max_delta_hue)

  def contrast(self, random: randomness.RandomNumbers) -> tf.Tensor:
    return random.uniform("contrast", self.lower_contrast, self.upper_contrast)


@gin.configurable
def ApplyPhotometricImageDistortions(
  images: Sequence[tf.Tensor], **options: Any
) -> list[tf.Tensor]:
  """Distorts the colors of all images in the same way.

  Args:
    images: tensors [..., H, W, 3] of floats in [0, 1].
    **options: `random_brightness`, `random_saturation`, `random_hue`,
      `random_contrast`: what to change, nothing by default. By how much:
      `max_delta_brightness` (0.125), `max_delta_hue` (0.2); `lower_saturation` and
      `lower_contrast` (0.5), `upper_saturation` and `upper_contrast` (1.5). Noise:
      `random_noise_level` (0), `random_noise_apply_probability` (0.5).
  Returns:
    The images, clipped to [0, 1].
  """
  distort, random = _Distortions(**options), randomness.of_batch()
  outputs = list(images)
  if distort.random_brightness:
    delta = distort.brightness(random)[0]
    outputs = [tf.image.adjust_brightness(image, delta) for image in outputs]
  if distort.random_saturation:
    factor = distort.saturation(random)[0]
    outputs = [tf.image.adjust_saturation(image, factor) for image in outputs]
  if distort.random_hue:
    delta = distort.hue(random)[0]
    outputs = [tf.image.adjust_hue(image, delta) for image in outputs]
  if distort.random_contrast:
    factor = distort.contrast(random)[0]
    outputs = [tf.image.adjust_contrast(image, factor) for image in outputs]
  if distort.random_noise_level:
    outputs = [
      _with_noise(
        image,
        random.scoped(str(i)),
        distort.random_noise_level,
        distort.random_noise_apply_probability,
      )
      for i, image in enumerate(outputs)
    ]
  return [tf.clip_by_value(image, 0.0, 1.0) for image in outputs]


def _with_noise(
  image: tf.Tensor, random: randomness.RandomNumbers, stddev: float, probability: float
) -> tf.Tensor:
  deviation = tf.where(random.chance("noise applies", probability), stddev, 0.0)
  noise = random.normal("noise", tf.shape(image))[0] * deviation[0]
  return image + tf.cast(noise, image.dtype)


@gin.configurable
def ApplyPhotometricImageDistortionsParallel(
  images: tf.Tensor,
  custom_distortion_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
  **options: Any,
) -> tf.Tensor:
  """Distorts the colors of each image of a batch separately.

  Args:
    images: [B, H, W, 3], floats in [0, 1].
    custom_distortion_fn: maps one image [H, W, 3] at the end.
    **options: see `ApplyPhotometricImageDistortions`.
  Returns:
    The images, clipped to [0, 1].
  """
  distort, images = _Distortions(**options), tf.convert_to_tensor(images)
  first, places = randomness.of_batch(), tf.range(tf.shape(images)[0], dtype=tf.int64)
  random = randomness.RandomNumbers(first.numbers + places, first.seed, first.scope)

  def by_image(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values[:, None, None, None], images.dtype)

  if distort.random_brightness:
    images += by_image(distort.brightness(random))
  if distort.random_saturation or distort.random_hue:
    hue, saturation, value = tf.split(tf.image.rgb_to_hsv(images), 3, axis=-1)
    if distort.random_saturation:
      factor = by_image(distort.saturation(random))
      saturation = tf.clip_by_value(saturation * factor, 0.0, 1.0)
    if distort.random_hue:
      hue = tf.math.floormod(hue + by_image(distort.hue(random)), 1.0)
    images = tf.image.hsv_to_rgb(tf.concat([hue, saturation, value], axis=-1))
  if distort.random_contrast:
    mean = tf.reduce_mean(images, axis=[1, 2], keepdims=True)
    images = (images - mean) * by_image(distort.contrast(random)) + mean
  if distort.random_noise_level:
    applies = random.chance("noise applies", distort.random_noise_apply_probability)
    deviation = tf.where(applies, distort.random_noise_level, 0.0)[:, None, None, None]
    noise = random.normal("noise", tf.shape(images)[1:]) * deviation
    images += tf.cast(noise, images.dtype)
  if custom_distortion_fn is not None:
    images = tf.map_fn(custom_distortion_fn, images)
  return tf.clip_by_value(images, 0.0, 1.0)


@gin.configurable
def ApplyPhotometricImageDistortionsCheap(images: tf.Tensor) -> tf.Tensor:
  """Raises each channel to a random power in [0.5, 1.5); floats in [0, 1]."""
  random = randomness.of_batch()
  powers = [
    random.uniform(f"gamma {channel}", 0.5, 1.5)[0]
    for channel in range(images.shape[-1])
  ]
  return tf.pow(images, tf.cast(tf.stack(powers), images.dtype))


def ApplyRandomFlips(images: tf.Tensor) -> tf.Tensor:
  """Flips all images [..., H, W, C] alike, horizontally and vertically, at random."""
  random = randomness.of_batch()
  for axis in (-2, -3):
    flips = random.chance(f"axis {axis}", 0.5)[0]
    images = tf.where(flips, tf.reverse(images, [images.shape.rank + axis]), images)
  return images


@gin.configurable
def ApplyDepthImageDistortions(
  depth_images: Sequence[tf.Tensor],
  random_noise_level: float = 0.05,
  random_noise_apply_probability: float = 0.5,
  scaling_noise: bool = True,
  gamma_shape: float = 1000.0,
  gamma_scale_inverse: float = 1000.0,
  min_depth_allowed: float = 0.25,
  max_depth_allowed: float = 2.5,
) -> list[tf.Tensor]:
  """Scales depths, adds noise, and clips them.

  Args:
    depth_images: tensors [..., H, W, 1] of floats.
    random_noise_level: standard deviation of added noise; 0 distorts nothing.
    random_noise_apply_probability: probability that an image is distorted.
    scaling_noise: whether to scale depths by a gamma distribution, too.
    gamma_shape: shape of that distribution.
    gamma_scale_inverse: inverse scale of that distribution.
    min_depth_allowed: clips nearer values.
    max_depth_allowed: clips farther values.
  Returns:
    The images, clipped.
  Raises:
    SpecError: an image does not have one channel.
  """
  scope, outputs = randomness.of_batch(), []
  for index, image in enumerate(depth_images):
    if image.shape[-1] != 1:
      raise errors.SpecError(
        f"ApplyDepthImageDistortions: depth_images: {index}: expected one channel, got "
        f"{errors.describe(image)}."
      )
    if random_noise_level:
      random = scope.scoped(str(index))
      factor = 1.0
      if scaling_noise:
        seed = random.seeds("scale")[0]
        factor = tf.random.stateless_gamma([], seed, gamma_shape, gamma_scale_inverse)
      noise = random.normal("noise", tf.shape(image))[0] * random_noise_level
      applies = random.chance("applies", random_noise_apply_probability)[0]
      distorted = tf.cast(factor, image.dtype) * image + tf.cast(noise, image.dtype)
      image = tf.where(applies, distorted, image)
    outputs.append(tf.clip_by_value(image, min_depth_allowed, max_depth_allowed))
  return outputs
