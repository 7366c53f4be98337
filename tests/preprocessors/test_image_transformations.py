"""Tensor2Robot's functions of images: what they promise there."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, randomness
from t2r_seq.preprocessors import distortion, image_transformations

X, Y = np.meshgrid(np.arange(32, dtype=np.float32), np.arange(24, dtype=np.float32))
# Of each pixel the red value is x, the others are y.
RAMP = tf.constant(np.tile(np.stack([X, Y, Y], axis=-1), (4, 1, 1, 1)))
UNIT = RAMP / 32
SHAPE = (24, 32, 3)


def corner(image):
  return int(image[0, 0, 0, 1]), int(image[0, 0, 0, 0])


def test_random_crops_are_one_window_of_all_images():
  seen = set()
  for _ in range(20):
    first, second = image_transformations.RandomCropImages(
      [RAMP, RAMP + 0], SHAPE, [20, 30]
    )
    y, x = corner(first)
    np.testing.assert_array_equal(first, RAMP[:, y : y + 20, x : x + 30])
    np.testing.assert_array_equal(first, second)
    seen.add((y, x))
  assert len(seen) > 3
  whole = image_transformations.RandomCropImages([RAMP], SHAPE, SHAPE[:2])[0]
  np.testing.assert_array_equal(whole, RAMP)
  with pytest.raises(tf.errors.InvalidArgumentError, match="expected at most"):
    image_transformations.RandomCropImages([RAMP], SHAPE, [20, 64])


@pytest.mark.parametrize("size", [(20, 20), (24, 32), (23, 31)])
def test_center_crops(size):
  done = image_transformations.CenterCropImages([RAMP], SHAPE, size)[0]
  y, x = (24 - size[0]) // 2, (32 - size[1]) // 2
  np.testing.assert_array_equal(done, RAMP[:, y : y + size[0], x : x + size[1]])


def test_custom_crops_are_around_places_and_inside():
  centers = tf.constant([[12, 12], [0, 0], [23, 31], [12, 4]])
  done = image_transformations.CustomCropImages([RAMP], SHAPE, [10, 8], [centers])[0]
  corners = [(7, 8), (0, 0), (14, 24), (7, 0)]
  for sample, (y, x) in zip(done, corners, strict=True):
    np.testing.assert_array_equal(sample, RAMP[0, y : y + 10, x : x + 8])


WRONG = {
  "input": ("RandomCropImages", ([24, 32], [20, 20]), "input_shape: expected (height"),
  "inputs": ("CenterCropImages", ([24, 32, 3, 4], [20, 20]), "input_shape: expected"),
  "target": ("RandomCropImages", (SHAPE, [20]), "target_shape: expected (height, wid"),
  "targets": ("CenterCropImages", (SHAPE, [20, 3, 1]), "target_shape: expected"),
  "images": ("CenterCropImages", ((9, 9, 3), [2, 2]), "images: expected height and wi"),
  "large": ("CustomCropImages", (SHAPE, [53, 8], [None]), "expected at most (24, 32)"),
  "places": ("CustomCropImages", (SHAPE, [8, 8], []), "expected one for each of 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_shapes_are_refused(name):
  function, arguments, want = WRONG[name]
  with pytest.raises(errors.SpecError, match=re.escape(want)):
    getattr(image_transformations, function)([RAMP], *arguments)


ALL = {
  "random_brightness": True,
  "random_saturation": True,
  "random_hue": True,
  "random_contrast": True,
}


def test_photometric_distortions_are_one_of_all_images():
  images = [UNIT[0], UNIT[1]]
  plain = image_transformations.ApplyPhotometricImageDistortions(images)
  np.testing.assert_array_equal(plain, [UNIT[0], UNIT[1]])
  done = image_transformations.ApplyPhotometricImageDistortions(images, **ALL)
  np.testing.assert_array_equal(done[0], done[1])
  assert images[0] is not done[0] and np.abs(done[0] - UNIT[0]).max() > 0.01
  assert np.min(done) >= 0 and np.max(done) <= 1
  noisy = image_transformations.ApplyPhotometricImageDistortions(
    images, random_noise_level=0.1, random_noise_apply_probability=1.0
  )
  assert np.abs(noisy[0] - noisy[1]).max() > 0.1


def test_global_seed_makes_draws_repeatable():
  done = []
  for seed in (1, 1, 2):
    tf.random.set_seed(seed)
    apply = image_transformations.ApplyPhotometricImageDistortions
    done.append(apply([UNIT], **ALL)[0].numpy())
  np.testing.assert_array_equal(done[0], done[1])
  assert np.abs(done[0] - done[2]).max() > 0.01


def test_photometric_distortions_are_those_of_tf_image():
  with randomness.sample_number_scope(tf.constant([7], tf.int64)):
    done = image_transformations.ApplyPhotometricImageDistortions([UNIT], **ALL)[0]
  drawn = randomness.RandomNumbers(tf.constant([7], tf.int64)).scoped("call 1")
  want = tf.image.adjust_brightness(UNIT, drawn.uniform("brightness", -0.125, 0.125)[0])
  want = tf.image.adjust_saturation(want, drawn.uniform("saturation", 0.5, 1.5)[0])
  want = tf.image.adjust_hue(want, drawn.uniform("hue", -0.2, 0.2)[0])
  want = tf.image.adjust_contrast(want, drawn.uniform("contrast", 0.5, 1.5)[0])
  np.testing.assert_allclose(done, tf.clip_by_value(want, 0, 1), atol=1e-6)


def test_parallel_distortions_are_those_of_each_image():
  apply = image_transformations.ApplyPhotometricImageDistortionsParallel
  with randomness.sample_number_scope(tf.constant([7, 9, 20, 21], tf.int64)):
    done = apply(UNIT, **ALL)
  drawn = randomness.RandomNumbers(tf.range(7, 11, dtype=tf.int64)).scoped("call 1")
  delta = drawn.uniform("brightness", -0.125, 0.125)
  saturation, hue = (
    drawn.uniform("saturation", 0.5, 1.5),
    drawn.uniform("hue", -0.2, 0.2),
  )
  contrast = drawn.uniform("contrast", 0.5, 1.5)
  for i in range(4):
    # Where brightness leaves [0, 1] HSV means little: those pixels are left out.
    lit = tf.image.adjust_brightness(UNIT[i], delta[i])
    want = tf.image.adjust_saturation(lit, saturation[i])
    want = tf.image.adjust_hue(want, hue[i])
    mean = tf.reduce_mean(want, axis=[0, 1])
    want = tf.clip_by_value((want - mean) * contrast[i] + mean, 0, 1)
    inside = tf.reduce_all((lit > 0) & (lit < 1), axis=-1)
    difference = tf.abs(done[i] - want)[inside]
    assert np.quantile(difference, 0.9) < 0.05
  assert np.abs(done[0] - done[1]).max() > 0.01
  ones = apply(UNIT, custom_distortion_fn=tf.ones_like)
  np.testing.assert_array_equal(ones, np.ones_like(UNIT))


def test_cheap_distortions_are_powers_of_channels():
  done = image_transformations.ApplyPhotometricImageDistortionsCheap(UNIT).numpy()
  inside = UNIT.numpy()[:, 1:, 1:] - 0
  powers = np.log(done[:, 1:, 1:]) / np.log(inside)
  for channel in range(3):
    own = powers[..., channel]
    np.testing.assert_allclose(own, own.mean(), rtol=1e-2)
    assert 0.5 <= own.mean() <= 1.5


def test_flips_are_one_of_all_images():
  seen = set()
  for _ in range(30):
    done = image_transformations.ApplyRandomFlips(UNIT).numpy()
    ways = {(y, x): UNIT.numpy()[:, ::y, ::x] for y in (1, -1) for x in (1, -1)}
    seen.update(way for way, want in ways.items() if np.array_equal(done, want))
  assert len(seen) == 4


def test_depth_distortions():
  depths = [tf.fill([24, 32, 1], 1.0), tf.fill([24, 32, 1], 9.0)]
  apply = image_transformations.ApplyDepthImageDistortions
  done = apply(depths, random_noise_apply_probability=1.0)
  assert 0.03 < np.std(done[0]) < 0.07
  assert np.max(done[1]) == 2.5
  still = apply(depths, random_noise_level=0.0)
  np.testing.assert_array_equal(still[0], depths[0])
  scaled = [
    apply(depths, 1e-9, random_noise_apply_probability=1.0)[0].numpy().mean()
    for _ in range(20)
  ]
  assert 0.01 < np.std(scaled) < 0.06
  with pytest.raises(errors.SpecError, match="1: expected one channel"):
    apply([depths[0], UNIT[0]])


@pytest.mark.parametrize("is_sequence", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_preprocess_image(mode, is_sequence):
  images = tf.cast(RAMP, tf.uint8)
  images = tf.stack([images, images], axis=1) if is_sequence else images
  done = distortion.preprocess_image(
    images, mode, is_sequence, (24, 32), (10, 14), crop_size=(20, 28)
  )
  assert done.shape == (*images.shape[:-3], 10, 14, 3) and done.dtype == tf.float32
  if mode != "train":
    centered = tf.image.resize(RAMP[:, 2:22, 2:30] / 255, (10, 14))
    np.testing.assert_allclose(
      np.reshape(done, (-1, 10, 14, 3))[-4:], centered, atol=1e-6
    )


def test_distortion_by_mode():
  for function in (
    distortion.maybe_distort_image_batch,
    distortion.maybe_distort_and_flip_image_batch,
  ):
    np.testing.assert_array_equal(function(UNIT, "eval"), UNIT)
    assert function(UNIT, mode="train").shape == UNIT.shape
  assert distortion.crop_image(RAMP, "train", (24, 32), [24, 32]) is RAMP
