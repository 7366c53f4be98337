"""Image transforms for `AugmentationPreprocessor`: random in training, else not.

All are batched ops that XLA compiles; all frames of a sample share random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.randomness import RandomNumbers

Size = tuple[int, int]
"""Height and width in pixels."""

# Weights of red, green and blue in the brightness that people see (ITU-R BT.601).
_LUMINANCE = (0.299, 0.587, 0.114)


class ImageTransform:
  """Transforms images [B, F, H, W, C]: integers, or floats in [0, 1]."""

  def output_size(self, size: Size) -> Size:
    """Returns the output size; SpecError if images of `size` can't be transformed."""
    return size

  def check_channels(self, channels: int) -> None:
    """Raises SpecError if images with this number of channels can't be transformed."""

  def augment(self, images: tf.Tensor, random: RandomNumbers) -> tf.Tensor:
    """Transforms training images; by default as `standard`.

    Args:
      images: [B, F, H, W, C], F frames of each sample.
      random: random numbers of the B samples.
    Returns:
      [B, F, *output_size, C], with the same dtype, or floats.
    """
    del random
    return self.standard(images)

  def standard(self, images: tf.Tensor) -> tf.Tensor:
    """Transforms images without random numbers; by default unchanged."""
    return images

  def _error(self, what: str) -> errors.SpecError:
    return errors.SpecError(f"{type(self).__name__}: {what}")


def as_float(images: tf.Tensor) -> tf.Tensor:
  """Returns images as floats; integers become float32 in [0, 1]."""
  if images.dtype.is_floating:
    return images
  return tf.cast(images, tf.float32) * (1.0 / images.dtype.max)


def convert(images: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Converts images to a dtype, integers or floats in [0, 1]; integers are rounded."""
  if images.dtype == dtype:
    return images
  if images.dtype.is_integer and dtype.is_floating:
    return tf.cast(as_float(images), dtype)
  if images.dtype.is_floating and dtype.is_floating:
    return tf.cast(images, dtype)
  scaled = tf.round(as_float(images) * float(dtype.max))
  return tf.saturate_cast(scaled, dtype)


def _slice(images: tf.Tensor, y: tf.Tensor, x: tf.Tensor, size: Size) -> tf.Tensor:
  """Cuts a window of each sample; `y` and `x` are int32 [B]."""
  height, width = size
  if images.shape[0] == 1:  # Copies whole rows; tf.gather copies pixels.
    begin = tf.stack([0, 0, y[0], x[0], 0])
    frames, channels = tf.shape(images)[1], images.shape[4]
    cut = tf.slice(images, begin, tf.stack([1, frames, height, width, channels]))
    return tf.ensure_shape(cut, [1, images.shape[1], height, width, channels])
  rows, columns = y[:, None] + tf.range(height), x[:, None] + tf.range(width)
  images = tf.gather(images, rows, axis=2, batch_dims=1)
  return tf.gather(images, columns, axis=3, batch_dims=1)


def _window(images: tf.Tensor, y: int, x: int, size: Size) -> tf.Tensor:
  return images[:, :, y : y + size[0], x : x + size[1]]


def _by_sample(values: tf.Tensor) -> tf.Tensor:
  """Reshapes [B] to broadcast with [B, F, H, W, C]."""
  return values[:, None, None, None, None]


@gin.configurable
class RandomCrop(ImageTransform):
  """Crops a random window; in evaluation the center."""

  def __init__(self, size: Sequence[int]) -> None:
    """Creates the transform; raises SpecError unless `size` is (height, width)."""
    self._size = check_size(f"{type(self).__name__}: size", size)

  def output_size(self, size: Size) -> Size:
    if self._size[0] > size[0] or self._size[1] > size[1]:
      raise self._error(
        f"size: expected at most that of the images, {size}, got {self._size}."
      )
    return self._size

  def augment(self, images: tf.Tensor, random: RandomNumbers) -> tf.Tensor:
    height, width = self._size
    y = random.integers("y", images.shape[2] - height + 1)
    x = random.integers("x", images.shape[3] - width + 1)
    return _slice(images, y, x, self._size)

  def standard(self, images: tf.Tensor) -> tf.Tensor:
    y, x = [(images.shape[2 + i] - self._size[i]) // 2 for i in range(2)]
    return _window(images, y, x, self._size)


@gin.configurable
class CenterCrop(RandomCrop):
  """Crops the center, in training, too."""

  augment = ImageTransform.augment


@gin.configurable
class CustomCrop(ImageTransform):
  """Crops a fixed window. Cropping encoded images while decoding is cheaper."""

  def __init__(self, offset: Sequence[int], size: Sequence[int]) -> None:
    """Creates the transform.

    Args:
      offset: y and x of the window's upper left corner.
      size: height and width of the window.
    Raises:
      SpecError: one of the two is not a pair of integers, or too small.
    """
    self._offset = check_size("CustomCrop: offset", offset, least=0)
    self._size = check_size("CustomCrop: size", size)

  def output_size(self, size: Size) -> Size:
    ends = [self._offset[i] + self._size[i] for i in range(2)]
    if ends[0] > size[0] or ends[1] > size[1]:
      raise self._error(
        f"offset and size: expected a window inside of images of {size}, got one that "
        f"ends at {tuple(ends)}."
      )
    return self._size

  def standard(self, images: tf.Tensor) -> tf.Tensor:
    return _window(images, *self._offset, self._size)


@gin.configurable
class Resize(ImageTransform):
  """Resizes images, in all modes.

  Images of different sizes can't be batched: see `records.ImageDecoding.resized`.
  """

  def __init__(
    self, size: Sequence[int], method: str = "bilinear", antialias: bool = False
  ) -> None:
    """Creates the transform.

    Args:
      size: height and width of the output.
      method: method of `tf.image.resize`.
      antialias: option of `tf.image.resize`; XLA can't compile that.
    Raises:
      SpecError: `size` is not a pair of positive integers.
    """
    self._size = check_size("Resize: size", size)
    self._method = method
    self._antialias = antialias

  def output_size(self, size: Size) -> Size:
    return self._size

  def standard(self, images: tf.Tensor) -> tf.Tensor:
    """Resizes; 'nearest' keeps integers, other methods return floats."""
    if tuple(images.shape[2:4]) == self._size:
      return images
    flat = tf.reshape(images, [-1, *images.shape[2:]])
    if self._method != "nearest":
      flat = as_float(flat)
    flat = tf.image.resize(flat, self._size, self._method, antialias=self._antialias)
    leading = tf.shape(images)[:2]
    tail = [*self._size, images.shape[4]]
    resized = tf.reshape(flat, tf.concat([leading, tail], axis=0))
    return tf.ensure_shape(resized, [*images.shape[:2], *tail])


@gin.configurable
class RandomFlip(ImageTransform):
  """Flips images. The actions are not flipped."""

  def __init__(
    self, left_right: bool = True, up_down: bool = False, probability: float = 0.5
  ) -> None:
    """Creates the transform.

    Args:
      left_right: whether to flip horizontally.
      up_down: whether to flip vertically.
      probability: probability of each flip.
    Raises:
      SpecError: the probability is not in [0, 1].
    """
    self._axes = [axis for axis, on in ((3, left_right), (2, up_down)) if on]
    self._probability = check_number("RandomFlip: probability", probability)

  def augment(self, images: tf.Tensor, random: RandomNumbers) -> tf.Tensor:
    for axis in self._axes:
      flips = _by_sample(random.chance(f"axis {axis}", self._probability))
      images = tf.where(flips, tf.reverse(images, [axis]), images)
    return images


@gin.configurable
class RandomShift(ImageTransform):
  """Shifts images by a few pixels, and repeats their edges (DrQ, 2020)."""

  def __init__(self, pixels: int = 4) -> None:
    """Creates the transform; raises SpecError unless the maximum, `pixels`, is >= 1."""
    if not isinstance(pixels, int) or isinstance(pixels, bool) or pixels < 1:
      raise self._error(f"pixels: expected an integer of at least 1, got {pixels!r}.")
    self._pixels = pixels

  def augment(self, images: tf.Tensor, random: RandomNumbers) -> tf.Tensor:
    size, pad = (images.shape[2], images.shape[3]), self._pixels
    y, x = [random.integers(name, 2 * pad + 1) for name in "yx"]
    for axis in (2, 3):
      side = images.shape[axis]
      places = np.clip(np.arange(-pad, side + pad), 0, side - 1)
      images = tf.gather(images, places, axis=axis)
    return _slice(images, y, x, size)


@gin.configurable
class ColorJitter(ImageTransform):
  """Changes brightness, saturation, hue and contrast by one linear map of colors.

  It is a 3x3 matrix and an offset for each sample, so that pixels are read and written
  once (Haeberli, "Matrix Operations for Image Processing", 1993), then clipped to
  [0, 1]. Saturation scales the distance to the luminance, hue rotates about the gray
  axis, contrast scales the distance to the mean of all frames of the sample.
  """

  def __init__(
    self,
    brightness: float = 0.125,
    saturation: Sequence[float] = (0.5, 1.5),
    hue: float = 0.05,
    contrast: Sequence[float] = (0.5, 1.5),
  ) -> None:
    """Creates the transform.

    Args:
      brightness: maximum that is added or subtracted, for values in [0, 1].
      saturation: minimum and maximum factor; (1, 1): unchanged.
      hue: maximum turn in either direction; 1 is a full turn.
      contrast: minimum and maximum factor; (1, 1): unchanged.
    Raises:
      SpecError: a number is not in [0, 1], or a range is negative or reversed.
    """
    self._brightness = check_number("ColorJitter: brightness", brightness)
    self._hue = check_number("ColorJitter: hue", hue)
    self._saturation = check_range("ColorJitter: saturation", saturation)
    self._contrast = check_range("ColorJitter: contrast", contrast)

  @property
  def _changes_colors(self) -> bool:
    return self._saturation != (1, 1) or self._hue > 0

  def check_channels(self, channels: int) -> None:
    if channels != 3 and (channels != 1 or self._changes_colors):
      raise self._error(
        f"images: expected 3 channels, got {channels}. Gray images take "
        "saturation=(1, 1) and hue=0."
      )

  def augment(self, images: tf.Tensor, random: RandomNumbers) -> tf.Tensor:
    scale = 1.0 if images.dtype.is_floating else 1.0 / images.dtype.max
    dtype = images.dtype if images.dtype.is_floating else tf.float32
    values = tf.cast(images, tf.float32)
    delta = random.uniform("brightness", -self._brightness, self._brightness)
    contrast = random.uniform("contrast", *self._contrast)[:, None, None]
    colors = self._color_matrix(random, images.shape[4])
    offset = tf.ones([1, 1, images.shape[4]]) * delta[:, None, None]
    if self._contrast != (1, 1):
      mean = tf.reduce_mean(values, axis=[1, 2, 3])[:, None] * scale
      offset += (1 - contrast) * tf.matmul(mean, colors)
    changed = _map_colors(values, contrast * scale * colors, offset)
    return tf.cast(tf.clip_by_value(changed, 0.0, 1.0), dtype)

  def _color_matrix(self, random: RandomNumbers, channels: int) -> tf.Tensor:
    """Returns the map of saturation and hue for row vectors, [B, C, C]."""
    eye = tf.eye(channels)[None]
    if not self._changes_colors:
      return tf.repeat(eye, tf.shape(random.numbers)[0], axis=0)
    gray = tf.constant(np.repeat(np.array(_LUMINANCE, np.float32)[:, None], 3, axis=1))[
      None
    ]
    factor = random.uniform("saturation", *self._saturation)[:, None, None]
    angle = random.uniform("hue", -self._hue, self._hue)[:, None, None] * 2 * math.pi
    cross = tf.constant([[[0.0, 1, -1], [-1, 0, 1], [1, -1, 0]]]) / math.sqrt(3)
    cosine = tf.cos(angle)
    turn = cosine * eye + (1 - cosine) / 3 + tf.sin(angle) * cross
    return tf.matmul(factor * eye + (1 - factor) * gray, turn)


def _map_colors(values: tf.Tensor, matrix: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
  """Maps pixels [B, F, H, W, C] by [B, C, C] and [B, 1, C]."""
  channels = values.shape[4]
  pixels = values.shape[2] * values.shape[3]
  # Maps several pixels per row: a product of thin matrices is mostly overhead.
  count = next(n for n in (8, 4, 2, 1) if pixels % n == 0)
  width = channels * count
  blocks = tf.eye(count)[None, :, None, :, None] * matrix[:, None, :, None, :]
  blocks = tf.reshape(blocks, [-1, width, width])
  rows = tf.reshape(values, [tf.shape(values)[0], -1, width])
  mapped = tf.matmul(rows, blocks) + tf.tile(offset, [1, 1, count])
  return tf.ensure_shape(tf.reshape(mapped, tf.shape(values)), values.shape)


@gin.configurable
class GaussianNoise(ImageTransform):
  """Adds noise to every pixel, frame and channel; values stay in [0, 1]."""

  def __init__(self, stddev: float = 0.05, probability: float = 0.5) -> None:
    """Creates the transform.

    Args:
      stddev: standard deviation of the noise, for values in [0, 1].
      probability: probability that a sample is changed.
    Raises:
      SpecError: a number is not in [0, 1].
    """
    self._stddev = check_number("GaussianNoise: stddev", stddev)
    self._probability = check_number("GaussianNoise: probability", probability)

  def augment(self, images: tf.Tensor, random: RandomNumbers) -> tf.Tensor:
    noisy = as_float(images)
    noise = _noise(noisy, random, self._stddev, self._probability)
    return tf.clip_by_value(noisy + noise, 0.0, 1.0)


def _noise(
  images: tf.Tensor, random: RandomNumbers, stddev: float, probability: float
) -> tf.Tensor:
  deviation = tf.where(random.chance("applies", probability), stddev, 0.0)
  noise = random.normal("noise", tf.shape(images)[1:])
  return tf.cast(noise * _by_sample(deviation), images.dtype)


@gin.configurable
class DepthNoise(ImageTransform):
  """Scales depths, adds noise, and clips them: floats, in any unit such as metres."""

  def __init__(
    self,
    stddev: float = 0.05,
    scale_stddev: float = 0.03,
    probability: float = 0.5,
    min_depth: float = 0.25,
    max_depth: float = 2.5,
  ) -> None:
    """Creates the transform.

    Args:
      stddev: standard deviation of the noise, in the images' unit.
      scale_stddev: standard deviation of each sample's depth factor, around 1.
      probability: probability that a sample is changed.
      min_depth: clips nearer values, in evaluation, too.
      max_depth: clips farther values, in evaluation, too.
    Raises:
      SpecError: a number is not in [0, 1], or the depths are negative or reversed.
    """
    self._stddev = check_number("DepthNoise: stddev", stddev)
    self._scale = check_number("DepthNoise: scale_stddev", scale_stddev)
    self._probability = check_number("DepthNoise: probability", probability)
    self._limits = check_range("DepthNoise: depths", (min_depth, max_depth))

  def check_channels(self, channels: int) -> None:
    if channels != 1:
      raise self._error(f"images: expected 1 channel, the depth, got {channels}.")

  def augment(self, images: tf.Tensor, random: RandomNumbers) -> tf.Tensor:
    images = as_float(images)
    scale = 1 + self._scale * random.normal("scale", [])
    scale = tf.where(random.chance("applies", self._probability), scale, 1.0)
    noise = _noise(images, random, self._stddev, self._probability)
    return self.standard(images * tf.cast(_by_sample(scale), images.dtype) + noise)

  def standard(self, images: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(as_float(images), *self._limits)


@gin.configurable
class Cutout(ImageTransform):
  """Hides the same rectangle in all frames of a sample (DeVries and Taylor, 2017)."""

  def __init__(
    self,
    size: Sequence[float] = (0.1, 0.4),
    value: float = 0.0,
    probability: float = 1.0,
  ) -> None:
    """Creates the transform.

    Args:
      size: minimum and maximum side of the rectangle, relative to the image's side.
      value: value of the hidden pixels, in [0, 1].
      probability: probability that a sample is changed.
    Raises:
      SpecError: a number is not in [0, 1], or the size is negative or reversed.
    """
    self._size = check_range("Cutout: size", size)
    self._value = check_number("Cutout: value", value)
    self._probability = check_number("Cutout: probability", probability)

  def augment(self, images: tf.Tensor, random: RandomNumbers) -> tf.Tensor:
    applies = random.chance("applies", self._probability)[:, None]
    inside = [
      applies & self._is_inside(images.shape[2 + i], random.scoped("yx"[i]))
      for i in range(2)
    ]
    hidden = inside[0][:, None, :, None, None] & inside[1][:, None, None, :, None]
    value = convert(tf.constant(self._value), images.dtype)
    return tf.where(hidden, value, images)

  def _is_inside(self, side: int, random: RandomNumbers) -> tf.Tensor:
    """Returns which pixels of a side are in the rectangle, bool [B, side]."""
    half = random.uniform("size", *self._size) * side / 2
    center = random.uniform("center", 0.0, side)
    places = tf.range(side, dtype=tf.float32) + 0.5
    return tf.abs(places - center[:, None]) < half[:, None]


@gin.configurable
class GaussianBlur(ImageTransform):
  """Blurs images with a Gaussian filter."""

  def __init__(
    self, sigma: Sequence[float] = (0.1, 1.5), probability: float = 0.5
  ) -> None:
    """Creates the transform.

    Args:
      sigma: minimum and maximum standard deviation of the filter, in pixels.
      probability: probability that a sample is blurred.
    Raises:
      SpecError: the probability is not in [0, 1], or sigma is negative or reversed.
    """
    self._sigma = check_range("GaussianBlur: sigma", sigma)
    self._probability = check_number("GaussianBlur: probability", probability)

  def augment(self, images: tf.Tensor, random: RandomNumbers) -> tf.Tensor:
    images = as_float(images)
    applies = random.chance("applies", self._probability)
    sigma = tf.where(applies, random.uniform("sigma", *self._sigma), 0.0)[:, None]
    radius = max(1, math.ceil(3 * self._sigma[1]))
    distance = tf.abs(tf.range(-radius, radius + 1, dtype=tf.float32))[None]
    weights = tf.exp(-tf.square(distance / tf.maximum(sigma, 1e-3)) / 2)
    weights /= tf.reduce_sum(weights, axis=1, keepdims=True)
    for axis in (2, 3):
      images = _filter(images, tf.cast(weights, images.dtype), axis)
    return images


def _filter(images: tf.Tensor, weights: tf.Tensor, axis: int) -> tf.Tensor:
  """Filters along one axis by weights [B, 2 * radius + 1]; edges are repeated."""
  side, radius = images.shape[axis], weights.shape[1] // 2
  total = tf.zeros_like(images)
  for index in range(2 * radius + 1):
    places = np.clip(np.arange(side) + index - radius, 0, side - 1)
    total += _by_sample(weights[:, index]) * tf.gather(images, places, axis=axis)
  return total


def check_size(operation: str, size: Sequence[int], least: int = 1) -> Size:
  """Returns a pair of integers of at least `least`; else raises SpecError."""
  is_pair = isinstance(size, Sequence) and len(size) == 2
  if not is_pair or not all(
    isinstance(n, int) and not isinstance(n, bool) and n >= least for n in size
  ):
    raise errors.SpecError(
      f"{operation}: expected two integers of at least {least}, such as (96, 96), got "
      f"{size!r}."
    )
  return int(size[0]), int(size[1])


def check_number(operation: str, number: float) -> float:
  """Returns a number in [0, 1]; else raises SpecError."""
  if isinstance(number, bool) or not isinstance(number, (int, float)):
    raise errors.SpecError(f"{operation}: expected a number, got {number!r}.")
  if not 0 <= number <= 1:
    raise errors.SpecError(f"{operation}: expected a number in [0, 1], got {number}.")
  return float(number)


def check_range(operation: str, limits: Sequence[float]) -> tuple[float, float]:
  """Returns a minimum of at least 0 and a maximum; else raises SpecError."""
  is_pair = isinstance(limits, Sequence) and len(limits) == 2
  if (
    not is_pair
    or not all(isinstance(n, (int, float)) for n in limits)
    or not 0 <= limits[0] <= limits[1]
  ):
    raise errors.SpecError(
      f"{operation}: expected two numbers, the least and the greatest, from 0, got "
      f"{limits!r}."
    )
  return float(limits[0]), float(limits[1])
