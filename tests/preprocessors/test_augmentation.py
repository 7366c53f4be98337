"""Augmentation: values, one draw for all frames, the same pixels after a resume."""

from __future__ import annotations

import colorsys
import itertools
import re

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, randomness, specs
from t2r_seq import preprocessors as pp

OFFSETS = (-1, 0)
RNG = np.random.default_rng(0)
FRAMES = RNG.integers(0, 256, (5, 2, 12, 16, 3), np.uint8)


def image_spec(size=(12, 16), dtype=tf.float32, channels=3, **fields):
  shape = (len(OFFSETS), *size, channels)
  defaults = {"name": "i", "data_format": "png", "time_offsets": OFFSETS}
  return specs.ExtendedTensorSpec(shape, dtype, **{**defaults, **fields})


def make(transforms, size=(12, 16), paths=("a",), dtype=tf.float32, **options):
  features = {path: image_spec(size, dtype) for path in paths}
  return pp.AugmentationPreprocessor(
    lambda mode: features, None, transforms=transforms, **options
  )


def run(preprocessor, images, mode="train", first=0, on_host=False):
  """Preprocesses the images, samples `first` and so on, at every path."""
  numbers = first + tf.range(len(images), dtype=tf.int64)
  paths = preprocessor.get_in_feature_specification(mode)
  with randomness.sample_number_scope(numbers, on_host):
    done, _ = preprocessor.preprocess(dict.fromkeys(paths, images), None, mode)
  return {path: image.numpy() for path, image in done.items()}


def one(transform, images=FRAMES, **options):
  return run(make([transform], **options), images)["a"]


NEXT = {"next": {"time_offsets": (0, 1)}, "last": {"time_offsets": (1, 2)}}


@pytest.mark.parametrize("share_cameras", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_labels_of_a_feature_camera_get_its_draw(mode, share_cameras):
  """`next_image` of a critic: the frames that both show are the same pixels."""
  feature = image_spec((8, 10), name="cam")
  labels = {
    path: specs.ExtendedTensorSpec.from_spec(feature, **fields)
    for path, fields in NEXT.items()
  }
  labels["other"] = specs.ExtendedTensorSpec((), tf.float32, "reward")
  chain = [pp.RandomCrop((8, 10)), pp.RandomFlip(), pp.ColorJitter(), pp.Cutout()]
  preprocessor = pp.AugmentationPreprocessor(
    lambda mode: {"image": feature},
    lambda mode: labels,
    transforms=chain,
    input_size=(12, 16),
    share_cameras=share_cameras,
    camera_dropout=0.2,
  )
  stored = preprocessor.get_in_label_specification(mode)
  for path in NEXT:
    assert (stored[path].shape[1:], stored[path].dtype) == ((12, 16, 3), tf.uint8)
  frames = RNG.integers(0, 256, (6, 4, 12, 16, 3), np.uint8)
  given = {"next": frames[:, 1:3], "last": frames[:, 2:4], "other": tf.zeros([6])}
  with randomness.sample_number_scope(tf.range(6, dtype=tf.int64)):
    features, done = preprocessor.preprocess({"image": frames[:, :2]}, given, mode)
  np.testing.assert_array_equal(features.image[:, 1], done["next"][:, 0])
  np.testing.assert_array_equal(done["next"][:, 1], done["last"][:, 0])
  assert done["last"].shape == (6, 2, 8, 10, 3)
  central = frames[:, 1, 2:10, 3:13] / np.float32(255)
  is_central = np.allclose(features.image[:, 1], central)
  assert is_central == (mode == "eval")


def test_labels_of_a_camera_have_the_models_size():
  feature = image_spec((8, 10), name="cam")
  label = image_spec((7, 10), name="cam")
  with pytest.raises(
    errors.SpecError, match=r"labels/next: expected images of \(7, 10"
  ):
    pp.AugmentationPreprocessor(
      lambda mode: {"image": feature},
      lambda mode: {"next": label},
      transforms=[pp.RandomCrop((8, 10))],
      input_size=(12, 16),
    )


def test_eval_and_infer_have_no_chance():
  chain = [
    pp.RandomCrop((8, 10)),
    pp.RandomFlip(),
    pp.RandomShift(2),
    pp.ColorJitter(),
    pp.GaussianNoise(),
    pp.GaussianBlur(),
    pp.Cutout(),
  ]
  chained = make(chain, (8, 10), input_size=(12, 16), camera_dropout=1.0)
  want = FRAMES[:, :, 2:10, 3:13] / np.float32(255)
  for mode in ("eval", "infer"):
    np.testing.assert_allclose(run(chained, FRAMES, mode)["a"], want, atol=1e-6)
  assert np.abs(run(chained, FRAMES)["a"] - want).max() > 0.1


def test_crop_is_a_window_of_each_sample():
  cropped = one(
    pp.RandomCrop((8, 10)), size=(8, 10), input_size=(12, 16), dtype=tf.uint8
  )
  found = []
  for sample, frames in zip(cropped, FRAMES, strict=True):
    places = [
      (y, x)
      for y, x in itertools.product(range(5), range(7))
      if np.array_equal(frames[:, y : y + 8, x : x + 10], sample)
    ]
    assert len(places) == 1  # Of both frames at once.
    found += places
  assert len(set(found)) > 1


def test_crops_reach_every_place():
  ramp = np.arange(12 * 16, dtype=np.uint8).reshape(1, 1, 12, 16, 1)
  ramp = np.broadcast_to(ramp, (200, 2, 12, 16, 3))
  done = one(
    pp.RandomCrop((10, 14)), ramp, size=(10, 14), input_size=(12, 16), dtype=tf.uint8
  )
  corners = set(done[:, 0, 0, 0, 0].tolist())
  assert corners == {y * 16 + x for y in range(3) for x in range(3)}


FIXED = {
  "center": (pp.CenterCrop((8, 10)), (8, 10), FRAMES[:, :, 2:10, 3:13]),
  "custom": (pp.CustomCrop((1, 2), (3, 4)), (3, 4), FRAMES[:, :, 1:4, 2:6]),
  "nearest": (pp.Resize((6, 8), "nearest"), (6, 8), FRAMES[:, :, 1::2, 1::2]),
  "no resize": (pp.Resize((12, 16)), (12, 16), FRAMES),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", FIXED)
def test_transforms_without_chance(name, mode):
  transform, size, want = FIXED[name]
  chained = make([transform], size, dtype=tf.uint8, input_size=(12, 16))
  np.testing.assert_array_equal(run(chained, FRAMES, mode)["a"], want)


def test_resize_is_that_of_tensorflow():
  done = one(pp.Resize((9, 7)), size=(9, 7), input_size=(12, 16))
  want = tf.image.resize(FRAMES.reshape(-1, 12, 16, 3) / np.float32(255), (9, 7))
  np.testing.assert_allclose(done.reshape(want.shape), want, atol=1e-6)


def test_flips_mirror_both_frames_or_none():
  frames = np.repeat(FRAMES, 10, axis=0)
  done = one(pp.RandomFlip(up_down=True), frames, dtype=tf.uint8)
  seen = set()
  for sample, given in zip(done, frames, strict=True):
    for y, x in itertools.product((1, -1), repeat=2):
      if np.array_equal(sample, given[:, ::y, ::x]):
        seen.add((y, x))
        break
    else:
      raise AssertionError("expected a mirrored sample")
  assert len(seen) == 4


def test_shifts_repeat_the_edges():
  done = one(pp.RandomShift(2), dtype=tf.uint8)
  seen = set()
  for sample, frames in zip(done, FRAMES, strict=True):
    padded = np.pad(frames, ((0, 0), (2, 2), (2, 2), (0, 0)), "edge")
    places = [
      (y, x)
      for y, x in itertools.product(range(5), range(5))
      if np.array_equal(padded[:, y : y + 12, x : x + 16], sample)
    ]
    assert len(places) == 1
    seen.update(places)
  assert len(seen) > 2


def jitter(**only):
  none = {"brightness": 0.0, "saturation": (1, 1), "hue": 0.0, "contrast": (1, 1)}
  return pp.ColorJitter(**{**none, **only})


def test_brightness_is_added():
  middle = np.clip(FRAMES, 80, 170)
  delta = one(jitter(brightness=0.2), middle) - middle / np.float32(255)
  each = delta.reshape(len(middle), -1)
  np.testing.assert_allclose(each, np.repeat(each[:, :1], each.shape[1], 1), atol=1e-6)
  assert np.abs(each).max() <= 0.2 and len(np.unique(each[:, 0].round(4))) == len(
    middle
  )


def test_contrast_is_about_the_mean_of_all_frames():
  low = (FRAMES // 4 + 96).astype(np.uint8)
  done, given = one(jitter(contrast=(0.5, 0.5)), low), low / np.float32(255)
  mean = given.mean(axis=(1, 2, 3), keepdims=True)
  np.testing.assert_allclose(done, (given + mean) / 2, atol=1e-5)


def test_saturation_is_about_the_luminance():
  done, given = one(jitter(saturation=(0, 0))), FRAMES / np.float32(255)
  gray = given @ np.float32([0.299, 0.587, 0.114])
  np.testing.assert_allclose(done, np.repeat(gray[..., None], 3, -1), atol=1e-5)


def test_hue_turns_colors_and_keeps_grays():
  frames = np.zeros((40, 2, 12, 16, 3), np.uint8)
  frames[:, 0] = 90
  frames[:, 1] = (140, 100, 100)
  done = one(jitter(hue=0.1), frames)
  np.testing.assert_allclose(done[:, 0], 90 / 255, atol=1e-5)
  np.testing.assert_allclose(done[:, 1].sum(axis=-1), 340 / 255, atol=1e-5)
  hues = [colorsys.rgb_to_hsv(*pixel)[0] for pixel in done[:, 1, 0, 0]]
  turns = (np.asarray(hues) + 0.5) % 1 - 0.5
  assert turns.min() < -0.05 and turns.max() > 0.05
  assert np.abs(turns).max() < 0.13  # Near the hue of HSV, whose circle is a hexagon.


def test_all_of_color_jitter_is_one_after_the_other():
  """Against an independent computation, sample by sample."""
  transform = pp.ColorJitter(0.1, (0.8, 1.2), 0.05, (0.9, 1.1))
  middle = (FRAMES // 4 + 96).astype(np.uint8)
  done = one(transform, middle)
  drawn = randomness.RandomNumbers(tf.range(5, dtype=tf.int64)).scoped("a").scoped("0")
  delta = drawn.uniform("brightness", -0.1, 0.1).numpy()
  factor = drawn.uniform("saturation", 0.8, 1.2).numpy()
  angle = drawn.uniform("hue", -0.05, 0.05).numpy() * 2 * np.pi
  contrast = drawn.uniform("contrast", 0.9, 1.1).numpy()
  axis = np.ones(3) / 3**0.5
  for i, sample in enumerate(middle / 255.0):
    pixels = (sample + delta[i]).reshape(-1, 3)
    gray = (pixels @ [0.299, 0.587, 0.114])[:, None]
    pixels = factor[i] * (pixels - gray) + gray
    along = (pixels @ axis)[:, None] * axis  # Rodrigues' rotation.
    pixels = (
      np.cos(angle[i]) * (pixels - along)
      + np.sin(angle[i]) * np.cross(axis, pixels)
      + along
    )
    pixels = contrast[i] * (pixels - pixels.mean(axis=0)) + pixels.mean(axis=0)
    np.testing.assert_allclose(done[i].reshape(-1, 3), pixels, atol=1e-5)


def test_noise_is_independent_in_every_pixel():
  gray = np.full((60, 2, 12, 16, 3), 128, np.uint8)
  noise = one(pp.GaussianNoise(0.05, probability=0.5), gray) - np.float32(128 / 255)
  deviation = noise.std(axis=(1, 2, 3, 4))
  assert 15 < np.sum(deviation > 0) < 45
  np.testing.assert_allclose(deviation[deviation > 0], 0.05, rtol=0.15)
  noisy = noise[deviation > 0]
  assert abs(np.corrcoef(noisy[:, 0].ravel(), noisy[:, 1].ravel())[0, 1]) < 0.05


def test_depth_noise_clips_in_all_modes():
  spec = image_spec(channels=1)
  noisy = pp.AugmentationPreprocessor(
    lambda mode: {"a": spec},
    None,
    transforms=[pp.DepthNoise(0.01, 0.05, 1.0, 0.25, 0.75)],
  )
  depths = np.full((30, 2, 12, 16, 1), 128, np.uint8)
  depths[:, :, 0], depths[:, :, 1] = 0, 255
  for mode in ("train", "eval"):
    done = run(noisy, depths, mode)["a"]
    assert (done[:, :, 0] == 0.25).all() and (done[:, :, 1] == 0.75).all()
  scales = run(noisy, depths)["a"][:, :, 2:].mean(axis=(1, 2, 3, 4)) / (128 / 255)
  assert 0.03 < scales.std() < 0.08 and abs(scales.mean() - 1) < 0.05


def test_cutout_hides_a_rectangle_of_both_frames():
  white = np.full((50, 2, 12, 16, 3), 255, np.uint8)
  done = one(pp.Cutout((0.25, 0.5), value=0.5, probability=0.5), white, dtype=tf.uint8)
  hidden = done != 255
  assert set(np.unique(done)) == {128, 255}
  np.testing.assert_array_equal(hidden[:, 0], hidden[:, 1])
  some = hidden.any(axis=(1, 2, 3, 4))
  assert 12 < some.sum() < 38
  for mask in hidden[some][:, 0, :, :, 0]:
    rows, columns = mask.any(axis=1), mask.any(axis=0)
    np.testing.assert_array_equal(mask, rows[:, None] & columns)
    assert rows.sum() <= 6 and columns.sum() <= 8


def test_blur_is_a_gaussian_filter():
  done = one(pp.GaussianBlur((0.8, 0.8), probability=1.0))
  kernel = np.exp(-np.square(np.arange(-3, 4) / 0.8) / 2)
  want = FRAMES / 255.0
  for axis in (2, 3):
    pads = [(3, 3) if i == axis else (0, 0) for i in range(5)]
    windows = np.lib.stride_tricks.sliding_window_view(
      np.pad(want, pads, "edge"), 7, axis
    )
    want = windows @ (kernel / kernel.sum())
  np.testing.assert_allclose(done, want, atol=1e-5)


def test_cameras_can_share_random_numbers():
  chain = [pp.RandomCrop((8, 10)), jitter(brightness=0.2)]
  options = {"size": (8, 10), "input_size": (12, 16), "paths": ("a", "b")}
  shared = run(make(chain, share_cameras=True, **options), FRAMES)
  np.testing.assert_array_equal(shared["a"], shared["b"])
  apart = run(make(chain, **options), FRAMES)
  assert np.abs(apart["a"] - apart["b"]).max() > 0.1
  alone = run(make(chain, **{**options, "paths": ("b",)}), FRAMES)
  np.testing.assert_array_equal(apart["b"], alone["b"])  # Whatever else there is.


def test_one_camera_is_left_at_least():
  frames = np.full((60, 2, 12, 16, 3), 255, np.uint8)
  for probability in (1.0, 0.4):
    dropping = make([], paths=("a", "b", "c"), camera_dropout=probability)
    done = run(dropping, frames)
    seen = np.stack([image.reshape(60, -1) for image in done.values()], axis=1)
    np.testing.assert_array_equal(seen.min(axis=-1), seen.max(axis=-1))
    left = seen[..., 0].sum(axis=1)
    assert left.min() == 1 and (left.max() == 1) == (probability == 1.0)
    assert np.all(seen[..., 0].sum(axis=0) > 0)  # Not always the same.


def test_host_and_device_and_any_batch_give_the_same_pixels():
  chain = [
    pp.RandomCrop((8, 10)),
    pp.RandomFlip(),
    pp.RandomShift(2),
    pp.ColorJitter(),
    pp.GaussianNoise(probability=1.0),
    pp.GaussianBlur((0.1, 0.3)),
    pp.Cutout(),
  ]
  chained = make(chain, (8, 10), input_size=(12, 16), seed=3)
  batched = run(chained, FRAMES)["a"]
  np.testing.assert_allclose(
    run(chained, FRAMES[3:], first=3)["a"], batched[3:], atol=1e-5
  )

  def compiled(numbers, images, on_host=False):
    with randomness.sample_number_scope(numbers, on_host):
      return chained.preprocess({"a": images}, None, "train")[0]["a"]

  numbers, frames = tf.range(5, dtype=tf.int64), tf.constant(FRAMES)
  device = tf.function(compiled, jit_compile=True)(numbers, frames)
  np.testing.assert_allclose(device, batched, atol=1e-4)
  host = tf.function(
    lambda *inputs: compiled(*inputs, on_host=True), reduce_retracing=True
  )
  np.testing.assert_allclose(host(numbers, frames), batched, atol=1e-5)
  np.testing.assert_array_equal(
    host(numbers[3:], frames[3:]), host(numbers, frames)[3:]
  )
  other = make(chain, (8, 10), input_size=(12, 16), seed=4)
  assert np.abs(run(other, FRAMES)["a"] - batched).max() > 0.1


def test_sequences_of_stacks_share_a_draw():
  spec = image_spec((8, 10), tf.uint8, is_sequence=True)
  chained = pp.AugmentationPreprocessor(
    lambda mode: {"a": spec},
    None,
    transforms=[pp.RandomCrop((8, 10))],
    input_size=(12, 16),
  )
  sequence = np.repeat(FRAMES[:, None], 3, axis=1)
  done = run(chained, sequence)["a"]
  assert done.shape == (5, 3, 2, 8, 10, 3)
  for i in range(3):
    np.testing.assert_array_equal(
      done[:, i],
      run(
        make([pp.RandomCrop((8, 10))], (8, 10), input_size=(12, 16), dtype=tf.uint8),
        FRAMES,
      )["a"],
    )


def episodes():
  for i in range(40):
    yield {"a": np.full((4, 6, 3), i, np.uint8)}, {}


class Model:
  padding = "repeat"

  def __init__(self):
    spec = specs.ExtendedTensorSpec((4, 6, 3), tf.float32, "i", data_format="png")
    self.preprocessor = pp.AugmentationPreprocessor(
      lambda mode: {"a": spec}, lambda mode: {}, transforms=[jitter(brightness=0.4)]
    )


def deltas(numbers):
  drawn = (
    randomness.RandomNumbers(tf.constant(numbers, tf.int64)).scoped("a").scoped("0")
  )
  return drawn.uniform("brightness", -0.4, 0.4).numpy()


@pytest.mark.parametrize("batch_size, start", [(4, 0), (2, 0), (4, 3)])
def test_input_generator_numbers_its_samples(batch_size, start):
  generator = data.GeneratorInputGenerator(
    episodes, batch_size=batch_size, shuffle_buffer_size=0
  )
  generator.set_specification_from_model(Model(), "train")
  dataset = generator.create_dataset("train", start_step=start)
  done = np.concatenate([f["a"].numpy() for f, _ in dataset.take(8 // batch_size)])
  raw = np.arange(8) / np.float32(255)  # A Python generator begins anew.
  want = np.clip(raw + deltas(range(start * batch_size, start * batch_size + 8)), 0, 1)
  np.testing.assert_allclose(done[:, 0, 0, 0], want, atol=1e-6)


class ShardedGenerator(data.GeneratorInputGenerator):
  """Takes it upon itself that each worker reads a part of its own."""

  reads_shards = True


def test_workers_take_turns_at_the_numbers():
  generator = ShardedGenerator(episodes, batch_size=4)
  spec = specs.ExtendedTensorSpec((4, 6, 3), tf.uint8, "i")
  generator.set_feature_specifications({"a": spec})
  generator.set_label_specifications({})
  generator.set_preprocess_fn(
    lambda features, labels: ({"numbers": randomness.sample_numbers()}, labels)
  )
  context = tf.distribute.InputContext(2, 1, 2)
  dataset = generator.create_dataset("train", input_context=context)
  features, _ = next(iter(dataset))
  np.testing.assert_array_equal(features["numbers"], [1, 3, 5, 7])


ERRORS = {
  "not the model's size": (
    {"transforms": [pp.RandomCrop((8, 8))]},
    "AugmentationPreprocessor: a: expected images of (12, 16), the model's, got (8, 8) "
    "of the transforms.",
  ),
  "larger than the image": (
    {"transforms": [pp.RandomCrop((20, 8))]},
    "RandomCrop: size: expected at most that of the images, (12, 16), got (20, 8).",
  ),
  "beside the image": (
    {"transforms": [pp.CustomCrop((8, 8), (5, 5))]},
    "CustomCrop: offset and size: expected a window inside of images of (12, 16), got "
    "one that ends at (13, 13).",
  ),
  "a class": (
    {"transforms": [pp.RandomFlip]},
    "In gin, make them: @RandomCrop(), with the parentheses.",
  ),
  "no such path": (
    {"transforms": [], "image_paths": ["b*"]},
    "AugmentationPreprocessor: image_paths: expected images among the features [a], "
    "got ['b*'].",
  ),
  "depth of colors": (
    {"transforms": [pp.DepthNoise()]},
    "DepthNoise: images: expected 1 channel, the depth, got 3.",
  ),
  "dropout": (
    {"transforms": [], "camera_dropout": 2},
    "AugmentationPreprocessor: camera_dropout: expected a number in [0, 1], got 2.",
  ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_augmentation_rejects_misfits_at_construction(name):
  options, want = ERRORS[name]
  with pytest.raises(errors.SpecError, match=re.escape(want)):
    make(**options)


ARGUMENTS = {
  "size": (lambda: pp.RandomCrop(8), "RandomCrop: size: expected two integers"),
  "range": (
    lambda: pp.ColorJitter(contrast=(2, 1)),
    "ColorJitter: contrast: expected two numbers, the least and the greatest",
  ),
  "pixels": (lambda: pp.RandomShift(0), "RandomShift: pixels: expected an integer"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_checked(name):
  create, want = ARGUMENTS[name]
  with pytest.raises(errors.SpecError, match=re.escape(want)):
    create()


def test_gin_composes_transforms():
  with gin.unlock_config():
    gin.parse_config(
      """
      AugmentationPreprocessor.transforms = [@RandomCrop(), @ColorJitter()]
      AugmentationPreprocessor.input_size = (12, 16)
      RandomCrop.size = (8, 10)
      ColorJitter.hue = 0.0
      """
    )
    try:
      preprocessor = pp.AugmentationPreprocessor(
        lambda mode: {"a": image_spec((8, 10))}, None
      )
    finally:
      gin.clear_config()
  spec = preprocessor.get_in_feature_specification("train")["a"]
  assert spec.shape == (2, 12, 16, 3) and spec.dtype == tf.uint8
  assert spec.time_offsets == OFFSETS
