"""What augmentation costs: random crops and colours of stacks of frames.

Run it as `python -m benchmarks.bench_augmentation [--rounds N] [--quick]`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from benchmarks import measure
from t2r_seq import preprocessors, randomness, specs

_COLORS = {
  "brightness": 0.125,
  "saturation": (0.5, 1.5),
  "hue": 0.1,
  "contrast": (0.5, 1.5),
}


@dataclasses.dataclass(frozen=True)
class AugmentationWork:
  """Batches of stacks of frames that are cropped and distorted.

  Attributes:
    batch_size: samples.
    num_frames: of each.
    size: height and width of a frame.
    crop: of what is cut from it.
    num_batches: in a round.
  """

  batch_size: int = 64
  num_frames: int = 4
  size: int = 128
  crop: int = 112
  num_batches: int = 5

  def frames(self) -> tf.Tensor:
    """Makes a batch, uint8."""
    shape = (self.batch_size, self.num_frames, self.size, self.size, 3)
    return tf.constant(np.random.default_rng(0).integers(0, 256, shape, np.uint8))


def _preprocess(work: AugmentationWork, on_host: bool) -> Callable[..., tf.Tensor]:
  shape = (work.num_frames, work.crop, work.crop, 3)
  offsets = range(1 - work.num_frames, 1)
  spec = specs.ExtendedTensorSpec(
    shape, tf.float32, "image", data_format="png", time_offsets=offsets
  )
  chain = preprocessors.AugmentationPreprocessor(
    lambda mode: {"image": spec},
    None,
    transforms=[
      preprocessors.RandomCrop((work.crop, work.crop)),
      preprocessors.ColorJitter(**_COLORS),
    ],
    input_size=(work.size, work.size),
  )

  def preprocess(frames: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    numbers = number * work.batch_size + tf.range(work.batch_size, dtype=tf.int64)
    with randomness.sample_number_scope(numbers, on_host):
      return chain.preprocess({"image": frames}, None, "train")[0]["image"]

  return preprocess


def _map_fn(work: AugmentationWork) -> Callable[..., tf.Tensor]:
  def distort(frame: tf.Tensor) -> tf.Tensor:
    frame = tf.image.random_crop(frame, [work.crop, work.crop, 3])
    frame = tf.image.convert_image_dtype(frame, tf.float32)
    frame = tf.image.random_brightness(frame, _COLORS["brightness"])
    frame = tf.image.random_saturation(frame, *_COLORS["saturation"])
    frame = tf.image.random_hue(frame, _COLORS["hue"])
    frame = tf.image.random_contrast(frame, *_COLORS["contrast"])
    return tf.clip_by_value(frame, 0.0, 1.0)

  def preprocess(frames: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    del number
    flat = tf.reshape(frames, [-1, work.size, work.size, 3])
    return tf.map_fn(distort, flat, fn_output_signature=tf.float32)

  return preprocess


def _runner(
  function: Callable[..., tf.Tensor], work: AugmentationWork, **options: bool
) -> measure.Run:
  compiled = tf.function(function, **options)
  frames = work.frames()

  def run() -> measure.Round:
    def one_round() -> int:
      for number in range(work.num_batches):
        compiled(frames, tf.constant(number, tf.int64))
      return work.num_batches * work.batch_size * work.num_frames

    return one_round

  return run


def run_on_host(work: AugmentationWork) -> measure.Run:
  """Augments as in an input pipeline."""
  return _runner(_preprocess(work, on_host=True), work)


def run_batched(work: AugmentationWork) -> measure.Run:
  """Augments as in a train step."""
  return _runner(_preprocess(work, on_host=False), work)


def run_compiled(work: AugmentationWork) -> measure.Run:
  """Augments as in a train step that XLA compiles."""
  return _runner(_preprocess(work, on_host=False), work, jit_compile=True)


def run_map_fn(work: AugmentationWork) -> measure.Run:
  """Augments each frame by the ops of `tf.image`."""
  return _runner(_map_fn(work), work)


CANDIDATES = (
  measure.Candidate("AugmentationPreprocessor, input", "ours", run_on_host),
  measure.Candidate("AugmentationPreprocessor, device", "ours", run_batched),
  measure.Candidate("AugmentationPreprocessor, XLA", "ours", run_compiled),
  measure.Candidate("map_fn of tf.image ops", "peer", run_map_fn),
)


def main(argv: Sequence[str] | None = None) -> str:
  """Runs all candidates; prints and returns the table."""
  args = measure.parse_args(__doc__, argv)
  work = AugmentationWork()
  if args.quick:
    work = AugmentationWork(2, 2, 16, 12, 1)
  figures = measure.compare(CANDIDATES, work, args.rounds, isolate=not args.quick)
  text = measure.table(CANDIDATES, figures, "frames/s")
  print(text)
  return text


if __name__ == "__main__":
  main()
