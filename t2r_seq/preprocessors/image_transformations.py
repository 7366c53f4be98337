"""Tensor2Robot's functions that crop and distort batches of images.

For preprocessors that were written with them. One draw serves a whole batch, as it did
there; `AugmentationPreprocessor` draws for each sample. In an input generator what is
drawn depends on the number of the batch's first sample; elsewhere `tf.random.set_seed`
makes it repeatable. Lists of images are not changed: a list of its own is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gin
import tensorflow as tf

from t2r_seq import errors, randomness


def RandomCropImages(
  images: Sequence[tf.Tensor], input_shape: Sequence[int], target_shape: Sequence[int]
) -> list[tf.Tensor]:
  """Cuts the same window, at a random place, from all images.

  Args:
    images: tensors [B, H, W, C].
    input_shape: (H, W, C) of the images.
    target_shape: (h, w) of the window.
  Returns:
    Tensors [B, h, w, C].
  Raises:
    SpecError: a shape is of another length.
    tf.errors.InvalidArgumentError: the window is larger than the images.
  """
  _check_shapes("RandomCropImages", input_shape, target_shape)
  room = [int(input_shape[i]) - int(target_shape[i]) for i in range(2)]
  tf.debugging.assert_non_negative(
    min(room),
    f"RandomCropImages: target_shape: expected at most {tuple(input_shape[:2])}, got "
    f"{tuple(target_shape)}.",
  )
  drawn = randomness.of_batch()
  y, x = [drawn.integers("yx"[i], room[i] + 1)[0] for i in range(2)]
  return [_cut(image, y, x, target_shape) for image in images]


def CenterCropImages(
  images: Sequence[tf.Tensor], input_shape: Sequence[int], target_shape: Sequence[int]
) -> list[tf.Tensor]:
  """Cuts the window in the middle of all images.

  Args:
    images: tensors [B, H, W, C].
    input_shape: (H, W, C) of the images.
    target_shape: (h, w) of the window.
  Returns:
    Tensors [B, h, w, C].
  Raises:
    SpecError: a shape is of another length, or too large, or not the images'.
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
  """Cuts windows around given places; at the edges they are moved inside.

  Args:
    images: tensors [B, H, W, C].
    input_shape: (H, W, C) of the images.
    target_shape: (h, w) of the windows.
    target_locations: their centers (y, x) for each of `images`, [B, 2], in pixels.
  Returns:
    Tensors [B, h, w, C].
  Raises:
    SpecError: a shape is of another length, or too large, or not the images'; or there
      are not as many locations as images.
  """
  _check_shapes("CustomCropImages", input_shape, target_shape)
  if len(images) != len(target_locations):
    raise errors.SpecError(
      f"CustomCropImages: target_locations: expected one for each of {len(images)} "
      f"images, got {len(target_locations)}."
    )
  _check_images("CustomCropImages", images, input_shape, target_shape)
  size = tf.constant([int(n) for n in target_shape])
  room = tf.constant([int(n) for n in input_shape[:2]]) - size
  crops = []
  for image, centers in zip(images, target_locations, strict=True):
    corners = tf.cast(tf.round(tf.cast(centers, tf.float32)), tf.int32) - size // 2
    corners = tf.clip_by_value(corners, 0, room)
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


@gin.configurable
def ApplyPhotometricImageDistortions(
  images: Sequence[tf.Tensor],
  random_brightness: bool = False,
  max_delta_brightness: float = 0.125,
  random_saturation: bool = False,
  lower_saturation: float = 0.5,
  upper_saturation: float = 1.5,
  random_hue: bool = False,
  max_delta_hue: float = 0.2,
  random_contrast: bool = False,
  lower_contrast: float = 0.5,
  upper_contrast: float = 1.5,
  random_noise_level: float = 0.0,
  random_noise_apply_probability: float = 0.5,
) -> list[tf.Tensor]:
  """Distorts the colours of all images in the same way.

  Args:
    images: tensors [..., H, W, 3] of floats in [0, 1].
    random_brightness: whether brightness is changed.
    max_delta_brightness: what is added at most, in either direction.
    random_saturation: whether saturation is changed, in HSV.
    lower_saturation: least factor.
    upper_saturation: greatest factor.
    random_hue: whether hue is turned, in HSV.
    max_delta_hue: turns at most, in either direction.
    random_contrast: whether contrast is changed.
    lower_contrast: least factor.
    upper_contrast: greatest factor.
    random_noise_level: standard deviation of added noise; 0 adds none.
    random_noise_apply_probability: that an image gets the noise.
  Returns:
    The images, clipped to [0, 1].
  """
  drawn, done = randomness.of_batch(), list(images)
  if random_brightness:
    delta = drawn.uniform("brightness", -max_delta_brightness, max_delta_brightness)
    done = [tf.image.adjust_brightness(image, delta[0]) for image in done]
  if random_saturation:
    factor = drawn.uniform("saturation", lower_saturation, upper_saturation)
    done = [tf.image.adjust_saturation(image, factor[0]) for image in done]
  if random_hue:
    delta = drawn.uniform("hue", -max_delta_hue, max_delta_hue)
    done = [tf.image.adjust_hue(image, delta[0]) for image in done]
  if random_contrast:
    factor = drawn.uniform("contrast", lower_contrast, upper_contrast)
    done = [tf.image.adjust_contrast(image, factor[0]) for image in done]
  if random_noise_level:
    done = [
      _with_noise(
        image, drawn.scoped(str(i)), random_noise_level, random_noise_apply_probability
      )
      for i, image in enumerate(done)
    ]
  return [tf.clip_by_value(image, 0.0, 1.0) for image in done]


def _with_noise(
  image: tf.Tensor, drawn: randomness.RandomNumbers, stddev: float, probability: float
) -> tf.Tensor:
  deviation = tf.where(drawn.chance("noise applies", probability), stddev, 0.0)
  noise = drawn.normal("noise", tf.shape(image))[0] * deviation[0]
  return image + tf.cast(noise, image.dtype)


@gin.configurable
def ApplyPhotometricImageDistortionsParallel(
  images: tf.Tensor,
  random_brightness: bool = False,
  max_delta_brightness: float = 0.125,
  random_saturation: bool = False,
  lower_saturation: float = 0.5,
  upper_saturation: float = 1.5,
  random_hue: bool = False,
  max_delta_hue: float = 0.2,
  random_contrast: bool = False,
  lower_contrast: float = 0.5,
  upper_contrast: float = 1.5,
  random_noise_level: float = 0.0,
  random_noise_apply_probability: float = 0.5,
  custom_distortion_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> tf.Tensor:
  """Distorts the colours of each image of a batch in a way of its own.

  Args:
    images: [B, H, W, 3], floats in [0, 1].
    random_brightness: see `ApplyPhotometricImageDistortions`, as for all that follow.
    max_delta_brightness: see there.
    random_saturation: see there.
    lower_saturation: see there.
    upper_saturation: see there.
    random_hue: see there.
    max_delta_hue: see there.
    random_contrast: see there.
    lower_contrast: see there.
    upper_contrast: see there.
    random_noise_level: see there.
    random_noise_apply_probability: see there.
    custom_distortion_fn: maps one image [H, W, 3] to another, at last.
  Returns:
    The images, clipped to [0, 1].
  """
  images = tf.convert_to_tensor(images)
  first, places = randomness.of_batch(), tf.range(tf.shape(images)[0], dtype=tf.int64)
  # A batch of images is numbered from its first sample on.
  drawn = randomness.RandomNumbers(first.numbers + places, first.seed, first.scope)

  def draw(purpose: str, low: float, high: float) -> tf.Tensor:
    values = drawn.uniform(purpose, low, high)[:, None, None, None]
    return tf.cast(values, images.dtype)

  if random_brightness:
    images += draw("brightness", -max_delta_brightness, max_delta_brightness)
  if random_saturation or random_hue:
    hue, saturation, value = tf.split(tf.image.rgb_to_hsv(images), 3, axis=-1)
    if random_saturation:
      factor = draw("saturation", lower_saturation, upper_saturation)
      saturation = tf.clip_by_value(saturation * factor, 0.0, 1.0)
    if random_hue:
      hue = tf.math.floormod(hue + draw("hue", -max_delta_hue, max_delta_hue), 1.0)
    images = tf.image.hsv_to_rgb(tf.concat([hue, saturation, value], axis=-1))
  if random_contrast:
    mean = tf.reduce_mean(images, axis=[1, 2], keepdims=True)
    factor = draw("contrast", lower_contrast, upper_contrast)
    images = (images - mean) * factor + mean
  if random_noise_level:
    applies = drawn.chance("noise applies", random_noise_apply_probability)
    deviation = tf.where(applies, random_noise_level, 0.0)[:, None, None, None]
    noise = drawn.normal("noise", tf.shape(images)[1:]) * deviation
    images += tf.cast(noise, images.dtype)
  if custom_distortion_fn is not None:
    images = tf.map_fn(custom_distortion_fn, images)
  return tf.clip_by_value(images, 0.0, 1.0)


@gin.configurable
def ApplyPhotometricImageDistortionsCheap(images: tf.Tensor) -> tf.Tensor:
  """Raises each channel to a random power between 0.5 and 1.5: gamma correction.

  Args:
    images: [..., C], floats in [0, 1].
  """
  drawn = randomness.of_batch()
  powers = [
    drawn.uniform(f"gamma {channel}", 0.5, 1.5)[0]
    for channel in range(images.shape[-1])
  ]
  return tf.pow(images, tf.cast(tf.stack(powers), images.dtype))


def ApplyRandomFlips(images: tf.Tensor) -> tf.Tensor:
  """Mirrors all images alike: left and right, up and down, each by an even chance.

  Args:
    images: [B, H, W, C], or [B, T, H, W, C].
  """
  drawn = randomness.of_batch()
  for axis in (-2, -3):
    flips = drawn.chance(f"axis {axis}", 0.5)[0]
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
  """Adds noise to depths and scales them, and clips them.

  Args:
    depth_images: tensors [..., H, W, 1] of floats.
    random_noise_level: standard deviation of added noise; 0 distorts nothing.
    random_noise_apply_probability: that an image is distorted.
    scaling_noise: whether depths are scaled, too, by a factor of a gamma distribution.
    gamma_shape: of that distribution.
    gamma_scale_inverse: of that distribution.
    min_depth_allowed: nearer values are set to it.
    max_depth_allowed: farther values are set to it.
  Returns:
    The images.
  Raises:
    SpecError: an image has more than one channel.
  """
  drawn, done = randomness.of_batch(), []
  for index, image in enumerate(depth_images):
    if image.shape[-1] != 1:
      raise errors.SpecError(
        f"ApplyDepthImageDistortions: depth_images: {index}: expected one channel, got "
        f"{errors.describe(image)}."
      )
    if random_noise_level:
      own = drawn.scoped(str(index))
      factor = 1.0
      if scaling_noise:
        seed = own.seeds("scale")[0]
        factor = tf.random.stateless_gamma([], seed, gamma_shape, gamma_scale_inverse)
      noise = own.normal("noise", tf.shape(image))[0] * random_noise_level
      applies = own.chance("applies", random_noise_apply_probability)[0]
      distorted = tf.cast(factor, image.dtype) * image + tf.cast(noise, image.dtype)
      image = tf.where(applies, distorted, image)
    done.append(tf.clip_by_value(image, min_depth_allowed, max_depth_allowed))
  return done
